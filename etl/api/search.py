"""Filters of lists of tasks: file name, rule, batch, status, and days."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date

from config.platform.http.paging import refusal, whole_number
from config.platform.http.search import Readers, created_between, read_day, read_parameters, read_text
from etl.api import lookup
from etl.core.states import Status
from etl.models.task import TaskQuerySet


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
        return cls(**read_parameters(query, READERS))

    def apply(self, tasks: TaskQuerySet) -> TaskQuerySet:
        if self.q:
            tasks = tasks.with_name(self.q)
        if self.rule_id is not None:
            tasks = tasks.filter(rule_id=self.rule_id)
        if self.batch_id is not None:
            tasks = tasks.filter(batch_id=self.batch_id)
        tasks = tasks.filter(created_between(self.first, self.last))
        return lookup.with_status(tasks, self.status) if self.status else tasks


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


READERS: Readers = {
    "q": read_text,
    "rule_id": read_rule,
    "batch_id": read_batch,
    "status": read_status,
    "from": read_day,
    "to": read_day,
}
