"""Read-only admin of rules and their versions. Users edit their rules on pages; system rules are files."""

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from unfold.admin import TabularInline

from config.platform.admin.display import badge, date_or_age, exact_time, link, list_url
from config.platform.admin.lists import ReadOnly
from rules.library import catalog
from rules.models import Rule, RuleVersion


class Versions(TabularInline):
    model = RuleVersion
    fields = ("version", "name", "postprocess_mode", "postprocess_strategy", date_or_age("created_at"))
    readonly_fields = fields
    ordering = ("-version",)
    extra = 0
    max_num = 0
    can_delete = False
    per_page = 20
    show_change_link = True

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(Rule)
class RuleAdmin(ReadOnly):
    list_display = (
        "rule_id", "name", "belongs_to", "state", "postprocess_mode", "version", date_or_age("updated_at"), "tasks",
    )  # fmt: skip
    list_display_links = ("rule_id", "name")
    list_filter = ("postprocess_mode", "created_at")
    list_select_related = ("owner",)
    search_fields = ("name", "slug", "owner__username")
    search_help_text = "Exact name, file name or username"
    ordering = ("-created_at", "-rule_id")
    inlines = (Versions,)
    fieldsets = (
        (None, {"fields": (("name", "belongs_to", "state"), "description", ("owner", "tasks"), "editing")}),
        (
            "Content",
            {
                "fields": (
                    ("postprocess_mode", "postprocess_strategy", "require_complete"),
                    "system_prompt",
                    "json_schema",
                )
            },
        ),
        (
            "Times",
            {"fields": (("version", exact_time("created_at")), (exact_time("updated_at"), exact_time("deleted_at")))},
        ),
    )

    @admin.display(description="belongs to")
    def belongs_to(self, rule: Rule) -> str:
        return str(rule.owner) if rule.owner else f"system ({rule.slug})"

    @admin.display(description="status")
    def state(self, rule: Rule) -> str:
        return badge("deleted" if rule.deleted_at else "system" if catalog.is_system(rule) else "open")

    @admin.display(description="editing")
    def editing(self, rule: Rule) -> SafeString:
        """Explain who can change the rule, and where."""
        if catalog.is_system(rule) and not rule.is_system:
            return format_html("Read-only while <code>{}</code> makes it the default rule.", "ETL_GLOBAL_RULE_ID")
        if rule.is_system:
            return format_html("Edit the file {}.yaml, then run <code>manage.py load_rules</code>.", rule.slug)
        if rule.deleted_at:
            return format_html("A deleted rule cannot be edited.")
        return format_html(
            "Its owner can edit it on the {}.", link(reverse("rule", args=[rule.pk]), "page of the rule")
        )

    @admin.display(description="tasks")
    def tasks(self, rule: Rule) -> SafeString:
        return link(list_url("etl_task", {"rule__rule_id__exact": rule.pk}), "Tasks")


@admin.register(RuleVersion)
class RuleVersionAdmin(ReadOnly):
    """Admin of rule versions. Each task refers to one."""

    list_display = ("__str__", "rule", "postprocess_mode", "postprocess_strategy", date_or_age("created_at"))
    list_select_related = ("rule",)
    search_fields = ("name",)
    search_help_text = "Exact name"
    ordering = ("-id",)
    fieldsets = (
        (None, {"fields": (("rule", "version"), "name", "description", exact_time("created_at"))}),
        ("Content", {"fields": (("postprocess_mode", "postprocess_strategy"), "system_prompt", "json_schema")}),
    )
