"""Rules and their versions, to be looked at: users change theirs by the API, system rules are files."""

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from unfold.admin import TabularInline

from config.admin.display import badge, moment
from config.admin.lists import ReadOnly
from rules import catalog
from rules.models import Rule, RuleVersion


class Versions(TabularInline):
    model = RuleVersion
    fields = ("version", "name", "postprocess_mode", "postprocess_strategy", moment("created_at"))
    readonly_fields = fields
    ordering = ("-version",)
    extra = 0
    max_num = 0
    can_delete = False
    per_page = 20
    show_change_link = False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(Rule)
class RuleAdmin(ReadOnly):
    list_display = ("rule_id", "name", "belongs_to", "state", "postprocess_mode", "version", moment("updated_at"))
    list_display_links = ("rule_id", "name")
    list_filter = ("postprocess_mode", "created_at")
    list_select_related = ("owner",)
    search_fields = ("name", "slug", "owner__username")
    search_help_text = "A whole name, file name or user name"
    ordering = ("-created_at", "-rule_id")
    inlines = (Versions,)
    fieldsets = (
        (None, {"fields": (("name", "belongs_to", "state"), "description")}),
        ("What it says", {"fields": (("postprocess_mode", "postprocess_strategy"), "system_prompt", "json_schema")}),
        ("Times", {"fields": (("version", moment("created_at"), moment("updated_at")), moment("deleted_at"))}),
    )

    @admin.display(description="belongs to")
    def belongs_to(self, rule: Rule) -> str:
        return str(rule.owner) if rule.owner else f"everybody ({rule.slug})"

    @admin.display(description="state")
    def state(self, rule: Rule) -> str:
        if rule.deleted_at:
            return badge("deleted")
        return badge("system") if catalog.is_system(rule) else badge("open")
