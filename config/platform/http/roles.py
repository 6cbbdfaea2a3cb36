"""Roles of staff: groups whose permissions each release sets. docs/access.md has the table.

Staff without a role have only the permissions that were assigned individually. Superusers have all permissions, even
with a role.
"""

from typing import Any

from django.contrib.auth.models import Group, Permission, User
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.urls import ResolverMatch
from django.utils.deprecation import MiddlewareMixin
from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request

from config.platform.http import audit
from config.platform.http.error_handling import is_page, respond_by_path
from config.platform.http.problems import NotPermitted

OPERATOR, AUDITOR, ADMINISTRATOR = "operator", "auditor", "administrator"
# The names contain that of the product, so that they do not match groups that the organization already has.
GROUPS = {OPERATOR: "Sluice operators", AUDITOR: "Sluice auditors", ADMINISTRATOR: "Sluice administrators"}
APPS = ("exports", "etl", "rules")
# The IP addresses in links and downloads, and the texts of documents in samples and reviews.
HIDDEN_FROM_OPERATORS = ("view_link", "view_download", "view_sample", "view_samplerun", "view_reviewevent")
CHANGED_BY_OPERATORS = (
    "change_job",
    "change_chunk",
    "change_slot",
    "change_schedule",
    "change_webhook",
    "change_delivery",
    "change_task",
    "change_documentbatch",
)
# Prefixes of routes on which users change only their own account: password, second factors, tokens.
OWN_ACCOUNT = (
    "app/account",
    "app/sign-in",
    "app/sign-out",
    "tokens",
    "admin/login",
    "admin/logout",
    "admin/password_change",
)


# ---- Permissions ----------------------------------------------------------------------------------------------------
def permissions_of(role: str) -> Q:
    views = Q(codename__startswith="view_")
    if role == OPERATOR:
        visible = Q(content_type__app_label__in=("exports", "etl")) & views & ~Q(codename__in=HIDDEN_FROM_OPERATORS)
        return visible | Q(content_type__app_label__in=APPS, codename__in=CHANGED_BY_OPERATORS)
    if role == AUDITOR:
        return views | Q(codename="open_data")
    accounts = Q(content_type__app_label="auth", codename__in=("add_user", "change_user"))
    tokens = Q(content_type__app_label="knox", codename="delete_authtoken")
    return views | Q(content_type__app_label__in=APPS) | Q(codename="open_data") | accounts | tokens


def create_groups() -> None:
    """Create missing groups, and set the permissions of all groups to those of this release. Members are kept."""
    for role, name in GROUPS.items():
        group, _ = Group.objects.get_or_create(name=name)
        group.permissions.set(Permission.objects.filter(permissions_of(role)))


def assign(user: User, role: str) -> None:
    """Make a user staff with a role."""
    User.objects.filter(pk=user.pk).update(is_staff=True)
    user.groups.add(Group.objects.get(name=GROUPS[role]))


# ---- Auditors -------------------------------------------------------------------------------------------------------
class AuditorIsReadOnly(NotPermitted):
    detail = "Auditors can read everything, and change nothing but their own account."


def is_auditor(user: Any) -> bool:
    """Return whether the user may only read, regardless of other permissions. Runs at most one query, for staff."""
    if not user.is_active or not user.is_staff or user.is_superuser:
        return False
    known: bool | None = getattr(user, "_is_auditor", None)
    if known is None:
        user._is_auditor = known = user.groups.filter(name=GROUPS[AUDITOR]).exists()  # cached for this request
    return known


def is_refused(user: Any, method: str | None, match: ResolverMatch | None) -> bool:
    """Return whether a request is a change by an auditor."""
    if method in SAFE_METHODS or match is None or match.route.startswith(OWN_ACCOUNT):
        return False
    return audit.audited_requests_of(match).writes and is_auditor(user)


class DenyAuditorChanges(BasePermission):
    """Permission class that denies changes by auditors. Raises AuditorIsReadOnly."""

    def has_permission(self, request: Request, view: Any) -> bool:
        if is_refused(request.user, request.method, request._request.resolver_match):
            raise AuditorIsReadOnly
        return True


class ReadOnlyAuditorMiddleware(MiddlewareMixin):
    """Middleware that refuses changes by auditors on pages and in the admin, whose views have no permission classes."""

    def process_view(self, request: HttpRequest, *_view: Any) -> HttpResponse | None:
        if is_page(request) and is_refused(request.user, request.method, request.resolver_match):
            return respond_by_path(AuditorIsReadOnly(), request)
        return None
