"""What staff do by hand, where a janitor would come later or not at all. Each is as safe as what the janitors do."""

import structlog

from config.platform.http.problems import NotFound, Problem
from exports.core import wakeups
from exports.core.errors import ExportError
from exports.core.states import ChunkStatus
from exports.maintenance import cleanup, lost_work
from exports.models import Chunk, File, Slot

log = structlog.get_logger(__name__)


class NotRunning(Problem):
    """Only a running chunk has a lease to release; nobody works on this one, or somebody else does by now."""

    status = 409
    code = "not_running"


class SlotInUse(Problem):
    """The worker that holds this slot may still be there. Release the lease of its chunk, then wait for the slot's."""

    status = 409
    code = "slot_in_use"


class CallNotEnded(Problem):
    """The call that runs under this slot could not be ended. Look at the source database; the slot stays taken."""

    status = 409
    code = "call_not_ended"


class FileReplaced(NotFound):
    """There is no such file any more, or a later export has replaced it."""


def release(chunk: Chunk) -> str:
    """Take a running chunk from its worker: back into the queue, or FAILED when its attempts are used up. Returns
    which. Raises NotRunning."""
    lost = lost_work.withdraw(chunk.pk, token=chunk.token) if chunk.token is not None else None
    if lost is None:
        raise NotRunning
    cleanup.tell_loss("lease_withdrawn", [lost])
    if lost.status == ChunkStatus.PENDING:
        wakeups.chunks(waiting=1)
    else:
        wakeups.deliveries()  # its job may have ended with it
    return lost.status


def free(slot: Slot) -> None:
    """Free a slot whose worker is lost, once its call is ended. Raises SlotInUse and CallNotEnded."""
    if slot.token is None or not Slot.objects.filter(pk=slot.pk, token=slot.token).exists():
        return  # with the other slot of the same call, or by the reaper
    expired = [held for held in lost_work.expired_slots() if held[0] == slot.token]
    if not expired:
        raise SlotInUse
    try:
        left = cleanup.end_calls_and_free(expired)
    except ExportError as error:
        raise CallNotEnded(f"The source database could not be asked: {error.code}. The slot stays taken.") from None
    if left:
        raise CallNotEnded
    wakeups.chunks(waiting=1)


def invalidate(file: File) -> None:
    """Have no export reuse this file, nor let it stand in when the source fails. The object stays where it is until the
    next export of its key and date replaces it. Raises FileReplaced."""
    deleted, _ = File.objects.filter(pk=file.pk, etag=file.etag).delete()
    if not deleted:
        raise FileReplaced
    log.info("file_invalidated", dataset_id=file.dataset_id)
