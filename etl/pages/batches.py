"""Batch pages: the list with the upload form, and one batch with its progress, documents, and results."""

from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

from django import forms
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.models import User
from django.db.models import Count, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.decorators import method_decorator
from django.views.decorators.csrf import csrf_exempt, csrf_protect
from django_htmx.http import HttpResponseClientRefresh
from rest_framework.request import Request

from config.platform.http import staff
from config.platform.http.audit import CHANGES, OPENS_DATA
from config.platform.http.paging import chosen
from config.platform.http.request_context import request_id
from config.platform.plurals import counted
from config.platform.ui.base import Action, Listing, api_request, is_htmx, segments, validated
from config.platform.ui.templatetags.pages import size
from etl.api import batch_results
from etl.api.batches import candidates_of, changeable, identity_of, visible, visible_with_counts
from etl.api.serializers import BatchFilesSerializer, BatchInput
from etl.core.states import Status
from etl.ingest import batches
from etl.ingest.multipart import FilesInOne
from etl.models import DocumentBatch, Task
from etl.models.task import RESULTS
from etl.pages import explanations
from etl.pages.base import DocumentsPage
from etl.pages.form import SubmitForm, limits, quota_left
from etl.pages.listing import ORDER, RULE, rows_of
from etl.pages.submitting import SubmissionPage, UploadHandlerView, idempotency_of
from etl.pipeline import batch_actions
from rules.api import rates
from rules.library import catalog
from rules.library.catalog import UnknownRule

BATCH_ORDER = ("-created_at", "-batch_id")
TABS = {
    Status.PENDING: "Open",
    Status.COMPLETED: "Completed",
    Status.FAILED: "Failed",
    Status.CANCELLED: "Cancelled",
}
MAX_REASONS = 10  # of failures, on the page of a batch


# ---- The list and the form ------------------------------------------------------------------------------------------
class BatchForm(SubmitForm):
    name = forms.CharField(required=False, max_length=200)
    more_extensions = (".zip",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["file"].widget = MultipleFiles(self.fields["file"].widget.attrs)


class MultipleFiles(forms.ClearableFileInput):
    allow_multiple_selected = True
    template_name = "django/forms/widgets/file.html"

    def __init__(self, attrs: dict[str, Any]) -> None:
        super().__init__({**attrs, "multiple": True})


class BatchListPage(DocumentsPage):
    audited = CHANGES
    template_name = "etl/batches.html"
    title = "Batches"

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        mine = DocumentBatch.objects.filter(user=self.user).select_related("rule").defer("refused", *RULE).with_counts()
        listing = Listing(self.request, mine, ordering=BATCH_ORDER)
        return super().get_context_data(
            listing=listing,
            batches=listing.rows,
            here=reverse("batches"),
            form=context.pop("form", None) or BatchForm(user=self.user),
            limits={
                **limits(),
                "batch": settings.SLUICE.etl_max_batch,
                "batch_size": size(settings.SLUICE.etl_max_batch_bytes),
            },
            quota=quota_left(self.user.pk),
            **context,
        )


@method_decorator(csrf_protect, name="dispatch")
class SubmittedBatch(SubmissionPage, BatchListPage):
    form = BatchForm

    def create(self) -> HttpResponse:
        batch = submit(self.request, self.user)
        messages.success(
            self.request,
            f"{counted(batch.total, 'document')} uploaded. This page shows the progress.",
        )
        return redirect("batch", batch_id=batch.pk)


@method_decorator(csrf_exempt, name="dispatch")
class SubmitBatch(UploadHandlerView):
    """`POST /app/documents/batches/submit`."""

    handler, view, home = FilesInOne, SubmittedBatch, "batches"


def submit(request: HttpRequest, user: User) -> DocumentBatch:
    """Create a batch from the form. Raises the Problems of `batches.submit`."""
    body: dict[str, Any] = {name: request.POST[name] for name in ("name", "rule_id") if request.POST.get(name)}
    if files := request.FILES.getlist("file"):
        body["file"] = files
    wanted = BatchInput(validated(BatchFilesSerializer, body))
    batch, _replayed = batches.submit(
        partial(candidates_of, wanted, user_id=user.pk),
        user=user,
        **wanted.options,
        request_id=request_id(request),
        idempotency=idempotency_of(request, identity_of(wanted)),
    )
    return batch


# ---- One batch ------------------------------------------------------------------------------------------------------
class BatchPage(DocumentsPage):
    """The page of a batch. htmx fetches its fragment every few seconds, and the whole page when the batch has ended."""

    audited = CHANGES
    template_name = "etl/batch.html"
    fragment_name = "etl/_batch.html"

    def render_to_response(self, context: dict[str, Any], **kwargs: Any) -> HttpResponse:
        if is_htmx(self.request) and context["batch"].has_ended:
            return HttpResponseClientRefresh()
        return super().render_to_response(context, **kwargs)

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        batch = visible_with_counts(self.kwargs["batch_id"], user=self.user)
        status = chosen(Request(self.request), "status", among=TABS) or ""
        tasks: QuerySet[Task] = Task.objects.filter(batch_id=batch.pk)
        rows = tasks.filter(status=status) if status else tasks
        rows = rows.select_related("rule").prefetch_related("approved_by").defer(*RESULTS, *RULE)
        listing = Listing(self.request, rows, ordering=ORDER)
        open_now = batch.total - batch.completed - batch.failed - batch.cancelled - batch.deleted
        return super().get_context_data(
            title=batch.title,
            batch=batch,
            rule=rule_of(batch),
            owner="" if batch.user_id == self.user.pk else batch.user.username,
            may_change=staff.may_change(self.user, batch),
            may_open=staff.may_open(self.user, batch.user_id),
            open=open_now,
            percent=100 * (batch.total - open_now) // batch.total if batch.total else 100,
            parts=segments(
                (("done", batch.completed), ("failed", batch.failed), ("cancelled", batch.cancelled)), batch.total
            ),
            failures=failures(tasks),
            listing=listing,
            rows=rows_of(listing.rows, ""),
            here=self.request.path,
            tabs=tabs(batch, open_now),
            status=status,
            query=self.request.GET.urlencode(),
            **context,
        )


def rule_of(batch: DocumentBatch) -> str:
    try:
        return catalog.content(rule_id=batch.rule_id, version=batch.rule_version).name
    except UnknownRule:
        return f"Rule {batch.rule_id}"


def tabs(batch: Any, open_now: int) -> list[tuple[str, str, int]]:
    """Return `(status, label, count)` for each filter of the documents that is not empty."""
    numbers = {
        Status.PENDING: open_now,
        Status.COMPLETED: batch.completed,
        Status.FAILED: batch.failed,
        Status.CANCELLED: batch.cancelled,
    }
    named = [(str(status), label, numbers[status]) for status, label in TABS.items() if numbers[status]]
    return [("", "All", batch.total - batch.deleted), *named]


def failures(tasks: QuerySet[Task]) -> list[dict[str, Any]]:
    """Return the most frequent reasons for failures with their counts, the most frequent first."""
    found = tasks.filter(status=Status.FAILED).order_by().values_list("error__code", "error__retryable")
    reasons: Counter[tuple[str, bool]] = Counter()
    for code, retryable, number in found.annotate(number=Count("pk")):
        reasons[code, retryable] += number
    return [
        {"explained": explanations.of_error({"code": code, "retryable": retryable}), "code": code, "count": number}
        for (code, retryable), number in reasons.most_common(MAX_REASONS)
    ]


# ---- Actions and downloads ------------------------------------------------------------------------------------------
class BatchAction(Action):
    throttle = rates.EtlThrottle

    def batch(self, batch_id: int) -> DocumentBatch:
        batch = changeable(batch_id, user=self.user)
        self.record_change(batch)
        return batch

    def next_url(self, *, batch_id: int) -> str:
        return reverse("batch", args=[batch_id])


class CancelBatch(BatchAction):
    def act(self, *, batch_id: int) -> str:
        number = batch_actions.cancel(self.batch(batch_id), is_forced="force" in self.request.POST)
        return f"{counted(number, 'document')} cancelled."


class RetryBatch(BatchAction):
    def act(self, *, batch_id: int) -> str:
        number = batch_actions.retry(self.batch(batch_id))
        return f"{counted(number, 'document')} queued again."


class BatchResultsDownload(DocumentsPage):
    audited = OPENS_DATA

    def get(self, request: HttpRequest, *, batch_id: int) -> HttpResponseBase:  # type: ignore[override]
        self.count()
        batch = visible(batch_id, user=self.user)
        drf_request = api_request(request)
        layout = batch_results.layout_of(drf_request)
        layout = replace(layout, rows=layout.rows or None)  # an empty field of the form
        message = "On the web page: downloaded the results."
        return batch_results.results(batch, layout, drf_request, user=self.user, message=message)
