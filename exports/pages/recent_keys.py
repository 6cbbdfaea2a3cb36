"""Keys that a user has exported lately, for forms to suggest."""

from config.platform.db import sql
from exports.models import Dataset

JOBS, CHUNKS, SHOWN = 5, 40, 12

# Some chunks of each job, spread over all of them: consecutive ones often have the same key. Each is found by an index.
# LIMIT 1 keeps the planner from joining the tables in another way.
RECENT = """
WITH newest AS MATERIALIZED (
    SELECT job_id, total, row_number() OVER (ORDER BY created_at DESC, job_id DESC) AS age
    FROM exports_jobs WHERE user_id = %(user)s AND dataset_id = %(dataset)s
    ORDER BY created_at DESC, job_id DESC LIMIT %(jobs)s
)
SELECT c.key FROM newest
CROSS JOIN LATERAL generate_series(0, total - 1, greatest(1, ceil(total / %(chunks)s::numeric)::int)) AS position
CROSS JOIN LATERAL (SELECT key FROM exports_chunk WHERE job_id = newest.job_id AND seq = position LIMIT 1) c
GROUP BY c.key ORDER BY min(age), c.key
"""


def recent_keys(dataset: Dataset | None, user_id: int) -> list[str]:
    """Return keys of the user's newest exports of a dataset from `granted_to`, as far as the user may export them now.

    Those of the newest export come first.
    """
    if dataset is None or dataset.built_in:
        return []
    fits = dataset.key_check()
    rows = sql.rows(RECENT, user=user_id, dataset=dataset.pk, jobs=JOBS, chunks=CHUNKS)
    return [row["key"] for row in rows if fits(row["key"])][:SHOWN]
