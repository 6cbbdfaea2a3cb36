"""Access of staff to the objects of other users: permissions, and records in the change history.

Staff status alone grants no access. API, pages, and admin require Django's permissions `view_…` and `change_…` of the
model. Data, such as results, also requires `platform.open_data`. Superusers have all permissions.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth import get_permission_codename
from django.contrib.auth.models import User
from django.contrib.contenttypes.models import ContentType
from django.db.models import Model
from django.utils import timezone

from config.platform.http import audit, roles
from config.platform.http.problems import NotPermitted, Problem

OPEN_DATA = "platform.open_data"
RECORD_EVERY = timedelta(hours=1)  # repeated accesses within this time are recorded once


def permission_of(model: type[Model], verb: str = "view") -> str:
    return f"{model._meta.app_label}.{get_permission_codename(verb, model._meta)}"


def may(user: Any, model: type[Model], verb: str = "view") -> bool:
    """Return whether the user may view or change the rows of all users."""
    return bool(user.is_staff and user.has_perm(permission_of(model, verb)))


def may_change(user: Any, row: Any, verb: str = "change") -> bool:
    """Return whether the user owns the row, or may change or delete the rows of all users. Auditors may do neither."""
    return (row.user_id == user.pk or may(user, type(row), verb)) and not roles.is_auditor(user)


def require_change(user: Any, row: Any, verb: str = "change") -> None:
    """Raise NotPermitted for another user's row without the permission to change or delete it."""
    if not may_change(user, row, verb):
        raise NotPermitted(f"You may view this object of another user, but not {verb} it.")


def may_open(user: Any, owner_id: int) -> bool:
    """Return whether the user may open the owner's data. Viewing the state of a row requires only `view_…`."""
    return bool(owner_id == user.pk or (user.is_staff and user.has_perm(OPEN_DATA)))


def require_data(user: Any, owner_id: int) -> None:
    """Raise NotPermitted for data of another user without the permission to open it."""
    if not may_open(user, owner_id):
        raise NotPermitted("You may view the state of this object of another user, but not its data.")


def record(user: Any, row: Any, message: str) -> LogEntry | None:
    """Record a staff action on another user's row. Return None if the user owns the row."""
    if row.user_id == user.pk:
        return None
    entry: LogEntry = LogEntry.objects.log_actions(user.pk, [row], CHANGE, change_message=message, single_object=True)
    return entry


# Users cannot choose this name: it has a space.
COMMAND_LINE = "command line"


def record_command(row: Model, message: str, *, action: int = CHANGE) -> None:
    """Record a change by a manage.py command, as an account that cannot sign in."""
    account, is_new = User.objects.get_or_create(username=COMMAND_LINE, defaults={"is_active": False})
    if is_new:
        account.set_unusable_password()
        account.save(update_fields=["password"])
    LogEntry.objects.log_actions(account.pk, [row], action, change_message=message, single_object=True)


@contextmanager
def recorded(user: Any, row: Any, message: str) -> Iterator[None]:
    """Record a change of another user's row.

    The record is written first, so that a crash cannot leave a change unrecorded. It is deleted if the change is
    refused.
    """
    entry = record(user, row, message)
    try:
        yield
    except Problem:
        if entry:
            entry.delete()
        raise


def record_access(user: Any, row: Any, message: str) -> None:
    """Record, before the response is sent, that the content of a row is opened.

    If staff open another user's row, the access is also recorded in the row's history, at most once an hour for each
    message. Raises NotPermitted for staff without the permission to open data.
    """
    require_data(user, row.user_id)
    audit.mark_opened()
    if row.user_id == user.pk:
        return
    known = LogEntry.objects.filter(
        user_id=user.pk,
        content_type=ContentType.objects.get_for_model(row),
        object_id=row.pk,
        change_message=message,
        action_time__gt=timezone.now() - RECORD_EVERY,
    )
    if not known.exists():
        record(user, row, message)
