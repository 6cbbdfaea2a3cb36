"""Recovery of evaluations from lost wake-up messages, dead workers, and deleted samples."""

from contextlib import suppress

from etl.core.errors import Fenced
from etl.evaluation import dispatch, queue


def recover() -> None:
    """Wake a worker for each user with a sample to evaluate. End evaluations without one. Raises Django's errors."""
    for user_id in queue.waiting_users():
        if not dispatch.wake(user_id):
            break
    for evaluation_id in queue.left_over():
        with suppress(Fenced), queue.ending(evaluation_id):
            pass
