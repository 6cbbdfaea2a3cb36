"""SQL that inserts events, as the last part of the statement that makes the change.

Each job has a sequence, `exports_jobs.event_seq`, which is incremented under the lock of the job's row. So the numbers
grow in commit order: no event with a smaller number is committed after a reader has read a larger one. Polling, event
streams, and webhooks all use these rows.
"""

# Needs two CTEs: `numbered` (job_id, id, status, nth), the chunks that changed, and `settled` (job_id, event_seq,
# chunks, status, was), the job after the change, with `event_seq` incremented by `chunks` + 2. The next to last number
# has no row: event streams use it for `progress`, which can be computed at any time.
INSERT_CHUNK_EVENTS = """
, events AS (
    INSERT INTO exports_event (job_id, seq, kind, status, chunk_id)
    SELECT s.job_id, s.event_seq - s.chunks - 2 + n.nth, 'chunk', n.status, n.id
    FROM settled s JOIN numbered n ON n.job_id = s.job_id
    UNION ALL
    SELECT s.job_id, s.event_seq, 'status', s.status, NULL FROM settled s WHERE s.status <> s.was
)
"""

# For statements that only change the job. Needs a CTE `moved` (job_id, event_seq, status), the job after the change,
# with `event_seq` incremented by 1.
INSERT_STATUS_EVENTS = """
, events AS (
    INSERT INTO exports_event (job_id, seq, kind, status)
    SELECT job_id, event_seq, 'status', status FROM moved
)
"""
