"""Initial data of the database, created before the web process starts.

`python -m config.dev.stack.prepare USERNAME PASSWORD_FILE TOKEN_FILE` is a separate process, because it loads Django's
settings, which the stack itself must not do.
"""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from io import StringIO
from pathlib import Path

import django
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.utils import timezone
from rest_framework.exceptions import AuthenticationFailed

from config.dev.stack import flights
from config.platform import startup


def main(username: str, password: Path, token: Path) -> None:
    django.setup()
    startup.require_valid_settings()  # call_command("migrate") runs no checks
    with ThreadPoolExecutor(1) as threads:
        loading = threads.submit(flights.load, os.environ["SOURCE_DATABASE_URL"])
        call_command("migrate", interactive=False, verbosity=0)
        create_superuser(username, password.read_text())
        loading.result()
    register_flights()
    if not is_valid(token.read_text()):
        token.write_text(issue_token(username))


def create_superuser(username: str, password: str) -> None:
    users = get_user_model().objects
    user, _ = users.update_or_create(username=username, defaults={"is_staff": True, "is_superuser": True})
    if not user.check_password(password):  # a new hash would end the sessions of browsers
        user.set_password(password)
        user.save()


def register_flights() -> None:
    options = ["flights", "--function", flights.FUNCTION, "--base-path", "flights"]
    call_command("register_dataset", *options, stdout=StringIO())


def is_valid(token: str) -> bool:
    """Return whether the token of an earlier start still works, for a day at least."""
    from config.platform.http.auth import BearerAuthentication  # needs Django's settings

    try:
        _, row = BearerAuthentication().authenticate_credentials(token.encode())
    except AuthenticationFailed:
        return False
    return row.expiry is None or row.expiry > timezone.now() + timedelta(days=1)


def issue_token(username: str) -> str:
    output = StringIO()
    call_command("issue_token", username, "--create", "--staff", "--name", "make up", stdout=output)
    return output.getvalue().strip()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
