"""The page of a new export: form, preview, and idempotent submission."""

import math
import time
from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.db.models import F
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.urls import reverse
from rest_framework.request import Request

from config.platform.http.audit import CHANGES, NOTHING
from config.platform.http.idempotency import Idempotency, InFlight, KeyReused
from config.platform.http.problems import Problem
from config.platform.ui.base import api_request, problem_text, redirect_page, uuid_of
from exports.api import rates, views
from exports.core.states import JobStatus
from exports.jobs import submission
from exports.models import Dataset, Job
from exports.pages.base import ExportsPage, quota_left
from exports.pages.form import FILTERS, ExportForm
from exports.pages.form_initial import fresh_initial, initial_like

IN_QUERY = ("dataset", "rule", "batch", "status", "date_from", "date_to")
NEWEST = 5  # number of exports that the estimate is based on
TRIES, WAIT_SECONDS = 15, 0.2  # for an earlier request of the same form, after a double-click


class NewExportPage(ExportsPage):
    """The page with the form. With htmx, the form stays on the page after a 429 or 503 response.

    It also works without JavaScript.
    """

    audited = CHANGES
    template_name = "exports/new.html"
    fragment_name = "exports/_new.html"
    title = "New export"

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        form = context.pop("form", None) or ExportForm(initial=self.initial(), user_id=self.user.pk)
        return super().get_context_data(
            form=form,
            selected_dataset=form.selected_dataset(),
            recent_keys=form.recent_keys(),
            quota=quota_left(self.user.pk),
            limit=settings.SLUICE.export_max_chunks_per_job,
            **context,
        )

    def initial(self) -> dict[str, Any]:
        """Return the initial values: with `?from=`, those of that job, and otherwise those in the query."""
        earlier = uuid_of(self.request.GET.get("from", ""))
        if earlier is None:
            return fresh_initial() | {name: self.request.GET[name] for name in IN_QUERY if name in self.request.GET}
        return initial_like(views.visible(api_request(self.request), earlier))

    def post(self, request: HttpRequest) -> HttpResponseBase:
        """Create or preview an export. The rate limit applies before parsing, because long lists are slow to parse."""
        is_check = "check" in request.POST
        self.count(PreviewThrottle if is_check else None)
        form = ExportForm(request.POST, request.FILES, user_id=self.user.pk)
        try:
            if is_check:
                return self.show(form, preview=preview(form) if form.is_valid() else None)
            if form.is_valid():
                return redirect_page(request, reverse("export", args=[submit(form, request).pk]))
        except KeyReused:
            form.add_error(
                None, "You already created a different export with this form. Submit again to create another one."
            )
            form.renew_key()
        except Problem as problem:
            form.add_error(None, problem_text(problem))
        return self.show(form)

    def show(self, form: ExportForm, **context: Any) -> HttpResponse:
        form.keep_file()
        return self.render_to_response(self.get_context_data(form=form, **context))


class PreviewFragment(ExportsPage):
    """A preview of the export, for htmx. It changes nothing."""

    audited = NOTHING
    http_method_names = ["post"]
    template_name = "exports/_preview.html"

    def post(self, request: HttpRequest) -> HttpResponseBase:
        self.count(PreviewThrottle)
        form, shown = ExportForm(request.POST, user_id=self.user.pk), None
        try:
            shown = preview(form) if form.is_valid() else None
        except Problem as problem:
            form.add_error(None, problem_text(problem))
        return self.render_to_response(
            {
                "problems": problems(form) if is_complete(form) else [],
                "preview": shown,
                "selected_dataset": form.selected_dataset(),
                "recent_keys": form.recent_keys(),
                "quota": quota_left(self.user.pk),
            }
        )


class PreviewThrottle(rates.ExportThrottle):
    """A separate EXPORT_RATE limit for previews, so that typing does not use up the limit for submissions."""

    def counted(self, request: Request) -> tuple[str, str]:
        name, client = super().counted(request)
        return name, f"{client}:preview"


def preview(form: ExportForm) -> dict[str, int | None]:
    assert form.validated_request is not None  # noqa: S101 - the form is valid
    counts = submission.preview(form.validated_request)
    numbers: Mapping[str, Any] = counts
    return {**numbers, "seconds": usual_seconds(form.validated_request.dataset, counts["quotaCost"])}


def usual_seconds(dataset: Dataset, chunks: int) -> int | None:
    """Estimate the duration from the dataset's latest successful exports. Return None without them."""
    ended = Job.objects.filter(dataset=dataset, status=JobStatus.SUCCESS, reused__lt=F("total"))
    took = F("finished_at") - F("started_at")
    newest = list(ended.annotate(took=took).order_by("-finished_at").values_list("took", "total", "reused")[:NEWEST])
    spent = sum(took.total_seconds() for took, _, _ in newest if took)
    read = sum(total - reused for took, total, reused in newest if took)
    return math.ceil(spent / read * chunks) if read else None


def submit(form: ExportForm, request: HttpRequest) -> Job:
    """Create the job, or return the job that the same form has already created, after a double-click or a reload.

    Raises the problems of `submission.submit`, and InFlight if an earlier request of the form takes too long.
    """
    once = Idempotency.of_form(form.cleaned_data["once"], form.body)
    export_request = form.validated_request
    assert export_request is not None  # noqa: S101 - the form is valid
    caller = views.caller_of(api_request(request), once)
    for _ in range(TRIES):
        try:
            job, _replayed = submission.submit(lambda: export_request, caller)
            return job
        except InFlight:
            time.sleep(WAIT_SECONDS)
    raise InFlight


def problems(form: ExportForm) -> list[str]:
    """Return the form's errors as sentences with the field's label. Errors in the list have line numbers instead."""
    named = (
        (form[name].label if name in form.fields and name != "items" else "", each)
        for name, each in form.errors.items()
    )
    return [f"{label}: {each}" if label else str(each) for label, errors in named for each in errors]


def is_complete(form: ExportForm) -> bool:
    """Return whether the form is complete enough to show errors."""
    data = form.data
    if form.is_of_documents():
        return True
    if data.get("mode") == FILTERS:
        return bool(data.get("dataset") and data.get("keys") and data.get("date_from") and data.get("date_to"))
    return bool(data.get("dataset") and data.get("items"))
