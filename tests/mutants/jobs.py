"""What if completion, people's verbs, receipts, links, quotas, submissions or webhooks were a little wrong?"""

from functools import partial

from tests.mutants.mutant import Mutant, tests_of

COMPLETION = partial(Mutant, file="exports/worker/completion.py")
CONTROL = partial(Mutant, file="exports/jobs/actions.py")
LINKS = partial(Mutant, file="exports/delivery/links.py")
RECEIPTS = partial(Mutant, file="exports/delivery/receipts.py")
QUOTAS = partial(Mutant, file="exports/jobs/quotas.py")
SUBMISSION = partial(Mutant, file="exports/jobs/submission.py")
IDEMPOTENCY = partial(Mutant, file="config/platform/http/idempotency.py")
COURIER = partial(Mutant, file="exports/webhooks/sender.py")

completion = partial(tests_of, "tests/integration/test_completion.py")
control = partial(tests_of, "tests/integration/test_control.py")
links = partial(tests_of, "tests/integration/test_links.py")
quotas = partial(tests_of, "tests/integration/test_quotas.py")
idempotency = partial(tests_of, "tests/integration/test_idempotency.py")
webhooks = partial(tests_of, "tests/integration/test_webhooks.py")
verbs = partial(tests_of, "tests/integration/test_admin_verbs.py")

LEASED = """
  AND (completion_lease_until IS NULL OR completion_lease_until < clock_timestamp())
RETURNING completion_token"""

MUTANTS = [
    COMPLETION(
        name="two workers completed the same job",
        old=LEASED,
        new="\nRETURNING completion_token",
        tests=completion("a_job_is_completed_once_however_many_try"),
    ),
    COMPLETION(
        name="a job were completed before its chunks are done",
        old="AND done = total AND completion_attempts < %(attempts)s",
        new="AND completion_attempts < %(attempts)s",
        tests=completion("a_job_that_still_runs_is_not_completed"),
    ),
    COMPLETION(
        name="a completion that lost its lease issued a receipt",
        old="error_code = '', error_detail = '', event_seq = event_seq + 1\n"
        "    WHERE job_id = %(job)s AND completion_token = %(token)s AND",
        new="error_code = '', error_detail = '', event_seq = event_seq + 1\n    WHERE job_id = %(job)s AND",
        tests=completion("of_two_completions_at_once_the_stale_one_can_do_nothing"),
    ),
    COMPLETION(
        name="a completion that lost its lease ended the job",
        old="completion_lease_until = clock_timestamp() + %(delay)s * interval '1 second', event_seq = event_seq + 1\n"
        "    WHERE job_id = %(job)s AND completion_token = %(token)s AND",
        new="completion_lease_until = clock_timestamp() + %(delay)s * interval '1 second', event_seq = event_seq + 1\n"
        "    WHERE job_id = %(job)s AND",
        tests=completion("of_two_completions_at_once_the_stale_one_can_do_nothing"),
    ),
    COMPLETION(
        name="a completion renewed a lease that is another's",
        old="* interval '1 second'\n"
        "WHERE job_id = %(job)s AND completion_token = %(token)s AND status IN ('running', 'retrying')\n"
        "RETURNING job_id",
        new="* interval '1 second'\nWHERE job_id = %(job)s AND status IN ('running', 'retrying')\nRETURNING job_id",
        tests=completion("of_two_completions_at_once_the_stale_one_can_do_nothing"),
    ),
    COMPLETION(
        name="a stale completion changed chunks that are done",
        old="    SELECT job_id, schema_version FROM exports_jobs\n"
        "    WHERE job_id = %(job)s AND completion_token = %(token)s AND",
        new="    SELECT job_id, schema_version FROM exports_jobs\n    WHERE job_id = %(job)s AND",
        tests=completion("of_two_completions_at_once_the_stale_one_can_do_nothing"),
    ),
    COMPLETION(
        name="a stale completion had files read again",
        old="    SELECT job_id FROM exports_jobs\n    WHERE job_id = %(job)s AND completion_token = %(token)s AND",
        new="    SELECT job_id FROM exports_jobs\n    WHERE job_id = %(job)s AND",
        tests=completion("of_two_completions_at_once_the_stale_one_can_do_nothing"),
    ),
    COMPLETION(
        name="a reused chunk were given back to the quota twice",
        old="charged = c.charged AND was.source <> 'reused'",
        new="charged = c.charged",
        tests=quotas("a_reused_chunk_that_is_read_again_is_given_back_once"),
    ),
    COMPLETION(
        name="a bundle that kills its workers were tried for ever",
        old="completion_attempts = completion_attempts + 1,",
        new="completion_attempts = completion_attempts + 0,",
        tests=completion("a_bundle_that_kills_its_workers_ends"),
    ),
    # ---- What people do
    CONTROL(
        name="a cancel did not look whether the job has ended",
        old="WHERE job_id = %(job)s AND status IN ('pending', 'running', 'retrying')"
        " AND (SELECT chunks FROM delta) >= 0\n"
        "    FOR UPDATE\n"
        "), settled AS (\n"
        "    UPDATE exports_jobs j\n"
        "    SET status = 'cancelled', cancelled = j.cancelled + delta.chunks, retrying = 0,"
        " finished_at = clock_timestamp(),\n"
        "        error_code = '', error_detail = '', completion_token = NULL, completion_lease_until = NULL,\n"
        "        event_seq = j.event_seq + delta.chunks + 2\n"
        "    FROM old, delta\n"
        "    WHERE j.job_id = old.job_id AND j.status IN ('pending', 'running', 'retrying')",
        new="WHERE job_id = %(job)s AND (SELECT chunks FROM delta) >= 0\n"
        "    FOR UPDATE\n"
        "), settled AS (\n"
        "    UPDATE exports_jobs j\n"
        "    SET status = 'cancelled', cancelled = j.cancelled + delta.chunks, retrying = 0,"
        " finished_at = clock_timestamp(),\n"
        "        error_code = '', error_detail = '', completion_token = NULL, completion_lease_until = NULL,\n"
        "        event_seq = j.event_seq + delta.chunks + 2\n"
        "    FROM old, delta\n"
        "    WHERE j.job_id = old.job_id",
        tests=control("an_ended_job_cannot_be_cancelled"),
    ),
    CONTROL(
        name="a cancel left out the chunks that come back meanwhile",
        old="\n      AND j.done + j.failed + j.cancelled + delta.chunks = j.total",
        new="",
        tests=control("a_cancel_that_meets_chunks_coming_back_takes_them_too"),
    ),
    CONTROL(
        name="chunks that were cancelled stayed paid",
        old="count(*) FILTER (WHERE charged) AS refund FROM ended",
        new="0 AS refund FROM ended",
        tests=quotas("cancelled_chunks_are_given_back"),
    ),
    CONTROL(
        name="a retry cost nothing",
        old="quotas.debit(user_id=job.user_id, jobs=0, chunks=chunks)",
        new="quotas.debit(user_id=job.user_id, jobs=0, chunks=0)",
        tests=quotas("failed_chunks_are_given_back_and_charged_again_by_a_retry"),
    ),
    CONTROL(
        name="a retried job had no attempt left for its delivery",
        old="completion_attempts = 0, completion_token = NULL",
        new="completion_token = NULL",
        tests=completion("a_bundle_that_kills_its_workers_ends"),
    ),
    # ---- Links
    LINKS(
        name="a HEAD used the link up",
        old="    return Receipt.objects.get(pk=job_id)",
        new="    sql.one(REDEEM, link=link_id, job=job_id, **facts(client))\n    return Receipt.objects.get(pk=job_id)",
        tests=completion("looking_does_not_use_a_link_up"),
    ),
    Mutant(
        name="a prefetch used the link up",
        file="exports/api/downloads.py",
        old="        if is_prefetch(request):",
        new="        if not request:",
        tests=completion("looking_does_not_use_a_link_up"),
    ),
    LINKS(
        name="a link worked twice",
        old="AND l.used_at IS NULL AND l.revoked_at IS NULL AND l.expires_at",
        new="AND l.revoked_at IS NULL AND l.expires_at",
        tests=completion("of_a_hundred_requests_one_gets_the_redirect"),
    ),
    LINKS(
        name="a link worked after its time",
        old="AND l.expires_at > clock_timestamp() AND {IS_BOUND_CLIENT}",
        new="AND {IS_BOUND_CLIENT}",
        tests=completion("a_link_ends_with_its_time"),
    ),
    LINKS(
        name="a link that was revoked worked",
        old="AND l.used_at IS NULL AND l.revoked_at IS NULL AND l.expires_at",
        new="AND l.used_at IS NULL AND l.expires_at",
        tests=completion("a_fresh_link_revokes_the_older"),
    ),
    LINKS(
        name="a link worked for everybody",
        old="AND l.expires_at > clock_timestamp() AND {IS_BOUND_CLIENT}",
        new="AND l.expires_at > clock_timestamp()",
        tests=links("a_link_is_for_the_client_that_made_the_job"),
    ),
    LINKS(
        name="a link led to an object that is gone",
        old="AND r.job_id = %(job)s AND r.deleted_at IS NULL\n",
        new="AND r.job_id = %(job)s\n",
        tests=links("a_link_whose_object_is_gone_is_over"),
    ),
    LINKS(
        name="a receipt gave links after its time",
        old="Receipt.objects.select_for_update().filter(pk=receipt.pk, expires_at__gt=Now())",
        new="Receipt.objects.select_for_update().filter(pk=receipt.pk)",
        tests=completion("a_link_ends_with_its_time"),
    ),
    LINKS(
        name="a link's token could be made by anybody",
        old="UUID(hex=signer.unsign(token))",
        new='UUID(hex=token.partition(".")[0])',
        tests=completion("a_link_that_was_changed_is_refused"),
    ),
    LINKS(
        name="a link that was used could be revoked",
        old="Link.objects.filter(pk=link.pk, used_at=None, revoked_at=None, expires_at__gt=Now())",
        new="Link.objects.filter(pk=link.pk)",
        tests=verbs("a_link_that_can_not_be_used_any_more_is_not_revoked"),
    ),
    RECEIPTS(
        name="the first link were for everybody",
        old="links.Bound(network=job.network, agent=job.agent)",
        new="links.UNBOUND",
        tests=links("a_link_is_for_the_client_that_made_the_job"),
    ),
    RECEIPTS(
        name="a revoked receipt's link went on working",
        old="        live.links.filter(used_at=None, revoked_at=None).update(revoked_at=Now())\n",
        new="",
        tests=verbs("a_revoked_receipt_gives_nothing_any_more"),
    ),
    # ---- Quotas and submissions
    QUOTAS(
        name="parallel requests could overspend",
        old="WHERE (u.jobs + EXCLUDED.jobs <= (SELECT daily_jobs FROM allowed) OR EXCLUDED.jobs = 0)\n"
        "  AND u.chunks + EXCLUDED.chunks <= (SELECT daily_chunks FROM allowed)",
        new="WHERE ((SELECT jobs FROM exports_usage o WHERE o.user_id = %(user)s AND o.day = u.day) + EXCLUDED.jobs"
        " <= (SELECT daily_jobs FROM allowed) OR EXCLUDED.jobs = 0)\n"
        "  AND (SELECT chunks FROM exports_usage o WHERE o.user_id = %(user)s AND o.day = u.day) + EXCLUDED.chunks"
        " <= (SELECT daily_chunks FROM allowed)",
        tests=quotas("what_another_request_takes_meanwhile_is_not_there_for_this_one"),
    ),
    QUOTAS(
        name="the first request of a day had no limit",
        old="WHERE %(jobs)s <= daily_jobs AND %(chunks)s <= daily_chunks\n",
        new="",
        tests=quotas("a_job_larger_than_the_whole_day_is_refused"),
    ),
    QUOTAS(
        name="another day than the one that paid got the refund",
        old="WHERE u.user_id = back.user_id AND u.day = back.charged_on",
        new="WHERE u.user_id = back.user_id AND u.day = (clock_timestamp() AT TIME ZONE 'UTC')::date",
        tests=quotas("a_refund_goes_to_the_day_that_paid"),
    ),
    SUBMISSION(
        name="a job were charged whether it is made or not",
        old="""    with transaction.atomic():
        if once and (job := once.claim(Job.objects.all(), user_id=caller.user_id)):
            return job, True
        day = quotas.debit(user_id=caller.user_id, jobs=1, chunks=len(request.pairs))
""",
        new="""    day = quotas.debit(user_id=caller.user_id, jobs=1, chunks=len(request.pairs))
    with transaction.atomic():
        if once and (job := once.claim(Job.objects.all(), user_id=caller.user_id)):
            return job, True
""",
        tests=tests_of("tests/integration/test_submission.py", "nothing_is_written_when_the_request_dies_midway"),
    ),
    IDEMPOTENCY(
        name="an idempotency key were looked up only before the transaction",
        old="        return self.find(rows, user_id=user_id)\n",
        new="        return None\n",
        tests=idempotency("a_request_that_was_made_while_this_one_was_read_is_answered"),
    ),
    IDEMPOTENCY(
        name="an idempotency key were noted nowhere",
        old='{"idempotency_key": self.key, "fingerprint": self.fingerprint}',
        new='{"fingerprint": self.fingerprint}',
        tests=idempotency("a_repeat_gets_the_first_answer_byte_for_byte"),
    ),
    IDEMPOTENCY(
        name="an idempotency key stood for any body",
        old="if row and row.fingerprint != self.fingerprint:",
        new="if row and not row.fingerprint:",
        tests=idempotency("another_body_under_the_same_key_is_422_and_changes_nothing"),
    ),
    IDEMPOTENCY(
        name="two requests with one key were worked on at once",
        old="if cursor.fetchone() != (True,):",
        new="if cursor.fetchone() is None:",
        tests=idempotency("while_the_first_is_in_flight_the_second_is_409"),
    ),
    # ---- Webhooks
    COURIER(
        name="a worker noted the success of a delivery that it has lost",
        old="SET status = 'delivered', token = NULL, lease_until = NULL, finished_at = clock_timestamp()\n"
        "    WHERE id = %(delivery)s AND token = %(token)s AND",
        new="SET status = 'delivered', token = NULL, lease_until = NULL, finished_at = clock_timestamp()\n"
        "    WHERE id = %(delivery)s AND",
        tests=webhooks("a_lost_workers_delivery_goes_out_again_and_what_it_comes_back_with_is_not_written"),
    ),
    COURIER(
        name="a worker noted the failure of a delivery that it has lost",
        old="token = NULL, lease_until = NULL\n"
        "    WHERE id = %(delivery)s AND token = %(token)s AND EXISTS (SELECT 1 FROM hook)\n"
        "    RETURNING id, webhook_id, status, type",
        new="token = NULL, lease_until = NULL\n"
        "    WHERE id = %(delivery)s AND EXISTS (SELECT 1 FROM hook)\n"
        "    RETURNING id, webhook_id, status, type",
        tests=webhooks("a_lost_workers_delivery_goes_out_again_and_what_it_comes_back_with_is_not_written"),
    ),
    COURIER(
        name="one webhook were sent two deliveries at a time",
        old="WHERE NOT d.sent AND d.since IS NOT NULL AND d.busy < %(busy)s",
        new="WHERE d.since IS NOT NULL AND d.busy < %(busy)s + 9",
        tests=webhooks("who_has_the_fewest_on_the_way_comes_first"),
    ),
    COURIER(
        name="a delivery that kills its worker went out for ever",
        old="SET token = nextval('exports_fence_seq'), attempts = d.attempts + 1,",
        new="SET token = nextval('exports_fence_seq'),",
        tests=webhooks("a_delivery_that_kills_its_worker_each_time_ends"),
    ),
    COURIER(
        name="the janitor ended deliveries that are being made",
        old="      AND (lease_until IS NULL OR lease_until < clock_timestamp())\n    FOR UPDATE SKIP LOCKED",
        new="    FOR UPDATE SKIP LOCKED",
        tests=webhooks("a_last_attempt_that_is_being_made_is_not_given_up"),
    ),
]
