"""`python manage.py issue_token USERNAME [--create] [--staff] [--days N]`: print a new token."""

from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError
from django.db import transaction
from knox.models import AuthToken
from knox.settings import knox_settings

MAX_DAYS = 3650


class Command(BaseCommand):
    help = (
        "Creates a bearer token for a user and prints only the token. It is shown once: the database stores its hash. "
        "A user created with --create has no password; set one with changepassword to allow sign-in to the pages."
    )
    requires_system_checks = ()  # a warning of an unrelated part must not block a token

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("username")
        parser.add_argument("--create", action="store_true", help="create the user if it does not exist")
        parser.add_argument(
            "--staff",
            action="store_true",
            help="make the created user staff and superuser; an existing user must already be staff",
        )
        parser.add_argument(
            "--days", type=int, help="days until the token expires (default: REST_KNOX in the settings)"
        )

    @transaction.atomic
    def handle(self, *, username: str, create: bool, staff: bool, days: int | None, **_kwargs: Any) -> None:
        if days is not None and not 1 <= days <= MAX_DAYS:
            raise CommandError(f"--days is {days}; it must be between 1 and {MAX_DAYS}.")
        user = User.objects.filter(username=username).first() or created(username, create=create, staff=staff)
        if not user.is_active:
            raise CommandError("This user is inactive.")
        if staff and not user.is_staff:
            raise CommandError("This user exists and is not staff. --staff does not change existing users.")
        expiry = knox_settings.TOKEN_TTL if days is None else timedelta(days=days)
        _, token = AuthToken.objects.create(user, expiry=expiry)
        self.stdout.write(token)


def created(username: str, *, create: bool, staff: bool) -> User:
    if not create:
        raise CommandError("User not found. Use --create to create it.")
    user = User(username=username, is_staff=staff, is_superuser=staff)
    user.set_unusable_password()
    try:
        user.full_clean()
    except ValidationError as error:
        raise CommandError(" ".join(error.messages)) from None
    user.save()
    return user
