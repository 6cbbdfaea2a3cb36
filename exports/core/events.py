"""Events, written by the very statement that makes them true. SQL that other statements end with.

A job has one sequence: `exports_jobs.event_seq`, raised under the lock of the job's row, so that numbers grow in the
order of the commits and no reader can miss one that comes later with a smaller number. Polling, the event stream and
webhooks all tell of the same rows.
"""

# Wants two CTEs before it: `numbered` (job_id, id, status, nth), the chunks that changed, and `settled` (job_id,
# event_seq, chunks, status, was), the job after the change, its `event_seq` raised by `chunks` + 2. The number before
# the last is left free: streams give it to `progress`, which is no row, since it can be told at any time.
TOLD = """
, told AS (
    INSERT INTO exports_event (job_id, seq, kind, status, chunk_id)
    SELECT s.job_id, s.event_seq - s.chunks - 2 + n.nth, 'chunk', n.status, n.id
    FROM settled s JOIN numbered n ON n.job_id = s.job_id
    UNION ALL
    SELECT s.job_id, s.event_seq, 'status', s.status, NULL FROM settled s WHERE s.status <> s.was
)
"""

# The same for statements that move the job alone: a CTE `moved` (job_id, event_seq, status) raises `event_seq` by one.
MOVED = """
, told AS (
    INSERT INTO exports_event (job_id, seq, kind, status)
    SELECT job_id, event_seq, 'status', status FROM moved
)
"""
