"""List filters of documents."""

from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest

from config.platform.admin.lists import KnownValues
from etl.core import errors
from etl.core.formats import DocumentFormat
from etl.core.states import BatchStatus, Status
from etl.models.task import STORED


class ByStatus(KnownValues):
    """Filter by the status in the row. The other statuses are only in Redis: a row is pending until its task ends."""

    title = "status"
    parameter_name = "status__exact"
    field = "status"
    options = {str(status): str(status.label) for status in Status if status in STORED}


class ByTaskError(KnownValues):
    title = "error"
    parameter_name = "error_code"
    field = "error__code"
    options = {code: code.replace("_", " ") for code in sorted(errors.codes())}


class ByReview(KnownValues):
    title = "review"
    parameter_name = "review"
    options = {"waiting": "to approve", "approved": "approved", "corrected": "corrected"}

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        name = self.value()
        if name == "waiting":
            return queryset.filter(status=Status.COMPLETED).reviewed(approved=False)  # type: ignore[attr-defined, no-any-return]
        return queryset.reviewed(**{name: True}) if name in self.options else queryset  # type: ignore[attr-defined]


class ByKind(KnownValues):
    title = "kind"
    parameter_name = "kind"
    options = {str(kind): str(kind) for kind in DocumentFormat}


class ByBatchStatus(KnownValues):
    title = "status"
    parameter_name = "status"
    options = {str(status): str(status.label).capitalize() for status in BatchStatus}
