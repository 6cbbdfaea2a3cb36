"""Mutants of claims, outcomes, and cleanup of exports."""

from functools import partial

from tests.mutants.mutant import Mutant, tests_of

CLAIMS = partial(Mutant, file="exports/worker/leases.py")
OUTCOMES = partial(Mutant, file="exports/worker/transitions.py")
BATCHES = partial(Mutant, file="exports/worker/batches.py")
SLOT = partial(Mutant, file="exports/worker/slot.py")
LEASES = partial(Mutant, file="exports/maintenance/lost_leases.py")
STORAGE = partial(Mutant, file="exports/maintenance/storage_cleanup.py")
RETENTION = partial(Mutant, file="exports/maintenance/retention.py")
PERIODIC = partial(Mutant, file="exports/maintenance/periodic.py")
HEARTBEAT = partial(Mutant, file="config/platform/heartbeat.py")
SESSION = partial(Mutant, file="exports/source/database.py")
EXECUTION = partial(Mutant, file="exports/worker/execution.py")

leases = partial(tests_of, "tests/integration/test_leases.py")
batches = partial(tests_of, "tests/integration/test_batches.py")
sweeper = partial(tests_of, "tests/integration/test_sweeper.py")
heartbeat = partial(tests_of, "tests/integration/test_heartbeat.py")
isolation = partial(tests_of, "tests/integration/test_source_isolation.py")
verbs = partial(tests_of, "tests/integration/test_admin_actions.py")
STALE = leases("a_stale_fencing_token_changes_nothing")

MUTANTS = [
    CLAIMS(
        name="claim a slot without locking it",
        old="    ORDER BY token, number LIMIT 1 FOR UPDATE SKIP LOCKED\n), pick",
        new="    ORDER BY token, number LIMIT 1\n), pick",
        tests=leases("concurrent_claims_do_not_block_each_other"),
    ),
    CLAIMS(
        name="claim a slot that is in use",
        old="number <= %(slots)s AND (token IS NULL OR token = %(held)s::bigint)\n    ORDER BY token, number",
        new="number <= %(slots)s\n    ORDER BY number",
        tests=leases("a_claim_without_free_slots_is_empty"),
    ),
    CLAIMS(
        name="ignore the dataset's concurrency limit",
        old="WHERE (d.max_concurrency IS NULL OR own.id IS NOT NULL)",
        new="WHERE true",
        tests=leases("the_cap_of_a_dataset_does_not_affect_other_datasets"),
    ),
    CLAIMS(
        name="retry a chunk before its backoff has passed",
        old="c.status = 'retrying' AND c.available_at <= statement_timestamp()",
        new="c.status = 'retrying'",
        tests=leases("a_failure_is_retried_with_backoff_and_then_final"),
    ),
    CLAIMS(
        name="do not count the attempt in the claim",
        old="token = fence.token, attempts = c.attempts + 1",
        new="token = fence.token, attempts = c.attempts",
        tests=leases("a_chunk_that_kills_its_workers_fails"),
    ),
    CLAIMS(
        name="claim chunks by values read before the lock",
        old="ORDER BY c.rank, c.id LIMIT 1 FOR UPDATE SKIP LOCKED",
        new="ORDER BY c.rank, c.id LIMIT 1",
        tests=leases("concurrent_claims_do_not_block_each_other"),
    ),
    CLAIMS(
        name="reuse files of an older schema version",
        old="AND f.dataset_id = t.dataset_id AND f.schema_version = j.schema_version\n",
        new="AND f.dataset_id = t.dataset_id\n",
        tests=leases("a_file_of_an_older_schema_version_is_not_reused"),
    ),
    CLAIMS(
        name="claim a batch of chunks without locking them",
        old="LIMIT (SELECT greatest(more, 0) FROM share) FOR UPDATE SKIP LOCKED",
        new="LIMIT (SELECT greatest(more, 0) FROM share)",
        tests=batches("concurrent_batches_do_not_block_each_other"),
    ),
    CLAIMS(
        name="claim all waiting chunks as a batch",
        old="SELECT least(wanted.size, ceil(waiting.chunks::numeric / wanted.workers)) - 1 AS more",
        new="SELECT least(wanted.size, waiting.chunks) - 1 AS more",
        tests=batches("a_batch_leaves_chunks_for_other_workers"),
    ),
    CLAIMS(
        name="claim a chunk that was lost before as part of a batch",
        old="AND c.attempts = 0 AND c.id <>",
        new="AND c.id <>",
        tests=batches("a_batch_has_no_chunk_of_a_lost_worker"),
    ),
    BATCHES(
        name="upload each file before the next call",
        old="        if not self._waiting:\n            return None",
        new="        if work:\n            return None",
        tests=batches("a_chunk_calls_the_source_while_the_last_file_is_uploaded"),
    ),
    BATCHES(
        name="record a file whose upload ends late with the last chunk",
        old="if self._waiting or (self._running and not self._is_split):",
        new="if self._waiting or self._running:",
        tests=batches("a_file_is_recorded_while_the_next_call_takes_long"),
    ),
    SESSION(
        name="cancel the call of the next chunk when a chunk is lost",
        old="            if chunk_id != self._chunk_id:\n                return\n",
        new="",
        tests=tests_of("tests/integration/test_execution.py", "the_loss_of_a_chunk_does_not_stop_the_call_of_the_next"),
    ),
    BATCHES(
        name="let the chunks of a batch wait for a slow one",
        old="rest, self._waiting = list(self._waiting), deque()",
        new="rest = list[Claim]()",
        tests=batches("a_slow_chunk_does_not_delay_others"),
    ),
    BATCHES(
        name="hold back the results of a batch until its slow chunk ends",
        old="            self._record_ended()\n        except Error",
        new="        except Error",
        tests=batches("a_slow_chunk_does_not_delay_others"),
    ),
    BATCHES(
        name="continue while a call may still be running",
        old="while not self._session.may_still_run and",
        new="while",
        tests=batches("no_call_follows_a_call_that_may_still_run"),
    ),
    BATCHES(
        name="discard the finished chunks of a batch at shutdown",
        old="        self._record_ended()\n        if self._waiting:\n            transitions.release(list",
        new="        if self._waiting:\n            transitions.release(list",
        tests=batches("a_shutdown_records_ended_chunks_and_returns_the_rest"),
    ),
    BATCHES(
        name="lose the finished chunks of a batch if a shutdown interrupts their recording",
        old="            with self._lock:\n                self._ended[:0] = ended\n            raise",
        new="            raise",
        tests=batches("a_shutdown_while_a_batch_is_recorded_loses_no_chunk"),
    ),
    SLOT(
        name="release the slot between two batches",
        old="paused=paused, held=self._token)",
        new="paused=paused)",
        tests=batches("a_worker_keeps_its_slot_between_batches"),
    ),
    SLOT(
        name="keep the slot of another dataset",
        old="if limited != self._limited or claims[0].has_new_slot:",
        new="if False:",
        tests=batches("a_worker_frees_the_slot_of_another_dataset"),
    ),
    SLOT(
        name="forget a slot that another claim has locked",
        old=" or claims[0].has_new_slot",
        new="",
        tests=batches("a_worker_frees_its_slot_if_another_claim_has_locked_it"),
    ),
    SLOT(
        name="keep a slot of a limit that was removed",
        old="limited = (claims[0].dataset, claims[0].max_concurrency)",
        new="limited = (claims[0].dataset, None)",
        tests=batches("a_worker_frees_a_slot_that_a_changed_limit_excludes"),
    ),
    SLOT(
        name="wake no worker for the slot that a shutdown frees",
        old="            wakeups.chunks(waiting=1)",
        new="            pass",
        tests=batches("a_shutdown_frees_the_slot_before_it_wakes_a_worker"),
    ),
    BATCHES(
        name="continue after the connection of the slot was lost",
        old=" and self._session.backend == self._backend:",
        new=":",
        tests=batches("no_call_follows_a_call_that_lost_its_connection"),
    ),
    EXECUTION(
        name="do not look for chunks again after the slot was freed",
        old="            has_exported |= slot.free()\n",
        new="            slot.free()\n",
        tests=batches("a_worker_checks_for_chunks_after_freeing_its_slot"),
    ),
    SLOT(
        name="free the slot of a call that may still be running",
        old="if not self.session.may_still_run:\n            transitions",
        new="if True:\n            transitions",
        tests=batches("no_call_follows_a_call_that_may_still_run"),
    ),
    SLOT(
        name="free the slot before the connection is closed",
        old="        self.session.close()\n",
        new="",
        tests=batches("a_worker_without_a_chunk_closes_its_connection"),
    ),
    EXECUTION(
        name="hold the slot while files are checked for reuse",
        old="        slot.free()  # so that other workers can use it in the meantime\n",
        new="",
        tests=batches("a_worker_checks_files_without_its_slot"),
    ),
    OUTCOMES(
        name="finish a chunk without a fencing check",
        old="WHERE id = %(chunk)s::bigint AND token = %(token)s::bigint AND status = 'running'",
        new="WHERE id = %(chunk)s::bigint AND status = 'running'",
        tests=STALE,
    ),
    OUTCOMES(
        name="finish a batch of chunks without a fencing check",
        old="WHERE c.id = r.id AND c.token = r.token AND c.status = 'running'",
        new="WHERE c.id = r.id AND c.status = 'running'",
        tests=leases("a_batch_skips_lost_chunks"),
    ),
    OUTCOMES(
        name="record a file that was replaced",
        old="    WHERE exports_file.upload_number < EXCLUDED.upload_number\n",
        new="",
        tests=tests_of(
            "tests/integration/test_completion.py", "a_worker_that_records_late_does_not_restore_a_replaced_file"
        ),
    ),
    OUTCOMES(
        name="fail a chunk without a fencing check",
        old="WHERE id = %(chunk)s AND token = %(token)s AND status = 'running'\n    RETURNING *",
        new="WHERE id = %(chunk)s AND status = 'running'\n    RETURNING *",
        tests=STALE,
    ),
    OUTCOMES(
        name="release a chunk without a fencing check",
        old="WHERE c.id = locked.id AND c.token = ANY(%(tokens)s) AND c.status = 'running'",
        new="WHERE c.id = locked.id AND c.status = 'running'",
        tests=STALE,
    ),
    CLAIMS(
        name="renew a lease without a fencing check",
        old="WHERE id = %(chunk)s AND token = %(token)s AND status = 'running' RETURNING id",
        new="WHERE id = %(chunk)s AND status = 'running' RETURNING id",
        tests=STALE,
    ),
    CLAIMS(
        name="renew the slot of a lost chunk",
        old="WHERE token = %(token)s AND EXISTS (SELECT 1 FROM ours)",
        new="WHERE token = %(token)s",
        tests=leases("a_late_renewal_does_not_keep_the_slot"),
    ),
    OUTCOMES(
        name="count chunks before the job is locked",
        old="SET done = j.done + d.done, failed = j.failed + d.failed",
        new="SET done = (SELECT done FROM exports_jobs WHERE job_id = d.job_id) + d.done, failed = j.failed + d.failed",
        tests=leases("concurrent_finishes_complete_a_job_once"),
    ),
    Mutant(
        file="exports/jobs/quotas.py",
        name="refund every finished chunk",
        old="(e.status IN ('failed', 'cancelled') OR source = 'reused')",
        new="e.status <> 'retrying'",
        tests=tests_of("tests/integration/test_quotas.py", "reused_chunks_are_refunded"),
    ),
    OUTCOMES(
        name="allow a chunk one attempt too many",
        old="claim.attempts < env.export_max_attempts",
        new="claim.attempts <= env.export_max_attempts",
        tests=leases("a_failure_is_retried_with_backoff_and_then_final"),
    ),
    OUTCOMES(
        name="count attempts while the storage refuses writes",
        old="uncounted=int(waits_for_storage(claim, error))",
        new="uncounted=0",
        tests=tests_of("tests/integration/test_execution.py", "a_storage_that_refuses_writes_pauses_exports"),
    ),
    # ---- Cleanup
    LEASES(
        name="reap chunks of live workers",
        old="WHERE status = 'running' AND lease_until < statement_timestamp()",
        new="WHERE status = 'running'",
        tests=sweeper("the_chunk_of_a_live_worker_is_left_alone"),
    ),
    LEASES(
        name="retry a chunk that crashes its workers forever",
        old="SET status = CASE WHEN c.attempts >= %(attempts)s THEN 'failed' ELSE 'pending' END",
        new="SET status = 'pending'",
        tests=leases("a_chunk_that_kills_its_workers_fails"),
    ),
    LEASES(
        name="release a chunk that another worker has claimed since",
        old="WHERE status = 'running' AND id = %(chunk)s AND token = %(token)s FOR UPDATE",
        new="WHERE status = 'running' AND id = %(chunk)s AND %(token)s > 0 FOR UPDATE",
        tests=verbs("a_lease_is_withdrawn_only_from_the_displayed_holder"),
    ),
    LEASES(
        name="free a slot while its worker's lease is valid",
        old="WHERE s.lease_until < clock_timestamp()\n  AND NOT EXISTS",
        new="WHERE s.lease_until IS NOT NULL\n  AND NOT EXISTS",
        tests=leases("the_slot_of_a_withdrawn_chunk_is_freed_after_its_lease"),
    ),
    LEASES(
        name="free a slot while its chunk is still leased",
        old="WHERE s.lease_until < clock_timestamp()\n"
        "  AND NOT EXISTS (SELECT 1 FROM exports_chunk c WHERE c.token = s.token AND c.status = 'running')",
        new="WHERE s.lease_until < clock_timestamp()",
        tests=leases("a_slot_is_held_as_long_as_its_chunk"),
    ),
    LEASES(
        name="free slots before their calls have ended",
        old="still_running = database.end_calls([slot.backend for slot in expired])",
        new="still_running: set[str] = set()",
        tests=sweeper("the_call_of_a_lost_worker_is_ended_before_its_slot_is_free"),
    ),
    STORAGE(
        name="abort uploads of live workers",
        old="[upload for upload in old if upload.key not in busy]",
        new="old",
        tests=sweeper("uploads_of_lost_workers_are_aborted_and_those_of_live_ones_are_not"),
    ),
    STORAGE(
        name="abort uploads of live completions",
        old="kept = {bundles.folder_of_attempt(job, job.completion_token or 0) for job in completing}",
        new="kept = {str(job) for job in completing}",
        tests=sweeper("uploads_of_lost_completions_are_aborted_while_the_next_one_runs_and_after_it"),
    ),
    STORAGE(
        name="delete objects whose receipt is about to be written",
        old="if item.last_modified < young)",
        new=")",
        tests=sweeper("orphans_are_deleted_and_objects_of_live_receipts_kept"),
    ),
    STORAGE(
        name="delete objects that receipts reference",
        old="of_this_service(undelivered(batch))",
        new="of_this_service(batch)",
        tests=sweeper("orphans_are_deleted_and_objects_of_live_receipts_kept"),
    ),
    RETENTION(
        name="purge jobs whose delivered object still exists",
        old=".exclude(receipt__deleted_at=None, receipt__isnull=False)",
        new="",
        tests=sweeper("old_jobs_are_purged_and_their_files_kept"),
    ),
    PERIODIC(
        name="run periodic work once per beat",
        old="WHERE exports_tick.ran_at < clock_timestamp() - %(every)s * interval '0.5 second'",
        new="WHERE %(every)s > 0",
        tests=sweeper("a_tick_runs_once_with_any_number_of_beats"),
    ),
    STORAGE(
        name="delete a file before its outcome is written",
        old="if head and head.last_modified < before and own.items()",
        new="if head and own.items()",
        tests=sweeper("recent_files_and_files_of_recently_ended_chunks_are_kept"),
    ),
    STORAGE(
        name="abort uploads in progress",
        old="return abort_uploads(before=storage.now() - GRACE)",
        new="return abort_uploads(before=storage.now() + GRACE)",
        tests=sweeper("abandoned_uploads_are_aborted"),
    ),
    SESSION(
        name="leave the query of a killed worker running on the source",
        old='        "client_connection_check_interval=1000",\n',
        new="",
        tests=tests_of("tests/chaos/test_workers.py", "the_query_of_a_killed_worker_ends_and_its_chunk_is_retried"),
    ),
    Mutant(
        name="keep a lost database connection until the end of the task",
        file="config/platform/db/base.py",
        old="self.connection.closed and not self.in_atomic_block",
        new="False",
        tests=batches("a_lost_database_connection_repeats_no_call"),
    ),
    Mutant(
        name="let an error of the cleanup end a shutdown",
        file="exports/worker/stops.py",
        old="            raise cause from None\n",
        new="            pass\n",
        tests=batches("an_error_does_not_end_a_shutdown"),
    ),
    EXECUTION(
        name="keep the chunks of an interrupted check for reuse",
        old="cancel_futures=True)\n        queue_missing(claims)",
        new="cancel_futures=True)",
        tests=batches("a_shutdown_while_files_are_checked_leaves_no_chunk_running"),
    ),
    EXECUTION(
        name="continue the pause of a dataset after a file was stored",
        old="        PAUSES.end(ended[0].claim.dataset)\n",
        new="        pass\n",
        tests=tests_of("tests/integration/test_pauses.py", "only_a_stored_file_ends_a_pause"),
    ),
    CLAIMS(
        name="read all waiting chunks of a job for a batch",
        old="c.status = 'pending' AND c.reusable IS NOT TRUE\n          AND",
        new="c.status = 'pending' AND NOT c.reusable\n          AND",
        tests=batches("a_claim_reads_few_chunks_of_a_job_that_statistics_do_not_include_yet"),
    ),
    SESSION(
        name="keep the state of a call that is aborted during its reset",
        old="in (TransactionStatus.IDLE, TransactionStatus.INTRANS",
        new="in (TransactionStatus.INTRANS",
        tests=isolation("a_call_that_is_aborted_during_its_reset_leaves_no_trace"),
    ),
    SESSION(
        name="start and commit a cancelled call",
        old="            self.require_not_cancelled()\n            connection.pgconn",
        new="            connection.pgconn",
        tests=isolation("a_cancelled_call_commits_nothing"),
    ),
    SESSION(
        name="take a call as ended when its commit loses the connection",
        old='                self._send(connection, "COMMIT")\n                require_results(connection)\n',
        new='                self._send(connection, "COMMIT")\n'
        "                try:\n                    require_results(connection)\n"
        "                except psycopg.Error:\n                    self.close()\n                    raise\n",
        tests=isolation("a_commit_that_loses_its_connection_is_ended"),
    ),
    SESSION(
        name="reuse a slot while its call is still running",
        old="            self.may_still_run = True  # in case the next line is interrupted\n"
        "            self.may_still_run = not self._end_call()\n",
        new="",
        tests=tests_of("tests/chaos/test_source.py", "aborted_calls_end_before_their_slots_are_reused"),
    ),
    # ---- Heartbeats
    HEARTBEAT(
        name="skip the lease check before a part",
        old="self.lost.age > min(1, self._lease / 3)",
        new="self.lost.age > 3600",
        tests=heartbeat("a_lost_lease_is_detected_at_the_next_check"),
    ),
    HEARTBEAT(
        name="do not stop work when the lease is lost",
        old="                self._on_loss()\n",
        new="",
        tests=heartbeat("work_stops_when_the_lease_is_lost"),
    ),
    HEARTBEAT(
        name="continue work while the lease cannot be renewed",
        old="self.age >= self._lease",
        new="False",
        tests=heartbeat("work_stops_after_an_outage_of_the_length_of_the_lease"),
    ),
]
