"""Filters for lists of exports: name or ID, status, dataset, schedule, and days."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from functools import partial
from uuid import UUID

from config.platform.http.paging import refusal, require_choice
from config.platform.http.search import Readers, created_between, read_day, read_parameters, read_text
from exports.core.states import JobStatus
from exports.models import Dataset
from exports.models.job import JobQuerySet


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportFilter:
    """Filter for a list of exports. `first` and `last` are inclusive days in UTC."""

    q: str = ""
    status: str = ""
    dataset: str = ""
    schedule: UUID | None = None
    first: date | None = None
    last: date | None = None

    @classmethod
    def read(cls, query: Mapping[str, str]) -> "ExportFilter":
        """Read query parameters. Raises ValidationError with the errors of all parameters, by name."""
        values = read_parameters(query, READERS)
        return cls(schedule=values.pop("scheduleId", None), **values)

    def apply(self, jobs: JobQuerySet) -> JobQuerySet:
        if self.q:
            jobs = jobs.found_by(self.q)
        if self.status:
            jobs = jobs.filter(status=self.status)
        if self.dataset:
            # Filter by ID: with a join by name, Postgres cannot estimate the rows, and reads every job of the user.
            jobs = jobs.filter(dataset__in=list(Dataset.objects.filter(name=self.dataset)))
        if self.schedule:
            jobs = jobs.filter(schedule_id=self.schedule)
        return jobs.filter(created_between(self.first, self.last))


def read_uuid(name: str, text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise refusal(name, "Must be a UUID.") from None


READERS: Readers = {
    "q": read_text,
    "status": partial(require_choice, among=JobStatus.values),
    "dataset": lambda _name, text: text,
    "scheduleId": read_uuid,
    "from": read_day,
    "to": read_day,
}
