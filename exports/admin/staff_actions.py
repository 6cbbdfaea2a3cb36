"""Staff actions on jobs, chunks, files, receipts, links, and slots. They call the same functions as the API."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

from config.platform.admin.confirmed_actions import (
    Confirmation,
    RowResult,
    StaffAction,
    change,
    each,
    naming_owners_quota,
    only_if_status,
)
from config.platform.admin.display import short
from config.platform.db import clock
from config.platform.http.idempotency import Idempotency, fingerprint
from config.platform.http.problems import Problem
from config.platform.plurals import counted
from exports.core.states import JOB_ACTIVE, ChunkStatus, JobStatus
from exports.delivery import links, receipts
from exports.delivery.links import ClientBinding
from exports.jobs import actions, submission
from exports.maintenance import manual_actions
from exports.models import Chunk, Job, Link, Receipt, Slot


def end_time(row: Any) -> str:
    """Return the end time as a revision: a row that was retried and ended again has a later one."""
    return row.finished_at.isoformat() if row.finished_at else ""


# ---- Jobs -----------------------------------------------------------------------------------------------------------
def retry_job(job: Job) -> str:
    with naming_owners_quota():
        chunks = actions.retry(job)
    return f"{counted(chunks, 'failed chunk')} queued." if chunks else "Delivery queued; no chunks had failed."


def cancel_job(job: Job) -> str:
    chunks = actions.cancel(job)
    return f"{counted(chunks, 'chunk')} cancelled." if chunks else "Delivery cancelled; all chunks had finished."


def replay_jobs(jobs: Sequence[Job], by: Confirmation) -> Iterable[RowResult]:
    """Replay jobs for their owners, whose quotas are charged. The nonce of the form prevents duplicates."""

    def replay(job: Job) -> str:
        idempotency = Idempotency(key=f"staff-{by.nonce}-{job.pk}", fingerprint=fingerprint(str(job.pk)))
        binding = ClientBinding(network=job.network, agent=job.agent)
        caller = submission.Caller(user_id=job.user_id, binding=binding, idempotency=idempotency)
        with naming_owners_quota():
            new, replayed = actions.replay(job, caller)
        if replayed:
            raise Problem(f"Already replayed as export {new.pk}.")
        return f"New export {new.pk}."

    return each(replay)(jobs, by)


JOBS = (
    StaffAction(
        name="retry",
        label="Retry failed chunks",
        past="Retried",
        icon="replay",
        permission="exports.change_job",
        explanation="Failed chunks are retried with a full set of attempts and charged to the owner's quota again. "
        "Finished chunks keep their files. If only the delivery failed, only the delivery is retried.",
        refusal=only_if_status({JobStatus.FAILED}, actions.NotFailed.detail),
        do=each(retry_job),
        revision=end_time,
    ),
    StaffAction(
        name="cancel",
        label="Cancel",
        past="Cancelled",
        icon="cancel",
        permission="exports.change_job",
        explanation="Running chunks stop within seconds, and pending chunks are cancelled. Finished files stay "
        "available for reuse. This cannot be undone, but you can replay the request.",
        refusal=only_if_status(JOB_ACTIVE, actions.AlreadyEnded.detail),
        do=each(cancel_job),
        is_danger=True,
    ),
    StaffAction(
        name="replay",
        label="Replay",
        past="Replayed",
        icon="repeat",
        permission="exports.change_job",
        explanation="Creates a new export from the same request, for the same owner and charged to their quota. "
        "Existing files are reused. The original export does not change.",
        refusal=lambda _job: "",
        do=replay_jobs,
    ),
)


# ---- Chunks ---------------------------------------------------------------------------------------------------------
NOT_ENDED = "The export has not ended. Retry the chunk when the export has failed."


def retry_refusal(chunk: Chunk) -> str:
    if chunk.status != ChunkStatus.FAILED:
        return "Only failed chunks can be retried."
    if chunk.job.status == JobStatus.CANCELLED:
        return "The export was cancelled. Replay the export instead."
    return "" if chunk.job.status == JobStatus.FAILED else NOT_ENDED


def retry_chunks(chunks: Sequence[Chunk], _by: Confirmation) -> Iterator[RowResult]:
    """Retry chunks job by job, because an active job accepts no more retries."""
    of_job = attrgetter("job_id")
    for job_id, group in groupby(sorted(chunks, key=of_job), key=of_job):
        yield from retry_chunks_of(Job.objects.get(pk=job_id), list(group))


def retry_chunks_of(job: Job, chunks: list[Chunk]) -> Iterator[RowResult]:
    failed = [chunk for chunk in chunks if chunk.status == ChunkStatus.FAILED]
    done, refusal = "", ""
    try:
        if failed:
            with naming_owners_quota():
                actions.retry(job, only=[chunk.pk for chunk in failed])
        done = "Queued with a full set of attempts."
    except actions.NotFailed:
        refusal = NOT_ENDED
    except Problem as problem:
        refusal = problem.detail
    for chunk in chunks:
        yield (
            RowResult(chunk, done=done, refusal=refusal)
            if chunk in failed
            else RowResult(chunk, refusal=retry_refusal(chunk))
        )


def release_chunk(chunk: Chunk) -> str:
    ended = manual_actions.release_lease(chunk) == ChunkStatus.FAILED
    return "No attempts left: the chunk failed." if ended else "The chunk is queued again."


CHUNKS = (
    StaffAction(
        name="retry",
        label="Retry",
        past="Retried",
        icon="replay",
        permission="exports.change_chunk",
        explanation="Retries these chunks with a full set of attempts, charged to their owners' quotas again. Other "
        "failed chunks of the same exports stay failed.",
        refusal=retry_refusal,
        do=retry_chunks,
        revision=end_time,
    ),
    StaffAction(
        name="release",
        label="Release lease",
        past="Released",
        icon="lock_open",
        permission="exports.change_chunk",
        explanation="For a chunk whose worker is lost: queues it now instead of when its lease expires. If the "
        "worker is still alive, its fencing token is refused and it stops. The attempt counts: a chunk without "
        "attempts left fails. The slot stays held until its lease expires and its call is terminated.",
        refusal=only_if_status({ChunkStatus.RUNNING}, manual_actions.NotRunning.detail),
        do=each(release_chunk),
        revision=lambda chunk: str(chunk.token),
        is_danger=True,
    ),
)


# ---- Files, receipts, links, slots ----------------------------------------------------------------------------------
FILES = (
    StaffAction(
        name="invalidate",
        label="Invalidate",
        past="Invalidated",
        icon="block",
        permission="exports.change_file",
        explanation="The next export of this key and date calls the source and replaces the object. Until then the "
        "object stays in the storage, but is neither reused nor used as a snapshot when the source fails. Existing "
        "deliveries are separate copies and do not change.",
        refusal=lambda _file: "",
        do=change(manual_actions.invalidate_file, "Exports no longer reuse it."),
        revision=attrgetter("etag"),
        is_danger=True,
    ),
)


def receipt_refusal(receipt: Receipt) -> str:
    return "" if receipt.expires_at > clock.now() else "Already expired."


RECEIPTS = (
    StaffAction(
        name="revoke",
        label="Revoke",
        past="Revoked",
        icon="link_off",
        permission="exports.change_receipt",
        explanation="Prevents new downloads: the link stops working, the owner cannot create another one, and the "
        "delivered object is deleted within a minute. Downloads in progress continue. The files stay available for "
        "reuse by a new export.",
        refusal=receipt_refusal,
        do=change(receipts.revoke, "Its link is revoked, and its object is deleted within a minute."),
        is_danger=True,
    ),
)


def link_refusal(link: Link) -> str:
    return "" if link.state_at(clock.now()) == "open" else links.LinkNotOpen.detail


LINKS = (
    StaffAction(
        name="revoke",
        label="Revoke",
        past="Revoked",
        icon="link_off",
        permission="exports.change_link",
        explanation="The link stops working. The owner can create another one until the delivery expires. To prevent "
        "that, revoke the receipt.",
        refusal=link_refusal,
        do=change(links.revoke, "The link is revoked."),
        is_danger=True,
    ),
)


def slot_refusal(slot: Slot) -> str:
    if slot.lease_until is None:
        return "The slot is free."
    return "" if slot.lease_until <= clock.now() else manual_actions.SlotInUse.detail


def free_slot(slot: Slot) -> str:
    manual_actions.free_slot(slot)
    return f"Call terminated, slot free. It was held for export {short(slot.job_id) if slot.job_id else '-'}."


SLOTS = (
    StaffAction(
        name="release",
        label="Release",
        past="Released",
        icon="lock_open",
        permission="exports.change_slot",
        explanation="For a slot whose worker is lost: terminates the call that may still run in the source database, "
        "then frees the slot. The reaper does the same in its next run.",
        refusal=slot_refusal,
        do=each(free_slot),
        revision=lambda slot: str(slot.token),
    ),
)
