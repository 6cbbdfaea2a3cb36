"""B44: fair queueing of documents between users, and quotas."""

from collections.abc import Callable
from datetime import date, timedelta
from typing import Any

import pytest
from django.conf import LazySettings
from django.contrib.auth.models import User
from django.db import connection
from django.utils import timezone
from rest_framework.test import APIClient

from config.platform import storage
from etl import runstate
from etl.core.states import Stage
from etl.maintenance import cleanup
from etl.models import Allowance, Task, Upload, Usage
from etl.pipeline import actions, execution, queue_limit, quotas, turns
from rules.models import Rule, RuleUsage
from tests import scripted_stages
from tests.conftest import browser_of, change_settings, client_of
from tests.integration.etl_factories import make_row, make_rule, make_task
from tests.integration.stage_runs import ConfigureStages, row_of, run, seen
from tests.integration.test_etl_submission import TEXT, documents, send
from tests.integration.test_etl_uploads import UPLOADS, request_upload, submit, uploaded
from tests.integration.test_leases import in_threads

pytestmark = pytest.mark.usefixtures("default_rule", "configure_stages")

MEBIBYTE = 1024**2


@pytest.fixture
def rule(alice: User) -> Rule:
    return make_rule(alice)


# ---- Turns ----------------------------------------------------------------------------------------------------------
def order_of(messages: list[Task], stage: Stage = Stage.OCR) -> list[int]:
    """Deliver these messages to a worker in this order, and return the IDs of the tasks that it runs."""
    order: list[int] = []
    tasks = list(Task.objects.all())
    known = {task.pk: seen(task).attempts[stage] for task in tasks}
    for message in messages:
        execution.run_next(stage, task_id=message.pk)
        now = {task.pk: seen(task).attempts[stage] for task in tasks}
        order += [pk for pk in now if now[pk] > known[pk]]
        known = now
    return order


@pytest.mark.slow
def test_a_retry_from_post_processing_does_not_delay_other_users(alice: User, bob: User, rule: Rule) -> None:
    ready = make_task(alice, rule=rule)
    run(ready)
    backlog = [make_task(alice, rule=rule) for _ in range(20)]
    again = actions.retry(task=row_of(ready), from_stage=Stage.POSTPROCESS)
    assert execution.run_next(Stage.POSTPROCESS, task_id=again.pk) is not None
    assert row_of(again).status == "completed"

    of_bob = make_task(bob, rule=rule)
    order = order_of([*backlog, of_bob])
    assert order.index(of_bob.pk) <= 1, f"bob's only document is number {order.index(of_bob.pk) + 1} of {len(order)}"


def test_a_users_document_is_not_delayed_by_another_users_backlog(alice: User, bob: User, rule: Rule) -> None:
    """All messages are for the backlog, but the rows decide which task a worker runs."""
    backlog = [make_task(alice, rule=rule) for _ in range(6)]
    for task in backlog[:2]:
        run(task)
    mine = [make_task(bob, rule=rule) for _ in range(2)]

    assert order_of(backlog[2:]) == [mine[0].pk, backlog[2].pk, mine[1].pk, backlog[3].pk]
    assert order_of(mine) == [backlog[4].pk, backlog[5].pk]


@pytest.mark.slow
def test_three_users_take_turns_in_both_stages(alice: User, bob: User, rule: Rule) -> None:
    carol = User.objects.create_user("carol")
    all_of = {user: [make_task(user, rule=rule) for _ in range(3)] for user in (alice, bob, carol)}
    backlog = [task for own in all_of.values() for task in own]
    expected = [all_of[user][n].pk for n in range(3) for user in (alice, bob, carol)]

    assert order_of(backlog) == expected
    assert order_of(backlog, Stage.POSTPROCESS) == expected


@pytest.mark.slow
def test_a_stream_of_single_documents_does_not_starve_a_backlog(alice: User, bob: User, rule: Rule) -> None:
    backlog = [make_task(alice, rule=rule) for _ in range(8)]
    for _ in range(4):
        run(make_task(bob, rule=rule))
    late = make_task(bob, rule=rule)

    assert order_of(backlog[:6]) == [task.pk for task in backlog[:5]] + [late.pk]


def test_cancelled_documents_do_not_delay_other_documents(alice: User, bob: User, rule: Rule) -> None:
    """This includes documents of their owner: cancelled tasks do not count for the rank of the next task."""
    backlog = [make_task(alice, rule=rule) for _ in range(5)]
    for task in backlog[2:]:
        actions.cancel(task=task)
    theirs = make_task(bob, rule=rule)
    assert turns.next_rank(alice.pk) == 2
    assert order_of([backlog[0], backlog[1]]) == [backlog[0].pk, theirs.pk]


def test_a_retry_ranks_behind_the_documents_of_its_owner_only(alice: User, bob: User, rule: Rule) -> None:
    failed = make_task(alice, "raise FileCorrupt", rule=rule)
    run(failed)
    own = [make_task(alice, rule=rule) for _ in range(2)]
    actions.retry(task=row_of(failed), from_stage=Stage.OCR)
    theirs = make_task(bob, rule=rule)
    messages = [*own, failed, theirs]
    order = order_of(messages)
    assert order.index(theirs.pk) < order.index(own[1].pk)
    assert order[-1] == failed.pk


def test_documents_that_are_not_due_or_held_are_skipped(
    alice: User, bob: User, rule: Rule, configure_stages: ConfigureStages
) -> None:
    configure_stages(etl_retry_backoff_base_seconds=60.0, etl_retry_backoff_max_seconds=60.0)
    waiting = make_task(alice, "raise ProviderUnavailable", rule=rule)
    held = make_task(alice, rule=rule)
    run(waiting, Stage.OCR)
    assert runstate.start(held.pk, stage=Stage.OCR).moved
    theirs = make_task(bob, rule=rule)
    assert order_of([held, held]) == [theirs.pk]


def test_a_message_runs_its_own_task_if_earlier_tasks_are_not_due(
    alice: User, rule: Rule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each message only searches a limited number of open tasks."""
    monkeypatch.setattr(turns, "BATCH", 2)
    monkeypatch.setattr(turns, "BATCHES", 2)
    held = [make_task(alice, rule=rule) for _ in range(4)]
    for task in held:
        assert runstate.start(task.pk, stage=Stage.OCR).moved
    last = make_task(alice, rule=rule)
    assert order_of([last]) == [last.pk]
    assert order_of([last]) == []


def test_the_search_for_a_task_continues_after_a_batch_of_open_tasks(
    alice: User, rule: Rule, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "BATCH", 2)
    made = [make_task(alice, rule=rule) for _ in range(5)]
    for task in made[:4]:
        assert runstate.start(task.pk, stage=Stage.OCR).moved
    assert order_of([made[0]]) == [made[4].pk]


def test_the_search_for_a_task_changes_no_run_state(alice: User, rule: Rule) -> None:
    task = make_task(alice, rule=rule)
    before = dict(runstate.script.redis()[0].hgetall(runstate.key_of(task.pk)))
    assert [turn.task_id for turn in turns.waiting(Stage.OCR)] == [task.pk]
    assert list(turns.waiting(Stage.POSTPROCESS)) == []
    assert runstate.script.redis()[0].hgetall(runstate.key_of(task.pk)) == before


def test_workers_that_find_the_same_task_run_it_once(alice: User, bob: User, rule: Rule) -> None:
    made = [make_task(user, rule=rule) for user in (alice, bob) for _ in range(6)]
    in_threads(4, lambda n: [execution.run_next(Stage.OCR, task_id=task.pk) for task in made[n::4]])
    assert [len(scripted_stages.calls(f"ocr-{task.pk}")) for task in made] == [1] * 12


@pytest.mark.slow
def test_turns_are_found_by_index(alice: User, rule: Rule) -> None:
    """Neither a start nor a submission reads the many ended tasks in the table."""
    row = make_row(alice, rule=rule)
    copied = {name: getattr(row, name) for name in COPIED}
    error = {"code": "ocr_failed"}
    Task.objects.bulk_create(Task(**copied, rank=n, status="failed", error=error) for n in range(3000))
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE etl_task")
        open_ones = Task.objects.open().order_by("rank", "task_id").values_list("rank", "task_id", "generation")
        assert "etl_task_turn" in open_ones[:50].explain()
        cursor.execute(f"EXPLAIN {turns.NEXT_RANK}", {"user": alice.pk})
        plan = str(cursor.fetchall())
    assert "etl_task_last_turn" in plan
    assert "etl_task_past_turn" in plan
    assert "Seq Scan" not in plan


COPIED = ("user_id", "rule_id", "rule_version", "kind", "size", "document_key")


# ---- Size of the queue ----------------------------------------------------------------------------------------------
def test_a_user_is_accepted_despite_another_users_backlog(
    alice: User,
    bob: User,
    rule: Rule,
    settings: LazySettings,
    default_rule: Rule,
) -> None:
    """B44: a full queue only refuses users who have used their share of it."""
    change_settings(settings, etl_queue_size=10)
    for _ in range(10):
        make_row(alice, rule=rule)
    assert refusal(send(client_of(alice))) == (503, "queue_full")

    responses = [send(client_of(bob)) for _ in range(6)]
    assert [response.status_code for response in responses] == [202] * 5 + [503]
    failed = make_task(bob, "raise FileCorrupt", rule=rule)
    run(failed)
    actions.cancel(task=Task.objects.open().filter(user=bob).latest("pk"))
    actions.retry(task=row_of(failed), from_stage=Stage.OCR)
    with pytest.raises(queue_limit.QueueFull):
        queue_limit.check(user_id=bob.pk, size=1)


def refusal(response: Any) -> tuple[int, str]:
    return response.status_code, response.json()["code"]


# ---- Quotas ---------------------------------------------------------------------------------------------------------
@pytest.fixture
def quota(settings: LazySettings, default_rule: Rule) -> Callable[..., None]:
    """Return a function that sets the limits of all users."""

    def set_limits(**limits: int) -> None:
        change_settings(settings, **limits)

    return set_limits


@pytest.mark.parametrize(
    ("limits", "detail"),
    [
        ({"etl_max_open_per_user": 2}, "2 unfinished documents"),
        ({"etl_daily_documents": 2}, "your daily limit of 2 documents"),
        ({"etl_daily_bytes": 2 * len(TEXT) + 1}, f"This needs {len(TEXT)} bytes, and 1 of today's"),
    ],
)
def test_a_user_beyond_the_quota_is_refused_and_nothing_is_stored(
    alice: User, bob: User, quota: Callable[..., None], limits: dict[str, int], detail: str
) -> None:
    quota(**limits)
    api = client_of(alice)
    assert [send(api).status_code for _ in range(2)] == [202, 202]
    before, used = documents(), usage(alice)
    response = send(api)

    assert refusal(response) == (429, "quota_exceeded")
    assert detail in response.json()["detail"]
    assert response["Content-Type"] == "application/problem+json"
    assert 0 < int(response["Retry-After"]) <= 86_400
    assert (documents(), usage(alice)) == (before, used)
    assert Task.objects.count() == 2
    assert send(client_of(bob)).status_code == 202


def usage(user: User) -> tuple[int, int]:
    found = Usage.objects.filter(user=user).values_list("documents", "bytes").first()
    return found or (0, 0)


def test_concurrent_submissions_cannot_overspend(alice: User, quota: Callable[..., None]) -> None:
    """B44."""
    quota(etl_daily_documents=3)
    clients = [client_of(alice) for _ in range(8)]
    responses = in_threads(8, lambda n: send(clients[n]))
    assert sorted(response.status_code for response in responses) == [202] * 3 + [429] * 5
    assert usage(alice) == (3, 3 * len(TEXT))
    assert sorted(documents()) == sorted(Task.objects.values_list("document_key", flat=True))


def test_a_repeat_is_free_and_a_retry_is_charged_as_a_document(
    api: APIClient, alice: User, quota: Callable[..., None]
) -> None:
    """B44: retries have to be limited, because each stores another Markdown file or calls the model again."""
    quota(etl_daily_documents=2, etl_daily_bytes=len(TEXT))
    first, again = send(api, key="k1"), send(api, key="k1")
    assert (first.status_code, again.status_code, again["Idempotency-Replayed"]) == (202, 202, "true")
    task = Task.objects.get()
    run(task)
    retries = []
    for stage in ("ocr", "postprocess"):
        retries.append(api.post(f"/api/v1/etl/tasks/{task.pk}/retry", {"from_stage": stage}))
        run(row_of(task))
    assert [response.status_code for response in retries] == [202, 429]
    assert retries[1].json()["code"] == "quota_exceeded"
    assert row_of(task).status == "completed"
    assert usage(alice) == (2, len(TEXT))


def test_concurrent_repeats_are_charged_once(alice: User, quota: Callable[..., None]) -> None:
    quota()
    clients = [client_of(alice) for _ in range(6)]
    responses = in_threads(6, lambda n: send(clients[n], key="k1"))
    assert {response.status_code for response in responses} <= {202, 409}
    assert usage(alice) == (1, len(TEXT))


def test_a_retry_counts_toward_the_limit_of_open_documents(alice: User, quota: Callable[..., None], rule: Rule) -> None:
    quota(etl_max_open_per_user=1)
    ended = make_task(alice, rule=rule)
    run(ended)
    make_task(alice, rule=rule)
    with pytest.raises(quotas.QuotaExceeded):
        actions.retry(task=row_of(ended), from_stage=Stage.OCR)
    assert row_of(ended).status == "completed"


def test_staff_can_set_other_limits_for_a_user(alice: User, quota: Callable[..., None]) -> None:
    quota(etl_daily_documents=0)
    Allowance.objects.create(user=alice, daily_documents=1)
    api = client_of(alice)
    assert [send(api).status_code for _ in range(2)] == [202, 429]


def test_a_new_day_starts_with_the_whole_quota(alice: User, quota: Callable[..., None]) -> None:
    quota(etl_daily_documents=1)
    api = client_of(alice)
    assert [send(api).status_code for _ in range(2)] == [202, 429]
    Usage.objects.update(day=date(2026, 1, 1))
    assert send(api).status_code == 202


def test_a_user_reads_the_limits_and_their_usage(alice: User, api: APIClient, quota: Callable[..., None]) -> None:
    quota(etl_daily_documents=5, etl_daily_bytes=10_000, etl_max_open_per_user=3)
    assert send(api).status_code == 202
    request_upload(api)
    body = api.get("/api/v1/etl/limits").json()
    used = 2 * len(TEXT)
    assert body["documents_per_day"].pop("resets_at").endswith("00:00:00Z")
    assert body["bytes_per_day"].pop("resets_at").endswith("00:00:00Z")
    assert body["documents_per_day"] == {"limit": 5, "used": 2, "remaining": 3}
    assert body["bytes_per_day"] == {"limit": 10_000, "used": used, "remaining": 10_000 - used}
    assert body["open_tasks"] == {"limit": 3, "used": 2, "remaining": 1}
    browser = browser_of(alice)
    assert "Left today: 3 of 5 documents" in browser.get("/app/documents").content.decode()


# ---- Uploads --------------------------------------------------------------------------------------------------------
def offer(api: APIClient) -> Any:
    return api.post(UPLOADS, {"filename": "a.txt", "content_type": "text/plain", "size": 50 * MEBIBYTE})


@pytest.mark.parametrize(
    ("limits", "granted"),
    [({"etl_daily_bytes": 500 * MEBIBYTE}, 10), ({"etl_daily_documents": 7}, 7), ({"etl_max_open_per_user": 6}, 6)],
)
def test_open_upload_urls_count_toward_the_quota(
    alice: User, bob: User, quota: Callable[..., None], limits: dict[str, int], granted: int
) -> None:
    """B44."""
    quota(**limits)
    api = client_of(alice)
    responses = [offer(api) for _ in range(12)]
    assert [response.status_code for response in responses] == [201] * granted + [429] * (12 - granted)
    assert refusal(responses[-1]) == (429, "quota_exceeded")
    assert Upload.objects.count() == granted
    assert offer(client_of(bob)).status_code == 201


def test_concurrent_upload_urls_cannot_overspend(alice: User, quota: Callable[..., None]) -> None:
    quota(etl_daily_bytes=150 * MEBIBYTE)
    clients = [client_of(alice) for _ in range(8)]
    assert sorted(in_threads(8, lambda n: offer(clients[n]).status_code)) == [201] * 3 + [429] * 5


def expire(*, hours: float) -> None:
    Upload.objects.update(expires_at=timezone.now() - timedelta(hours=hours))


def test_an_expired_upload_url_is_refunded_if_nothing_was_uploaded(alice: User, quota: Callable[..., None]) -> None:
    quota(etl_daily_documents=1)
    api = client_of(alice)
    assert [offer(api).status_code for _ in range(2)] == [201, 429]
    expire(hours=0.5)  # an upload that started in time may not have finished yet
    cleanup.sweep()
    assert offer(api).status_code == 429
    expire(hours=2)
    cleanup.sweep()
    assert not Upload.objects.exists()
    assert offer(api).status_code == 201


def test_uploaded_objects_count_until_they_are_deleted(
    api: APIClient, quota: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """B44: if they were refunded when their URL expires, a user could store many times the daily bytes."""
    quota(etl_daily_documents=2, etl_max_open_per_user=1)
    key = uploaded(api)
    assert offer(api).status_code == 429
    expire(hours=2)
    cleanup.sweep()
    assert storage.head(key) is not None
    assert offer(api).status_code == 201  # it no longer counts as open
    expire(hours=0.5)
    response = offer(api)
    assert refusal(response) == (429, "quota_exceeded")
    assert "your daily limit of 2 documents" in response.json()["detail"]

    monkeypatch.setattr(cleanup, "UPLOADS_KEPT", -timedelta(hours=1))
    expire(hours=25)
    cleanup.sweep()
    assert (storage.head(key), Upload.objects.count()) == (None, 0)
    assert offer(api).status_code == 201


def test_usage_is_kept_for_a_month(alice: User) -> None:
    today = quotas.state(alice.pk).day
    for days in (0, 31, 32, 100):
        for model in (Usage, RuleUsage):
            model.objects.create(user=alice, day=today - timedelta(days=days))
    cleanup.sweep()
    for model in (Usage, RuleUsage):
        assert {(today - usage.day).days for usage in model.objects.all()} == {0, 31}


def test_a_submitted_upload_is_charged_once(api: APIClient, alice: User, quota: Callable[..., None]) -> None:
    """The submission takes over the charge of the upload. Another submission of the same upload is charged again."""
    quota(etl_daily_documents=2)
    key = uploaded(api)
    assert offer(api).status_code == 201
    assert offer(api).status_code == 429
    assert submit(api, key).status_code == 202
    assert (usage(alice), Upload.objects.filter(file_key=key).exists()) == ((1, len(TEXT)), False)
    assert refusal(submit(api, key)) == (429, "quota_exceeded")


def test_a_refused_submission_keeps_its_upload(api: APIClient, alice: User, quota: Callable[..., None]) -> None:
    quota(etl_daily_documents=2)
    key = uploaded(api)
    quota(etl_daily_documents=0)
    assert refusal(submit(api, key)) == (429, "quota_exceeded")
    assert (documents(), usage(alice)) == ([], (0, 0))
    assert storage.head(key) is not None
    assert Upload.objects.filter(file_key=key).exists()
    quota(etl_daily_documents=1)
    assert submit(api, key).status_code == 202
