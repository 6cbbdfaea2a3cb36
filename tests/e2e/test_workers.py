"""Real workers that are killed, suspended, and shut down during their work. A10 to A13, A15, A28."""

import hashlib
import io
import json
import subprocess
import sys

import psycopg
import pytest
from django.contrib.auth.models import User
from pyarrow import parquet
from rest_framework.test import APIClient

from config.platform import storage
from exports.core.planning import Shape
from exports.models import Chunk, Dataset, Job, Receipt, Slot
from tests.broker import lose_messages
from tests.e2e.conftest import Workers, suspended
from tests.e2e.test_source import maximum_until, succeeded
from tests.integration.factories import make_job
from tests.integration.test_execution import content
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("empty_bucket")

PATH = "things/2024/02/28/JFK_20240228.csv"

# 300,000 rows, 30 MB. The call pauses before its first row: a PL/pgSQL function returns no row before it has ended.
SLOW = """
CREATE OR REPLACE FUNCTION data.rows_for(key text, effective_date date) RETURNS TABLE (k text, n int, d date)
LANGUAGE plpgsql AS $$ #variable_conflict use_column
BEGIN
    RETURN QUERY SELECT {text}, n, effective_date FROM generate_series(1, 150000) n;
    PERFORM pg_sleep({seconds});
    RETURN QUERY SELECT {text}, n, effective_date FROM generate_series(150001, 300000) n;
END $$
""".replace("{text}", "repeat(key, 30)")
# Texts that cannot be compressed, so that the upload of a Parquet file has several parts.
DENSE_TEXT = " || ".join(f"md5(n || '{letter}')" for letter in "abcdef")
DENSE = SLOW.replace("repeat(key, 30)", DENSE_TEXT)
# The same rows, with a pause after half of them have been sent. During the pause, a test can kill the worker while it
# uploads. Postgres inlines this function, so its rows are sent as they are computed.
PAUSING = """
CREATE OR REPLACE FUNCTION data.rows_for(key text, effective_date date) RETURNS TABLE (k text, n int, d date)
LANGUAGE sql STABLE AS $$
    SELECT {text}, n, effective_date FROM generate_series(1, 300000) n
    WHERE n <> 150001 OR (SELECT count(*) FROM pg_sleep({seconds})) > 0
$$
"""
PARQUET = Shape(format="parquet", compression="zstd")


@pytest.fixture
def slow(dataset: Dataset, source_db: psycopg.Connection) -> Dataset:
    source_db.execute(SLOW.format(seconds=4))
    return dataset


def expected_sha256(source_db: psycopg.Connection) -> str:
    source_db.execute(SLOW.format(seconds=0))
    digest = hashlib.sha256()
    call = "data.rows_for('JFK', '2024-02-28')"
    with source_db.cursor().copy(f"COPY (SELECT * FROM {call}) TO STDOUT (FORMAT csv, HEADER)") as copy:
        for row in copy:
            digest.update(row)
    return digest.hexdigest()


def is_calling(source_db: psycopg.Connection) -> bool:
    return bool(live_calls(source_db))


def live_calls(source_db: psycopg.Connection) -> int:
    row = source_db.execute("""
        SELECT count(*) FROM pg_stat_activity
        WHERE state = 'active' AND query ~ 'COPY [(].*rows_for'
    """).fetchone()
    assert row
    return int(row[0])


def test_a_job_runs_to_its_receipt(dataset: Dataset, api: APIClient, workers: Workers) -> None:
    workers.start()
    response = api.post(
        "/exports",
        {"dataset": "things", "filters": {"keys": ["A", "B"], "dateFrom": "2024-01-01", "dateTo": "2024-03-31"}},
    )
    path = response["Location"]
    wait_until(lambda: api.get(path).json()["status"] == "success")

    job = api.get(path).json()
    assert job["progress"]["done"] == job["progress"]["total"] == 182
    assert (job["progress"]["rows"], job["progress"]["percent"]) == (546, 100)
    assert job["receipt"]["files"] == 182
    # A worker frees its slot after its last chunk. Another worker may complete the job before that.
    wait_until(lambda: not Slot.objects.held().exists())


@pytest.mark.slow
def test_the_chunk_of_a_killed_worker_ends_with_the_same_bytes(
    slow: Dataset, alice: User, source_db: psycopg.Connection, workers: Workers
) -> None:
    """A12, A13: SIGKILL in the middle of the call. Its query ends, its upload is aborted, and another worker takes
    over.
    """
    workers.start("bundles,maintenance")
    workers.start_beat()
    source_db.execute(PAUSING.format(text="repeat(key, 30)", seconds=30))
    victim = workers.start("exports", concurrency=1)
    job = make_job(slow, alice, 1)
    wait_until(lambda: is_calling(source_db) and list(storage.list_uploads("things/")))
    victim.kill()
    wait_until(lambda: not is_calling(source_db), limit=5)

    source_db.execute(SLOW.format(seconds=0))
    workers.start("exports", concurrency=1)
    wait_until(lambda: succeeded(job))
    assert hashlib.sha256(content(PATH)).hexdigest() == expected_sha256(source_db)
    assert Chunk.objects.get().attempts == 2
    wait_until(lambda: not list(storage.list_uploads("things/")))
    wait_until(lambda: not Slot.objects.held().exists())


@pytest.mark.slow
def test_the_parquet_file_of_a_killed_worker_is_written_once(
    dataset: Dataset, alice: User, source_db: psycopg.Connection, workers: Workers
) -> None:
    """A12, A30: SIGKILL while parts are uploaded. The call ends. The reaper aborts the upload, and frees the slot."""
    source_db.execute(PAUSING.format(text=DENSE_TEXT, seconds=30))
    workers.start("bundles,maintenance")
    workers.start_beat()
    victim = workers.start("exports", concurrency=1)
    job = make_job(dataset, alice, 1, shape=PARQUET)
    wait_until(lambda: bool(list(storage.list_uploads("things/"))))
    victim.kill()
    wait_until(lambda: not is_calling(source_db), limit=5)

    source_db.execute(DENSE.format(seconds=0))
    workers.start("exports", concurrency=1)
    wait_until(lambda: succeeded(job))
    chunk = Chunk.objects.get()
    file = content(chunk.path)
    assert (chunk.attempts, hashlib.sha256(file).hexdigest()) == (2, chunk.sha256)
    assert parquet.read_table(io.BytesIO(file), columns=["n"]).column("n").to_pylist() == list(range(1, 300_001))
    wait_until(lambda: not list(storage.list_uploads("things/")))
    wait_until(lambda: not Slot.objects.held().exists())
    assert Receipt.objects.get().rows == 300_000


@pytest.mark.slow
def test_a_suspended_worker_is_fenced_off_from_its_chunk(
    slow: Dataset, alice: User, source_db: psycopg.Connection, workers: Workers
) -> None:
    """A11, A13: SIGSTOP past the lease, then SIGCONT. A slot never has two calls at once."""
    workers.start("bundles,maintenance")
    workers.start_beat()
    sleeper = workers.start("exports", concurrency=1)
    job = make_job(slow, alice, 1)
    wait_until(lambda: is_calling(source_db))
    with suspended(sleeper):
        wait_until(lambda: not is_calling(source_db))  # the reaper has terminated its call
        source_db.execute(SLOW.format(seconds=0))
        workers.start("exports", concurrency=1)
        wait_until(lambda: succeeded(job))
        before, chunk = storage.head(PATH), Chunk.objects.values().get()
    wait_until(lambda: "lease_lost" in sleeper.log.read_text())

    assert storage.head(PATH) == before
    assert Chunk.objects.values().get() == chunk
    assert hashlib.sha256(content(PATH)).hexdigest() == expected_sha256(source_db)
    assert Receipt.objects.count() == 1


@pytest.mark.slow
def test_graceful_shutdown_hands_the_chunk_to_another_worker(
    dataset: Dataset, alice: User, source_db: psycopg.Connection, workers: Workers
) -> None:
    """A12: SIGTERM in the middle of a long call. It costs no attempt, and the next worker starts it at once."""
    source_db.execute(SLOW.format(seconds=150))
    stopping = workers.start("exports", concurrency=1)
    job = make_job(dataset, alice, 1)
    wait_until(lambda: is_calling(source_db))
    stopping.send_stop_signal()
    wait_until(lambda: not stopping.alive)

    chunk = Chunk.objects.get()
    assert (chunk.status, chunk.attempts) == ("pending", 0)
    assert not Slot.objects.held().exists()
    wait_until(lambda: not is_calling(source_db), limit=5)
    source_db.execute(SLOW.format(seconds=0))
    workers.start()
    wait_until(lambda: succeeded(job))


@pytest.mark.slow
def test_the_reaper_sends_lost_messages_again(dataset: Dataset, alice: User, workers: Workers) -> None:
    """A12."""
    make_job(dataset, alice, 5)
    lose_messages()
    workers.start()
    workers.start_beat()
    wait_until(lambda: Job.objects.filter(status="success").exists())
    assert Job.objects.get().done == 5


@pytest.mark.slow
def test_concurrent_calls_never_exceed_the_slots(
    dataset: Dataset, alice: User, source_db: psycopg.Connection, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A13: counted in the source database."""
    monkeypatch.setenv("EXPORT_DB_SLOTS", "2")
    source_db.execute(SLOW.replace("150000", "10").replace("300000", "20").format(seconds=0.2))
    workers.start(concurrency=6)
    job = make_job(dataset, alice, 20)
    assert maximum_until(lambda: succeeded(job), lambda: live_calls(source_db)) == 2


@pytest.mark.slow
def test_logs_hold_no_rows_tokens_or_paths(
    dataset: Dataset, api: APIClient, source_db: psycopg.Connection, workers: Workers
) -> None:
    """A28."""
    workers.start()
    item = {"key": "SECRETKEY", "effectiveDate": "2024-01-01"}
    response = api.post("/exports", {"dataset": "things", "items": [item]})
    path = response["Location"]
    wait_until(lambda: api.get(path).json()["status"] == "success")

    logs = workers.logs()
    done = next(json.loads(line) for line in logs.splitlines() if '"action": "chunk_done"' in line)
    assert done["request_id"] == response["X-Request-ID"]
    assert done["job_id"] == path.rpartition("/")[2]
    assert done["chunk_id"]
    for secret in ("SECRETKEY", "things/2024", "_receipts/", "token="):
        assert secret not in logs, secret


CSV = Shape()
# VmHWM and not ru_maxrss, which starts with the peak of the parent process.
PEAK = """
import re, django
django.setup()
from exports.worker import execution
execution.drain()
print(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
"""


def peak_kib(
    rows: int, dataset: Dataset, alice: User, source_db: psycopg.Connection, workers: Workers, *, shape: Shape = CSV
) -> int:
    source_db.execute(f"""
        CREATE OR REPLACE FUNCTION data.rows_for(key text, effective_date date) RETURNS TABLE (k text, n int, d date)
        LANGUAGE sql AS $$ SELECT repeat(key, 30), n, effective_date FROM generate_series(1, {rows}) n $$
    """)
    make_job(dataset, alice, 1, reuse="never", shape=shape)
    done = subprocess.run(
        [sys.executable, "-c", PEAK], env=workers.environment(), check=True, capture_output=True, text=True
    )
    assert Chunk.objects.latest("id").rows == rows
    return int(done.stdout.split()[-1])


@pytest.mark.slow
def test_memory_does_not_grow_with_the_rows(
    dataset: Dataset, alice: User, source_db: psycopg.Connection, workers: Workers
) -> None:
    """A15: files of 22 MB and 225 MB."""
    small = peak_kib(200_000, dataset, alice, source_db, workers)
    large = peak_kib(2_000_000, dataset, alice, source_db, workers)
    assert large < small * 1.1
    assert large < 200 * 1024


@pytest.mark.slow
def test_memory_does_not_grow_with_the_rows_of_parquet(
    dataset: Dataset, alice: User, source_db: psycopg.Connection, workers: Workers
) -> None:
    """A15, A30: both files are uploaded in several parts, whose buffers take 32 MB."""
    small = peak_kib(4_000_000, dataset, alice, source_db, workers, shape=PARQUET)
    large = peak_kib(10_000_000, dataset, alice, source_db, workers, shape=PARQUET)
    assert large < small * 1.1
    assert large < 300 * 1024
