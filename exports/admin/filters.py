"""List filters for the exports admin."""

from typing import Any

from django.contrib.admin import SimpleListFilter
from django.db.models import Q, QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest

from config.platform.admin.lists import KnownValues
from config.platform.ui.base import uuid_of
from config.platform.webhooks.models import TEST, EventType
from exports.core.errors import EXPLANATIONS


class OfJob(SimpleListFilter):
    """Filter `?job=…` for links from other pages. It lists no choices, because there are too many jobs."""

    title = "export"
    parameter_name = "job"
    field = "job_id"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        value = request.GET.get(self.parameter_name, "")
        return [(value, value[:8])] if value else []

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() is None:
            return queryset
        return queryset.filter(**{self.field: job}) if (job := uuid_of(str(self.value()))) else queryset.none()


class OfSchedule(OfJob):
    """Filter `?schedule=…` for links from a schedule's page."""

    title = "schedule"
    parameter_name = "schedule"
    field = "schedule_id"


class OfJobByReceipt(OfJob):
    field = "receipt_id"


class OfPath(KnownValues):
    """Filter `?path=…` for links from a file's page to its chunks."""

    title = "path"
    parameter_name = "path"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        value = request.GET.get(self.parameter_name, "")
        return [(value, value.rpartition("/")[2])] if value else []


class BySlotState(KnownValues):
    """Filter for slots by status."""

    title = "state"
    parameter_name = "state"
    STATES = {
        "free": Q(token=None),
        "held": Q(token__isnull=False),
        "expired": Q(token__isnull=False, lease_until__lt=Now()),
    }
    options = {state: state for state in STATES}

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        condition = self.STATES.get(str(self.value()))
        return queryset if condition is None else queryset.filter(condition)


class ByEvent(KnownValues):
    """Filter for deliveries by event."""

    title = "event"
    parameter_name = "type"
    options = {event: event for event in (*EventType.values, TEST)}


class ByChunkError(KnownValues):
    """Filter for exports and chunks by error code."""

    title = "error"
    parameter_name = "error_code"
    options = {code: title for code, (title, _) in EXPLANATIONS.items()}
