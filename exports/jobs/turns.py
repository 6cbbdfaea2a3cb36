"""Turns between users: the order in which workers take waiting chunks.

This is start-time fair queueing. The chunks of a new job rank behind the waiting chunks of its owner, and not before
the chunk at the head of the queue. So the n-th waiting chunk of a user competes with the n-th one of every other user:
neither a large backlog nor a stream of small jobs delays other users, and a user's jobs run in the order of submission.

The rank of a chunk is set when its job is submitted or retried. Claims take the chunk with the lowest rank.
"""

from config.platform.db import sql

# `taking_turns`: the datasets whose chunks compete for slots now. A dataset whose own slots are all in use is not among
# them: its chunks wait for these slots, so their ranks do not matter for a job of another dataset. The next chunk of a
# dataset and the last waiting chunk of a job are found by index.
# `kept`: the dataset cannot be deleted until the transaction ends. Foreign keys take the same lock later.
NEXT_RANK = """
WITH kept AS MATERIALIZED (
    SELECT id FROM exports_dataset WHERE id = %(dataset)s FOR KEY SHARE
), taking_turns AS MATERIALIZED (
    SELECT d.id FROM exports_dataset d
    WHERE d.id = %(dataset)s OR d.max_concurrency IS NULL OR EXISTS (
        SELECT 1 FROM exports_slot s WHERE s.dataset_id = d.id AND s.number <= d.max_concurrency AND s.token IS NULL
    )
)
SELECT CASE WHEN EXISTS (SELECT 1 FROM kept) THEN greatest(
    (
        SELECT coalesce(min(head.rank) FILTER (WHERE d.id IN (SELECT id FROM taking_turns)), min(head.rank))
        FROM exports_dataset d CROSS JOIN LATERAL (
            SELECT rank FROM exports_chunk c WHERE c.dataset_id = d.id AND c.status = 'pending' AND NOT c.reusable
            ORDER BY rank, id LIMIT 1
        ) head
    ),
    (
        SELECT max(last.rank) + 1 FROM exports_jobs j CROSS JOIN LATERAL (
            SELECT rank FROM exports_chunk c WHERE c.job_id = j.job_id AND c.status = 'pending'
            ORDER BY c.seq DESC LIMIT 1
        ) last
        WHERE j.user_id = %(user)s AND j.status IN ('pending', 'running', 'retrying')
          AND j.dataset_id IN (SELECT id FROM taking_turns)
    ),
    0
) END
"""


def next_rank(*, user_id: int, dataset_id: int) -> int | None:
    """Return the rank for the first chunk of a new job of the user, or None if the dataset has been deleted.

    Call it in the transaction that writes the chunks, after `quotas.debit`, whose lock serializes the concurrent
    submissions of a user.
    """
    rank: int | None = sql.scalar(NEXT_RANK, user=user_id, dataset=dataset_id)
    return rank
