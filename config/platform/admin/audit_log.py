"""The audit log: every change that staff made in the admin or on pages."""

from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.utils.safestring import SafeString

from config.platform.admin.display import NOTHING, instant, link, moment
from config.platform.admin.lists import ReadOnly


@admin.register(LogEntry)
class Audit(ReadOnly):
    list_display = (moment("action_time"), "user", "kind", "row", "change")
    list_filter = ("action_time", "action_flag", "content_type")
    unindexed = frozenset({"q", "action_time", "action_flag"})
    list_select_related = ("user", "content_type")
    search_fields = ("object_id", "user__username")
    search_help_text = "Exact object ID or username"
    ordering = ("-id",)
    fieldsets = ((None, {"fields": ((instant("action_time"), "user"), ("kind", "row"), "change")}),)

    @admin.display(description="type")
    def kind(self, entry: LogEntry) -> str:
        return str(entry.content_type.name) if entry.content_type else NOTHING

    @admin.display(description="object")
    def row(self, entry: LogEntry) -> str | SafeString:
        url = entry.get_admin_url()
        return link(url, entry.object_repr) if url and not entry.is_deletion() else entry.object_repr

    @admin.display(description="change")
    def change(self, entry: LogEntry) -> str:
        return entry.get_change_message() or str(entry.get_action_flag_display())
