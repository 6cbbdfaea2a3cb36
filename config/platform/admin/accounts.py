"""Admin of users, groups, and API tokens."""

from typing import Any

import knox.admin  # noqa: F401 - registers AuthToken, which is replaced here
from django.contrib import admin, messages
from django.contrib.auth.admin import GroupAdmin, UserAdmin
from django.contrib.auth.models import Group, User
from django.db.models import QuerySet
from django.db.models.functions import MD5
from django.forms import Form
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from knox.models import AuthToken
from unfold.admin import ModelAdmin
from unfold.dataclasses import ActionDialog
from unfold.decorators import action
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

from config.platform.admin.display import badge, date_or_age, list_of, side_by_side
from config.platform.admin.lists import ReadOnly, RestrictedFilters
from config.platform.http import scopes, tokens
from config.platform.models import Identity
from config.platform.ui.base import redirect_page
from config.platform.ui.templatetags import pages

for model in (User, Group, AuthToken):
    admin.site.unregister(model)


RELATED = {
    "job": "Exports",
    "etl_task": "Documents",
    "knox_authtoken": "Tokens",
    "webhook": "Webhooks",
    "usage": "Usage",
    "platform_auditentry": "Audit log",
}


PRIVILEGE_FIELDS = ("is_staff", "is_superuser", "groups", "user_permissions")


@admin.register(User)
class Users(RestrictedFilters, UserAdmin, ModelAdmin):
    """Accounts. Prevents privilege escalation: only superusers grant staff rights or change other staff."""

    form = UserChangeForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm
    list_display: tuple[Any, ...] = (
        "username",
        "email",
        "is_active",
        "is_staff",
        "is_superuser",
        date_or_age("last_login"),
        "related",
    )
    list_per_page = 50
    actions = None
    filter_horizontal = ()  # Django's dual-list widget overflows the page and fails axe's contrast checks
    readonly_fields = ("related",)
    fieldsets = (*(UserAdmin.fieldsets or ()), ("Related", {"fields": ("related",)}))

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: Any) -> None:
        """Save the account, and let it sign in again if the OpenID provider no longer confirmed it."""
        super().save_model(request, obj, form, change)
        Identity.objects.filter(pk=obj.pk).update(ended_at=None)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return whether the user may change the account. The page of its password calls this too."""
        is_above = obj is not None and (obj.is_staff or obj.is_superuser) and obj.pk != request.user.pk
        allowed = bool(super().has_change_permission(request, obj))
        return allowed and bool(request.user.is_superuser or not is_above)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        fields = tuple(super().get_readonly_fields(request, obj))
        return fields if request.user.is_superuser else (*fields, *PRIVILEGE_FIELDS)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return False: accounts are deactivated instead, because exports and the audit log refer to them."""
        return False

    @admin.display(description="related")
    def related(self, user: User) -> SafeString:
        of_user = {"user__id__exact": user.pk}
        return side_by_side([list_of(model, text, of_user) for model, text in RELATED.items()])


@admin.register(Group)
class Groups(RestrictedFilters, GroupAdmin, ModelAdmin):
    """Groups. Only superusers change them, because members inherit their permissions."""

    filter_horizontal = ()

    def has_add_permission(self, request: HttpRequest) -> bool:
        return bool(request.user.is_superuser)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return bool(request.user.is_superuser)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return bool(request.user.is_superuser)


CONFIRM_REVOKE = ActionDialog(
    title="Revoke this token?",
    description="Programs that use it lose access immediately. This cannot be undone. "
    "The owner can create a new token.",
    form_class=None,
    form_submit_text="Revoke",
)


@admin.register(AuthToken)
class Tokens(ReadOnly):
    """API tokens, shown by their first characters.

    The primary key is the stored digest of the credential, so rows have no page and no checkbox, and URLs contain a
    digest of the digest.
    """

    list_display = (
        "token",
        "user",
        "scopes",
        "state",
        "used",
        date_or_age("created"),
        date_or_age("expiry"),
        "revocation",
    )
    list_display_links = None
    list_filter = ("created", "expiry")
    list_select_related = ("user", "details")
    search_fields = ("user__username",)
    search_help_text = "Exact username"
    ordering = ("-created",)
    actions_detail = ("revoke",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).annotate(handle=MD5("digest"))  # type: ignore[no-any-return]

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return obj is None and bool(super().has_view_permission(request))

    def has_revoke_permission(self, request: HttpRequest, handle: str | None = None) -> bool:
        return request.user.has_perm("knox.delete_authtoken")

    @admin.display(description="token")
    def token(self, token: Any) -> str:
        return tokens.label(token)

    @admin.display(description="scopes")
    def scopes(self, token: Any) -> str:
        return ", ".join(scopes.of_token(token)) or "all"

    @admin.display(description="last used")
    def used(self, token: Any) -> Any:
        details = getattr(token, "details", None)
        return pages.ago(details.last_used_at) if details and details.last_used_at else "never"

    @admin.display(description="status")
    def state(self, token: Any) -> str:
        return badge("expired" if token.expiry and token.expiry <= timezone.now() else "open")

    @admin.display(description="action")
    def revocation(self, token: Any) -> SafeString:
        """Return a link that opens the dialog. Unfold's own row link would contain the primary key."""
        return format_html(
            '<a href="{0}" hx-get="{0}" hx-target="#modal-content" hx-select="#dialog" class="text-link"'
            ' x-on:htmx:after-on-load="openModal = true">Revoke</a>',
            reverse("admin:knox_authtoken_revoke", args=[token.handle]),
        )

    @action(description="Revoke", permissions=["revoke"], dialog=CONFIRM_REVOKE)  # type: ignore[untyped-decorator]
    def revoke(self, request: HttpRequest, form: Form, object_id: str) -> HttpResponse:
        """Revoke a token. Runs on POST only: Unfold responds to GET with the dialog. Logged in the user's history."""
        token = get_object_or_404(self.get_queryset(request), handle=object_id)
        token.delete()
        change = f"Revoked token {tokens.label(token)}"
        self.log_change(request, token.user, f"{change}.")
        self.message_user(request, f"{change} of {token.user}.", messages.SUCCESS)
        return redirect_page(request, reverse("admin:knox_authtoken_changelist"))
