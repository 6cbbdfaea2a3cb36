"""Row locks that several apps use."""

from django.contrib.auth.models import User


def lock_user(user_id: int) -> None:
    """Lock a user's row until the transaction ends, so that parallel requests cannot exceed a limit per user."""
    User.objects.select_for_update(no_key=True).get(pk=user_id)
