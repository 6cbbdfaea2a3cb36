"""Timeline of an export: its latest events and downloads."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from config.platform.plurals import counted
from exports.core.states import DownloadOutcome, JobStatus
from exports.models import Event, Job

MAX_EVENTS = 400
MAX_DOWNLOADS = 10

STATUSES = {
    JobStatus.PENDING: "Pending",
    JobStatus.RUNNING: "Running",
    JobStatus.RETRYING: "Retrying failed chunks",
    JobStatus.SUCCESS: "Export ready",
    JobStatus.FAILED: "Export failed",
    JobStatus.CANCELLED: "Export cancelled",
}
CHUNKS = {"pending": "queued again"}  # other statuses are shown as they are
DOWNLOADED = {
    DownloadOutcome.REDEEMED: "Downloaded",
    DownloadOutcome.INVALID: "Download refused: invalid link",
    DownloadOutcome.EXPIRED: "Download refused: link expired",
    DownloadOutcome.REVOKED: "Download refused: link replaced by a newer one",
    DownloadOutcome.MISMATCH: "Download refused: different network or client",
    DownloadOutcome.USED: "Download refused: link already used",
}


@dataclass
class TimelineEntry:
    """An entry of the timeline. An entry that summarizes the events of chunks lasts from `at` to `until`."""

    at: datetime
    label: str = ""
    until: datetime | None = None
    tone: str = "calm"
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def text(self) -> str:
        if self.label:
            return self.label
        parts = [f"{number:,} {CHUNKS.get(status, status)}" for status, number in self.counts.items()]
        return f"Chunks: {', '.join(parts)}"


def entries_of(job: Job) -> list[TimelineEntry]:
    """Return the timeline, newest first. Chunk events between two status changes become one entry."""
    newest = list(Event.objects.filter(job=job).order_by("-seq")[:MAX_EVENTS])
    accepted = TimelineEntry(at=job.created_at, label=f"Created with {counted(job.total, 'chunk')}")
    entries = [accepted, *grouped(reversed(newest))]
    entries.extend(
        TimelineEntry(at=each.at, label=DOWNLOADED[DownloadOutcome(each.outcome)], tone=tone(each.outcome))
        for each in job.downloads.order_by("-at")[:MAX_DOWNLOADS]
    )
    if job.has_ended and job.finished_at and not any(event.kind == Event.Kind.STATUS for event in newest):
        entries.append(TimelineEntry(at=job.finished_at, label=STATUSES[JobStatus(job.status)], tone=tone(job.status)))
    # The sort is stable. Reversing afterwards puts the later of two entries with the same time first.
    return sorted(entries, key=lambda entry: entry.until or entry.at)[::-1]


def grouped(events: Iterable[Event]) -> list[TimelineEntry]:
    entries: list[TimelineEntry] = []
    for event in events:
        if event.kind == Event.Kind.STATUS:
            label = STATUSES[JobStatus(event.status)]
            entries.append(TimelineEntry(at=event.at, label=label, tone=tone(event.status)))
            continue
        if not entries or entries[-1].label:
            entries.append(TimelineEntry(at=event.at))
        last = entries[-1]
        last.counts[event.status] += 1
        last.until = event.at
        last.tone = "bad" if last.counts["failed"] else "calm"
    return entries


def tone(status: str) -> str:
    if status in (JobStatus.SUCCESS, DownloadOutcome.REDEEMED):
        return "good"
    return "bad" if status == JobStatus.FAILED or status.startswith("link_") else "calm"
