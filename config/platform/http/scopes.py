"""Scopes of tokens: the actions that a token permits, within its user's permissions.

Each API view has an attribute `scopes`. A view without one refuses tokens with scopes. Browser sessions have no scopes.
"""

from typing import Any, NamedTuple

from knox.models import AuthToken
from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request

from config.platform.http.problems import Problem

ALL = ("exports:read", "exports:write", "documents:read", "documents:write", "rules:write", "webhooks:write")


class Scopes(NamedTuple):
    """The scopes of a view, for safe methods and for unsafe methods. One of them is sufficient.

    If there are none, only tokens without scopes are accepted.
    """

    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()

    def of(self, method: str) -> tuple[str, ...]:
        return self.read if method in SAFE_METHODS else self.write


EXPORTS = Scopes(("exports:read",), ("exports:write",))
DATA = Scopes(("exports:read",), ("exports:read",))  # creating a link to data by POST counts as reading
DOCUMENTS = Scopes(("documents:read",), ("documents:write",))
RULES = Scopes(("documents:read", "rules:write"), ("rules:write",))
WEBHOOKS = Scopes(("webhooks:write",), ("webhooks:write",))
NONE = Scopes()


class InsufficientScope(Problem):
    """The token lacks a required scope. The header is that of RFC 6750."""

    status = 403
    code = "insufficient_scope"
    detail = "The token does not have the scope that this request needs."

    def __init__(self, needed: tuple[str, ...]) -> None:
        detail = "This request needs a token that was created without scopes."
        if needed:
            detail = f"The token needs the scope {' or '.join(needed)}."
        scope = f', scope="{needed[0]}"' if needed else ""
        super().__init__(detail, headers={"WWW-Authenticate": f'Bearer error="insufficient_scope"{scope}'})


class HasScope(BasePermission):
    def has_permission(self, request: Request, view: Any) -> bool:
        """Raise InsufficientScope, unless the token has a scope of the view. Unsupported methods are left to DRF."""
        if is_limited(request) and hasattr(view, str(request.method).lower()):
            needed = needed_by(view, str(request.method))
            if not set(needed) & set(of_token(request.auth)):
                raise InsufficientScope(needed)
        return True


def permits(request: Request, scope: str) -> bool:
    """Return whether the request is permitted: it has no token, a token without scopes, or one with the scope."""
    return not is_limited(request) or scope in of_token(request.auth)


def require_scope(request: Request, scope: str) -> None:
    """Raise InsufficientScope if the request has a token with other scopes only."""
    if not permits(request, scope):
        raise InsufficientScope((scope,))


def needed_by(view: Any, method: str) -> tuple[str, ...]:
    return getattr(view, "scopes", NONE).of(method)


def is_limited(request: Request) -> bool:
    """Return whether the request has a token that is limited by scopes."""
    return isinstance(request.auth, AuthToken) and bool(of_token(request.auth))


def of_token(token: AuthToken) -> list[str]:
    """Return the scopes of a token. An empty list means all scopes."""
    details: Any = getattr(token, "details", None)
    return details.scopes if details else []


def is_unlimited_staff(request: Request) -> bool:
    """Return whether the user is staff, and the request is not limited by scopes."""
    return bool(request.user.is_staff) and not is_limited(request)
