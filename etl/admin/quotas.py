"""Admin of quota usage and quota overrides of documents."""

from django.contrib import admin
from unfold.admin import ModelAdmin

from config.platform.admin.display import date_or_age, number, shown, size
from config.platform.admin.lists import AllowanceAdmin, DailyUsageAdmin, RestrictedFilters
from config.platform.db import clock
from etl.models import Allowance, RuleAllowance, RuleTokens, Usage

DOCUMENTS, BYTES, TOKENS = shown("documents", number), shown("bytes", size, "size"), shown("tokens", number)


@admin.register(Usage)
class DocumentUsageAdmin(DailyUsageAdmin):
    list_display = ("user", date_or_age("day"), DOCUMENTS, BYTES, TOKENS)
    fieldsets = ((None, {"fields": (("user", date_or_age("day")), (DOCUMENTS, BYTES, TOKENS))}),)


@admin.register(Allowance)
class DocumentAllowanceAdmin(AllowanceAdmin):
    list_display = ("user", "daily_documents", "daily_bytes", "daily_tokens", "max_open")


@admin.register(RuleAllowance)
class RuleAllowanceAdmin(RestrictedFilters, ModelAdmin):
    """Token budgets of rules, which override ETL_RULE_DAILY_TOKENS. Earlier usage of the day stays counted."""

    list_display = ("rule", "daily_tokens", "used")
    list_select_related = ("rule",)
    search_fields = ("rule__name",)
    autocomplete_fields = ("rule",)

    @admin.display(description="used today")
    def used(self, allowance: RuleAllowance) -> str:
        today = RuleTokens.objects.filter(rule_id=allowance.pk, day=clock.now().date())
        return number(today.values_list("tokens", flat=True).first() or 0)
