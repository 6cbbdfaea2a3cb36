"""P3: peak memory of a worker's child process, for a chunk of 4,000,000 rows against one of 200,000.

Bounds: 1.1 times as much, and 200 MB for each. Each chunk has a new worker, because the peak of a used process would
include earlier chunks. Both files are too large for a single PUT, so they are uploaded in parts by threads. The peak is
the kernel's VmHWM, including pages that the child shares with its parent.
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
from tests.bench.alternation import Measurement, alternate
from tests.bench.report import Report

SIZES = 200_000, 4_000_000
QUICK_SIZES = 200_000, 400_000
GROWTH = 1.1
MEGABYTES = 200
DAY = date(2024, 1, 1)
# The key is the number of rows. The columns are those of large_chunk.
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
    alternatives: dict[str, Measurement] = {
        name_of(rows): partial(peak_of_child, dataset, user, rows, digest_of(rows), parents[name_of(rows)])
        for rows in sizes
    }
    children = alternate(alternatives, rounds=1 if quick else rounds, warm_up=False)
    report_results(report, children, parents)


def name_of(rows: int) -> str:
    return f"{rows:,} rows"


def digest_of(rows: int) -> str:
    """Return the hexadecimal SHA-256 of the server's COPY output."""
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
    """Export one chunk with a new worker. Return the child's peak in MB, and append the parent's peak to `parents`."""
    with site.running_workers({"exports": 1, "bundles": 1}) as running:
        job = site.submit(dataset, [planning.Pair(str(rows), DAY)], user)
        site.wait_for(job)
        parent, child = peaks(running["exports"])
    chunk = job.chunks.get()
    head = storage.head(chunk.path)
    assert (chunk.rows, chunk.sha256) == (rows, sha256), "the rows differ from the server's COPY"
    assert head is not None, "the file is missing"
    assert (head.etag, head.size) == (chunk.etag, chunk.bytes), "the file differs from the chunk's checksum"
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


def report_results(report: Report, children: dict[str, list[float]], parents: dict[str, list[float]]) -> None:
    for name, values in children.items():
        report.series[f"P3 {name}, child"] = values
        report.series[f"P3 {name}, parent"] = parents[name]
    report.table(
        f"P3, peak of a new worker, median of {len(next(iter(children.values())))}, alternating",
        ["", "child, MB", "range", "parent, MB"],
        [[name, f"{median(each):.1f}", span(each), f"{median(parents[name]):.1f}"] for name, each in children.items()],
    )
    small, large = children
    growth = median(children[large]) / median(children[small])
    report.bound("P3", f"peak memory with {large}, relative to {small}", growth, GROWTH)
    for name, values in children.items():
        report.bound("P3", f"peak memory with {name}, maximum of {len(values)}", max(values), MEGABYTES, unit="MB")


def span(values: Sequence[float]) -> str:
    return f"{min(values):.1f} to {max(values):.1f}"
