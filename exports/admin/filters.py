"""Filters of the lists, and what error codes mean there."""

from typing import Any

from django.contrib.admin import SimpleListFilter
from django.db.models import QuerySet
from django.http import HttpRequest

from config.admin.lists import as_uuid
from exports.errors import EXPLANATIONS


class OfJob(SimpleListFilter):
    """`?job=…`, where links from other pages lead. Offers nothing by itself: a list of all jobs helps nobody."""

    title = "export"
    parameter_name = "job"
    field = "job_id"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        chosen = request.GET.get(self.parameter_name, "")
        return [(chosen, chosen[:8])] if chosen else []

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() is None:
            return queryset
        return queryset.filter(**{self.field: job}) if (job := as_uuid(str(self.value()))) else queryset.none()


class OfJobByReceipt(OfJob):
    field = "receipt_id"


class ByError(SimpleListFilter):
    """From the codes that the code knows: Django's filter by values asks the table for all that occur."""

    title = "error"
    parameter_name = "error_code"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(code, title) for code, (title, _) in EXPLANATIONS.items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset if self.value() is None else queryset.filter(error_code=self.value())


def title_of(code: str) -> str:
    return EXPLANATIONS.get(code, (code, ""))[0]


def advice_on(code: str) -> str:
    return EXPLANATIONS.get(code, ("", ""))[1]
