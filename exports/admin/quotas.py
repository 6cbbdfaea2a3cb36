"""Admin of quota usage and quota overrides."""

from django.contrib import admin

from config.platform.admin.display import date_or_age, number, shown
from config.platform.admin.lists import AllowanceAdmin, DailyUsageAdmin
from exports.models import Allowance, Usage

JOBS, CHUNKS = shown("jobs", number, "exports"), shown("chunks", number)


@admin.register(Usage)
class ExportUsageAdmin(DailyUsageAdmin):
    list_display = ("user", date_or_age("day"), JOBS, CHUNKS)
    fieldsets = ((None, {"fields": (("user", date_or_age("day")), (JOBS, CHUNKS))}),)


@admin.register(Allowance)
class ExportAllowanceAdmin(AllowanceAdmin):
    list_display = ("user", "daily_jobs", "daily_chunks")
