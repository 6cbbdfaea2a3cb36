"""Admin of quota usage and quota overrides of documents."""

from django.contrib import admin

from config.platform.admin.display import moment, number, shown, size
from config.platform.admin.lists import AllowanceAdmin, DailyUsageAdmin
from etl.models import Allowance, Usage

DOCUMENTS, BYTES = shown("documents", number), shown("bytes", size, "size")


@admin.register(Usage)
class DocumentUsageAdmin(DailyUsageAdmin):
    list_display = ("user", moment("day"), DOCUMENTS, BYTES)
    fieldsets = ((None, {"fields": (("user", moment("day")), (DOCUMENTS, BYTES))}),)


@admin.register(Allowance)
class DocumentAllowanceAdmin(AllowanceAdmin):
    list_display = ("user", "daily_documents", "daily_bytes", "max_open")
