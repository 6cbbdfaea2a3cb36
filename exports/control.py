"""What a person may do to a job: start its failed chunks again."""

import structlog

from config.api.problems import Problem
from exports import dispatch, sql
from exports.models import Job

log = structlog.get_logger(__name__)


class NotFailed(Problem):
    """Only a failed export can be retried; this one has not failed."""

    status = 409
    code = "not_failed"


# Chunks before the job, as everywhere. The job's own condition makes the second of two retries a no-op.
RETRY = """
WITH again AS (
    UPDATE exports_chunk
    SET status = 'pending', attempts = 0, reusable = false, started_at = NULL, finished_at = NULL,
        error_code = '', error_detail = ''
    WHERE job_id = %(job)s AND status = 'failed'
      AND EXISTS (SELECT 1 FROM exports_jobs WHERE job_id = %(job)s AND status = 'failed')
    RETURNING id
)
UPDATE exports_jobs
SET status = 'running', failed = failed - (SELECT count(*) FROM again), finished_at = NULL,
    error_code = '', error_detail = '', completion_attempts = 0, completion_token = NULL, completion_lease_until = NULL
WHERE job_id = %(job)s AND status = 'failed'
RETURNING (SELECT count(*) FROM again)
"""


def retry(job: Job) -> int:
    """Start the failed chunks of a failed job again, with all their attempts. Returns how many; raises NotFailed.

    A job that failed at its delivery has no failed chunks: then the delivery is tried again.
    """
    chunks = sql.scalar(RETRY, job=job.job_id)
    if chunks is None:
        raise NotFailed
    log.info("job_retried", job_id=str(job.job_id), chunks=chunks)
    if chunks:
        dispatch.chunks(waiting=chunks)
    else:
        dispatch.completion(job.job_id)
    return int(chunks)
