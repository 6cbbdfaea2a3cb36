"""What if object storage or documents were a little wrong?"""

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
submission = partial(tests_of, "tests/integration/test_etl_submission.py")

MUTANTS = [
    COMMITS(
        name="objects were written without a condition",
        old='return {"IfNoneMatch": "*"} if if_match is None else {"IfMatch": quoted(if_match)}',
        new="return {}",
        tests=storage("it_does_not_touch_an_object_that_it_did_not_expect"),
    ),
    COMMITS(
        name="an object that somebody replaced meanwhile were replaced again",
        old='return {"IfNoneMatch": "*"} if if_match is None else {"IfMatch": quoted(if_match)}',
        new='return {"IfNoneMatch": "*"} if if_match is None else {}',
        tests=storage("it_leaves_the_object_alone_when_another_writer_was_faster"),
    ),
    COMMITS(
        name="another's object of the same size were taken for ours",
        old="if found and found.metadata.get(UPLOAD_ID) == upload and found.size == size:",
        new="if found and found.size == size:",
        tests=storage("it_does_not_take_the_same_bytes_of_another_for_its_own"),
    ),
    COMMITS(
        name="an object that is in the way were no conflict",
        old="return (found and found.etag) != if_match",
        new="return False",
        tests=storage("it_leaves_the_object_alone_when_another_writer_was_faster"),
    ),
    COMMITS(
        name="nobody looked at the lease before the commit",
        old="        checkpoint()\n        try:",
        new="        try:",
        tests=storage("it_does_not_commit_when_the_last_checkpoint_raises"),
    ),
    COMMITS(
        name="a commit were not tried again",
        old="ATTEMPTS = 2",
        new="ATTEMPTS = 1",
        tests=storage("it_tries_once_more_at_once"),
    ),
    UPLOADS(
        name="an upload that fails stayed open",
        old="            self._multipart.abort()\n",
        new="            pass\n",
        tests=storage("it_aborts_when_the_producer_fails"),
    ),
    # ---- Run-states: compare and advance
    SCRIPT(
        name="a run-state advanced under another's token",
        old="if move.token and token ~= move.token then",
        new="if move.token and token == nil then",
        tests=runstate("a_lease_that_is_over_can_be_taken_and_its_holder_is_fenced"),
    ),
    SCRIPT(
        name="a run-state advanced under another fence",
        old="if move.fence and fence ~= move.fence then",
        new="if move.fence and fence == nil then",
        tests=runstate("a_greater_fence_replaces_and_a_smaller_one_does_not"),
    ),
    SCRIPT(
        name="what has ended went on",
        old="if ENDED[status] then",
        new="if ENDED[key] then",
        tests=runstate("nothing_moves_what_has_ended"),
    ),
    SCRIPT(
        name="a stage were begun that another worker holds",
        old="    if token ~= '' and lease_until > now then",
        new="    if token ~= '' and lease_until > now + 3600 then",
        tests=runstate("one_of_many_starts"),
    ),
    SCRIPT(
        name="a cancel did not look whether a worker has begun",
        old="if move.unstarted and had[7] == '1' then",
        new="if move.unstarted and had[7] == 'x' then",
        tests=runstate("only_what_nobody_has_begun_is_cancelled"),
    ),
    SCRIPT(
        name="a late word of the stage before counted",
        old="if move.phase and phase ~= move.phase then",
        new="if move.phase and phase == nil then",
        tests=runstate("a_late_word_of_the_stage_before_changes_nothing"),
    ),
    SCRIPT(
        name="an older life of a task took the place of a newer one",
        old="if fence and (fence > move.fence or (fence == move.fence and not move.again)) then",
        new="if fence and fence == move.fence and not move.again then",
        tests=runstate("a_greater_fence_replaces_and_a_smaller_one_does_not"),
    ),
    SCRIPT(
        name="a move that is sent again were made again",
        old="if told then",
        new="if told == '' then",
        tests=runstate("a_move_that_is_sent_again_is_made_once"),
    ),
    SCRIPT(
        name="a stage were tried before its pause is over",
        old="    if available_at > now then",
        new="    if available_at > now + 3600 then",
        tests=runstate("it_waits_for_its_next_attempt"),
    ),
    SCRIPT(
        name="there were an attempt after the last one",
        old="if tonumber(redis.call('HGET', key, move.attempts) or '') >= move.most then",
        new="if tonumber(redis.call('HGET', key, move.attempts) or '') > move.most then",
        tests=runstate("attempts_are_counted_until_they_are_spent"),
    ),
    SCRIPT(
        name="progress went back",
        old="if value > (tonumber(redis.call('HGET', key, name) or '') or 0) then",
        new="if value then",
        tests=runstate("progress_never_goes_back"),
    ),
    # ---- Documents
    PIPELINE(
        name="a worker began with a task that has ended in its row",
        old='Task.objects.open().filter(pk=task_id).values_list("fence", flat=True)',
        new='Task.objects.filter(pk=task_id).values_list("fence", flat=True)',
        tests=recovery("where_the_row_has_ended_otherwise_redis_is_put_right"),
    ),
    PIPELINE(
        name="an outcome whose answer was lost were another one the next time",
        old="                return call(move_id)",
        new="                return call(runstate.new_id())",
        tests=stages("an_outcome_whose_answer_comes_too_late_is_an_outcome"),
    ),
    PIPELINE(
        name="a worker that is told to leave kept its stage",
        old="            self.release()\n",
        new="            pass\n",
        tests=stages("a_worker_that_is_told_to_leave_hands_its_stage_on"),
    ),
    Mutant(
        name="of two that finish the same run both thought to be first",
        file="etl/pipeline/artifacts.py",
        old="    except storage.Conflict:\n        return False",
        new="    except storage.Conflict:\n        return True",
        tests=stages("of_two_that_finish_the_same_run_the_first_one_counts"),
    ),
    OUTCOME(
        name="an end of a life before were written into the row",
        old=".filter(pk=state.task_id, fence=state.fence)",
        new=".filter(pk=state.task_id)",
        tests=recovery("an_end_of_a_life_before_is_not_written_down"),
    ),
    OUTCOME(
        name="a row that has ended were written again",
        old="        Task.objects.open()\n        .filter(",
        new="        Task.objects.all()\n        .filter(",
        tests=recovery("an_end_that_is_in_the_row_is_not_written_again"),
    ),
    RECOVERY(
        name="recovery gave nobody time to make the first run-state",
        old="return task.updated_at < timezone.now() - timedelta(seconds=settings.SLUICE.etl_recovery_seconds)",
        new="return task.updated_at < timezone.now() + timedelta(seconds=settings.SLUICE.etl_recovery_seconds)",
        tests=recovery("whoever_is_about_to_make_the_state_is_given_time"),
    ),
    RECOVERY(
        name="a run-state were made anew under the fence that it had",
        old='.update(fence=F("fence") + 1)\n    task.fence += 1',
        new='.update(fence=F("fence"))',
        tests=recovery("a_waiting_task_whose_state_was_lost_is_made_anew", "a_worker_that_was_at_it_is_fenced"),
    ),
    RECOVERY(
        name="OCR were paid again after Redis was lost",
        old="        stored = artifacts.find_ocr(task)\n        if is_gone",
        new="        stored = None\n        if is_gone",
        tests=recovery("it_goes_on_from_the_furthest_artefact"),
    ),
    RECOVERY(
        name="a task whose run-state was lost could be cancelled under its worker",
        old="return runstate.create(task, phase=Phase(task.phase), started=True)",
        new="return runstate.create(task, phase=Phase(task.phase))",
        tests=recovery("a_task_whose_state_was_lost_cannot_be_cancelled_any_more"),
    ),
    CONTROL(
        name="two retries both took a task up",
        old="if not again.has_ended or again.fence != ended.fence:",
        new="if not again:",
        tests=control("a_retry_that_comes_while_another_is_written_changes_nothing"),
    ),
    CONTROL(
        name="a retry kept the fence of the run before",
        old="    task.fence += 1\n    task.run = task.fence",
        new="    task.run = task.fence + 1",
        tests=control("a_worker_of_the_run_before_writes_nothing_into_the_new_one", "of_two_retries_one_wins"),
    ),
    CONTROL(
        name="a cancel were not written down",
        old="    completion.record(answer.state)\n\n\ndef why_not",
        new="\n\ndef why_not",
        tests=control("a_task_that_has_not_started_is_cancelled"),
    ),
    Mutant(
        name="two documents took the last place in the queue",
        file="etl/pipeline/queue_limit.py",
        old='        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [LOCK])',
        new='        cursor.execute("SELECT %s", [LOCK])',
        tests=submission("the_last_place_is_given_once_also_while_nobody_sees_that_it_is_gone"),
    ),
]
