"""Chart of an export's source calls by worker and time."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from config.platform.db import clock, sql
from config.platform.durations import precise
from config.platform.plurals import counted
from exports.core.states import Source
from exports.models import Job
from exports.source import database

MAX_CHUNKS = 400
MAX_LANES = 20
WIDTH, MIN_WIDTH = 1000, 2  # of the chart and of its narrowest bar, in SVG units

# Every nth chunk, each found by an index. LIMIT 1 keeps the planner from reading all chunks. Chunks that wait for
# another attempt are left out, because the end of their latest call is not recorded.
CHUNKS = """
SELECT c.* FROM generate_series(0, %(total)s - 1, %(step)s) AS position
CROSS JOIN LATERAL (
    SELECT key, effective_date, status, source, backend, started_at, finished_at FROM exports_chunk
    WHERE job_id = %(job)s AND seq = position LIMIT 1
) c
WHERE c.started_at IS NOT NULL AND c.status <> 'retrying' ORDER BY coalesce(c.finished_at, 'infinity'), c.started_at
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """The latest call for a chunk. `x` and `width` are in SVG units."""

    x: int
    width: int
    status: str
    text: str


@dataclass(slots=True, kw_only=True)
class Lane:
    """The calls of one worker process, which runs one call at a time."""

    name: str
    bars: list[Bar] = field(default_factory=list)
    busy: timedelta = timedelta(0)

    @property
    def summary(self) -> str:
        return f"{counted(len(self.bars), 'chunk')}, {precise(self.busy)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerChart:
    """Lanes in the order of their names, and the time axis.

    The chart shows every `step`th chunk. `more` is the number of lanes that are not shown.
    """

    lanes: list[Lane]
    begin: datetime
    end: datetime
    step: int
    more: int


def chart_of(job: Job) -> WorkerChart | None:
    """Return the chart, or None if no chunk has started."""
    step = max(1, -(-job.total // MAX_CHUNKS))
    now = clock.now()
    rows = sql.rows(CHUNKS, job=job.pk, total=job.total, step=step)
    if not rows:
        return None
    begin = min(row["started_at"] for row in rows)
    end = max(*(row["finished_at"] or now for row in rows), begin + timedelta(milliseconds=1))
    lanes = lanes_of(rows, begin, end, now)
    return WorkerChart(lanes=lanes[:MAX_LANES], begin=begin, end=end, step=step, more=len(lanes[MAX_LANES:]))


def lanes_of(rows: Iterable[sql.Row], begin: datetime, end: datetime, now: datetime) -> list[Lane]:
    """Return the lanes, by name. The rows must be in the order in which the chunks ended."""
    lanes: dict[str, Lane] = {}
    ends: dict[str, datetime] = defaultdict(lambda: begin)
    for row in rows:
        name = worker_of(row)
        lane = lanes.setdefault(name, Lane(name=name))
        # The chunks of a batch have the same start time, but run one after another.
        began, ended = max(row["started_at"], ends[name]), row["finished_at"] or now
        ends[name] = ended
        took = max(ended - began, timedelta(0))
        x = min(round(WIDTH * ((began - begin) / (end - begin))), WIDTH - MIN_WIDTH)
        lane.bars.append(
            Bar(
                x=x,
                width=max(MIN_WIDTH, min(round(WIDTH * (took / (end - begin))), WIDTH - x)),
                status=row["status"],
                text=f"{row['key']} {row['effective_date']}: {row['status']}, {precise(took)}",
            )
        )
        lane.busy += took
    return sorted(lanes.values(), key=lambda lane: lane.name)


def worker_of(row: sql.Row) -> str:
    """Return the name of the chunk's lane.

    If the source was called, it is the host and process of the worker, such as `web1-4711`.
    """
    if row["source"] == Source.REUSED:
        return "Reused files"
    return database.process_of(row["backend"]) or "Not recorded"
