"""Document tasks."""

import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any, Self
from uuid import uuid4

from django.conf import settings
from django.contrib.postgres.indexes import GinIndex, OpClass
from django.db import models
from django.db.models import Q
from django.db.models.expressions import RawSQL
from django.db.models.functions import Upper

from config.platform.db import clock
from config.platform.http import staff
from etl.core.states import ENDED, PROCESSED, Stage, Status
from etl.models.exact_fields import ExactJSON, ExactJSONB
from etl.models.review import NO_REVIEW, Review

TRIGRAM = 3
STORED = sorted({Status.PENDING, *ENDED})
# Conditions on the review of the current result. IS_REVIEWED includes the condition of the index `etl_task_reviewed`.
IS_REVIEWED = Q(reviewed_run__isnull=False, reviewed_run=models.F("run"), status=Status.COMPLETED)
REVIEWED = {
    "approved": IS_REVIEWED & Q(approved_at__isnull=False),
    "corrected": IS_REVIEWED & Q(corrections__gt=0),
}

DATA = """
CASE WHEN etl_task.status = 'completed' THEN coalesce(
    CASE WHEN etl_task.reviewed_run = etl_task.run THEN etl_task.corrected_result -> 'data' END,
    CASE WHEN etl_task.last_result_run = etl_task.run THEN etl_task.last_result -> 'data'
         ELSE (etl_task.result -> 'data')::json END
) END
"""

RESULTS = ("result", "last_result", "corrected_result")  # columns with values that may be large


def new_uuid() -> str:
    return str(uuid4())


def printable(name: str) -> str:
    """Return a name without characters that cannot be printed, in NFC, like typed text.

    Some systems send decomposed letters, which a search would not find.
    """
    return "".join(char for char in unicodedata.normalize("NFC", name) if char.isprintable()).strip()


class TaskQuerySet(models.QuerySet["Task"]):
    def visible_to(self, user: Any) -> Self:
        """Return the tasks that the user may view: their own, or all for staff with the permission to view them."""
        return self if staff.may(user, Task) else self.filter(user=user)

    def without_results(self) -> Self:
        """Return the tasks without their results, which may be large."""
        return self.defer(*RESULTS)

    def with_data(self) -> Self:
        """Annotate `data`: the data of `current_result` without its citations, which can be large.

        `data` is None if the result has no data.
        """
        return self.annotate(data=RawSQL(DATA, (), output_field=ExactJSON()))  # noqa: S611 - a constant

    def with_name(self, text: str) -> Self:
        """Filter by a part of the file name or, if the text is short, by its beginning."""
        return self.filter(Task.name_matches(printable(text)))

    def newest_duplicates(self, *, user_id: int, digests: Iterable[str]) -> dict[str, int]:
        """Return the IDs of the user's newest tasks with these SHA-256 digests, by digest."""
        found = self.filter(user_id=user_id, sha256__in=set(digests) - {""}).exclude(sha256="")
        return dict(found.order_by("sha256", "-task_id").distinct("sha256").values_list("sha256", "task_id"))

    def newest_duplicate(self, *, user_id: int, sha256: str) -> int | None:
        """Return the ID of the user's newest task with the same bytes, or None."""
        if not sha256:
            return None
        # The exclusion matches the condition of the index `etl_task_same_bytes`.
        found = self.filter(user_id=user_id, sha256=sha256).exclude(sha256="").order_by("-task_id")
        return found.values_list("task_id", flat=True).first()

    def open(self) -> Self:
        """Return the waiting and running tasks. Their exact status is in Redis."""
        return self.filter(status=Status.PENDING)

    def reviewed(self, **conditions: bool | None) -> Self:
        """Filter by the review of the result: `approved`, `corrected`. Conditions with the value None are ignored."""
        found = self
        for name, value in conditions.items():
            if value is not None:
                found = found.filter(REVIEWED[name]) if value else found.exclude(REVIEWED[name])
        return found

    def accept(self, **fields: Any) -> "Task":
        """Insert a new task."""
        (task,) = self.accept_many([fields])
        return task

    def accept_many(self, tasks: Iterable[Mapping[str, Any]]) -> list["Task"]:
        """Insert new tasks. The number of each task's first run is derived from its UUID."""
        new: list[Any] = [Task(**fields).numbered() for fields in tasks]
        created: list[Any] = self.bulk_create(new)
        return created


class Task(models.Model):
    """A document and its result.

    The row is written when the document is submitted, when the task ends, and when it is retried. Until the end,
    `status` is `pending`, and the exact state is the run-state in Redis (`etl/runstate/`).
    """

    task_id = models.BigAutoField(primary_key=True)
    # Identifies the task in the run-state and, by the number of the first run, in keys of artifacts. The ID is not
    # enough: a database that was restored to an earlier point issues the same IDs again. "" for rows of earlier
    # releases.
    uuid = models.CharField(max_length=36, default=new_uuid, db_default="", blank=True, editable=False)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="etl_tasks", db_index=False)
    rule = models.ForeignKey("rules.Rule", models.PROTECT, related_name="tasks")
    rule_version = models.PositiveIntegerField(help_text="The rule's at the time of the request")

    batch = models.ForeignKey(
        "etl.DocumentBatch", models.PROTECT, null=True, blank=True, related_name="tasks", db_index=False
    )

    filename = models.CharField(max_length=255, blank=True, help_text="The client's name for it; only shown")
    kind = models.CharField(max_length=8, help_text="By its first bytes")
    size = models.BigIntegerField(help_text="Bytes")
    document_key = models.CharField(max_length=200, help_text="Of our own copy in object storage")
    # "" while it is unknown: for a presigned upload, the first worker that reads the document calculates it.
    sha256 = models.CharField(max_length=64, default="", db_default="", blank=True, editable=False)
    # No foreign key, so that responses to repeated requests stay the same after the earlier task was deleted.
    duplicate_of = models.BigIntegerField(
        null=True, blank=True, help_text="The owner's newest earlier task with the same bytes"
    )

    status = models.CharField(max_length=16, choices=Status, default=Status.PENDING)
    phase = models.CharField(max_length=12, choices=Stage, default=Stage.OCR)
    progress = models.PositiveSmallIntegerField(default=0, help_text="Percent")
    # Results of earlier releases, and a copy of new results for these releases. New results are read from
    # `last_result`.
    result = ExactJSONB(null=True, blank=True)
    last_result = ExactJSON(null=True, blank=True, help_text="Of the last completed run, digit for digit")
    last_result_run = models.PositiveIntegerField(null=True, blank=True, help_text="The run that last_result is of")
    # The review by people. It applies only to the result of `reviewed_run`, not to later results.
    reviewed_run = models.PositiveIntegerField(null=True, blank=True, help_text="The run whose result was reviewed")
    corrections = models.PositiveIntegerField(default=0, db_default=0, help_text="How often it was corrected")
    corrected_result = ExactJSON(null=True, blank=True, help_text="`data` and `citations` after the last correction")
    approved_at = models.DateTimeField(null=True, blank=True)
    approved_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.PROTECT, null=True, blank=True, related_name="+", db_index=False
    )
    error = models.JSONField(null=True, blank=True)
    metadata = models.JSONField(default=dict, blank=True)

    # Outcomes are written only with the current generation. It grows with every retry, and when the run-state is
    # recreated.
    generation = models.BigIntegerField(default=1, db_column="fence")
    # Run numbers, which are part of the keys of artifacts in object storage: the current run, the run with the valid
    # OCR result, and the run with the stored model responses.
    run = models.PositiveIntegerField(default=1)
    ocr_run = models.PositiveIntegerField(default=1)
    journal_run = models.PositiveIntegerField(default=1)

    # The order of turns between users, as `etl/pipeline/turns.py` assigns it. 0 for rows of earlier releases.
    rank = models.BigIntegerField(default=0, db_default=0)

    request_id = models.CharField(max_length=64, default="", blank=True)
    traceparent = models.CharField(
        max_length=55, default="", db_default="", blank=True, help_text="Of the request, if it was traced"
    )
    idempotency_key = models.CharField(max_length=255, default="", blank=True)
    fingerprint = models.CharField(max_length=64, default="", blank=True, help_text="SHA-256 of what was submitted")
    created_at = models.DateTimeField(default=clock.now, editable=False)
    updated_at = models.DateTimeField(default=clock.now, editable=False)  # time of creation, retry, or end
    expires_at = models.DateTimeField(
        null=True, blank=True, help_text="When it is deleted, if the client has asked for that"
    )

    objects = TaskQuerySet.as_manager()

    class Meta:
        db_table = "etl_task"
        verbose_name = "document"  # the word on the pages and in the menu of the admin
        indexes = [
            models.Index(fields=["user", "-created_at", "-task_id"], name="etl_task_of_user"),
            models.Index(fields=["-created_at", "-task_id"], name="etl_task_newest"),
            # For filtered lists. Without these, a filter that matches only old rows would read most rows of the user.
            models.Index(fields=["user", "status", "-created_at", "-task_id"], name="etl_task_of_status"),
            models.Index(
                fields=["status", "-created_at", "-task_id"],
                name="etl_task_not_completed",
                condition=Q(status__in=[Status.CANCELLED, Status.FAILED]),
            ),
            models.Index(fields=["user", "rule", "-created_at", "-task_id"], name="etl_task_of_rule"),
            # For the search by a part of the file name, in the form that `with_name` uses.
            GinIndex(OpClass(Upper("filename"), name="gin_trgm_ops"), name="etl_task_filename"),
            # For the newest earlier task with the same bytes.
            models.Index(fields=["user", "sha256", "-task_id"], name="etl_task_same_bytes", condition=~Q(sha256="")),
            # For the sweep, which searches for the task of every stored document.
            models.Index(fields=["document_key"], name="etl_task_document_key"),
            # For the queue's length and for recovery. It omits ended tasks, which are nearly all.
            models.Index(fields=["task_id"], name="etl_task_open", condition=Q(status=Status.PENDING)),
            # For the sweep of superseded artifacts, which reads the recently completed tasks, and skips those that were
            # not retried.
            models.Index(
                fields=["updated_at"], name="etl_task_superseded", condition=Q(status=Status.COMPLETED, run__gt=1)
            ),
            models.Index(
                fields=["user", "-created_at", "-task_id"],
                name="etl_task_reviewed",
                condition=Q(reviewed_run__isnull=False),
            ),
            models.Index(fields=["batch", "status"], name="etl_task_of_batch", condition=Q(batch__isnull=False)),
            models.Index(fields=["expires_at"], name="etl_task_expiry", condition=Q(expires_at__isnull=False)),
            # For turns: the next open tasks, the last rank of a user, and the last rank of processed tasks.
            models.Index(fields=["rank", "task_id"], name="etl_task_turn", condition=Q(status=Status.PENDING)),
            models.Index(fields=["user", "rank"], name="etl_task_last_turn", condition=~Q(status=Status.CANCELLED)),
            models.Index(
                fields=["rank"], name="etl_task_past_turn", condition=Q(status__in=PROCESSED, ocr_run=models.F("run"))
            ),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["user", "idempotency_key"], name="etl_task_idempotency", condition=~Q(idempotency_key="")
            ),
            models.CheckConstraint(name="etl_task_passing_states_live_in_redis", condition=Q(status__in=STORED)),
            models.CheckConstraint(
                name="etl_task_completed_has_result",
                condition=~Q(status=Status.COMPLETED) | Q(result__isnull=False, error__isnull=True),
            ),
            models.CheckConstraint(
                name="etl_task_failed_has_error", condition=~Q(status=Status.FAILED) | Q(error__isnull=False)
            ),
        ]

    def __str__(self) -> str:
        return str(self.task_id)

    def numbered(self) -> Self:
        """Set the run numbers and the generation of a new task. Return the task."""
        self.generation = self.run = self.ocr_run = self.journal_run = self.first_run
        return self

    @staticmethod
    def name_matches(text: str) -> Q:
        """Return the condition of `with_name`.

        The index has groups of three characters, and shorter groups only for the beginning of a name.
        """
        return Q(**{"filename__icontains" if len(text) >= TRIGRAM else "filename__istartswith": text})

    @property
    def first_run(self) -> int:
        """The number of the first run, at most 2**28. It is 1 for rows of earlier releases.

        Earlier releases can also run tasks whose first run has another number.
        """
        return 1 + int(self.uuid[:7] or "0", 16)

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED

    @property
    def original_result(self) -> dict[str, Any] | None:
        """The result without corrections. Numbers have all their digits, unless an earlier release wrote the result."""
        if self.result is None or self.last_result_run != self.run:
            return self.result  # type: ignore[no-any-return]
        return self.last_result  # type: ignore[no-any-return]

    @property
    def current_result(self) -> dict[str, Any] | None:
        return self.corrected(self.original_result, run=self.run)

    def corrected(self, result: dict[str, Any] | None, *, run: int) -> dict[str, Any] | None:
        """Return the result of a run with its corrections, if it has any."""
        if result is None or run != self.reviewed_run or not self.corrected_result:
            return result
        return {**result, **self.corrected_result}

    @property
    def review(self) -> Review:
        """The review of the current result."""
        if self.status != Status.COMPLETED or self.reviewed_run != self.run:
            return NO_REVIEW
        approver = self.approved_by.username if self.approved_by else None
        return Review(self.corrections, self.approved_at, approver)

    @property
    def previous_run(self) -> int:
        """The run of the last result while a later run has not completed, otherwise 0."""
        number = self.last_result_run or 0
        return number if self.status != Status.COMPLETED else 0
