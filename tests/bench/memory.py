"""P3: the peak memory of a worker's child: a chunk of 4,000,000 rows against one of 200,000.

At most 1.1 times as much, and at most 200 MB for either. Each chunk has a worker of its own, started anew: a process
that had a large chunk before would show that one's peak. Both files are too large for one PUT, so both are sent in
parts, by threads. The peak is the kernel's, VmHWM, with the pages that the child has from its parent.
"""

import hashlib
from collections.abc import Sequence
from datetime import date
from functools import partial
from pathlib import Path
from statistics import median

import psycopg
from django.conf import settings
from django.contrib.auth.models import User

from config.dev.stack import process_tree
from config.dev.stack.process import Process
from config.platform import storage
from exports.core import planning
from exports.models import Dataset
from tests.bench import site
from tests.bench.report import Report
from tests.bench.turns import Way, in_turn

SIZES = 200_000, 4_000_000
QUICK_SIZES = 200_000, 400_000
GROWTH = 1.1
MEGABYTES = 200
DAY = date(2024, 1, 1)
# The key says how many rows. The columns are those of large_chunk.
FUNCTION = """
CREATE SCHEMA memory;
CREATE FUNCTION memory.rows_for(key text, effective_date date)
RETURNS TABLE (id int, name text, note text, amount numeric, at timestamptz) LANGUAGE sql STABLE AS $$
    SELECT n, md5(n::text), 'text, with ' || n || ' commas, and more of them', (n * 1.37)::numeric(12, 2),
           '2024-01-01 00:00:00+00'::timestamptz + n * interval '1 second'
    FROM generate_series(1, key::int) n
$$;
"""
COPY = "COPY (SELECT * FROM memory.rows_for('{rows}', '{day}')) TO STDOUT (FORMAT csv, HEADER)"


def run(report: Report, *, rounds: int, quick: bool) -> None:
    user = site.prepare()
    site.in_source(FUNCTION)
    dataset = site.make_dataset("memory", "memory.rows_for")
    sizes = QUICK_SIZES if quick else SIZES
    parents: dict[str, list[float]] = {name_of(rows): [] for rows in sizes}
    ways: dict[str, Way] = {
        name_of(rows): partial(peak_of_child, dataset, user, rows, digest_of(rows), parents[name_of(rows)])
        for rows in sizes
    }
    children = in_turn(ways, rounds=1 if quick else rounds, warm_up=False)
    tell(report, children, parents)


def name_of(rows: int) -> str:
    return f"{rows:,} rows"


def digest_of(rows: int) -> str:
    """Return the SHA-256, in hex, of what the server's own COPY gives."""
    digest = hashlib.sha256()
    with (
        psycopg.connect(settings.SLUICE.source_url, options="-c timezone=UTC") as connection,
        connection.cursor() as cursor,
        cursor.copy(COPY.format(rows=rows, day=DAY)) as copy,
    ):
        for block in copy:
            digest.update(block)
    return digest.hexdigest()


def peak_of_child(dataset: Dataset, user: User, rows: int, sha256: str, parents: list[float]) -> float:
    """Export one chunk with a new worker. Returns the child's peak in MB, and adds that of its parent to `parents`."""
    with site.working({"exports": 1, "bundles": 1}) as running:
        job = site.submit(dataset, [planning.Pair(str(rows), DAY)], user)
        site.wait_for(job)
        parent, child = peaks(running["exports"])
    chunk = job.chunks.get()
    head = storage.head(chunk.path)
    assert (chunk.rows, chunk.sha256) == (rows, sha256), "these are not the rows of the server's own COPY"
    assert head is not None, "there is no file"
    assert (head.etag, head.size) == (chunk.etag, chunk.bytes), "the file is not the one that the chunk ended with"
    parents.append(parent)
    return child


def peaks(worker: Process) -> tuple[float, float]:
    """Return the peaks of a worker and of its largest child, in MB."""
    parent, *children = process_tree.members(worker.pid)
    return peak(parent), max(map(peak, children))


def peak(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines()
    kibibytes = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    return kibibytes * 1024 / 1e6


def tell(report: Report, children: dict[str, list[float]], parents: dict[str, list[float]]) -> None:
    for name, values in children.items():
        report.series[f"P3 {name}, child"] = values
        report.series[f"P3 {name}, parent"] = parents[name]
    report.table(
        f"P3, peak of a new worker, median of {len(next(iter(children.values())))} in turn",
        ["", "child, MB", "from, to", "its parent, MB"],
        [[name, f"{median(each):.1f}", span(each), f"{median(parents[name]):.1f}"] for name, each in children.items()],
    )
    small, large = children
    growth = median(children[large]) / median(children[small])
    report.bar("P3", f"peak memory with {large}, of that with {small}", growth, GROWTH)
    for name, values in children.items():
        report.bar("P3", f"peak memory with {name}, the most of {len(values)}", max(values), MEGABYTES, unit="MB")


def span(values: Sequence[float]) -> str:
    return f"{min(values):.1f} to {max(values):.1f}"
