"""Recovery of evaluations from lost wake-up messages, dead workers, and deleted samples."""

from contextlib import suppress

from etl.core.errors import Fenced
from etl.evaluation import dispatch, queue


def recover() -> None:
    """Wake a worker for each user with samples to evaluate, and end evaluations without open samples.

    Raises Django's database errors.
    """
    for user_id in queue.waiting_users():
        if not dispatch.wake(user_id):
            break
    for evaluation_id in queue.without_open_samples():
        with suppress(Fenced), queue.locked_evaluation(evaluation_id):
            pass
