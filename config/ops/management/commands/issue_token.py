"""`python manage.py issue_token USER [--name NAME] [--scopes A,B] [--create] [--staff] [--role ROLE] [--days N]`."""

from argparse import ArgumentParser
from typing import Any

from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError
from django.db import transaction

from config.platform.http import roles, scopes, tokens


class Command(BaseCommand):
    help = (
        "Creates a bearer token for a user and prints only the token. It is shown once: the database stores its hash. "
        "A user created with --create has no password; set one with changepassword to allow sign-in to the pages."
    )
    requires_system_checks = ()  # a warning from an unrelated check must not block a token

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("username")
        parser.add_argument("--create", action="store_true", help="create the user if it does not exist")
        parser.add_argument(
            "--staff",
            action="store_true",
            help="make the created user staff and superuser; an existing user must already be staff",
        )
        parser.add_argument("--role", choices=roles.GROUPS, help="make the created user staff with this role")
        parser.add_argument("--days", type=int, default=tokens.DAYS, help="days until the token expires (%(default)s)")
        parser.add_argument("--name", default="", help="what the token is for")
        parser.add_argument(
            "--scopes",
            default="",
            help=f"what the token permits, separated by commas: {', '.join(scopes.ALL)} (default: all)",
        )

    @transaction.atomic
    def handle(self, *, username: str, create: bool, staff: bool, **options: Any) -> None:
        days, name = options["days"], options["name"].strip()
        if not 1 <= days <= tokens.MAX_DAYS:
            raise CommandError(f"--days is {days}; it must be between 1 and {tokens.MAX_DAYS}.")
        if len(name) > tokens.MAX_NAME:
            raise CommandError(f"--name has {len(name)} characters; the limit is {tokens.MAX_NAME}.")
        wanted = [each.strip() for each in options["scopes"].split(",") if each.strip()]
        if unknown := set(wanted) - set(scopes.ALL):
            raise CommandError(f"Unknown scopes: {', '.join(sorted(unknown))}. Known: {', '.join(scopes.ALL)}.")
        user = User.objects.filter(username=username).first() or create_user(
            username, create=create, staff=staff, role=options["role"]
        )
        if not user.is_active:
            raise CommandError("This user is inactive.")
        if staff and not user.is_staff:
            raise CommandError("This user exists and is not staff. --staff does not change existing users.")
        if (role := options["role"]) and not user.groups.filter(name=roles.GROUPS[role]).exists():
            raise CommandError("This user exists without this role. --role does not change existing users.")
        _, text = tokens.create(user, name=name, scopes=wanted, days=days, maximum=None)
        self.stdout.write(text)


def create_user(username: str, *, create: bool, staff: bool, role: str | None) -> User:
    if not create:
        raise CommandError("User not found. Use --create to create it.")
    user = User(username=username, is_staff=staff, is_superuser=staff)
    user.set_unusable_password()
    try:
        user.full_clean()
    except ValidationError as error:
        raise CommandError(" ".join(error.messages)) from None
    user.save()
    if role:
        roles.assign(user, role)
    return user
