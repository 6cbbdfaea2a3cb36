"""P1 and P2: one large chunk, against psql alone and against psql piped into rclone, the tool a user would pick."""

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from statistics import median

import django
import psycopg

django.setup()

from django.conf import settings  # noqa: E402 - Django is set up only now
from django.contrib.auth.models import User  # noqa: E402
from django.core.management import call_command  # noqa: E402

from config import storage  # noqa: E402
from config.stack.postgres import program  # noqa: E402
from exports import execution, planning, submission  # noqa: E402
from exports.models import Chunk, Dataset, Slot  # noqa: E402

TABLE = """
CREATE SCHEMA bench;
CREATE TABLE bench.rows AS
SELECT n::int AS id, md5(n::text) AS name, 'text, with ' || n || ' commas, and more of them' AS note,
       (n * 1.37)::numeric(12, 2) AS amount, '2024-01-01 00:00:00+00'::timestamptz + n * interval '1 second' AS at
FROM generate_series(1, {rows}) n;
CREATE FUNCTION bench.rows_for(key text, effective_date date) RETURNS SETOF bench.rows
LANGUAGE sql STABLE AS 'SELECT * FROM bench.rows';
"""
COPY = "COPY (SELECT * FROM bench.rows_for('ALL', '2024-01-01')) TO STDOUT (FORMAT csv, HEADER)"
PAIR = planning.Pair("ALL", date(2024, 1, 1))


def run(*, rounds: int, rows: int) -> None:
    prepare(rows)
    psql = [str(program("psql")), settings.SLUICE.source_url, "-qXc", COPY]
    ways: dict[str, Callable[[], None]] = {
        "psql > /dev/null": lambda: discard(psql),
        "psql | rclone rcat": lambda: pipe(psql),
        "sluice": export,
    }
    for way in ways.values():  # warm up: caches, connections, volumes
        way()
    compare(psql)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            seconds[name].append(timed(way))
    report({name: median(times) for name, times in seconds.items()}, rows, rounds)


def prepare(rows: int) -> None:
    with psycopg.connect(settings.SLUICE.source_url, autocommit=True) as connection:
        connection.execute(TABLE.format(rows=rows))
        connection.execute("VACUUM ANALYZE bench.rows")
    call_command("migrate", verbosity=0)
    Slot.objects.provide(count=1)
    Dataset.objects.create(name="bench", function="bench.rows_for", base_path="bench")
    User.objects.create_user("bench")


def timed(way: Callable[[], None]) -> float:
    started = time.perf_counter()
    way()
    return time.perf_counter() - started


def discard(psql: list[str]) -> None:
    subprocess.run(psql, check=True, stdout=subprocess.DEVNULL)


def pipe(psql: list[str]) -> None:
    env = settings.SLUICE
    rclone = [str(Path(sys.executable).parent / "rclone"), "rcat", f":s3:{env.s3_bucket}/bench/rclone.csv"]
    options = {
        "RCLONE_CONFIG": os.devnull,
        "RCLONE_S3_PROVIDER": "SeaweedFS",
        "RCLONE_S3_ENDPOINT": str(env.s3_endpoint_url),
        "RCLONE_S3_ACCESS_KEY_ID": env.s3_access_key_id.get_secret_value(),
        "RCLONE_S3_SECRET_ACCESS_KEY": env.s3_secret_access_key.get_secret_value(),
        "RCLONE_S3_NO_CHECK_BUCKET": "true",
        "RCLONE_S3_SERVER_SIDE_ENCRYPTION": "AES256",
    }
    with subprocess.Popen(psql, stdout=subprocess.PIPE) as reading:
        subprocess.run(rclone, check=True, stdin=reading.stdout, env={**os.environ, **options})


def export() -> None:
    """From the submission to the chunk that is done: claim, COPY, hash, upload, finish."""
    request = submission.ExportRequest(
        dataset=Dataset.objects.get(), pairs=[PAIR], duplicates=0, shape=planning.Shape(), delivery="single",
        reuse="never", allow_degraded=True,
    )  # fmt: skip
    submission.submit(request, user_id=User.objects.get().pk)
    execution.drain()


def compare(psql: list[str]) -> None:
    """The bytes must be the same before any time counts."""
    theirs = hashlib.sha256(subprocess.run(psql, check=True, stdout=subprocess.PIPE).stdout).hexdigest()
    ours = hashlib.sha256()
    for block in storage.read(planning.object_key("bench", PAIR, planning.Shape())):
        ours.update(block)
    chunk = Chunk.objects.latest("id")
    assert theirs == ours.hexdigest() == chunk.sha256, "the files differ"
    print(f"{chunk.rows:,} rows, {chunk.bytes:,} bytes, the same from all three")


def report(seconds: dict[str, float], rows: int, rounds: int) -> None:
    print(f"\nmedian of {rounds}, measured in turn      seconds     rows/s   of psql  of rclone")
    for name, taken in seconds.items():
        of_psql, of_rclone = taken / seconds["psql > /dev/null"], taken / seconds["psql | rclone rcat"]
        print(f"{name:32}{taken:13.2f}{rows / taken:11,.0f}{of_psql:10.2f}{of_rclone:11.2f}")
    ratio = seconds["sluice"] / seconds["psql | rclone rcat"]
    print(f"\nP1: {ratio:.2f} of rclone's time, bar 0.80: {'pass' if ratio <= 0.8 else 'short'}")
