"""Mutants of object storage and documents."""

from functools import partial

from tests.mutants.mutant import Mutant, tests_of

COMMITS = partial(Mutant, file="config/platform/storage/commits.py")
UPLOADS = partial(Mutant, file="config/platform/storage/uploads.py")
SCRIPT = partial(Mutant, file="etl/runstate/script.lua")
PIPELINE = partial(Mutant, file="etl/pipeline/execution.py")
OUTCOME = partial(Mutant, file="etl/pipeline/completion.py")
RECOVERY = partial(Mutant, file="etl/maintenance/recovery.py")
CONTROL = partial(Mutant, file="etl/pipeline/actions.py")

storage = partial(tests_of, "tests/integration/test_storage.py")
runstate = partial(tests_of, "tests/integration/test_runstate.py")
stages = partial(tests_of, "tests/integration/test_etl_stages.py")
recovery = partial(tests_of, "tests/integration/test_etl_recovery.py")
control = partial(tests_of, "tests/integration/test_etl_control.py")
reissued = partial(tests_of, "tests/integration/test_reissued_ids.py")
submission = partial(tests_of, "tests/integration/test_etl_submission.py")

MUTANTS = [
    COMMITS(
        name="write objects without a condition",
        old='return {"IfNoneMatch": "*"} if if_match is None else {"IfMatch": quoted(if_match)}',
        new="return {}",
        tests=storage("an_unexpected_object_is_not_overwritten"),
    ),
    COMMITS(
        name="overwrite an object that another worker replaced",
        old='return {"IfNoneMatch": "*"} if if_match is None else {"IfMatch": quoted(if_match)}',
        new='return {"IfNoneMatch": "*"} if if_match is None else {}',
        tests=storage("the_object_of_a_faster_writer_is_not_overwritten"),
    ),
    COMMITS(
        name="accept another worker's object of the same size",
        old="if found and found.metadata.get(WRITE_ID) == write_id and found.size == size:",
        new="if found and found.size == size:",
        tests=storage("equal_bytes_of_another_writer_are_a_conflict"),
    ),
    COMMITS(
        name="ignore the conflict with an existing object",
        old="if existing != if_match:",
        new="if False:",
        tests=storage("the_object_of_a_faster_writer_is_not_overwritten"),
    ),
    COMMITS(
        name="skip the lease check before the commit",
        old="        checkpoint()\n        try:",
        new="        try:",
        tests=storage("a_raising_last_checkpoint_prevents_the_commit"),
    ),
    COMMITS(
        name="do not retry a commit",
        old="ATTEMPTS = 2",
        new="ATTEMPTS = 1",
        tests=storage("retries_once_immediately"),
    ),
    UPLOADS(
        name="leave a failed upload open",
        old="            self._multipart.abort()\n",
        new="            pass\n",
        tests=storage("aborts_when_the_producer_fails"),
    ),
    UPLOADS(
        name="send the rest of a small object after an abort",
        old="        content = bytes(self._last)\n        self._require_open()\n",
        new="        content = bytes(self._last)\n",
        tests=storage("a_commit_whose_upload_was_aborted_sends_nothing"),
    ),
    # ---- Run-states: compare and advance
    SCRIPT(
        name="advance a run-state with another worker's token",
        old="if move.token and token ~= move.token then",
        new="if move.token and token == nil then",
        tests=runstate("an_expired_lease_can_be_taken_and_its_holder_is_fenced_off"),
    ),
    SCRIPT(
        name="advance a run-state with another generation",
        old="if move.generation and generation ~= move.generation then",
        new="if move.generation and generation == nil then",
        tests=runstate("only_a_greater_generation_replaces_a_run_state"),
    ),
    SCRIPT(
        name="advance a run-state that has ended",
        old="if ENDED[status] then",
        new="if ENDED[key] then",
        tests=runstate("an_ended_task_does_not_change"),
    ),
    SCRIPT(
        name="start a stage that another worker holds",
        old="local is_held = token ~= '' and lease_until > now",
        new="local is_held = token ~= '' and lease_until > now + 3600",
        tests=runstate("one_of_many_concurrent_starts_wins"),
    ),
    SCRIPT(
        name="cancel a task that a worker has started",
        old="if move.unstarted and had[7] == '1' and (status ~= 'llm_processing' or is_held) then",
        new="if move.unstarted and had[7] == 'x' then",
        tests=runstate("running_tasks_are_not_cancelled"),
    ),
    SCRIPT(
        name="accept a late outcome of the previous stage",
        old="if move.phase and phase ~= move.phase then",
        new="if move.phase and phase == nil then",
        tests=runstate("a_late_write_of_the_previous_stage_changes_nothing"),
    ),
    SCRIPT(
        name="replace a run-state by one of an older generation",
        old="if generation and (generation > move.generation or (is_same and not move.again)) then",
        new="if is_same and not move.again then",
        tests=runstate("only_a_greater_generation_replaces_a_run_state"),
    ),
    SCRIPT(
        name="apply a repeated transition twice",
        old="if known_verdict then",
        new="if known_verdict == '' then",
        tests=runstate("a_repeated_transition_is_applied_once"),
    ),
    SCRIPT(
        name="retry a stage before its backoff has passed",
        old="    if available_at > now then",
        new="    if available_at > now + 3600 then",
        tests=runstate("a_task_in_backoff_does_not_start"),
    ),
    SCRIPT(
        name="allow one attempt after the last",
        old="if tonumber(redis.call('HGET', key, move.attempts) or '') >= move.max_attempts then",
        new="if tonumber(redis.call('HGET', key, move.attempts) or '') > move.max_attempts then",
        tests=runstate("attempts_are_counted_up_to_the_maximum"),
    ),
    SCRIPT(
        name="let progress decrease",
        old="if value > (tonumber(redis.call('HGET', key, name) or '') or 0) then",
        new="if value then",
        tests=runstate("progress_never_decreases"),
    ),
    # ---- Documents
    PIPELINE(
        name="start a task whose row has ended",
        old='Task.objects.open().filter(pk=task_id).values_list("task_id", "uuid", "generation", named=True)',
        new='Task.objects.filter(pk=task_id).values_list("task_id", "uuid", "generation", named=True)',
        tests=recovery("a_run_state_that_contradicts_an_ended_row_is_repaired"),
    ),
    PIPELINE(
        name="change an outcome when it is repeated after a lost reply",
        old="                return call(transition_id)",
        new="                return call(runstate.new_id())",
        tests=stages("an_outcome_with_a_late_reply_counts"),
    ),
    PIPELINE(
        name="keep the stage during graceful shutdown",
        old="            self.release()\n",
        new="            pass\n",
        tests=stages("graceful_shutdown_hands_the_stage_to_another_worker"),
    ),
    Mutant(
        name="report two concurrent finishes of a run as the first",
        file="etl/pipeline/artifacts.py",
        old="    except storage.Conflict:\n        return False",
        new="    except storage.Conflict:\n        return True",
        tests=stages("the_first_of_two_finishes_counts"),
    ),
    OUTCOME(
        name="write the outcome of an older generation into the row",
        old=".filter(pk=state.task_id, generation=state.generation, uuid=state.uuid)",
        new=".filter(pk=state.task_id, uuid=state.uuid)",
        tests=recovery("an_outcome_of_an_earlier_generation_is_not_recorded"),
    ),
    OUTCOME(
        name="write the outcome of a lost document to the row with the same id",
        old=".filter(pk=state.task_id, generation=state.generation, uuid=state.uuid)",
        new=".filter(pk=state.task_id, generation=state.generation)",
        tests=reissued("an_end_of_a_lost_document_is_not_recorded"),
    ),
    SCRIPT(
        name="use the run-state of a lost document for a new one",
        old="if move.uuid and move.uuid ~= uuid then",
        new="if false then",
        tests=reissued(
            "the_run_state_of_a_lost_document_is_replaced", "recovery_recreates_it_after_a_submission_without_redis"
        ),
    ),
    Mutant(
        name="store artifacts under an id that is issued again",
        file="etl/models/task.py",
        old='return 1 + int(self.uuid[:7] or "0", 16)',
        new="return 1",
        tests=reissued("the_text_of_a_lost_document_is_not_adopted"),
    ),
    OUTCOME(
        name="overwrite the row of an ended task",
        old="        Task.objects.open()\n        .filter(",
        new="        Task.objects.all()\n        .filter(",
        tests=recovery("a_recorded_outcome_is_not_overwritten"),
    ),
    RECOVERY(
        name="recover tasks whose first run-state is still being created",
        old="return task.updated_at < clock.now() - timedelta(seconds=settings.SLUICE.etl_recovery_seconds)",
        new="return task.updated_at < clock.now() + timedelta(seconds=settings.SLUICE.etl_recovery_seconds)",
        tests=recovery("recovery_waits_for_a_submission_that_creates_the_run_state"),
    ),
    RECOVERY(
        name="recreate a run-state with its old generation",
        old='.update(generation=F("generation") + 1)\n    task.generation += 1',
        new='.update(generation=F("generation"))',
        tests=recovery("a_lost_run_state_of_a_pending_task_is_recreated", "recovery_fences_off_the_previous_worker"),
    ),
    RECOVERY(
        name="repeat OCR after the loss of Redis",
        old="        stored = artifacts.find_ocr(task)\n        if is_gone",
        new="        stored = None\n        if is_gone",
        tests=recovery("recovery_continues_from_the_latest_artifact"),
    ),
    RECOVERY(
        name="cancel a running task whose run-state was lost",
        old="return runstate.create(task, stage=Stage(task.phase), started=True)",
        new="return runstate.create(task, stage=Stage(task.phase))",
        tests=recovery("a_task_with_a_lost_run_state_cannot_be_cancelled"),
    ),
    Mutant(
        name="let the watermark of a restored database catch up with that of the bucket",
        file="exports/maintenance/watermark.py",
        old="if copy.number > mark.number:",
        new="if False:",
        tests=tests_of("tests/integration/test_watermark.py", "a_restored_database_is_noticed_until_it_is_reconciled"),
    ),
    CONTROL(
        name="let two retries both start a task",
        old="if not row.has_ended or row.generation != ended.generation:",
        new="if not row:",
        tests=control("a_retry_during_another_retry_changes_nothing"),
    ),
    CONTROL(
        name="keep the previous generation across a retry",
        old="    task.generation += 1\n    task.run = task.generation",
        new="    task.run = task.generation + 1",
        tests=control("a_worker_of_the_previous_run_is_fenced_off", "one_of_several_concurrent_retries_wins"),
    ),
    CONTROL(
        name="do not record a cancel",
        old="    completion.record(outcome.state)\n\n\ndef refusal_detail",
        new="\n\ndef refusal_detail",
        tests=control("a_pending_task_is_cancelled"),
    ),
    Mutant(
        name="give all tasks of a user the same turn",
        file="etl/pipeline/turns.py",
        old="max(rank) + 1 FROM",
        new="max(rank) FROM",
        tests=tests_of("tests/integration/test_document_shares.py", "three_users_take_turns_in_both_stages"),
    ),
    Mutant(
        name="refuse a user because of another user's backlog",
        file="etl/pipeline/queue_limit.py",
        old='max(size - now["open"], ',
        new='min(size - now["open"], ',
        tests=tests_of("tests/integration/test_document_shares.py", "a_user_is_accepted_despite_another_users_backlog"),
    ),
    Mutant(
        name="do not charge a document",
        file="etl/pipeline/quotas.py",
        old='update(documents=F("documents") + count',
        new='update(documents=F("documents")',
        tests=tests_of("tests/integration/test_document_shares.py", "concurrent_submissions_cannot_overspend"),
    ),
    Mutant(
        name="let two documents take the last place in the queue",
        file="etl/pipeline/queue_limit.py",
        old='sql.scalar("SELECT pg_advisory_xact_lock(%(lock)s)", lock=LOCK)',
        new='sql.scalar("SELECT %(lock)s", lock=LOCK)',
        tests=submission("the_last_place_is_given_once_to_concurrent_submissions"),
    ),
]
