"""P1 and P2: a chunk of 2,000,000 rows.

- P1: against psql piped into rclone, a common alternative. Bounds: 0.75 times its time with its defaults, and 0.90
  times its time with faster options.
- P2: against psql alone, which discards the bytes. This is the lower limit, for information. The goal is 1.60.
"""

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from statistics import median

from django.conf import settings
from django.contrib.auth.models import User

from config.dev.stack.postgres import program
from config.platform import storage
from exports.core import planning
from exports.models import Chunk, Dataset
from exports.worker import execution
from tests.bench import site
from tests.bench.alternation import Measurement, alternate
from tests.bench.report import Report

TABLE = """
CREATE SCHEMA bench;
CREATE TABLE bench.rows AS
SELECT n::int AS id, md5(n::text) AS name, 'text, with ' || n || ' commas, and more of them' AS note,
       (n * 1.37)::numeric(12, 2) AS amount, '2024-01-01 00:00:00+00'::timestamptz + n * interval '1 second' AS at
FROM generate_series(1, {rows}) n;
CREATE FUNCTION bench.rows_for(key text, effective_date date) RETURNS SETOF bench.rows
LANGUAGE sql STABLE AS 'SELECT * FROM bench.rows';
VACUUM ANALYZE bench.rows;
"""
COPY = "COPY (SELECT * FROM bench.rows_for('ALL', '2024-01-01')) TO STDOUT (FORMAT csv, HEADER)"
PAIR = planning.Pair("ALL", date(2024, 1, 1))
LIMIT, OURS = "psql > /dev/null", "Sluice"
DEFAULTS, TUNED = "psql | rclone rcat, its defaults", "psql | rclone rcat, tuned"
# Skips the request that checks the bucket.
TUNING = {"RCLONE_S3_NO_CHECK_BUCKET": "true"}


def run(report: Report, *, rounds: int, quick: bool) -> None:
    rows = 100_000 if quick else 2_000_000
    make_table(rows)
    user = site.prepare(slots=1)
    dataset = site.make_dataset("bench", "bench.rows_for")
    psql = [str(program("psql")), settings.SLUICE.source_url, "-qXc", COPY]
    alternatives: dict[str, Measurement] = {
        LIMIT: lambda: discard(psql),
        DEFAULTS: lambda: pipe(psql, {}),
        TUNED: lambda: pipe(psql, TUNING),
        OURS: lambda: export(dataset, user, rows),
    }
    for alternative in alternatives.values():
        alternative()
    compare(psql, report)
    measured = alternate(alternatives, rounds=rounds)
    spent = {name: cpu(alternative) for name, alternative in alternatives.items()}
    report.times("P1, P2", measured)
    middle = {name: median(values) for name, values in measured.items()}
    for peer, bound in ((TUNED, 0.9), (DEFAULTS, 0.75)):
        report.bound("P1", f"a chunk of {rows:,} rows, relative to {peer}", middle[OURS] / middle[peer], bound)
    report.bound("P2", "the same, relative to psql > /dev/null (goal 1.6)", middle[OURS] / middle[LIMIT])
    report.table(
        "CPU seconds of one round",
        ["", "Postgres", "SeaweedFS", "client processes"],
        [[name, *(f"{seconds:.2f}" for seconds in groups)] for name, groups in spent.items()],
    )


def make_table(rows: int) -> None:
    for statement in TABLE.format(rows=rows).strip().removesuffix(";").split(";\n"):
        site.in_source(statement)


def discard(psql: list[str]) -> None:
    subprocess.run(psql, check=True, stdout=subprocess.DEVNULL)


def pipe(psql: list[str], tuning: Mapping[str, str]) -> None:
    env = settings.SLUICE
    rclone = [str(Path(sys.executable).parent / "rclone"), "rcat", f":s3:{env.s3_bucket}/bench/rclone.csv"]
    options = {
        "RCLONE_CONFIG": os.devnull,
        "RCLONE_S3_PROVIDER": "SeaweedFS",
        "RCLONE_S3_ENDPOINT": str(env.s3_endpoint_url),
        "RCLONE_S3_ACCESS_KEY_ID": env.s3_access_key_id.get_secret_value(),
        "RCLONE_S3_SECRET_ACCESS_KEY": env.s3_secret_access_key.get_secret_value(),
        "RCLONE_S3_SERVER_SIDE_ENCRYPTION": "AES256",
        **tuning,
    }
    with subprocess.Popen(psql, stdout=subprocess.PIPE) as reading:
        subprocess.run(rclone, check=True, stdin=reading.stdout, env={**os.environ, **options})
    assert reading.returncode == 0


def export(dataset: Dataset, user: User, rows: int) -> float:
    """Run an export from the submission to the finished chunk: claim, COPY, hash, upload, finish."""
    started = time.perf_counter()
    job = site.submit(dataset, [PAIR], user)
    execution.drain()
    spent = time.perf_counter() - started
    chunk = job.chunks.get()
    assert (chunk.status, chunk.source, chunk.attempts, chunk.rows) == ("done", "live", 1, rows), chunk.error_code
    return spent


def compare(psql: list[str], report: Report) -> None:
    """Assert that all files have equal bytes, before times are measured."""
    theirs = hashlib.sha256(subprocess.run(psql, check=True, stdout=subprocess.PIPE).stdout).hexdigest()
    chunk = Chunk.objects.latest("id")
    ours = hash_of(planning.object_key("bench", PAIR, planning.Shape()))
    assert theirs == ours == hash_of("bench/rclone.csv") == chunk.sha256, "the files differ"
    report.notes.append(f"P1, P2: {chunk.rows:,} rows, {chunk.bytes:,} bytes, identical for all.")


def hash_of(key: str) -> str:
    content = hashlib.sha256()
    for block in storage.read(key):
        content.update(block)
    return content.hexdigest()


def cpu(alternative: Callable[[], object]) -> list[float]:
    """Return the CPU seconds of a round: Postgres, SeaweedFS, and this process with its children."""
    servers = site.server_pids()
    pids = [servers["Postgres"]], [servers["SeaweedFS"]]
    before = *map(site.cpu_seconds, pids), site.process_cpu_seconds(os.getpid())
    alternative()
    after = *map(site.cpu_seconds, pids), site.process_cpu_seconds(os.getpid())
    return [now - then for then, now in zip(before, after, strict=True)]
