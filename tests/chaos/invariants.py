"""The invariants I1 to I8, which hold after every fault. They are checked in Postgres, object storage, Valkey, and the
source, never with Sluice's metrics.

Every test in this folder ends with `check(site)`, which the fixture `site` calls.
"""

import gzip
import hashlib
import io
import json
import time
import zipfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from uuid import UUID

from django.db import connection

from config.platform import storage
from config.platform.db import sql
from exports import tasks
from exports.core.planning import Pair, Shape, file_name, object_key
from exports.core.states import JOB_ENDED, ChunkStatus, JobStatus, Source
from exports.delivery import bundles, packs
from exports.jobs.webhook_events import EVENT_TYPES
from exports.maintenance import storage_cleanup
from exports.models import Chunk, Dataset, Delivery, Event, File, Job, Receipt, Slot, Tick, Webhook
from exports.models.job import Compression, DeliveryKind
from tests.chaos import document_invariants
from tests.chaos.site import DeliberateChanges, Site
from tests.chaos.source import Slice, oracle
from tests.chaos.watch import Monitor
from tests.integration.receiver import Receiver
from tests.waiting import wait_until

USED = "SELECT user_id, sum(chunks)::int AS chunks FROM exports_usage GROUP BY user_id"
CHUNK_ENDED = {ChunkStatus.DONE, ChunkStatus.FAILED, ChunkStatus.CANCELLED}
ORACLE = "data.rows_for"
# Limit of a worker's memory in MB for any number of rows: after it has written a Parquet file (P13), and before (P3).
MAX_MEMORY = {True: 300, False: 200}

# A trigger records every status change with its token, independent of the product's code.
CHANGE_TRIGGERS = """
CREATE SCHEMA chaos;
CREATE TABLE chaos.move (
    nr bigserial PRIMARY KEY, what text NOT NULL, id text NOT NULL, was text NOT NULL, became text NOT NULL,
    token bigint, old_token bigint, at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE FUNCTION chaos.note() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    new_row jsonb := to_jsonb(NEW);
    old_row jsonb := to_jsonb(OLD);
BEGIN
    INSERT INTO chaos.move (what, id, was, became, token, old_token) VALUES (
        TG_ARGV[0], new_row ->> TG_ARGV[1], OLD.status, NEW.status,
        (new_row ->> TG_ARGV[2])::bigint, (old_row ->> TG_ARGV[2])::bigint);
    RETURN NULL;
END $$;
"""
WATCHED = {
    "job": ("exports_jobs", "job_id", "completion_token"),
    "chunk": ("exports_chunk", "id", "token"),
    "task": ("etl_task", "task_id", "fence"),
}


def record_changes() -> None:
    """Record every status change in the test database."""
    with connection.cursor() as cursor:
        cursor.execute(CHANGE_TRIGGERS)
        for what, (table, key, token) in WATCHED.items():
            cursor.execute(
                f"CREATE TRIGGER chaos_note AFTER UPDATE ON {table} FOR EACH ROW"
                f" WHEN (OLD.status IS DISTINCT FROM NEW.status)"
                f" EXECUTE FUNCTION chaos.note('{what}', '{key}', '{token}')"
            )


@dataclass(frozen=True)
class Move:
    nr: int
    id: str
    was: str
    became: str
    token: int | None
    old_token: int | None


def moves(what: str) -> dict[str, list[Move]]:
    """Return the changes of each job, chunk, or task, in order."""
    found: dict[str, list[Move]] = defaultdict(list)
    for row in sql.rows("SELECT * FROM chaos.move WHERE what = %(what)s ORDER BY nr", what=what):
        found[row["id"]].append(Move(row["nr"], row["id"], row["was"], row["became"], row["token"], row["old_token"]))
    return found


def check(site: Site, watch: Monitor) -> None:
    allowed = site.allowed
    settle_all(site)
    check_all_ended()
    check_ends_of_chunks(allowed)
    check_ends_of_jobs(allowed)
    check_sums()
    check_files(site)
    check_receipts()
    check_events_and_deliveries(site.receivers, allowed)
    check_unreferenced_objects()
    document_invariants.check(site, moves)
    assert watch.samples > 0, "the monitor took no samples"
    assert watch.most_calls <= site.slots, f"I3: {watch.most_calls} concurrent calls, {site.slots} slots"
    for has_pyarrow, most in MAX_MEMORY.items():
        assert watch.most_memory[has_pyarrow] < most, f"I8: {watch.most_memory} MB: {watch.whose[has_pyarrow]}"


def settle_all(site: Site) -> None:
    """I5, I6: without faults and with running workers, all work ends."""
    for proxy in site.proxies:
        proxy.remove_faults()
    connection.close()  # this may be one of the connections that a test terminated
    if not any(worker.alive for worker in site.workers):
        site.start_worker()
    if not any(beat.alive for beat in site.beats):
        site.start_beat()
    wait_until(lambda: not Job.objects.exclude(status__in=JOB_ENDED).exists(), limit=90, every=0.2)
    for is_idle in IDLE_CONDITIONS:
        wait_until(is_idle, limit=60, every=0.2)


def nothing_is_leased() -> bool:
    return not (
        Slot.objects.held().exists()
        or Chunk.objects.filter(token__isnull=False).exists()
        or Job.objects.filter(completion_token__isnull=False).exists()
        or Delivery.objects.filter(token__isnull=False).exists()
    )


def all_deliveries_ended() -> bool:
    return not (Delivery.objects.filter(status="pending").exists() or Event.objects.awaiting_fan_out().exists())


def no_upload_is_open() -> bool:
    return not list(storage.list_uploads(""))


IDLE_CONDITIONS: tuple[Callable[[], bool], ...] = (nothing_is_leased, all_deliveries_ended, no_upload_is_open)


def check_all_ended() -> None:
    """I6: all chunks have ended, and the counters of jobs match their chunks."""
    assert not Chunk.objects.exclude(status__in=CHUNK_ENDED).exists()
    for job in Job.objects.all():
        counts = Counter(job.chunks.values_list("status", flat=True))
        counted = {"done": job.done, "failed": job.failed, "cancelled": job.cancelled}
        assert {status: number for status, number in counted.items() if number} == counts, (
            f"job {job.pk} has wrong counters"
        )
        assert job.retrying == 0


def check_ends_of_chunks(allowed: DeliberateChanges) -> None:
    """I1, I7: each end was written with the token of the preceding claim, and stayed unchanged.

    Exceptions, if the test allows them: a manual retry of a failed chunk, and a done chunk whose file was missing
    before its job ended.
    """
    jobs = {str(pk): str(job) for pk, job in Chunk.objects.values_list("pk", "job_id")}
    moves_of_jobs = moves("job")
    for pk, its in moves("chunk").items():
        job, held, again = jobs.get(pk, ""), None, 0
        for move in its:
            if move.was in CHUNK_ENDED:
                is_retry = move.was == ChunkStatus.FAILED and job in allowed.retried
                before = [each.became for each in moves_of_jobs.get(job, ()) if each.nr < move.nr]
                is_redo = move.was == ChunkStatus.DONE and allowed.redone and before[-1] not in JOB_ENDED
                assert move.became == ChunkStatus.PENDING, f"I7: chunk {pk} left {move.was} for {move.became}"
                assert is_retry or is_redo, f"I7: chunk {pk} left {move.was} for {move.became}"
                again += 1
            if move.became == ChunkStatus.RUNNING:
                held = move.token
            elif move.was == ChunkStatus.RUNNING:
                assert move.old_token == held, f"I1: chunk {pk} became {move.became} with a token of another claim"
        ends = sum(move.became in CHUNK_ENDED for move in its)
        assert ends == 1 + again, f"I1: chunk {pk} ended {ends} times, and was exported again {again} times"


def check_ends_of_jobs(allowed: DeliberateChanges) -> None:
    """I4, I7: each job ended once, unless a user retried it."""
    for pk, its in moves("job").items():
        again = [move for move in its if move.was in JOB_ENDED]
        is_retried = pk in allowed.retried and all(move.was == JobStatus.FAILED for move in again)
        assert is_retried or not again, f"I7: job {pk} changed after its end"
        assert sum(move.became in JOB_ENDED for move in its) == 1 + len(again), f"I4: job {pk} ended more than once"


def check_sums() -> None:
    """I1: the counters of a job are the sums of its chunks, and its user was charged for the created files."""
    costs: Counter[int] = Counter()
    for job in Job.objects.all():
        done = [chunk for chunk in job.chunks.all() if chunk.status == ChunkStatus.DONE]
        sources = Counter(chunk.source for chunk in done)
        expected = (
            sum(chunk.rows or 0 for chunk in done),
            sum(chunk.bytes or 0 for chunk in done),
            sources[Source.REUSED],
            sources[Source.SNAPSHOT],
        )
        found = (job.rows, job.bytes, job.reused, job.degraded)
        assert found == expected, f"I1: job {job.pk} has {found}, its chunks {expected}"
        costs[job.user_id] += sum(chunk.charged and chunk.source != Source.REUSED for chunk in done)
    used = Counter({row["user_id"]: row["chunks"] for row in sql.rows(USED)})
    assert costs <= used, f"users were charged {used} chunks for {costs}"
    if moves("job").keys() <= set(map(str, Job.objects.values_list("pk", flat=True))):  # none was purged
        assert costs == used, f"users were charged {used} chunks for {costs}"


def check_files(site: Site) -> None:
    """I2: the files of chunks, of the cache, and of deliveries equal the output of psql."""
    done = Chunk.objects.filter(status=ChunkStatus.DONE).exclude(source=Source.SNAPSHOT).select_related("job")
    slices = {(chunk.key, chunk.effective_date) for chunk in done if has_oracle(chunk.job)}
    truth = oracle(site.source, sorted(slices), site.folder / "oracle")
    for chunk in done:
        if has_oracle(chunk.job) and is_default(chunk.job.shape) and chunk.job.compression == Compression.NONE:
            assert chunk.sha256 == truth[slice_of(chunk)], f"I2: chunk {chunk.pk} differs from psql's output"
    for file in File.objects.select_related("dataset"):
        head = storage.head(file.path)
        if head is None or head.etag != file.etag:
            # Not reusable. Only the upload of a chunk that failed or was cancelled may have replaced the file.
            ended = Chunk.objects.filter(path=file.path, status__in=(ChunkStatus.CANCELLED, ChunkStatus.FAILED))
            assert ended.exists(), "I2: a file of the reuse cache was replaced by an unknown upload"
            continue
        assert digest(file.path) == file.sha256, "I2: a file of the reuse cache differs from its row"
        pair = Pair(file.key, file.effective_date)
        if file.dataset.function == ORACLE and file.path == object_key(
            file.dataset.base_path, pair, Shape(compression=Compression.GZIP)
        ):
            plain = hashlib.sha256(gzip.decompress(b"".join(storage.read(file.path)))).hexdigest()
            assert plain == truth.get((file.key, file.effective_date), plain), (
                "I2: a packed file differs from psql's output"
            )
    for job in Job.objects.filter(status=JobStatus.SUCCESS, receipt__deleted_at=None):  # I5 covers the others
        check_delivery(job, truth if has_oracle(job) else {})


def has_oracle(job: Job) -> bool:
    """Return whether the oracle knows the job's rows. The soak's checker checks the other datasets."""
    return job.function == ORACLE


def is_default(shape: Shape) -> bool:
    """Return whether psql can write this format. Other files are compared with the checksums of chunks and cache."""
    return shape.format == "csv" and shape.dialect.is_default


def slice_of(chunk: Chunk) -> Slice:
    return chunk.key, chunk.effective_date


def digest(key: str) -> str:
    found = hashlib.sha256()
    for block in storage.read(key):
        found.update(block)
    return found.hexdigest()


def check_delivery(job: Job, truth: dict[Slice, str]) -> None:
    receipt = Receipt.objects.get(job=job)
    content = b"".join(storage.read(receipt.object_key))
    assert hashlib.sha256(content).hexdigest() == receipt.checksum
    assert len(content) == receipt.size_bytes
    if job.delivery == DeliveryKind.SINGLE and job.total > 1:
        whole = gzip.decompress(content) if job.compression == Compression.GZIP else content
        # Without an oracle, later jobs may have replaced the files with newer rows.
        assert not has_oracle(job) or whole == joined(job), f"I2: job {job.pk} delivered other content"
        return
    # A manifest lists files with the checksums of the stored objects.
    as_stored = job.delivery == DeliveryKind.MANIFEST or not is_default(job.shape) or not truth
    expected = {
        file_name(chunk.pair, job.shape): chunk.sha256 if as_stored else truth.get(slice_of(chunk), chunk.sha256)
        for chunk in job.chunks.all()
    }
    assert files_in(job, content, unpack=not as_stored) == expected, f"I2: job {job.pk} delivered other content"


def joined(job: Job) -> bytes:
    """Return the content of a joined delivery, decompressed: with one header, or as one JSON array."""
    is_json = job.shape.format == "json"
    files = [
        stored_rows(chunk, start=0 if is_json else chunk.header_bytes if chunk.seq else 0)
        for chunk in job.chunks.in_request_order().select_related("job")
    ]
    return b"[\n" + b",\n".join(files) + b"]\n" if is_json else b"".join(files)


def stored_rows(chunk: Chunk, *, start: int) -> bytes:
    content = b"".join(storage.read(chunk.path))[start:]
    return gzip.decompress(content) if chunk.job.compression == Compression.GZIP else content


def files_in(job: Job, content: bytes, *, unpack: bool) -> dict[str, str]:
    """Return the SHA-256 of each delivered file by its name in the bundle. `unpack` hashes decompressed contents."""
    is_packed = unpack and job.compression == Compression.GZIP
    if job.delivery == DeliveryKind.ZIP:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            names = [name for name in archive.namelist() if name != "manifest.json"]
            assert len(names) == len(set(names))
            return {name: sha256(archive.read(name), is_packed=is_packed) for name in names}
    if job.delivery == DeliveryKind.MANIFEST:
        return {entry["fileName"]: entry["sha256"] for entry in json.loads(content)["files"]}
    chunk = job.chunks.get()
    return {file_name(chunk.pair, job.shape): sha256(content, is_packed=is_packed)}


def sha256(content: bytes, *, is_packed: bool) -> str:
    return hashlib.sha256(gzip.decompress(content) if is_packed else content).hexdigest()


def check_receipts() -> None:
    """I4: each successful job has one receipt, and other jobs have none."""
    succeeded = set(Job.objects.filter(status=JobStatus.SUCCESS).values_list("pk", flat=True))
    assert set(Receipt.objects.values_list("pk", flat=True)) == succeeded, "I4: receipts and successes differ"


def check_events_and_deliveries(receivers: Iterable[Receiver], allowed: DeliberateChanges) -> None:
    """I4: each end of a job has one event, and one delivery per webhook, with the same body at all attempts."""
    ended = {pk: sum(move.became in JOB_ENDED for move in its) for pk, its in moves("job").items()}
    for job in Job.objects.select_related("user"):
        ends = list(Event.objects.filter(job=job, kind=Event.Kind.STATUS, status__in=JOB_ENDED).order_by("seq"))
        assert len(ends) == ended.get(str(job.pk), 0), f"I4: job {job.pk} has {len(ends)} terminal events"
        numbers = list(Event.objects.filter(job=job).values_list("seq", flat=True))
        assert len(numbers) == len(set(numbers))
        for webhook in Webhook.objects.filter(user=job.user):
            its = list(Delivery.objects.filter(job=job, webhook=webhook).order_by("seq").values_list("seq", flat=True))
            required = [event.seq for event in ends if must_be_delivered(event, webhook, allowed)]
            assert len(its) == len(set(its)), f"I4: job {job.pk} was delivered more than once"
            assert set(required) <= set(its) <= {event.seq for event in ends}, (
                f"I4: the ends {required} of job {job.pk} have the deliveries {its}"
            )
    deliveries = Delivery.objects.in_bulk()
    for receiver in receivers:
        for received in receiver.received:
            row = deliveries.get(UUID(received.id))
            assert row, "I4: a receiver got a delivery without a row"
            assert received.body.decode() == row.body, f"I4: delivery {row.pk} arrived with another body"
            if row.job_id:
                assert received.json["data"]["jobId"] == str(row.job_id)
                status = Event.objects.get(job_id=row.job_id, seq=row.seq or 0).status
                assert received.json["data"]["status"] == status, f"I4: delivery {row.pk} is not about its event"


def must_be_delivered(event: Event, webhook: Webhook, allowed: DeliberateChanges) -> bool:
    """Return whether a webhook must get an event. A user who was deactivated at that time may get none."""
    assert event.told_at
    announced = event.told_at.timestamp()
    is_absent = any(
        name == webhook.user.username and began - 1 < announced < ended + 1 for name, began, ended in allowed.absences
    )
    is_subscribed = webhook.enabled and EVENT_TYPES[JobStatus(event.status)] in webhook.events
    return is_subscribed and webhook.created_at <= event.at and not is_absent


def check_unreferenced_objects() -> None:
    """I5: every object is referenced after a sweep."""
    receipts = set(Receipt.objects.filter(deleted_at=None).values_list("object_key", flat=True))
    assert receipts <= delivered(), "I5: a delivered object was deleted before it expired"
    folders = {bundles.folder_of(key) for key in receipts}  # including copies of single files
    folders |= {packs.folder_of_batches(storage_cleanup.job_of(key)) for key in receipts}

    def unreferenced() -> set[str]:
        return {key for key in delivered() if bundles.folder_of(key) not in folders} | {
            f"{key} {etag}" for key, etag in unreferenced_files()
        }

    # A sweep lists all objects, which takes longer after a long soak test.
    deadline = time.monotonic() + 45 + len(folders) / 20
    while found := sweep() and unreferenced():
        assert time.monotonic() < deadline, f"I5: {len(found)} objects are not referenced, such as {sorted(found)[:3]}"
        time.sleep(1)


def unreferenced_files() -> set[tuple[str, str]]:
    """Return the paths and ETags of objects under a dataset's path that no row references."""
    prefixes = [f"{path}/" for path in Dataset.objects.values_list("base_path", flat=True)]
    found = {(item.key, item.etag) for prefix in prefixes for item in storage.list_objects(prefix)}
    return found - set(File.objects.values_list("path", "etag"))


def delivered() -> set[str]:
    return {item.key for item in storage.list_objects(f"{packs.PREFIX}/")}


def sweep() -> bool:
    """Let a worker run beat's hourly cleanup."""
    Tick.objects.filter(name="sweep").delete()
    tasks.sweep.delay()
    return True
