"""`python manage.py issue_token USERNAME [--create] [--staff] [--days N]`: prints a token and nothing else."""

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
        "Prints a new bearer token of a user and nothing else. The token is shown once: the database keeps its hash. "
        "A created user has no password and cannot sign in to pages until one is set with changepassword."
    )
    requires_system_checks = ()  # a warning of an unrelated part is no reason to refuse a token

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("username")
        parser.add_argument("--create", action="store_true", help="create the user if there is none")
        parser.add_argument(
            "--staff",
            action="store_true",
            help="make the created user staff and superuser; a user who exists must be staff already",
        )
        parser.add_argument("--days", type=int, help="days until the token expires (default: as in REST_KNOX)")

    @transaction.atomic
    def handle(self, *, username: str, create: bool, staff: bool, days: int | None, **_later: Any) -> None:
        if days is not None and not 1 <= days <= MAX_DAYS:
            raise CommandError(f"--days must be between 1 and {MAX_DAYS}.")
        user = User.objects.filter(username=username).first() or created(username, create=create, staff=staff)
        if not user.is_active:
            raise CommandError("This user is inactive.")
        if staff and not user.is_staff:
            raise CommandError("This user exists and is not staff; --staff does not change users who exist.")
        expiry = knox_settings.TOKEN_TTL if days is None else timedelta(days=days)
        _, token = AuthToken.objects.create(user, expiry=expiry)
        self.stdout.write(token)


def created(username: str, *, create: bool, staff: bool) -> User:
    if not create:
        raise CommandError("There is no such user; --create makes one.")
    user = User(username=username, is_staff=staff, is_superuser=staff)
    user.set_unusable_password()
    try:
        user.full_clean()
    except ValidationError as error:
        raise CommandError(" ".join(error.messages)) from None
    user.save()
    return user
