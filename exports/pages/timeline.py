"""The story of an export, from its events: bounded, however long it ran."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from exports.core.states import DownloadOutcome, JobStatus
from exports.models import Event, Job

MOST = 400  # events that are looked at, the newest
DOWNLOADS = 10

STATUSES = {
    JobStatus.PENDING: "Waits to begin",
    JobStatus.RUNNING: "Runs",
    JobStatus.RETRYING: "A chunk waits for its next attempt",
    JobStatus.SUCCESS: "Ready: the receipt is issued",
    JobStatus.FAILED: "Failed",
    JobStatus.CANCELLED: "Cancelled",
}
CHUNKS = {
    "done": "done",
    "failed": "failed",
    "retrying": "to be tried again",
    "cancelled": "cancelled",
    "pending": "back in the queue",
}
DOWNLOADED = {
    DownloadOutcome.REDEEMED: "Downloaded",
    DownloadOutcome.INVALID: "A download was refused: no link of ours",
    DownloadOutcome.EXPIRED: "A download was refused: its time was over",
    DownloadOutcome.REVOKED: "A download was refused: a newer link had replaced this one",
    DownloadOutcome.MISMATCH: "A download was refused: another network or program than the link is for",
    DownloadOutcome.USED: "A download was refused: the link was used already",
}


@dataclass
class Moment:
    """Something that happened; for many chunks, from `at` to `until`."""

    at: datetime
    words: str = ""
    until: datetime | None = None
    tone: str = "calm"
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def text(self) -> str:
        if self.words:
            return self.words
        parts = [f"{number:,} {CHUNKS.get(status, status)}" for status, number in self.counts.items()]
        return f"Chunks: {', '.join(parts)}"


def of(job: Job) -> list[Moment]:
    """Return what happened, newest first. Chunks that ended between two moves of the job are counted together."""
    newest = list(Event.objects.filter(job=job).order_by("-seq")[:MOST])
    accepted = Moment(at=job.created_at, words=f"Accepted: {job.total:,} chunk{'' if job.total == 1 else 's'}")
    moments = [accepted, *folded(reversed(newest))]
    moments.extend(
        Moment(at=each.at, words=DOWNLOADED[DownloadOutcome(each.outcome)], tone=tone(each.outcome))
        for each in job.downloads.order_by("-at")[:DOWNLOADS]
    )
    if job.has_ended and job.finished_at and not any(event.kind == Event.Kind.STATUS for event in newest):
        moments.append(Moment(at=job.finished_at, words=STATUSES[JobStatus(job.status)], tone=tone(job.status)))
    return sorted(moments, key=lambda moment: moment.until or moment.at)[::-1]  # of two at one time the later first


def folded(events: Iterable[Event]) -> list[Moment]:
    moments: list[Moment] = []
    for event in events:
        if event.kind == Event.Kind.STATUS:
            words = STATUSES.get(JobStatus(event.status), event.status)
            moments.append(Moment(at=event.at, words=words, tone=tone(event.status)))
            continue
        if not moments or moments[-1].words:
            moments.append(Moment(at=event.at))
        last = moments[-1]
        last.counts[event.status] += 1
        last.until = event.at
        last.tone = "bad" if last.counts["failed"] else "calm"
    return moments


def tone(status: str) -> str:
    if status in (JobStatus.SUCCESS, DownloadOutcome.REDEEMED):
        return "good"
    return "bad" if status == JobStatus.FAILED or status.startswith("link_") else "calm"
