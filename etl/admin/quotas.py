"""Admin of quota usage and quota overrides of documents."""

from django.contrib import admin
from unfold.admin import ModelAdmin

from config.platform.admin.display import moment, number, shown, size
from config.platform.admin.lists import OwnFilters, ReadOnly
from etl.models import Allowance, Usage

DOCUMENTS, BYTES = shown("documents", number), shown("bytes", size, "size")


@admin.register(Usage)
class UsageAdmin(ReadOnly):
    list_display = ("user", moment("day"), DOCUMENTS, BYTES)
    list_filter = ("day",)
    list_select_related = ("user",)
    search_fields = ("user__username",)
    search_help_text = "Exact username"
    ordering = ("-day", "user_id")
    fieldsets = ((None, {"fields": (("user", moment("day")), (DOCUMENTS, BYTES))}),)


@admin.register(Allowance)
class AllowanceAdmin(OwnFilters, ModelAdmin):
    """Quota overrides of users. Past usage stays counted."""

    list_display = ("user", "daily_documents", "daily_bytes", "max_open")
    list_select_related = ("user",)
    search_fields = ("user__username",)
    autocomplete_fields = ("user",)
