"""Turns between users: the order in which workers take waiting chunks.

This is start-time fair queueing. A new job ranks behind the waiting chunks of its owner, and not before the chunk that
is next in the queue. So the n-th waiting chunk of a user competes with the n-th of each other user: neither a large
backlog nor a stream of small jobs delays other users, and the jobs of one user run in the order of their submission.

The ranks of chunks are fixed when a job is submitted or retried. Claims take the lowest one.
"""

from config.platform.db import sql

# `taking_turns`: the datasets that compete for slots. Chunks of another one wait for slots of its own, which are all in
# use: their ranks are behind the queue, and do not matter for the turn of a job for another dataset. The next chunk of
# a dataset, and the last one of a job that waits, are found by index.
NEXT_RANK = """
WITH taking_turns AS MATERIALIZED (
    SELECT d.id FROM exports_dataset d
    WHERE d.id = %(dataset)s OR d.max_concurrency IS NULL OR EXISTS (
        SELECT 1 FROM exports_slot s WHERE s.dataset_id = d.id AND s.number <= d.max_concurrency AND s.token IS NULL
    )
)
SELECT greatest(
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
)
"""


def next_rank(*, user_id: int, dataset_id: int) -> int:
    """Return the rank of the first chunk of the user's next job.

    Call it in the transaction that writes the chunks, after `quotas.debit`, whose lock of the user's row puts
    concurrent jobs of one user in an order.
    """
    return int(sql.scalar(NEXT_RANK, user=user_id, dataset=dataset_id))
