"""Audit entries of each sign-in, refused sign-in, and sign-out, on pages and in the admin.

Every process imports this module; `sign_in` with its libraries would take 15 MB in each worker.
"""

from typing import Any

from django.contrib.auth.models import User
from django.contrib.auth.signals import user_logged_in, user_logged_out, user_login_failed
from django.dispatch import receiver
from django.http import HttpRequest

from config.platform.http import audit
from config.platform.models import AuditEntry

WAIT = "sign_in_wait"  # request attribute: seconds until the next attempt is allowed


@receiver(user_logged_in, dispatch_uid="audit_sign_in")
def record_sign_in(request: HttpRequest, user: User, **_signal: Any) -> None:
    record(request, "sign-in", user.pk, AuditEntry.Outcome.SUCCESS)


@receiver(user_logged_out, dispatch_uid="audit_sign_out")
def record_sign_out(request: HttpRequest, user: User | None, **_signal: Any) -> None:
    if user is not None:
        record(request, "sign-out", user.pk, AuditEntry.Outcome.SUCCESS)


@receiver(user_login_failed, dispatch_uid="audit_refused_sign_in")
def record_refusal(credentials: dict[str, Any], request: HttpRequest | None = None, **_signal: Any) -> None:
    """Record a refused sign-in, with the user if it exists. The name is not stored: it may be a mistyped password.

    Attempts above the rate limit are not recorded, because their number is unbounded.
    """
    if request is None or hasattr(request, WAIT):
        return
    user_id = User.objects.filter(username=credentials.get("username") or "").values_list("pk", flat=True).first()
    record(request, "sign-in", user_id, AuditEntry.Outcome.REFUSED)


def record(request: HttpRequest, action: str, user_id: int | None, outcome: str) -> None:
    values = audit.fields_of(request) | {"via": AuditEntry.Via.SIGN_IN, "user_id": user_id, "action": action}
    audit.Pending(lambda: values).write(outcome=outcome)
