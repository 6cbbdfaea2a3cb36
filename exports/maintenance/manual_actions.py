"""Manual actions of staff: release a lease, free a slot, or invalidate a file.

Staff need not wait for the reaper, and each action is as safe as the reaper.
"""

import structlog

from config.platform.http.problems import NotFound, Problem
from config.platform.webhooks.wakeups import wake_senders
from exports.core import wakeups
from exports.core.errors import ExportError
from exports.core.states import ChunkStatus
from exports.maintenance import lost_leases
from exports.models import Chunk, File, Slot

log = structlog.get_logger(__name__)


class NotRunning(Problem):
    status = 409
    code = "not_running"
    detail = "Only a running chunk has a lease to release. This chunk is not running, or another worker has claimed it."


class SlotInUse(Problem):
    status = 409
    code = "slot_in_use"
    detail = (
        "The worker that holds this slot may still be alive. Release its chunk's lease, then wait for the slot's "
        "lease to expire."
    )


class CallNotEnded(Problem):
    status = 409
    code = "call_not_ended"
    detail = "The call that runs under this slot could not be ended. Check the source database. The slot stays held."


class FileReplaced(NotFound):
    detail = "This file no longer exists, or a later export has replaced it."


def release_lease(chunk: Chunk) -> str:
    """Take a running chunk from its worker. Return its new status: pending, or failed after the last attempt.

    Raises NotRunning.
    """
    lost = lost_leases.withdraw(chunk.pk, token=chunk.token) if chunk.token is not None else None
    if lost is None:
        raise NotRunning
    lost_leases.record_loss("lease_withdrawn", [lost])
    if lost.status == ChunkStatus.PENDING:
        wakeups.chunks(waiting=1)
    else:
        wake_senders()  # the job may have ended with the chunk
    return lost.status


def free_slot(slot: Slot) -> None:
    """End the call of a lost worker and free its slot. Raises SlotInUse and CallNotEnded."""
    if slot.token is None or not Slot.objects.filter(pk=slot.pk, token=slot.token).exists():
        return  # already freed by the reaper, or together with the other slot of the same call
    expired = [held for held in lost_leases.expired_slots() if held.token == slot.token]
    if not expired:
        raise SlotInUse
    try:
        still_running = lost_leases.end_calls_and_free(expired)
    except ExportError as error:
        raise CallNotEnded(f"The source database did not respond: {error.code}. The slot stays held.") from None
    if still_running:
        raise CallNotEnded
    wakeups.chunks(waiting=1)


def invalidate_file(file: File) -> None:
    """Exclude a file from reuse, and from replacing a chunk whose source fails. Raises FileReplaced.

    The object stays in the bucket until the next export of its key and date replaces it.
    """
    deleted, _ = File.objects.filter(pk=file.pk, etag=file.etag).delete()
    if not deleted:
        raise FileReplaced
    log.info("file_invalidated", dataset_id=file.dataset_id)
