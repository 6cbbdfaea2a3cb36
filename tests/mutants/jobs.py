"""Mutants of completion, control actions, receipts, links, quotas, submissions, and webhooks."""

from functools import partial

from tests.mutants.mutant import Mutant, tests_of

COMPLETION = partial(Mutant, file="exports/worker/completion.py")
ADOPTION = partial(Mutant, file="exports/worker/adoption.py")
BUNDLES = partial(Mutant, file="exports/delivery/bundles.py")
PACKS = partial(Mutant, file="exports/delivery/packs.py")
RETENTION = partial(Mutant, file="exports/maintenance/retention.py")
CONTROL = partial(Mutant, file="exports/jobs/actions.py")
LINKS = partial(Mutant, file="exports/delivery/links.py")
RECEIPT = partial(Mutant, file="exports/models/receipt.py")
RECEIPTS = partial(Mutant, file="exports/delivery/receipts.py")
QUOTAS = partial(Mutant, file="exports/jobs/quotas.py")
SUBMISSION = partial(Mutant, file="exports/jobs/submission.py")
IDEMPOTENCY = partial(Mutant, file="config/platform/http/idempotency.py")
SENDER = partial(Mutant, file="config/platform/webhooks/sender.py")

completion = partial(tests_of, "tests/integration/test_completion.py")
control = partial(tests_of, "tests/integration/test_control.py")
links = partial(tests_of, "tests/integration/test_links.py")
quotas = partial(tests_of, "tests/integration/test_quotas.py")
idempotency = partial(tests_of, "tests/integration/test_idempotency.py")
webhooks = partial(tests_of, "tests/integration/test_webhooks.py")
verbs = partial(tests_of, "tests/integration/test_admin_actions.py")

LEASED = """
  AND (completion_lease_until IS NULL OR completion_lease_until < clock_timestamp())
RETURNING completion_token"""

MUTANTS = [
    COMPLETION(
        name="let two workers complete the same job",
        old=LEASED,
        new="\nRETURNING completion_token",
        tests=completion("concurrent_completions_complete_a_job_once"),
    ),
    COMPLETION(
        name="complete a job before its chunks are done",
        old="AND done = total AND completion_attempts < %(attempts)s",
        new="AND completion_attempts < %(attempts)s",
        tests=completion("a_running_job_is_not_completed"),
    ),
    COMPLETION(
        name="issue a receipt after the completion lost its lease",
        old="error_code = '', error_detail = '', event_seq = event_seq + 1\n"
        "    WHERE job_id = %(job)s AND completion_token = %(token)s AND",
        new="error_code = '', error_detail = '', event_seq = event_seq + 1\n    WHERE job_id = %(job)s AND",
        tests=completion("the_stale_completion_of_two_changes_nothing"),
    ),
    COMPLETION(
        name="end the job after the completion lost its lease",
        old="    ) refusal\n    WHERE job_id = %(job)s AND completion_token = %(token)s AND",
        new="    ) refusal\n    WHERE job_id = %(job)s AND",
        tests=completion("the_stale_completion_of_two_changes_nothing"),
    ),
    COMPLETION(
        name="let a completion renew another worker's lease",
        old="* interval '1 second'\n"
        "WHERE job_id = %(job)s AND completion_token = %(token)s AND status IN ('running', 'retrying')\n"
        "RETURNING job_id",
        new="* interval '1 second'\nWHERE job_id = %(job)s AND status IN ('running', 'retrying')\nRETURNING job_id",
        tests=completion("the_stale_completion_of_two_changes_nothing"),
    ),
    ADOPTION(
        name="use files of another dataset as snapshots",
        old="path=claim.path, dataset__name=claim.dataset, ",
        new="path=claim.path, ",
        tests=tests_of(
            "tests/integration/test_completion.py", "files_of_another_dataset_at_the_same_path_are_no_snapshots"
        ),
    ),
    ADOPTION(
        name="let a stale completion change finished chunks",
        old="WHERE j.job_id = %(job)s AND j.completion_token = %(token)s AND",
        new="WHERE j.job_id = %(job)s AND",
        tests=completion("the_stale_completion_of_two_changes_nothing"),
    ),
    COMPLETION(
        name="let a stale completion reread files",
        old="    ) age\n    WHERE job_id = %(job)s AND completion_token = %(token)s AND",
        new="    ) age\n    WHERE job_id = %(job)s AND",
        tests=completion("the_stale_completion_of_two_changes_nothing"),
    ),
    ADOPTION(
        name="deliver other bytes than a chunk's newer row describes",
        old="SET etag = f.etag, sha256 = f.sha256,",
        new="SET etag = f.etag,",
        tests=completion("a_delivery_matches_its_chunks_while_files_are_replaced"),
    ),
    ADOPTION(
        name="keep the sums of a job that adopted a newer file",
        old="SET rows = j.rows + n.rows - b.rows, bytes",
        new="SET rows = j.rows, bytes",
        tests=completion("a_delivery_matches_its_chunks_while_files_are_replaced"),
    ),
    ADOPTION(
        name="refund a reused chunk again when it adopts a newer file",
        old=" WHERE b.is_snapshot\n",
        new="\n",
        tests=tests_of(
            "tests/integration/test_degraded.py", "a_reused_chunk_that_adopts_a_newer_file_is_refunded_once"
        ),
    ),
    ADOPTION(
        name="refund no snapshot that adopts a newer file",
        old=" WHERE b.is_snapshot\n",
        new=" WHERE false\n",
        tests=tests_of(
            "tests/integration/test_degraded.py", "a_snapshot_that_another_job_replaced_with_new_rows_is_reused"
        ),
    ),
    ADOPTION(
        name="let a fresh export adopt data from before its start",
        old=" AND f.data_as_of >= ours.not_before",
        new="",
        tests=completion("a_fresh_export_does_not_adopt_data_from_before_its_start"),
    ),
    ADOPTION(
        name="number a file before the object that it replaced",
        old="            number = next_number()",
        new="            number = claim.token",
        tests=completion("files_recorded_in_another_order_than_stored"),
    ),
    ADOPTION(
        name="number a file by the token after a long call",
        old="claim.token if claim.known_file is None or is_recent else next_number()",
        new="claim.token",
        tests=completion("a_file_is_recorded_after_others_stored_the_same_bytes_again"),
    ),
    ADOPTION(
        name="adopt files of another dataset",
        old="      AND f.dataset_id = c.dataset_id AND f.schema_version",
        new="      AND f.schema_version",
        tests=completion("jobs_of_two_datasets_at_the_same_path_deliver_their_own_files"),
    ),
    ADOPTION(
        name="call the source again because other jobs replace the file",
        old="REPLACEMENTS = 50",
        new="REPLACEMENTS = 2",
        tests=tests_of(
            "tests/integration/test_execution.py", "repeated_replacements_by_other_jobs_cost_no_second_call"
        ),
    ),
    PACKS(
        name="deliver content of a pack without checking its checksum",
        old="return content if hashlib.sha256(content).hexdigest() == chunk.sha256 else None",
        new="return content",
        tests=completion("changed_bytes_of_a_pack_are_not_delivered"),
    ),
    PACKS(
        name="locate a file in a pack behind large files that are not in the pack",
        old="        bytes__lte=PACKED_BYTES,\n",
        new="",
        tests=completion("a_manifest_stores_small_files_in_packs_and_large_ones_separately"),
    ),
    PACKS(
        name="locate a file in a pack behind files of batches",
        old="        pack__isnull=True,\n",
        new="",
        tests=tests_of("tests/integration/test_packs.py", "a_file_that_is_exported_again_leaves_its_pack"),
    ),
    PACKS(
        name="join content of a pack without checking its checksum",
        old="return checked(content, chunk)\n",
        new="return content\n",
        tests=tests_of("tests/integration/test_packs.py", "a_frame_of_another_file_is_not_joined"),
    ),
    BUNDLES(
        name="trust packs for files that are missing at their paths",
        old="if chunk.pack is not None and packs.read_group([chunk])[0] is not None:",
        new="if chunk.pack is not None:",
        tests=tests_of(
            "tests/integration/test_packs.py", "a_file_that_neither_a_pack_nor_its_path_has_is_exported_again"
        ),
    ),
    PACKS(
        name="read files of several packs from the first one",
        old="chunk.pack is None or chunk.pack != first.pack",
        new="chunk.pack is None",
        tests=tests_of("tests/unit/test_packs.py", "files_that_one_request_can_read_are_grouped"),
    ),
    ADOPTION(
        name="keep a chunk in its pack when it adopts a newer file",
        old=", pack = NULL, pack_offset = NULL",
        new="",
        tests=tests_of("tests/integration/test_packs.py", "a_zip_adopts_a_newer_file_if_its_pack_cannot_be_used"),
    ),
    PACKS(
        name="deliver from packs that the sweep has deleted",
        old="MAX_BATCH_AGE = timedelta(minutes=30)",
        new="MAX_BATCH_AGE = timedelta(minutes=300)",
        tests=tests_of("tests/integration/test_packs.py", "no_completion_uses_a_pack_that_the_sweep_may_delete"),
    ),
    PACKS(
        name="let a stale completion change packs",
        old="if Job.objects.select_for_update().filter(pk=job_id, completion_token=token).exists():",
        new="if True:",
        tests=tests_of("tests/integration/test_packs.py", "a_stale_completion_changes_no_pack"),
    ),
    BUNDLES(
        name="keep the copies of a failed delivery",
        old="        discard(attempt.folder)\n        raise",
        new="        raise",
        tests=completion("an_attempt_without_a_receipt_leaves_no_copies"),
    ),
    COMPLETION(
        name="retry a refused delivery without growing delays",
        old="greatest(%(delay)s, least(refused_for / 4, %(longest)s))",
        new="%(delay)s",
        tests=completion("the_pause_of_a_refused_delivery_grows"),
    ),
    RETENTION(
        name="purge a job before its last webhook event",
        old="        .filter(settled, ~Q(",
        new="        .filter(~Q(",
        tests=tests_of(
            "tests/integration/test_sweeper.py", "a_job_is_not_purged_before_the_webhook_deliveries_of_its_end_exist"
        ),
    ),
    RETENTION(
        name="lose the order of the events of a purged job",
        old="update(subject=subject, job=None)",
        new="update(job=None)",
        tests=webhooks("the_events_of_a_purged_job_arrive_in_their_order"),
    ),
    RETENTION(
        name="purge the success that a schedule continues",
        old="~Q(Exists(schedule), ~Exists(newer), status=JobStatus.SUCCESS), ",
        new="",
        tests=tests_of("tests/integration/test_schedules.py", "a_success_that_the_next_run_continues_is_not_purged"),
    ),
    COMPLETION(
        name="fail a delivery because the storage refuses writes",
        old="completion_attempts - waits::int AS attempts",
        new="completion_attempts AS attempts",
        tests=completion("a_refused_delivery_costs_no_attempt"),
    ),
    COMPLETION(
        name="refund a reused chunk twice",
        old="charged = c.charged AND was.source <> 'reused'",
        new="charged = c.charged",
        tests=quotas("a_reused_chunk_that_is_exported_again_is_refunded_once"),
    ),
    COMPLETION(
        name="retry a bundle that crashes its workers forever",
        old="completion_attempts = completion_attempts + 1,",
        new="completion_attempts = completion_attempts + 0,",
        tests=completion("a_bundle_that_kills_its_workers_fails"),
    ),
    # ---- Control actions
    CONTROL(
        name="cancel a job that has ended",
        old="WHERE job_id = %(job)s AND status IN ('pending', 'running', 'retrying')"
        " AND (SELECT chunks FROM delta) >= 0\n"
        "    FOR UPDATE\n"
        "), settled AS (\n"
        "    UPDATE exports_jobs j\n"
        "    SET status = CASE WHEN %(is_last)s THEN 'cancelled' ELSE j.status END,"
        " cancelled = j.cancelled + delta.chunks,\n"
        "        retrying = 0, finished_at = CASE WHEN %(is_last)s THEN clock_timestamp() END,\n"
        "        error_code = '', error_detail = '', completion_token = NULL, completion_lease_until = NULL,\n"
        "        event_seq = j.event_seq + delta.chunks + 2\n"
        "    FROM old, delta\n"
        "    WHERE j.job_id = old.job_id AND j.status IN ('pending', 'running', 'retrying')",
        new="WHERE job_id = %(job)s AND (SELECT chunks FROM delta) >= 0\n"
        "    FOR UPDATE\n"
        "), settled AS (\n"
        "    UPDATE exports_jobs j\n"
        "    SET status = CASE WHEN %(is_last)s THEN 'cancelled' ELSE j.status END,"
        " cancelled = j.cancelled + delta.chunks,\n"
        "        retrying = 0, finished_at = CASE WHEN %(is_last)s THEN clock_timestamp() END,\n"
        "        error_code = '', error_detail = '', completion_token = NULL, completion_lease_until = NULL,\n"
        "        event_seq = j.event_seq + delta.chunks + 2\n"
        "    FROM old, delta\n"
        "    WHERE j.job_id = old.job_id",
        tests=control("an_ended_job_cannot_be_cancelled"),
    ),
    CONTROL(
        name="miss chunks that are released during a cancel",
        old="\n      AND (NOT %(is_last)s OR j.done + j.failed + j.cancelled + delta.chunks = j.total)",
        new="",
        tests=control("it_cancels_chunks_that_are_released_at_the_same_time"),
    ),
    CONTROL(
        name="do not refund cancelled chunks",
        old="c.source, c.charged, c.charged_on",
        new="c.source, false AS charged, c.charged_on",
        tests=quotas("cancelled_chunks_are_refunded"),
    ),
    CONTROL(
        name="do not charge a retry to the quota",
        old="quotas.debit(user_id=job.user_id, jobs=0, chunks=chunks, ",
        new="quotas.debit(user_id=job.user_id, jobs=0, chunks=0, ",
        tests=quotas("failed_chunks_are_refunded_and_charged_again_by_a_retry"),
    ),
    CONTROL(
        name="refund a retried chunk to the day of its first charge",
        old=",\n        charged_on = (statement_timestamp() AT TIME ZONE 'UTC')::date\n",
        new="\n",
        tests=quotas("one_end_refunds_chunks_of_two_days"),
    ),
    CONTROL(
        name="keep the delivery's attempts across a retry",
        old="completion_attempts = 0, completion_token = NULL",
        new="completion_token = NULL",
        tests=completion("a_bundle_that_kills_its_workers_fails"),
    ),
    # ---- Links
    LINKS(
        name="let HEAD redeem a link",
        old="    return Receipt.objects.get(pk=job_id)",
        new="    sql.one(REDEEM, link=link_id, job=job_id, **facts(client))\n    return Receipt.objects.get(pk=job_id)",
        tests=completion("head_requests_do_not_consume_a_link"),
    ),
    Mutant(
        name="let a prefetch redeem a link",
        file="exports/api/downloads.py",
        old="        if is_prefetch(request):",
        new="        if not request:",
        tests=completion("head_requests_do_not_consume_a_link"),
    ),
    LINKS(
        name="redeem a link twice",
        old="AND l.used_at IS NULL AND l.revoked_at IS NULL AND l.expires_at",
        new="AND l.revoked_at IS NULL AND l.expires_at",
        tests=completion("one_of_a_hundred_concurrent_requests_gets_the_redirect"),
    ),
    LINKS(
        name="redeem an expired link",
        old="AND l.expires_at > clock_timestamp()\n      AND {IS_BOUND_CLIENT}",
        new="AND {IS_BOUND_CLIENT}",
        tests=completion("a_link_expires"),
    ),
    LINKS(
        name="redeem a revoked link",
        old="AND l.used_at IS NULL AND l.revoked_at IS NULL AND l.expires_at",
        new="AND l.used_at IS NULL AND l.expires_at",
        tests=completion("a_new_link_revokes_the_previous_one"),
    ),
    LINKS(
        name="redeem a link for another client",
        old="AND l.expires_at > clock_timestamp()\n      AND {IS_BOUND_CLIENT}",
        new="AND l.expires_at > clock_timestamp()",
        tests=links("a_link_is_bound_to_the_client_that_created_the_job"),
    ),
    LINKS(
        name="redirect a link to a deleted object",
        old="AND r.job_id = %(job)s AND r.deleted_at IS NULL\n",
        new="AND r.job_id = %(job)s\n",
        tests=links("a_link_to_a_deleted_object_is_expired"),
    ),
    RECEIPT(
        name="issue links for an expired receipt",
        old="self.filter(pk=pk, expires_at__gt=Now())",
        new="self.filter(pk=pk)",
        tests=completion("a_link_expires"),
    ),
    RECEIPT(
        name="issue links for a receipt that is revoked during the wait for its lock",
        old='list(self.select_for_update().filter(pk=pk).values_list("pk"))',
        new="",
        tests=links("a_request_that_waited_for_a_revocation_is_refused"),
    ),
    LINKS(
        name="accept a link token without a signature check",
        old="UUID(hex=signer.unsign(token))",
        new='UUID(hex=token.partition(".")[0])',
        tests=completion("a_modified_link_is_refused"),
    ),
    LINKS(
        name="revoke a used link",
        old="Link.objects.filter(pk=link.pk, used_at=None, revoked_at=None, expires_at__gt=Now())",
        new="Link.objects.filter(pk=link.pk)",
        tests=verbs("an_unusable_link_is_not_revoked"),
    ),
    RECEIPTS(
        name="do not bind the first link to its client",
        old="links.ClientBinding(network=job.network, agent=job.agent)",
        new="links.UNBOUND",
        tests=links("a_link_is_bound_to_the_client_that_created_the_job"),
    ),
    RECEIPTS(
        name="redeem a link of a revoked receipt",
        old="        live.links.filter(used_at=None, revoked_at=None).update(revoked_at=Now())\n",
        new="",
        tests=verbs("a_revoked_receipt_yields_no_download"),
    ),
    # ---- Quotas and submissions
    QUOTAS(
        name="let parallel requests exceed the quota",
        old="WHERE (u.jobs + EXCLUDED.jobs <= (SELECT daily_jobs FROM allowed) OR EXCLUDED.jobs = 0)\n"
        "  AND u.chunks + EXCLUDED.chunks <= (SELECT daily_chunks FROM allowed)",
        new="WHERE ((SELECT jobs FROM exports_usage o WHERE o.user_id = %(user)s AND o.day = u.day) + EXCLUDED.jobs"
        " <= (SELECT daily_jobs FROM allowed) OR EXCLUDED.jobs = 0)\n"
        "  AND (SELECT chunks FROM exports_usage o WHERE o.user_id = %(user)s AND o.day = u.day) + EXCLUDED.chunks"
        " <= (SELECT daily_chunks FROM allowed)",
        tests=quotas("quota_that_another_request_has_used_is_unavailable"),
    ),
    QUOTAS(
        name="skip the quota for the first request of a day",
        old="WHERE %(jobs)s <= daily_jobs AND %(chunks)s <= daily_chunks\n",
        new="",
        tests=quotas("a_job_larger_than_the_daily_quota_is_refused"),
    ),
    QUOTAS(
        name="refund to a day other than the charged one",
        old="coalesce(e.charged_on, s.charged_on) AS day",
        new="(clock_timestamp() AT TIME ZONE 'UTC')::date AS day",
        tests=quotas("a_refund_goes_to_the_charged_day"),
    ),
    QUOTAS(
        name="refund a chunk to the day of its job's last charge",
        old="coalesce(e.charged_on, s.charged_on) AS day",
        new="s.charged_on AS day",
        tests=quotas("each_chunk_is_refunded_to_the_day_on_which_it_was_charged"),
    ),
    QUOTAS(
        name="refund no chunks of an earlier release",
        old="coalesce(e.charged_on, s.charged_on) AS day",
        new="e.charged_on AS day",
        tests=quotas("a_chunk_without_a_day_is_refunded_to_the_day_of_its_job"),
    ),
    SUBMISSION(
        name="submit chunks without the day of their charge",
        old="paths[seq], job.charged_on, job.rank + seq)",
        new="paths[seq], None, job.rank + seq)",
        tests=quotas("each_chunk_is_refunded_to_the_day_on_which_it_was_charged"),
    ),
    SUBMISSION(
        name="charge for a job that is not created",
        old="""    with transaction.atomic():
        if idempotency and (job := idempotency.claim(Job.objects.all(), user_id=caller.user_id)):
            return job, True
        day = quotas.debit(user_id=caller.user_id, jobs=1, chunks=len(request.pairs))
""",
        new="""    day = quotas.debit(user_id=caller.user_id, jobs=1, chunks=len(request.pairs))
    with transaction.atomic():
        if idempotency and (job := idempotency.claim(Job.objects.all(), user_id=caller.user_id)):
            return job, True
""",
        tests=tests_of("tests/integration/test_submission.py", "an_interrupted_request_writes_nothing"),
    ),
    IDEMPOTENCY(
        name="look up the idempotency key only before the transaction",
        old="        return self.find(rows, user_id=user_id)\n",
        new="        return None\n",
        tests=idempotency("a_job_that_was_created_in_the_meantime_is_returned"),
    ),
    IDEMPOTENCY(
        name="do not store the idempotency key",
        old='{"idempotency_key": self.key, "fingerprint": self.fingerprint}',
        new='{"fingerprint": self.fingerprint}',
        tests=idempotency("a_repeat_gets_the_first_response_byte_for_byte"),
    ),
    IDEMPOTENCY(
        name="accept an idempotency key with a different body",
        old="if row and row.fingerprint != self.fingerprint:",
        new="if row and not row.fingerprint:",
        tests=idempotency("another_body_under_the_same_key_is_422_and_changes_nothing"),
    ),
    IDEMPOTENCY(
        name="process two requests with one idempotency key concurrently",
        old='if not sql.scalar("SELECT pg_try_advisory_xact_lock(%(number)s)", number=number):',
        new='if sql.scalar("SELECT pg_try_advisory_xact_lock(%(number)s)", number=number) is None:',
        tests=idempotency("while_the_first_is_in_flight_the_second_is_409"),
    ),
    # ---- Webhooks
    SENDER(
        name="record the success of a delivery after its lease was lost",
        old="SET status = 'delivered', token = NULL, lease_until = NULL, finished_at = clock_timestamp()\n"
        "    WHERE id = %(delivery)s AND token = %(token)s AND",
        new="SET status = 'delivered', token = NULL, lease_until = NULL, finished_at = clock_timestamp()\n"
        "    WHERE id = %(delivery)s AND",
        tests=webhooks("the_delivery_of_a_lost_worker_is_repeated_and_its_late_outcome_discarded"),
    ),
    SENDER(
        name="record the failure of a delivery after its lease was lost",
        old="    WHERE d.id = %(delivery)s AND token = %(token)s\n    RETURNING d.id, webhook_id, status, type",
        new="    WHERE d.id = %(delivery)s\n    RETURNING d.id, webhook_id, status, type",
        tests=webhooks("the_delivery_of_a_lost_worker_is_repeated_and_its_late_outcome_discarded"),
    ),
    SENDER(
        name="send the events of a subject in any order",
        old="AND earlier.subject = d.subject AND earlier.seq < d.seq AND",
        new="AND earlier.subject = d.subject AND earlier.seq < 0 AND",
        tests=webhooks("the_events_of_a_purged_job_arrive_in_their_order"),
    ),
    SENDER(
        name="send two deliveries to one webhook concurrently",
        old="WHERE NOT d.sent AND d.since IS NOT NULL AND d.busy < %(busy)s",
        new="WHERE d.since IS NOT NULL AND d.busy < %(busy)s + 9",
        tests=webhooks("users_with_the_fewest_running_deliveries_come_first"),
    ),
    SENDER(
        name="retry a delivery that crashes its worker forever",
        old="SET token = nextval('exports_fence_seq'), attempts = d.attempts + 1,",
        new="SET token = nextval('exports_fence_seq'),",
        tests=webhooks("a_delivery_that_kills_its_workers_fails"),
    ),
    SENDER(
        name="fail deliveries that are in progress",
        old="      AND (lease_until IS NULL OR lease_until < clock_timestamp())\n    FOR UPDATE SKIP LOCKED",
        new="    FOR UPDATE SKIP LOCKED",
        tests=webhooks("a_running_last_attempt_is_not_failed"),
    ),
]
