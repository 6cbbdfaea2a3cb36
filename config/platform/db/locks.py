"""Locks of rows that several apps take."""

from django.contrib.auth.models import User


def lock_user(user_id: int) -> None:
    """Lock the row of a user until the transaction ends: parallel requests must not exceed a limit per user."""
    User.objects.select_for_update(no_key=True).get(pk=user_id)
