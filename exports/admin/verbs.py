"""What staff do to jobs: retry and cancel, one or many. Each says what it touched, and leaves an entry on record."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.forms import Form
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse
from unfold.admin import ModelAdmin
from unfold.dataclasses import ActionDialog
from unfold.decorators import action
from unfold.enums import ActionVariant

from config.admin.lists import as_uuid
from config.api.problems import Problem
from exports import control, quotas
from exports.models import Job
from exports.states import JOB_ACTIVE, JobStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """`do` returns how many chunks it touched, or raises what is said of a job that it does not fit."""

    do: Callable[[Job], int]
    done: str
    chunks: str
    no_chunks: str
    statuses: frozenset[JobStatus]

    def told(self, *, jobs: int, chunks: int) -> str:
        which = self.chunks.format(f"{chunks:,}", "chunk" if chunks == 1 else "chunks") if chunks else self.no_chunks
        return f"{self.done} {jobs} export{'s' * (jobs != 1)}: {which}"


VERBS = {
    "retry": Verb(
        do=control.retry,
        done="Retried",
        chunks="{} failed {} started again.",
        no_chunks="the delivery alone, as no chunk had failed.",
        statuses=frozenset({JobStatus.FAILED}),
    ),
    "cancel": Verb(
        do=control.cancel,
        done="Cancelled",
        chunks="{} {} will not be exported.",
        no_chunks="the delivery alone, as every chunk had ended.",
        statuses=frozenset(JOB_ACTIVE),
    ),
}
CONFIRM_RETRY = ActionDialog(
    title="Retry this export?",
    description="Its failed chunks start again with all their attempts; chunks that are done keep their files. "
    "If only the delivery failed, that is tried again.",
    form_class=None,
    form_submit_text="Retry",
)
CONFIRM_CANCEL = ActionDialog(
    title="Cancel this export?",
    description="What is running stops within seconds. Files that are done stay, and are reused by the next export.",
    form_class=None,
    form_submit_text="Cancel the export",
)


class Verbs(ModelAdmin):
    """Buttons on a job's page, and actions on many. They come by POST alone: unfold answers GET with the dialog."""

    def has_control_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        return request.user.has_perm("exports.change_job")

    def get_actions_detail(self, request: HttpRequest, object_id: str) -> list[Any]:
        """A button is there when it would do something."""
        job_id = as_uuid(object_id)
        job = Job.objects.filter(pk=job_id).only("status").first() if job_id else None
        fitting = {name for name, verb in VERBS.items() if job and job.status in verb.statuses}
        return [button for button in super().get_actions_detail(request, object_id) if button.path in fitting]

    @action(  # type: ignore[untyped-decorator]
        description="Retry",
        icon="replay",
        variant=ActionVariant.PRIMARY,
        permissions=["control"],
        dialog=CONFIRM_RETRY,
    )
    def retry(self, request: HttpRequest, form: Form, object_id: str) -> HttpResponse:
        return self.apply_to_one(request, "retry", object_id)

    @action(  # type: ignore[untyped-decorator]
        description="Cancel",
        icon="cancel",
        variant=ActionVariant.DANGER,
        permissions=["control"],
        dialog=CONFIRM_CANCEL,
    )
    def cancel(self, request: HttpRequest, form: Form, object_id: str) -> HttpResponse:
        return self.apply_to_one(request, "cancel", object_id)

    @admin.action(description="Retry the failed chunks", permissions=["control"])
    def retry_selected(self, request: HttpRequest, queryset: QuerySet[Job]) -> None:
        self.apply(request, "retry", queryset)

    @admin.action(description="Cancel what has not ended", permissions=["control"])
    def cancel_selected(self, request: HttpRequest, queryset: QuerySet[Job]) -> None:
        self.apply(request, "cancel", queryset)

    def apply_to_one(self, request: HttpRequest, name: str, object_id: str) -> HttpResponse:
        job = get_object_or_404(Job, pk=as_uuid(object_id))
        self.apply(request, name, [job])
        page = reverse("admin:exports_job_change", args=[job.pk])
        # htmx sends the dialog's form, and would put the page of an ordinary redirect into the dialog.
        return HttpResponse(headers={"HX-Redirect": page}) if "HX-Request" in request.headers else redirect(page)

    def apply(self, request: HttpRequest, name: str, jobs: Iterable[Job]) -> None:
        """Do it to each job by itself; put on record what was done, and say why the others stayed as they were."""
        verb, chunks, refusals = VERBS[name], [], Counter[str]()
        for job in jobs:
            try:
                touched = verb.do(job)
            except (control.NotFailed, control.AlreadyEnded, quotas.QuotaExceeded) as refusal:
                refusals[self.why(refusal)] += 1
                continue
            chunks.append(touched)
            self.log_change(request, job, verb.told(jobs=1, chunks=touched))
        if chunks:
            self.message_user(request, verb.told(jobs=len(chunks), chunks=sum(chunks)), messages.SUCCESS)
        for why, count in refusals.items():
            self.message_user(request, f"Unchanged: {count} export{'s' * (count != 1)}. {why}", messages.WARNING)

    def why(self, refusal: Problem) -> str:
        over_quota = isinstance(refusal, quotas.QuotaExceeded)
        return f"Its user's quota: {refusal.detail}" if over_quota else refusal.detail
