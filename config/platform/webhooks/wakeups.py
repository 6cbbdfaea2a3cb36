"""Wake-up messages for the workers that send webhooks."""

from config.platform.wakeups import send

DELIVER = "exports.deliver"
FEW = 4  # workers that are woken at the same time; each sends several deliveries


def wake_senders(*, waiting: int = 1, delay: float = 0, again: bool = False) -> None:
    """Wake a worker for each of `waiting` deliveries, at most FEW.

    `delay`: in seconds. `again`: send only the messages that the queue lacks.
    """
    workers = min(waiting, FEW)
    send(DELIVER, *[{}] * workers, countdown=delay, fill_to=workers if again else None)
