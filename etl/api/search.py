"""Filters of task lists: file name, rule, batch, status, and days."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from functools import partial

from config.platform.http.paging import refusal, require_choice, whole_number
from config.platform.http.search import Readers, created_between, read_day, read_parameters, read_text
from etl.api import lookup
from etl.core.states import Status
from etl.models.task import TaskQuerySet


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFilter:
    """The filters of a task list. `first` and `last` are days in UTC, both inclusive."""

    q: str = ""
    rule_id: int | None = None
    batch_id: int | None = None
    status: str = ""
    first: date | None = None
    last: date | None = None

    @classmethod
    def read(cls, query: Mapping[str, str]) -> "TaskFilter":
        """Read query parameters. Raises ValidationError with the errors of all parameters, by name."""
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


def read_id(name: str, text: str, *, of: str) -> int:
    number = whole_number(text)
    if not number:
        raise refusal(name, f"Must be the ID of a {of}.")
    return number


READERS: Readers = {
    "q": read_text,
    "rule_id": partial(read_id, of="rule"),
    "batch_id": partial(read_id, of="batch"),
    "status": partial(require_choice, among=Status.values),
    "from": read_day,
    "to": read_day,
}
