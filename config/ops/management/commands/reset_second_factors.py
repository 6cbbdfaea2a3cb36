"""`python manage.py reset_second_factors USERNAME`."""

from argparse import ArgumentParser
from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError

from config.platform.http import second_factor
from config.platform.plurals import counted


class Command(BaseCommand):
    help = (
        "Removes all second factors and recovery codes of a user who lost them, and ends the user's sessions. The user "
        "then signs in with the password alone, and sets up a new second factor if REQUIRE_MFA demands it."
    )
    requires_system_checks = ()  # a warning from an unrelated check must not block it

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("username")

    def handle(self, *, username: str, **_options: Any) -> None:
        user = User.objects.filter(username=username).first()
        if user is None:
            raise CommandError("User not found.")
        removed, ended = second_factor.reset(user)
        self.stdout.write(f"Removed {counted(removed, 'second factor')}, ended {counted(ended, 'session')}.")
