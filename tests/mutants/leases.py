"""What if claims, outcomes and cleanup of exports were a little wrong?"""

from functools import partial

from tests.mutants.mutant import Mutant, tests_of

CLAIMS = partial(Mutant, file="exports/worker/leases.py")
OUTCOMES = partial(Mutant, file="exports/worker/transitions.py")
LEASES = partial(Mutant, file="exports/maintenance/lost_leases.py")
STORAGE = partial(Mutant, file="exports/maintenance/storage_cleanup.py")
RETENTION = partial(Mutant, file="exports/maintenance/retention.py")
PERIODIC = partial(Mutant, file="exports/maintenance/periodic.py")
HEARTBEAT = partial(Mutant, file="config/platform/heartbeat.py")

leases = partial(tests_of, "tests/integration/test_leases.py")
sweeper = partial(tests_of, "tests/integration/test_sweeper.py")
heartbeat = partial(tests_of, "tests/integration/test_heartbeat.py")
verbs = partial(tests_of, "tests/integration/test_admin_verbs.py")
STALE = leases("a_stale_token_changes_nothing")

MUTANTS = [
    CLAIMS(
        name="a claim took a slot without locking it",
        old="WHERE dataset_id IS NULL AND number <= %(slots)s AND token IS NULL\n"
        "    ORDER BY number LIMIT 1 FOR UPDATE SKIP LOCKED",
        new="WHERE dataset_id IS NULL AND number <= %(slots)s AND token IS NULL\n    ORDER BY number LIMIT 1",
        tests=leases("a_claim_waits_for_no_other"),
    ),
    CLAIMS(
        name="a claim took a slot that is held",
        old="number <= %(slots)s AND token IS NULL\n    ORDER BY",
        new="number <= %(slots)s\n    ORDER BY",
        tests=leases("a_claim_takes_nothing_when_every_slot_is_taken"),
    ),
    CLAIMS(
        name="a dataset's own cap were not looked at",
        old="WHERE d.max_concurrency IS NULL OR own.id IS NOT NULL",
        new="WHERE true",
        tests=leases("a_dataset_is_held_to_its_own_cap_and_others_go_on"),
    ),
    CLAIMS(
        name="a chunk were tried again before its pause is over",
        old="c.status = 'retrying' AND c.available_at <= statement_timestamp()",
        new="c.status = 'retrying'",
        tests=leases("a_failure_is_retried_with_backoff_and_then_final"),
    ),
    CLAIMS(
        name="the claim did not count the attempt",
        old="token = fence.token, attempts = c.attempts + 1",
        new="token = fence.token, attempts = c.attempts",
        tests=leases("a_chunk_that_kills_its_workers_ends_failed"),
    ),
    CLAIMS(
        name="chunks were claimed by what was read before they were locked",
        old="ORDER BY c.rank, c.id LIMIT 1 FOR UPDATE SKIP LOCKED",
        new="ORDER BY c.rank, c.id LIMIT 1",
        tests=leases("a_claim_waits_for_no_other"),
    ),
    CLAIMS(
        name="files of an older schema version were reused",
        old="j.reuse = 'if-present' AND f.schema_version = j.schema_version\n",
        new="j.reuse = 'if-present'\n",
        tests=leases("a_file_of_an_older_schema_version_is_not_reused"),
    ),
    OUTCOMES(
        name="a worker could finish what it has lost",
        old="WHERE c.id = %(chunk)s::bigint AND c.token = %(token)s::bigint AND c.status = 'running'",
        new="WHERE c.id = %(chunk)s::bigint AND c.status = 'running'",
        tests=STALE,
    ),
    OUTCOMES(
        name="a worker could finish what it has lost, in a batch",
        old="WHERE c.id = r.id AND c.token = r.token AND c.status = 'running'",
        new="WHERE c.id = r.id AND c.status = 'running'",
        tests=leases("a_batch_leaves_alone_what_was_lost"),
    ),
    OUTCOMES(
        name="a worker could fail what it has lost",
        old="WHERE id = %(chunk)s AND token = %(token)s AND status = 'running'\n    RETURNING *",
        new="WHERE id = %(chunk)s AND status = 'running'\n    RETURNING *",
        tests=STALE,
    ),
    OUTCOMES(
        name="a worker could give back what it has lost",
        old="WHERE id = ANY(%(chunks)s) AND token = ANY(%(tokens)s) AND status = 'running'",
        new="WHERE id = ANY(%(chunks)s) AND status = 'running'",
        tests=STALE,
    ),
    CLAIMS(
        name="a worker could renew what it has lost",
        old="WHERE id = %(chunk)s AND token = %(token)s AND status = 'running' RETURNING id",
        new="WHERE id = %(chunk)s AND status = 'running' RETURNING id",
        tests=STALE,
    ),
    CLAIMS(
        name="a worker that has lost its chunk kept its slot alive",
        old="WHERE token = %(token)s AND EXISTS (SELECT 1 FROM ours)",
        new="WHERE token = %(token)s",
        tests=leases("a_renewal_that_comes_too_late_keeps_no_slot"),
    ),
    OUTCOMES(
        name="chunks were counted before the job is locked",
        # Without spaces: psycopg prepares no longer a statement.
        old="SET done = j.done + d.done, failed = j.failed + d.failed",
        new="SET done=(SELECT done FROM exports_jobs WHERE job_id=d.job_id)+d.done,failed=j.failed+d.failed",
        tests=leases("two_finishers_at_once_complete_a_job_once"),
    ),
    OUTCOMES(
        name="an outcome took the job before its slot",
        old="WHERE job_id IN (SELECT job_id FROM delta) AND (SELECT count(*) FROM free) >= 0",
        new="WHERE job_id IN (SELECT job_id FROM delta)",
        tests=leases("an_end_waits_for_its_slot_before_it_takes_the_job"),
    ),
    OUTCOMES(
        name="every chunk that ends were given back to the quota",
        old="(WHERE charged AND (status = 'failed' OR (status = 'done' AND source = 'reused'))) AS refund",
        new="(WHERE charged AND status <> 'retrying') AS refund",
        tests=tests_of("tests/integration/test_quotas.py", "reused_chunks_are_given_back"),
    ),
    OUTCOMES(
        name="a chunk had one attempt too many",
        old="claim.attempts < settings.SLUICE.export_max_attempts",
        new="claim.attempts <= settings.SLUICE.export_max_attempts",
        tests=leases("a_failure_is_retried_with_backoff_and_then_final"),
    ),
    # ---- Cleanup
    LEASES(
        name="the reaper took chunks from workers that live",
        old="WHERE status = 'running' AND lease_until < statement_timestamp()",
        new="WHERE status = 'running'",
        tests=sweeper("a_live_workers_chunk_is_left_alone"),
    ),
    LEASES(
        name="a chunk that kills its workers came back for ever",
        old="SET status = CASE WHEN c.attempts >= %(attempts)s THEN 'failed' ELSE 'pending' END",
        new="SET status = 'pending'",
        tests=leases("a_chunk_that_kills_its_workers_ends_failed"),
    ),
    LEASES(
        name="staff took a chunk from whoever has it by now",
        old="WHERE status = 'running' AND id = %(chunk)s AND token = %(token)s FOR UPDATE",
        new="WHERE status = 'running' AND id = %(chunk)s AND %(token)s > 0 FOR UPDATE",
        tests=verbs("a_lease_is_withdrawn_from_its_holder_alone"),
    ),
    LEASES(
        name="a slot were free while its worker's lease goes on",
        old="WHERE s.lease_until < clock_timestamp()\n  AND NOT EXISTS",
        new="WHERE s.lease_until IS NOT NULL\n  AND NOT EXISTS",
        tests=leases("the_slot_of_a_chunk_that_was_taken_away_waits_for_its_lease"),
    ),
    LEASES(
        name="a slot were free while its chunk is still held",
        old="WHERE s.lease_until < clock_timestamp()\n"
        "  AND NOT EXISTS (SELECT 1 FROM exports_chunk c WHERE c.token = s.token AND c.status = 'running')",
        new="WHERE s.lease_until < clock_timestamp()",
        tests=leases("a_slot_is_held_while_its_chunk_is"),
    ),
    LEASES(
        name="slots were freed before their calls are gone",
        old="still_running = database.end_calls([slot.backend for slot in expired])",
        new="still_running: set[str] = set()",
        tests=sweeper("the_call_of_a_lost_worker_is_ended_before_its_slot_is_free"),
    ),
    STORAGE(
        name="uploads of live workers were aborted",
        old="if upload.key not in busy and upload.key",
        new="if upload.key",
        tests=sweeper("uploads_of_lost_workers_are_aborted_and_those_of_live_ones_are_not"),
    ),
    STORAGE(
        name="objects whose receipt is about to be written were orphans",
        old="if item.last_modified < young]",
        new="]",
        tests=sweeper("orphans_go_and_live_receipts_stay"),
    ),
    STORAGE(
        name="objects that receipts name were orphans",
        old="orphans = [key for key in found if key not in named]",
        new="orphans = found",
        tests=sweeper("orphans_go_and_live_receipts_stay"),
    ),
    RETENTION(
        name="jobs were purged whose delivered object is still there",
        old=".exclude(receipt__deleted_at=None, receipt__isnull=False)",
        new="",
        tests=sweeper("old_jobs_are_purged_and_their_files_kept"),
    ),
    PERIODIC(
        name="each of several beats did the same work",
        old="WHERE exports_tick.ran_at < clock_timestamp() - %(every)s * interval '0.5 second'",
        new="WHERE %(every)s > 0",
        tests=sweeper("a_tick_runs_once_however_many_beats_there_are"),
    ),
    STORAGE(
        name="a file were deleted before its outcome is written",
        old="if head and head.last_modified < before and own.items()",
        new="if head and own.items()",
        tests=sweeper("a_young_file_and_the_file_of_a_young_end_stay"),
    ),
    STORAGE(
        name="uploads were aborted while they are sent",
        old="return abort_uploads(before=storage.now() - GRACE)",
        new="return abort_uploads(before=storage.now() + GRACE)",
        tests=sweeper("abandoned_uploads_are_aborted"),
    ),
    Mutant(
        name="a query outlived its worker where the source does not look by itself",
        file="exports/source/database.py",
        old='        "client_connection_check_interval=1000",\n',
        new="",
        tests=tests_of("tests/chaos/test_workers.py", "the_query_of_a_killed_worker_ends_and_its_chunk_runs_again"),
    ),
    Mutant(
        name="a slot were given to others while its call runs on",
        file="exports/source/database.py",
        old="            self.may_run_on = True  # also when ending it is interrupted\n"
        "            self.may_run_on = not self._end_call()\n",
        new="",
        tests=tests_of("tests/chaos/test_source.py", "calls_that_break_off_end_before_others_get_their_slots"),
    ),
    # ---- Heartbeats
    HEARTBEAT(
        name="nobody looked at the lease before a part",
        old="self.lost.age > min(1, self._lease / 3)",
        new="self.lost.age > 3600",
        tests=heartbeat("a_lease_that_was_lost_is_noticed_at_the_next_check"),
    ),
    HEARTBEAT(
        name="work were not stopped when the lease is lost",
        old="                self._on_loss()\n",
        new="",
        tests=heartbeat("work_is_stopped_when_the_lease_is_lost"),
    ),
    HEARTBEAT(
        name="work went on while nobody can renew the lease",
        old="self.age >= self._lease",
        new="False",
        tests=heartbeat("work_is_stopped_when_the_lease_could_not_be_renewed_for_its_whole_length"),
    ),
]
