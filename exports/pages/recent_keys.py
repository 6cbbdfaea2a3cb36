"""Recently exported keys of a user, as suggestions in forms."""

from config.platform.db import sql
from exports.models import Dataset

JOBS, CHUNKS, MAX_KEYS = 5, 40, 12

# A sample of each job's chunks, evenly spaced because consecutive chunks often have the same key. Each chunk is found
# by an index. LIMIT 1 keeps the planner from joining the tables in another way.
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
    """Return keys of the user's latest exports of a dataset, those of the latest export first.

    Keys that the user may no longer export are left out. The dataset must come from `granted_to`.
    """
    if dataset is None or dataset.built_in:
        return []
    fits = dataset.key_check()
    rows = sql.rows(RECENT, user=user_id, dataset=dataset.pk, jobs=JOBS, chunks=CHUNKS)
    return [row["key"] for row in rows if fits(row["key"])][:MAX_KEYS]
