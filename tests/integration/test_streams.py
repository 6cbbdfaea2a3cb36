"""Event streams: frames, pages, listeners, and retention. A25."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import Any
from uuid import uuid4

import orjson
import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.db.models.functions import Now
from rest_framework.test import APIClient

from config.platform.http import sse
from config.platform.http.auth import Credential
from exports.api import event_hub
from exports.api.event_hub import JobEventHub, JobListener, JobUpdate
from exports.jobs import actions
from exports.maintenance import periodic, retention
from exports.models import Dataset, Event, Job
from tests.integration.factories import end_chunk, fail_chunk, make_job
from tests.integration.plans import nodes_reading


def failed_job(dataset: Dataset, alice: User) -> Job:
    job = make_job(dataset, alice, 1)
    fail_chunk()
    job.refresh_from_db()
    return job


def events_in(frames: bytes) -> list[tuple[int, str, Any]]:
    """Return the number, the event, and the data of each frame."""
    found = []
    for block in frames.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line)
        if "data" in fields:
            found.append((int(fields["id"]), fields["event"], orjson.loads(fields["data"])))
    return found


def pages(job: Job, *, page: int) -> Iterator[JobUpdate]:
    """Read a job page by page."""
    after, more = 0, True
    while more:
        news, more = event_hub.read({job.pk: after}, page=page)
        if job.pk in news:
            yield news[job.pk]
            after = news[job.pk].newest


# ---- Frames ---------------------------------------------------------------------------------------------------------


def test_a_frame_is_one_event_with_its_data_on_one_line() -> None:
    at = datetime(2024, 2, 29, 12, 0, 0, 5000, tzinfo=UTC)
    assert sse.frame("status", {"at": at, "text": "a\nb\r\x85\u2028"}, number=7) == (
        'id: 7\nevent: status\ndata: {"at":"2024-02-29T12:00:00.005000Z","text":"a\\nb\\r\x85\u2028"}\n\n'.encode()
    )


def test_event_data_equals_the_responses_of_the_api(dataset: Dataset, alice: User, api: APIClient) -> None:
    """A25: one representation."""
    job = make_job(dataset, alice, 2)
    end_chunk()
    path = f"/exports/{job.pk}"
    (news,) = pages(job, page=100)
    chunk, progress = [data for _, event, data in events_in(news.since(0)) if event in ("chunk", "progress")]

    assert chunk == api.get(f"{path}/chunks").json()["results"][0]
    now = api.get(path).json()["progress"]
    assert {**progress, "etaSeconds": 0} == {**now, "etaSeconds": 0}


def test_a_retried_failure_keeps_its_error(dataset: Dataset, alice: User) -> None:
    """A25: an event describes the state when it happened."""
    job = failed_job(dataset, alice)
    (before,) = pages(job, page=100)
    actions.retry(job)
    (after,) = pages(job, page=100)

    ends = [event for event in events_in(before.since(0)) + events_in(after.since(0)) if event[1] == "status"]
    failed = [data for _, _, data in ends if data["status"] == "failed"]
    assert before.is_final
    assert not after.is_final
    assert failed[0]["error"]["code"] == "EXPORT_SOURCE_ERROR"
    assert failed[1] == failed[0]


# ---- Pages ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [1, 2, 3, 5, 7, 100])
def test_pages_of_any_length_contain_the_same_events(dataset: Dataset, alice: User, page: int) -> None:
    """A25: a page may end between the chunks of one statement. Then `progress` follows the last of these chunks."""
    job = make_job(dataset, alice, 6)
    end_chunk()
    fail_chunk()
    actions.cancel(job)
    news = list(pages(job, page=page))
    frames = events_in(b"".join(each.since(0) for each in news))

    numbers = [number for number, _, _ in frames]
    assert numbers == sorted(set(numbers))
    rows = dict(Event.objects.values_list("seq", "kind"))
    assert {number: event for number, event, _ in frames if event != "progress"} == rows
    assert not {number for number, event, _ in frames if event == "progress"} & rows.keys()
    assert [event for _, event, _ in frames][-2:] == ["progress", "status"]
    assert [each.is_final for each in news] == [False] * (len(news) - 1) + [True]


def test_one_read_covers_all_jobs_from_their_positions(dataset: Dataset, alice: User) -> None:
    jobs = [make_job(dataset, alice, 1) for _ in range(3)]
    for _ in jobs:
        end_chunk()
    newest = {job.pk: Job.objects.get(pk=job.pk).event_seq for job in jobs}
    first, second, third = newest

    # The last three numbers are those of the chunk, of `progress`, and of a status that did not change.
    news, more = event_hub.read({first: 0, second: newest[second], third: newest[third] - 3, uuid4(): 0})
    assert more is False
    assert news.keys() == {first, third}
    assert [event for _, event, _ in events_in(news[third].since(0))] == ["chunk", "progress"]


@pytest.mark.slow
def test_a_backlog_does_not_delay_other_jobs(dataset: Dataset, alice: User) -> None:
    """A25: each page has events of every job. The other events of a long job follow on later pages."""
    first, last = sorted((make_job(dataset, alice, 30) for _ in range(2)), key=lambda job: job.pk)
    actions.cancel(first)
    actions.cancel(last)

    for page in (1, 2, 7, 20):
        news, more = event_hub.read({first.pk: 0, last.pk: 0}, page=page)
        assert news.keys() == {first.pk, last.pk}, page
        assert more
        assert not news[first.pk].is_final, page
    newest = Job.objects.get(pk=last.pk).event_seq
    news, more = event_hub.read({first.pk: 0, last.pk: newest - 1}, page=20)
    assert news[last.pk].is_final
    assert more


@pytest.mark.parametrize("page", [1, 2, 3, 5, 7, 20, 100])
def test_pages_of_several_jobs_equal_those_of_each_job(dataset: Dataset, alice: User, page: int) -> None:
    """A25: one page may end between the chunks of several jobs."""
    jobs = [make_job(dataset, alice, chunks) for chunks in (3, 9, 30)]
    for job in jobs:
        actions.cancel(job)
    after = dict.fromkeys((job.pk for job in jobs), 0)
    received = dict.fromkeys(after, b"")
    ended = []
    more = True
    while more:
        news, more = event_hub.read(after, page=page)
        for job_id, each in news.items():
            received[job_id] += each.since(0)
            after[job_id] = each.newest
            ended += [job_id] * each.is_final

    assert sorted(ended) == sorted(after)
    for job in jobs:
        (alone,) = pages(job, page=100)
        expected = [frame[:2] for frame in events_in(alone.since(0))]
        assert [frame[:2] for frame in events_in(received[job.pk])] == expected


def test_the_number_of_skipped_events_per_read_is_bounded(
    dataset: Dataset, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A25: events beyond one read are sent later."""
    job = make_job(dataset, alice, 30)
    actions.cancel(job)
    (alone,) = pages(job, page=100)
    monkeypatch.setattr(event_hub, "LOOKAHEAD", 1)
    others = [make_job(dataset, alice, 1).pk for _ in range(3)]
    after = dict.fromkeys((job.pk, *others), 0)
    received, rounds, more = b"", 0, True
    while more:
        news, more = event_hub.read(after, page=4)
        received += news[job.pk].since(0)
        after[job.pk] = news[job.pk].newest
        rounds += 1

    assert rounds == len(events_in(alone.since(0))) - 1  # `progress` is not a row
    assert [frame[:2] for frame in events_in(received)] == [frame[:2] for frame in events_in(alone.since(0))]


def test_a_read_takes_one_query_without_events_and_three_with_events(
    dataset: Dataset, alice: User, django_assert_num_queries: Any
) -> None:
    watched = {make_job(dataset, alice, 2).pk: 0 for _ in range(5)}
    with django_assert_num_queries(1):
        assert event_hub.read(watched) == ({}, False)
    for _ in range(9):  # the last job has only started
        end_chunk()
    with django_assert_num_queries(3):
        news, _ = event_hub.read(watched)
    assert news.keys() == watched.keys()


def test_a_read_covers_only_new_events(dataset: Dataset, alice: User) -> None:
    job = make_job(dataset, alice, 1)
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO exports_event (job_id, seq, kind, status)"
            " SELECT %s, seq, 'chunk', 'done' FROM generate_series(1, 20000) seq",
            [job.pk],
        )
    values = {"jobs": [job.pk], "after": [19_991], "page": 1000, "lookahead": 1000}
    (scan,) = nodes_reading("exports_event", event_hub.NEW_EVENTS, values)

    assert (scan["Node Type"], scan["Index Name"]) == ("Index Scan", "exports_event_pkey")
    assert scan["Actual Rows"] == 9


# ---- Listeners ------------------------------------------------------------------------------------------------------


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(test(*arguments, **named))

    return run


def news_of(*numbers: int, end: bool = False) -> JobUpdate:
    return JobUpdate([(number, b"%d " % number) for number in numbers], newest=numbers[-1], is_final=end)


def everything(listener: JobListener) -> bytes:
    """Return all buffered events of a listener that has ended."""
    parts = []
    while (part := listener.waiting.get_nowait()) is not None:
        parts.append(part)
    return b"".join(parts)


def listening(hub: JobEventHub, *, after: int = 0) -> JobListener:
    """Add a listener to a hub that does not read."""
    listener = JobListener(uuid4(), Credential(1), after)
    hub.task = hub.task or asyncio.get_running_loop().create_task(asyncio.sleep(0))
    hub.add(listener)
    return listener


@in_a_loop
async def test_a_listener_gets_new_events_and_then_the_end() -> None:
    hub = JobEventHub()
    listener = listening(hub, after=3)
    hub.deliver(news_of(2, 3, 4, 5), listener)
    hub.deliver(news_of(4, 5), listener)
    hub.deliver(news_of(5, 8, end=True), listener)

    assert everything(listener) == b"4 5 8 "
    assert (listener.end_reason, hub.count, hub.listeners) == ("ended", 0, {})


@in_a_loop
async def test_a_slow_listener_buffers_at_most_one_page_and_delays_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A25: after its buffer is read, it continues with events from the database."""
    hub = JobEventHub()
    slow = listening(hub)
    quick = JobListener(slow.subject, Credential(1), 0)
    hub.add(quick)

    def read(asked: dict[Any, int]) -> Any:
        after = asked[slow.subject]
        return {slow.subject: news_of(*range(after + 1, after + 4))}, False

    monkeypatch.setattr(event_hub, "read", read)
    for _ in range(3):
        await hub.read_and_send()
        quick.waiting.get_nowait()
    assert (slow.after, slow.waiting.qsize(), quick.after) == (3, 1, 9)

    assert slow.waiting.get_nowait() == b"1 2 3 "
    await hub.read_and_send()
    assert slow.waiting.get_nowait() == b"4 5 6 "
    assert (quick.after, quick.waiting.qsize()) == (9, 0)


@in_a_loop
async def test_a_listener_that_joins_at_an_earlier_event_misses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A25: the current read does not include the listener, so its events come with the next read."""
    hub = JobEventHub()
    early = listening(hub, after=50)
    late = JobListener(early.subject, Credential(1), 10)

    def read(asked: dict[Any, int]) -> Any:
        hub.add(late)
        return {early.subject: news_of(51)}, False

    monkeypatch.setattr(event_hub, "read", read)
    await hub.read_and_send()
    assert (early.after, late.after) == (51, 10)


def test_more_streams_than_a_process_may_have_are_refused(
    dataset: Dataset, alice: User, api: APIClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "MAX_STREAMS", 0)
    response: Any = api.get(f"/exports/{make_job(dataset, alice, 1).pk}/events")

    assert (response.status_code, response.json()["code"]) == (503, "too_many_streams")
    assert response["Retry-After"]


def test_more_streams_than_a_user_may_have_are_refused(
    dataset: Dataset, alice: User, api: APIClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A25: one token cannot hold all streams of a process."""
    monkeypatch.setattr(sse, "MAX_STREAMS_PER_USER", 0)
    response: Any = api.get(f"/exports/{make_job(dataset, alice, 1).pk}/events")

    assert (response.status_code, response.json()["code"]) == (429, "too_many_streams")
    assert response["Retry-After"]


@in_a_loop
async def test_streams_are_counted_by_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_STREAMS_PER_USER", 2)
    hub = sse.hub(JobEventHub)
    mine = [listening(hub) for _ in range(2)]
    with pytest.raises(sse.TooManyStreamsOfUser):
        sse.check_limits(1)
    sse.check_limits(2)

    hub.remove(mine[0])
    hub.remove(mine[0])
    sse.check_limits(1)
    hub.end(mine[1], "ended")
    assert (hub.count, dict(hub.of_user)) == (0, {})


@in_a_loop
async def test_concurrent_streams_cannot_exceed_the_limit_of_a_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both streams are admitted before either is counted. The second one ends right after it opens."""
    monkeypatch.setattr(sse, "MAX_STREAMS_PER_USER", 1)
    hub = sse.hub(JobEventHub)
    early = listening(hub)
    late = sse.EventStream(event_hub.JobEventHub, event_hub.JobListener(uuid4(), Credential(1), 0), opening=b"opening")

    assert [part async for part in late] == [b"opening"]
    assert hub.count == 1
    hub.remove(early)


# ---- Retention ------------------------------------------------------------------------------------------------------


def events_after(api: APIClient, job: Job, last: object) -> list[str]:
    """Return the events of an ended job for a client that reconnects.

    A 204 means none. `listens` means that the response is an open stream.
    """
    response: Any = api.get(f"/exports/{job.pk}/events", headers={"Last-Event-ID": str(last)})
    with closing(response):
        if response.status_code == 204:
            return []
        return ["listens"] if response.streaming else [event for _, event, _ in events_in(response.content)]


def test_an_unknown_last_event_id_gets_a_snapshot(dataset: Dataset, alice: User, api: APIClient) -> None:
    """A25."""
    job = failed_job(dataset, alice)
    for last in ("", "x", "-1", "1.5", "²", str(job.event_seq + 1), "9" * 400):
        assert events_after(api, job, last) == ["snapshot", "status"], last
    for number in range(job.event_seq):
        assert events_after(api, job, number) == ["listens"], number
    assert events_after(api, job, job.event_seq) == []


def test_events_are_deleted_a_day_after_the_end(dataset: Dataset, alice: User, api: APIClient) -> None:
    """A25: after that, a client that reconnects gets a snapshot, also if the job has been retried since."""
    old, young, running = failed_job(dataset, alice), failed_job(dataset, alice), make_job(dataset, alice, 2)
    end_chunk()
    Event.objects.update(told_at=Now())
    Job.objects.exclude(pk=young.pk).update(finished_at=Now() - timedelta(days=1, seconds=1))
    Job.objects.filter(pk=running.pk).update(finished_at=None)
    Event.objects.exclude(job=young).update(at=Now() - timedelta(days=1, seconds=1))
    periodic.sweep()

    assert set(Event.objects.values_list("job", flat=True)) == {young.pk, running.pk}
    assert events_after(api, old, old.event_seq - 1) == ["snapshot", "status"]
    assert events_after(api, old, old.event_seq) == []
    assert events_after(api, young, young.event_seq - 1) == ["listens"]

    actions.retry(old)
    end_chunk()  # of the running job, which the retry waits for
    fail_chunk()
    assert events_after(api, old, old.event_seq - 1) == ["snapshot", "status"]
    assert events_after(api, old, old.event_seq) == ["listens"]


def test_an_end_that_was_not_sent_to_webhooks_is_never_deleted(dataset: Dataset, alice: User) -> None:
    failed_job(dataset, alice)
    Job.objects.update(finished_at=Now() - timedelta(days=2))
    Event.objects.update(at=Now() - timedelta(days=2))
    kept = Event.objects.count()
    assert retention.delete_old_events() == 0
    assert Event.objects.count() == kept

    Event.objects.update(told_at=Now())
    assert retention.delete_old_events() == kept
