"""Filters of lists of tasks: file name, rule, batch, status, and days."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from typing import Any, cast

from rest_framework.exceptions import ValidationError

from config.platform.http.paging import refusal, whole_number
from config.platform.http.serializers import as_day
from etl.api import lookup
from etl.core.states import Status
from etl.models.task import TaskQuerySet

MAX_TEXT = 255  # of a file name


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFilter:
    """What a list of tasks is limited to. Days are in UTC, and both are included."""

    q: str = ""
    rule_id: int | None = None
    batch_id: int | None = None
    status: str = ""
    first: date | None = None
    last: date | None = None

    @classmethod
    def read(cls, query: Mapping[str, str]) -> "TaskFilter":
        """Read query parameters. Raises ValidationError with all errors, each at its name."""
        values: dict[str, Any] = {}
        errors: dict[str, Any] = {}
        for name, read in READERS.items():
            if name in query:
                try:
                    values[name] = read(name, query[name])
                except ValidationError as error:
                    errors |= cast("dict[str, Any]", error.detail)
        first, last = values.pop("from", None), values.pop("to", None)
        if first and last and first > last:
            errors |= cast("dict[str, Any]", refusal("to", "Must not be before `from`.").detail)
        if errors:
            raise ValidationError(errors)
        return cls(**values, first=first, last=last)

    def apply(self, tasks: TaskQuerySet) -> TaskQuerySet:
        if self.q:
            tasks = tasks.with_name(self.q)
        if self.rule_id is not None:
            tasks = tasks.filter(rule_id=self.rule_id)
        if self.batch_id is not None:
            tasks = tasks.filter(batch_id=self.batch_id)
        if self.first:
            tasks = tasks.filter(created_at__gte=datetime.combine(self.first, time.min, UTC))
        if self.last:
            tasks = tasks.filter(created_at__lte=datetime.combine(self.last, time.max, UTC))
        return lookup.with_status(tasks, self.status) if self.status else tasks


def read_text(name: str, text: str) -> str:
    if len(text) > MAX_TEXT:
        raise refusal(name, f"Has {len(text):,} characters; the limit is {MAX_TEXT}.", code="max_length")
    if not text.isprintable():
        raise refusal(name, "Must not contain control characters.")
    return text.strip()


def read_rule(name: str, text: str) -> int:
    number = whole_number(text)
    if not number:
        raise refusal(name, "Must be the id of a rule.")
    return number


def read_batch(name: str, text: str) -> int:
    number = whole_number(text)
    if not number:
        raise refusal(name, "Must be the id of a batch.")
    return number


def read_status(name: str, text: str) -> str:
    if text not in Status.values:
        raise refusal(name, f"Must be one of: {', '.join(sorted(Status.values))}.", code="invalid_choice")
    return text


def read_day(name: str, text: str) -> date:
    day = as_day(text)
    if day is None:
        raise refusal(name, "Must be a date such as 2024-02-29.")
    return day


READERS: dict[str, Callable[[str, str], Any]] = {
    "q": read_text,
    "rule_id": read_rule,
    "batch_id": read_batch,
    "status": read_status,
    "from": read_day,
    "to": read_day,
}
