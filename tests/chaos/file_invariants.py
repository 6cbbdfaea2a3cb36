"""I2: the files of chunks, of the reuse cache, and of deliveries have the recorded bytes, and equal psql's output."""

import gzip
import hashlib
import io
import json
import zipfile
from collections import Counter, defaultdict

import zstandard

from config.platform import storage
from exports.core.planning import Pair, Shape, file_name, object_key
from exports.core.states import ChunkStatus, JobStatus, Source
from exports.delivery import bundles, packs
from exports.models import Chunk, File, Job, Receipt
from exports.models.job import Compression, DeliveryKind
from tests.chaos.changes import Move, moves
from tests.chaos.site import Site
from tests.chaos.source import Slice, oracle

ORACLE = "data.rows_for"
UNSUCCESSFUL = (ChunkStatus.CANCELLED, ChunkStatus.FAILED)
Truth = dict[Slice, str]  # SHA-256 of psql's output


def check(site: Site) -> None:
    done = Chunk.objects.filter(status=ChunkStatus.DONE).exclude(source=Source.SNAPSHOT).select_related("job")
    slices = {(chunk.key, chunk.effective_date) for chunk in done if has_oracle(chunk.job)}
    slices |= {(file.key, file.effective_date) for file in File.objects.select_related("dataset") if is_csv(file)}
    truth = oracle(site.source, sorted(slices), site.folder / "oracle")
    for chunk in done:
        if has_oracle(chunk.job) and is_default(chunk.job.shape) and chunk.job.compression == Compression.NONE:
            assert chunk.sha256 == truth[slice_of(chunk)], f"I2: chunk {chunk.pk} differs from psql's output"
    check_reuse_cache(truth)
    for job in Job.objects.filter(status=JobStatus.SUCCESS, receipt__deleted_at=None):  # I5 covers the others
        truth_of_job = truth if has_oracle(job) else {}
        check_delivery(job, truth_of_job)
        check_copies(job, truth_of_job)


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


# ---- The reuse cache ------------------------------------------------------------------------------------------------


def check_reuse_cache(truth: Truth) -> None:
    """Check that the object of each row has the recorded ETag and bytes, after all work has ended."""
    changes = moves("chunk")
    for file in File.objects.select_related("dataset"):
        head = storage.head(file.path)
        if head is None or head.etag != file.etag:
            assert is_of_unsuccessful_chunk(file, head, changes), (
                f"I2: the reuse cache has {file.path} with the ETag {file.etag}, the bucket has {head}"
            )
            continue
        assert (digest(file.path), head.size) == (file.sha256, file.bytes), (
            f"I2: the file {file.path} of the reuse cache differs from its row"
        )
        if is_csv(file):
            content = b"".join(storage.read(file.path))
            expected = truth[file.key, file.effective_date]
            assert sha256(content, is_packed=file.path.endswith(".gz")) == expected, (
                f"I2: the file {file.path} of the reuse cache differs from psql's output"
            )


def is_of_unsuccessful_chunk(file: File, head: storage.Head | None, changes: dict[str, list[Move]]) -> bool:
    """Return whether a chunk replaced the file, and then failed or was cancelled before it recorded its own file.

    Then the row is not used, because its ETag differs. The object's metadata names its chunk. If the sweep has already
    deleted the object, a chunk of this path must have started, and ended without success after the file was recorded.
    """
    if head:
        its = changes.get(head.metadata.get("chunk", ""), [])
        return bool(its) and its[-1].became in UNSUCCESSFUL
    ended = Chunk.objects.filter(path=file.path, status__in=UNSUCCESSFUL, finished_at__gt=file.data_as_of)
    return any(move.became == ChunkStatus.RUNNING for chunk in ended for move in changes.get(str(chunk.pk), ()))


def is_csv(file: File) -> bool:
    """Return whether the file is psql's output, or its compressed form."""
    pair = Pair(file.key, file.effective_date)
    shapes = (Shape(), Shape(compression=Compression.GZIP))
    return file.dataset.function == ORACLE and file.path in {
        object_key(file.dataset.base_path, pair, shape) for shape in shapes
    }


# ---- Deliveries -----------------------------------------------------------------------------------------------------


def check_copies(job: Job, truth: Truth) -> None:
    """Check the bytes of a delivery's files: in packs, and in the copies of single files. Read each pack once.

    The manifest contains only the checksums of chunks, which may differ from the bytes that clients receive.
    """
    folder = bundles.folder_of(job.receipt.object_key)
    chunks = {bundles.key_of_file(folder, job, chunk): chunk for chunk in job.chunks.in_request_order()}
    copies = {item.key for item in storage.list_objects(f"{folder}/files/")}
    assert copies <= chunks.keys(), f"I2: job {job.pk} delivered unknown files"
    for key in copies:
        assert digest(key) == chunks[key].sha256, f"I2: {key} differs from chunk {chunks[key].pk}"
    places: dict[str, list[tuple[int, Chunk]]] = defaultdict(list)  # offsets of files by pack
    ends: Counter[str] = Counter()
    for key, chunk in chunks.items():
        pack, size = packs.key_of(folder, chunk.seq // packs.FILES), chunk.bytes or 0
        if chunk.pack is not None:
            places[packs.key_of_batch(job.pk, chunk.pack)].append((chunk.pack_offset or 0, chunk))
        elif job.delivery != DeliveryKind.MANIFEST:
            continue
        elif size > packs.PACKED_BYTES:
            assert key in copies, f"I2: {key} is missing"
        elif size:
            places[pack].append((ends[pack], chunk))
            ends[pack] += size
    for pack, files in places.items():
        check_pack(job, pack, files, truth)


def check_pack(job: Job, key: str, files: list[tuple[int, Chunk]], truth: Truth) -> None:
    """Check the files in a pack, given their offsets. Those in the pack of a batch are zstd frames."""
    assert storage.head(key), f"I2: the pack {key} is missing"
    first = min(offset for offset, _ in files)
    content = memoryview(b"".join(storage.read(key, start=first)))
    for offset, chunk in files:
        size, start = chunk.bytes or 0, offset - first
        if chunk.pack is None:
            found = bytes(content[start : start + size])
        else:
            found = first_frame(content[start : start + packs.longest_frame(size)])
        message = f"I2: {key} has other bytes at {offset} than chunk {chunk.pk}"
        assert (len(found), sha256(found)) == (size, chunk.sha256), message
        if is_default(job.shape) and slice_of(chunk) in truth:
            is_packed = job.compression == Compression.GZIP
            assert sha256(found, is_packed=is_packed) == truth[slice_of(chunk)], message


def first_frame(content: memoryview) -> bytes:
    """Return the decompressed bytes of the frame at the start, or b"" if there is none."""
    try:
        return zstandard.ZstdDecompressor().decompressobj().decompress(content)
    except zstandard.ZstdError:
        return b""


def check_delivery(job: Job, truth: Truth) -> None:
    receipt = Receipt.objects.get(job=job)
    content = b"".join(storage.read(receipt.object_key))
    assert (sha256(content), len(content)) == (receipt.checksum, receipt.size_bytes)
    facts = (job.rows, job.total, job.degraded > 0)
    assert (receipt.rows, receipt.files, receipt.degraded) == facts, f"I2: job {job.pk} has another receipt"
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


def sha256(content: bytes, *, is_packed: bool = False) -> str:
    return hashlib.sha256(gzip.decompress(content) if is_packed else content).hexdigest()
