"""The invariants I1 to I8 that hold after every fault, read from Postgres, object storage, Valkey, and the source,
never from Sluice's own counters.

Every test in this folder ends with `check(site)`, which the fixture `site` calls.
"""

import gzip
import hashlib
import io
import json
import zipfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from django.db import connection

from config.platform import storage
from config.platform.db import sql
from exports import tasks
from exports.core.planning import Pair, Shape, file_name, object_key
from exports.core.states import JOB_ENDED, ChunkStatus, JobStatus, Source
from exports.delivery import bundles
from exports.models import Chunk, Dataset, Delivery, Event, File, Job, Receipt, Slot, Tick
from exports.models.job import Compression, DeliveryKind
from tests.chaos import document_invariants
from tests.chaos.site import DeliberateChanges, Site
from tests.chaos.source import Slice, oracle
from tests.chaos.watch import Monitor
from tests.integration.receiver import Receiver
from tests.waiting import wait_until

CHUNK_ENDED = {ChunkStatus.DONE, ChunkStatus.FAILED, ChunkStatus.CANCELLED}
MOST_MEMORY = 200  # MB per worker, for any number of rows

# A trigger records every status change with its token, so that no code can hide one.
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
    id: str
    was: str
    became: str
    token: int | None
    old_token: int | None


def moves(what: str) -> dict[str, list[Move]]:
    """Return the changes of each job, chunk, or task, in order."""
    found: dict[str, list[Move]] = defaultdict(list)
    for row in sql.rows("SELECT * FROM chaos.move WHERE what = %(what)s ORDER BY nr", what=what):
        found[row["id"]].append(Move(row["id"], row["was"], row["became"], row["token"], row["old_token"]))
    return found


def check(site: Site, watch: Monitor) -> None:
    allowed = site.allowed
    settle_all(site)
    all_have_ended()
    chunks_ended_once(allowed)
    jobs_ended_once(allowed)
    files_are_correct(site)
    receipts_are_single()
    events_and_deliveries_are_single(site.receivers, allowed)
    no_unreferenced_objects()
    document_invariants.check(site, moves)
    assert watch.samples > 0, "the monitor took no samples"
    assert watch.most_calls <= site.slots, f"I3: {watch.most_calls} calls at once, {site.slots} slots"
    assert watch.most_memory < MOST_MEMORY, f"I8: {watch.most_memory} MB: {watch.whose}"


def settle_all(site: Site) -> None:
    """I5, I6: without faults and with running workers, everything ends by itself."""
    for proxy in (site.postgres, site.source_proxy, site.broker, site.storage):
        proxy.pass_on()
    connection.close()  # this may be one of the connections that a test terminated
    if not any(worker.alive for worker in site.workers):
        site.start_worker()
    if not any(beat.alive for beat in site.beats):
        site.start_beat()
    wait_until(lambda: not Job.objects.exclude(status__in=JOB_ENDED).exists(), limit=90, every=0.2)
    for is_calm in IDLE_CONDITIONS:
        wait_until(is_calm, limit=60, every=0.2)


def nothing_is_leased() -> bool:
    return not (
        Slot.objects.held().exists()
        or Chunk.objects.filter(token__isnull=False).exists()
        or Job.objects.filter(completion_token__isnull=False).exists()
        or Delivery.objects.filter(token__isnull=False).exists()
    )


def all_deliveries_ended() -> bool:
    return not (Delivery.objects.filter(status="pending").exists() or Event.objects.untold().exists())


def no_upload_is_open() -> bool:
    return not list(storage.list_uploads(""))


IDLE_CONDITIONS: tuple[Callable[[], bool], ...] = (nothing_is_leased, all_deliveries_ended, no_upload_is_open)


def all_have_ended() -> None:
    """I6."""
    assert not Chunk.objects.exclude(status__in=CHUNK_ENDED).exists()
    for job in Job.objects.all():
        counts = Counter(job.chunks.values_list("status", flat=True))
        counted = {"done": job.done, "failed": job.failed, "cancelled": job.cancelled}
        assert {status: number for status, number in counted.items() if number} == counts, f"job {job.pk} counted wrong"
        assert job.retrying == 0


def chunks_ended_once(allowed: DeliberateChanges) -> None:
    """I1, I7: each end was written under the token of the claim before it, and never changed."""
    retried = set(map(str, Chunk.objects.filter(job_id__in=allowed.retried).values_list("pk", flat=True)))
    for pk, its in moves("chunk").items():
        held = None
        for move in its:
            if move.was in CHUNK_ENDED and pk not in retried:
                assert allowed.redone, f"I7: chunk {pk} left {move.was} for {move.became}"
            if move.became == ChunkStatus.RUNNING:
                held = move.token
            elif move.was == ChunkStatus.RUNNING:
                assert move.old_token == held, (
                    f"I1: chunk {pk} became {move.became} under a token that is not its claim's"
                )
        ends = sum(move.became in CHUNK_ENDED for move in its)
        assert ends == 1 or pk in retried or allowed.redone, f"I1: chunk {pk} ended {ends} times"


def jobs_ended_once(allowed: DeliberateChanges) -> None:
    """I4, I7."""
    for pk, its in moves("job").items():
        if pk in allowed.retried:
            continue
        assert not any(move.was in JOB_ENDED for move in its), f"I7: job {pk} changed after its end"
        assert sum(move.became in JOB_ENDED for move in its) == 1, f"I4: job {pk} ended more than once"


def files_are_correct(site: Site) -> None:
    """I2: the files of chunks, of the cache, and of deliveries equal the output of psql."""
    done = Chunk.objects.filter(status=ChunkStatus.DONE).exclude(source=Source.SNAPSHOT).select_related("job")
    slices = {(chunk.key, chunk.effective_date) for chunk in done}
    truth = oracle(site.source, sorted(slices), site.folder / "oracle")
    for chunk in done:
        if is_default(chunk.job.shape) and chunk.job.compression == Compression.NONE:
            assert chunk.sha256 == truth[slice_of(chunk)], f"I2: chunk {chunk.pk} differs from psql's output"
    for file in File.objects.select_related("dataset"):
        assert digest(file.path) == file.sha256, "I2: a file of the reuse cache differs from its row"
        pair = Pair(file.key, file.effective_date)
        if file.path == object_key(file.dataset.base_path, pair, Shape(compression=Compression.GZIP)):
            plain = hashlib.sha256(gzip.decompress(b"".join(storage.read(file.path)))).hexdigest()
            assert plain == truth.get((file.key, file.effective_date), plain), (
                "I2: a packed file differs from psql's output"
            )
    for job in Job.objects.filter(status=JobStatus.SUCCESS, receipt__deleted_at=None):  # I5 covers the others
        delivery_is_correct(job, truth)


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


def delivery_is_correct(job: Job, truth: dict[Slice, str]) -> None:
    receipt = Receipt.objects.get(job=job)
    content = b"".join(storage.read(receipt.object_key))
    assert hashlib.sha256(content).hexdigest() == receipt.checksum
    assert len(content) == receipt.size_bytes
    if job.delivery == DeliveryKind.SINGLE and job.total > 1:
        whole = gzip.decompress(content) if job.compression == Compression.GZIP else content
        assert whole == joined(job), f"I2: job {job.pk} delivered something else"
        return
    # A manifest lists files with the checksums of the stored objects.
    as_stored = job.delivery == DeliveryKind.MANIFEST or not is_default(job.shape)
    expected = {
        file_name(chunk.pair, job.shape): chunk.sha256 if as_stored else truth.get(slice_of(chunk), chunk.sha256)
        for chunk in job.chunks.all()
    }
    assert files_in(job, content, unpack=not as_stored) == expected, f"I2: job {job.pk} delivered something else"


def joined(job: Job) -> bytes:
    """Return the files of a joined delivery, decompressed: with one header, or as one JSON array."""
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


def receipts_are_single() -> None:
    """I4: one receipt for each success, and none for anything else."""
    succeeded = set(Job.objects.filter(status=JobStatus.SUCCESS).values_list("pk", flat=True))
    assert set(Receipt.objects.values_list("pk", flat=True)) == succeeded, "I4: receipts and successes differ"


def events_and_deliveries_are_single(receivers: Iterable[Receiver], allowed: DeliberateChanges) -> None:
    """I4: one terminal event per job, and one delivery with one id for each subscribed webhook."""
    for job in Job.objects.exclude(pk__in=allowed.retried):
        ends = Event.objects.filter(job=job, kind=Event.Kind.STATUS, status__in=JOB_ENDED)
        assert ends.count() == 1, f"I4: job {job.pk} has {ends.count()} terminal events"
        numbers = list(Event.objects.filter(job=job).order_by("seq").values_list("seq", flat=True))
        assert len(numbers) == len(set(numbers))
        counted = Counter(Delivery.objects.filter(job=job).values_list("webhook_id", flat=True))
        assert all(times == 1 for times in counted.values()), f"I4: job {job.pk} was delivered more than once"
    known = {str(pk) for pk in Delivery.objects.values_list("pk", flat=True)}
    for receiver in receivers:
        assert set(receiver.ids) <= known, "I4: a receiver got a delivery without a row"


def no_unreferenced_objects() -> None:
    """I5: every object is referenced."""
    receipts = set(Receipt.objects.filter(deleted_at=None).values_list("object_key", flat=True))
    assert receipts <= delivered(), "I5: a delivered object was deleted before it expired"
    folders = {bundles.folder_of(key) for key in receipts}  # with the copies of single files
    wait_until(
        lambda: sweep() and {bundles.folder_of(key) for key in delivered()} == folders and not unreferenced_files(),
        limit=45,
        every=1,
    )


def unreferenced_files() -> set[tuple[str, str]]:
    """Return the files, with their ETags, at a dataset's paths that no row references."""
    prefixes = [f"{path}/" for path in Dataset.objects.values_list("base_path", flat=True)]
    found = {(item.key, item.etag) for prefix in prefixes for item in storage.list_objects(prefix)}
    return found - set(File.objects.values_list("path", "etag"))


def delivered() -> set[str]:
    return {item.key for item in storage.list_objects(f"{bundles.PREFIX}/")}


def sweep() -> bool:
    """Let a worker run beat's hourly cleanup."""
    Tick.objects.filter(name="sweep").delete()
    tasks.sweep.delay()
    return True
