"""Admin of quota usage and quota overrides."""

from django.contrib import admin
from unfold.admin import ModelAdmin

from config.platform.admin.display import moment, number, shown
from config.platform.admin.lists import OwnFilters, ReadOnly
from exports.models import Allowance, Usage

JOBS, CHUNKS = shown("jobs", number, "exports"), shown("chunks", number)


@admin.register(Usage)
class UsageAdmin(ReadOnly):
    list_display = ("user", moment("day"), JOBS, CHUNKS)
    list_filter = ("day",)
    list_select_related = ("user",)
    search_fields = ("user__username",)
    search_help_text = "Exact username"
    ordering = ("-day", "user_id")
    fieldsets = ((None, {"fields": (("user", moment("day")), (JOBS, CHUNKS))}),)


@admin.register(Allowance)
class AllowanceAdmin(OwnFilters, ModelAdmin):
    """Quota overrides of users. Past usage stays counted."""

    list_display = ("user", "daily_jobs", "daily_chunks")
    list_select_related = ("user",)
    search_fields = ("user__username",)
    autocomplete_fields = ("user",)
