"""What staff may do to jobs, chunks, files, receipts, links and slots: by the functions that the API calls too."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import attrgetter
from typing import Any

from django.utils import timezone

from config.platform.admin.confirmed_actions import Asking, Outcome, Verb, each, one_of
from config.platform.admin.display import counted, short
from config.platform.http.idempotency import Idempotency, fingerprint
from config.platform.http.problems import Problem
from exports.core.states import JOB_ACTIVE, ChunkStatus, JobStatus
from exports.delivery import links, receipts
from exports.delivery.links import Bound
from exports.jobs import actions, quotas, submission
from exports.maintenance import manual_actions
from exports.models import Chunk, File, Job, Link, Receipt, Slot


def when_ended(row: Any) -> str:
    """A mark: whatever ends again does so at another time."""
    return row.finished_at.isoformat() if row.finished_at else ""


# ---- Jobs -----------------------------------------------------------------------------------------------------------
@contextmanager
def on_the_owners_quota() -> Iterator[None]:
    """Have a refusal say whose quota it is about: not that of whoever asked."""
    try:
        yield
    except quotas.QuotaExceeded as refusal:
        raise Problem(f"Its owner's quota: {refusal.detail}") from None


def retry_job(job: Job, _asking: Asking) -> str:
    with on_the_owners_quota():
        chunks = actions.retry(job)
    return f"{counted(chunks, 'failed chunk')} started again." if chunks else "The delivery alone: no chunk had failed."


def cancel_job(job: Job, _asking: Asking) -> str:
    chunks = actions.cancel(job)
    return (
        f"{counted(chunks, 'chunk')} will not be exported." if chunks else "The delivery alone: every chunk had ended."
    )


def replay_job(job: Job, asking: Asking) -> str:
    """Replay a job for its owner, who pays for it and alone can download it. The nonce deduplicates clicks."""
    once = Idempotency(key=f"staff-{asking.nonce}-{job.pk}", fingerprint=fingerprint(str(job.pk)))
    binding = Bound(network=job.network, agent=job.agent)
    with on_the_owners_quota():
        again, replayed = actions.replay(job, submission.Caller(user_id=job.user_id, binding=binding, idempotency=once))
    if replayed:
        raise Problem(f"That was done already: job {again.pk}.")
    return f"The same request is job {again.pk}."


JOBS = (
    Verb(
        name="retry",
        label="Retry failed",
        past="Retried",
        icon="replay",
        permission="exports.change_job",
        explanation="Failed chunks start again with all their attempts, and are charged to the owner's quota "
        "again. Chunks that are done keep their files. Where only the delivery failed, that alone is "
        "tried again.",
        why_not=one_of({JobStatus.FAILED}, actions.NotFailed.detail),
        do=each(retry_job),
        mark=when_ended,
    ),
    Verb(
        name="cancel",
        label="Cancel",
        past="Cancelled",
        icon="cancel",
        permission="exports.change_job",
        explanation="What is running stops within seconds, and what waits is not exported. Files that are done "
        "stay, and the next export reuses them. This cannot be undone; the same request can be "
        "replayed.",
        why_not=one_of(JOB_ACTIVE, actions.AlreadyEnded.detail),
        do=each(cancel_job),
        is_danger=True,
    ),
    Verb(
        name="replay",
        label="Replay",
        past="Replayed",
        icon="repeat",
        permission="exports.change_job",
        explanation="The same request becomes a new job of the same owner, whose quota pays for it; files that "
        "are there are reused. The job that is replayed stays as it is.",
        why_not=lambda _job: "",
        do=each(replay_job),
    ),
)


# ---- Chunks ---------------------------------------------------------------------------------------------------------
GOES_ON = "Its job has not ended yet. Retry it when the other chunks have."


def why_not_retry(chunk: Chunk) -> str:
    if chunk.status != ChunkStatus.FAILED:
        return "This chunk has not failed. Only failed chunks can be retried."
    return "" if chunk.job.status == JobStatus.FAILED else GOES_ON


def retry_chunks(chunks: Sequence[Chunk], _asking: Asking) -> Iterator[Outcome]:
    """Those of one job together: a job that goes on takes no more of its chunks."""
    of_job = attrgetter("job_id")
    for job_id, group in groupby(sorted(chunks, key=of_job), key=of_job):
        mine = list(group)
        yield from retry_some(Job.objects.get(pk=job_id), mine)


def retry_some(job: Job, chunks: list[Chunk]) -> Iterator[Outcome]:
    failed = [chunk for chunk in chunks if chunk.status == ChunkStatus.FAILED]
    done, left = "", ""
    try:
        if failed:
            with on_the_owners_quota():
                actions.retry(job, only=[chunk.pk for chunk in failed])
        done = "Started again, with all its attempts."
    except actions.NotFailed:
        left = GOES_ON
    except Problem as refusal:
        left = refusal.detail
    for chunk in chunks:
        yield Outcome(chunk, done=done, left=left) if chunk in failed else Outcome(chunk, left=why_not_retry(chunk))


def release_chunk(chunk: Chunk, _asking: Asking) -> str:
    ended = manual_actions.release_lease(chunk) == ChunkStatus.FAILED
    return "Its attempts are used up: it has failed." if ended else "It is back in the queue."


CHUNKS = (
    Verb(
        name="retry",
        label="Retry",
        past="Retried",
        icon="replay",
        permission="exports.change_chunk",
        explanation="These chunks start again with all their attempts, and are charged to their owners' quotas "
        "again. Other failed chunks of the same jobs stay failed.",
        why_not=why_not_retry,
        do=retry_chunks,
        mark=when_ended,
    ),
    Verb(
        name="release",
        label="Release lease",
        past="Released",
        icon="lock_open",
        permission="exports.change_chunk",
        explanation="For a chunk whose worker is lost: it goes back into the queue at once, not when its lease is"
        " over. A worker that is there after all can write nothing any more, and stops. The attempt "
        "counts: a chunk without another one fails. Its slot stays taken until its lease is over and "
        "its call was ended.",
        why_not=one_of({ChunkStatus.RUNNING}, manual_actions.NotRunning.detail),
        do=each(release_chunk),
        mark=lambda chunk: str(chunk.token),
        is_danger=True,
    ),
)


# ---- Files, receipts, links, slots ----------------------------------------------------------------------------------
def invalidate_file(file: File, _asking: Asking) -> str:
    manual_actions.invalidate_file(file)
    return "No export reuses it any more."


FILES = (
    Verb(
        name="invalidate",
        label="Invalidate",
        past="Invalidated",
        icon="block",
        permission="exports.change_file",
        explanation="The next export of the same key and date calls the source again and replaces the object. "
        "Until then the object stays where it is, but nothing reuses it, nor does it stand in when "
        "the source fails. What was delivered already is a copy of its own, and stays.",
        why_not=lambda _file: "",
        do=each(invalidate_file),
        mark=attrgetter("etag"),
        is_danger=True,
    ),
)


def why_not_revoke_receipt(receipt: Receipt) -> str:
    return "" if receipt.expires_at > timezone.now() else "Its time is over already."


def revoke_receipt(receipt: Receipt, _asking: Asking) -> str:
    receipts.revoke(receipt)
    return "Its link works no more, and its object is deleted within a minute."


RECEIPTS = (
    Verb(
        name="revoke",
        label="Revoke",
        past="Revoked",
        icon="link_off",
        permission="exports.change_receipt",
        explanation="Nobody can download it any more: its link stops working, its owner can make no other, and "
        "the delivered object is deleted within a minute. A download that has begun goes on. The "
        "files stay, so that the same export can be made again at little cost.",
        why_not=why_not_revoke_receipt,
        do=each(revoke_receipt),
        is_danger=True,
    ),
)


def why_not_revoke_link(link: Link) -> str:
    return "" if link.state_at(timezone.now()) == "open" else links.NotOpen.detail


def revoke_link(link: Link, _asking: Asking) -> str:
    links.revoke(link)
    return "It works no more."


LINKS = (
    Verb(
        name="revoke",
        label="Revoke",
        past="Revoked",
        icon="link_off",
        permission="exports.change_link",
        explanation="The link stops working. Its owner can make another one while the receipt lives; revoke the "
        "receipt to prevent that.",
        why_not=why_not_revoke_link,
        do=each(revoke_link),
        is_danger=True,
    ),
)


def why_not_free(slot: Slot) -> str:
    if slot.lease_until is None:
        return "It is free."
    return "" if slot.lease_until <= timezone.now() else manual_actions.SlotInUse.detail


def free_slot(slot: Slot, _asking: Asking) -> str:
    manual_actions.free_slot(slot)
    return (
        f"The call under it is ended, and it is free. It was held for job {short(slot.job_id) if slot.job_id else '-'}."
    )


SLOTS = (
    Verb(
        name="release",
        label="Release",
        past="Released",
        icon="lock_open",
        permission="exports.change_slot",
        explanation="For a slot whose worker is lost: the call that may still run under it is ended in the source"
        " database, and only then the slot is free for another one. The reaper does the same in its "
        "next round.",
        why_not=why_not_free,
        do=each(free_slot),
        mark=lambda slot: str(slot.token),
    ),
)
