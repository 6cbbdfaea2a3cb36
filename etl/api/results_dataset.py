"""The export dataset `documents`: the results of a user's documents, one row per document."""

import errno
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from datetime import date
from typing import Any

from django.contrib.auth.models import User
from rest_framework import serializers
from rest_framework.exceptions import ErrorDetail, ValidationError

from config.platform.built_in_datasets import BuiltFile, BuiltInDataset, CannotBuild, FileLayout
from config.platform.http.problems import DiskFull
from config.platform.http.serializers import DayField, StrictSerializer, WholeNumber, as_day, check_order
from etl.api.search import TaskFilter
from etl.api.serializers import MAX_ID
from etl.models import DocumentBatch, Task
from etl.models.task import STORED, TaskQuerySet
from etl.pipeline import result_files
from etl.pipeline.result_files import OWN_COLUMNS, ResultLayout
from rules.library import catalog

FORMATS = ("csv", "jsonl", "parquet")  # the default first
ABOUT = ("task_id", "filename", "rule_id", "rule_version", "batch_id", "created_at")


class DocumentFiltersSerializer(StrictSerializer):
    """Your documents that meet all of these conditions. Without any: all your documents."""

    ruleId = WholeNumber(min_value=1, max_value=MAX_ID, required=False, help_text="A rule, in any version.")
    batchId = WholeNumber(min_value=1, max_value=MAX_ID, required=False, help_text="One of your batches.")
    dateFrom = DayField(required=False, help_text="First day of submission, in UTC.")
    dateTo = DayField(required=False, help_text="Last day of submission, in UTC, inclusive.")
    status = serializers.ChoiceField(
        choices=[str(status) for status in STORED],
        required=False,
        help_text="`pending`: waiting or running. Default: documents with any status.",
    )

    def refused(self, data: Mapping[str, Any]) -> Iterator[tuple[str, list[ErrorDetail]]]:
        yield from check_order(data)
        yield from super().refused(data)

    def validate_ruleId(self, rule_id: int) -> int:  # noqa: N802 - named by the field
        """Accept a visible rule, or a deleted rule if the user has documents with it."""
        user = User.objects.get(pk=self.context["user_id"])
        is_visible = catalog.visible_to(user).filter(pk=rule_id).exists()
        if not is_visible and not Task.objects.filter(user=user, rule_id=rule_id).exists():
            raise ValidationError("Rule not found.", code="unknown_rule")
        return rule_id

    def validate_batchId(self, batch_id: int) -> int:  # noqa: N802 - named by the field
        if not DocumentBatch.objects.filter(pk=batch_id, user_id=self.context["user_id"]).exists():
            raise ValidationError("Batch not found.", code="unknown_batch")
        return batch_id

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        return {name: value.isoformat() if isinstance(value, date) else value for name, value in attrs.items()}


class ResultsDataset(BuiltInDataset):
    name = "documents"
    scope = "documents:read"
    description = "Results of your documents"
    formats = FORMATS
    columns = tuple({"name": name, "type": OWN_COLUMNS[name]} for name in (*ABOUT, "status", "error"))
    filters = DocumentFiltersSerializer

    def key(self, filters: Mapping[str, Any]) -> str:
        parts = {"ruleId": "rule-{}", "batchId": "batch-{}", "status": "{}"}
        words = [text.format(filters[name]) for name, text in parts.items() if name in filters]
        return "-".join([self.name, *words])

    def build(
        self, filters: Mapping[str, Any], *, user_id: int, layout: FileLayout, checkpoint: Callable[[], None]
    ) -> BuiltFile:
        try:
            return result_files.build(
                selected(filters, user_id), ResultLayout(**asdict(layout), about=ABOUT), checkpoint=checkpoint
            )
        except result_files.TooManyColumns as refusal:
            raise CannotBuild(refusal.detail) from None
        except DiskFull:
            raise OSError(errno.ENOSPC, "no space is left for temporary files") from None


def selected(filters: Mapping[str, Any], user_id: int) -> TaskQuerySet:
    """Return the documents in the order of their submission, which several indexes support."""
    first, last = (as_day(filters.get(name)) for name in ("dateFrom", "dateTo"))
    wanted = TaskFilter(rule_id=filters.get("ruleId"), batch_id=filters.get("batchId"), first=first, last=last)
    tasks = wanted.apply(Task.objects.filter(user_id=user_id).order_by("created_at", "task_id"))
    return tasks.filter(status=filters["status"]) if "status" in filters else tasks
