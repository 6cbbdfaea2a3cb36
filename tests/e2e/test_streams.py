"""Event streams of a real web process, over real connections. A25."""

import http.client
import json
import re
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection
from knox.models import AuthToken
from knox.settings import CONSTANTS

from config.dev.stack.ports import LOOPBACK
from config.dev.stack.processes import Web
from config.platform.http.sse import MAX_STREAMS_PER_USER
from exports.jobs import actions
from exports.models import Dataset, Event, Job
from tests.e2e.conftest import Workers, serving_alone
from tests.integration.factories import end_chunk, fail_chunk, make_job
from tests.serving import token_of
from tests.waiting import wait_until

UNKNOWN_ID = "00000000-0000-0000-0000-000000000000"


class StreamEvent(NamedTuple):
    id: int
    event: str
    data: Any


class Client:
    """A client of the web process, and its stream."""

    def __init__(self, web: Web, token: str = "") -> None:
        self.connection = http.client.HTTPConnection(LOOPBACK, web.port, timeout=20)
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.response: http.client.HTTPResponse | None = None

    def request(self, path: str, *, method: str = "GET", after: object = None) -> http.client.HTTPResponse:
        last = {} if after is None else {"Last-Event-ID": str(after)}
        self.connection.request(method, path, headers=self.headers | last)
        self.response = self.connection.getresponse()
        return self.response

    def problem(self, path: str, *, method: str = "GET") -> tuple[int, str]:
        response = self.request(path, method=method)
        assert response.headers["Content-Type"] == "application/problem+json"
        return response.status, "" if method == "HEAD" else json.loads(response.read())["code"]

    def watch(self, job: Job, *, after: object = None) -> "Client":
        response = self.request(f"/exports/{job.pk}/events", after=after)
        assert response.status == 200
        assert response.headers["Content-Type"] == "text/event-stream"
        assert response.readline() == b"retry: 3000\n"
        assert response.readline() == b"\n"
        return self

    def __iter__(self) -> Iterator[StreamEvent]:
        """Yield events until the stream ends, without comments."""
        fields: dict[str, str] = {}
        while line := self.line().decode():
            name, _, value = line.rstrip("\n").partition(": ")
            if line == "\n":
                if fields:
                    yield StreamEvent(int(fields["id"]), fields["event"], json.loads(fields["data"]))
                fields = {}
            elif not line.startswith(":"):
                fields[name] = value
        assert not fields, "The stream ended in the middle of an event."

    def line(self) -> bytes:
        assert self.response
        return self.response.readline()

    def take(self, count: int) -> list[StreamEvent]:
        return list(islice(self, count))

    def limit_receive_buffer(self) -> "Client":
        """Limit the receive buffer. By default, the kernel buffers megabytes for a client that does not read."""
        self.connection.sock = socket.socket()
        self.connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.connection.sock.settimeout(20)
        self.connection.sock.connect((LOOPBACK, self.connection.port))
        return self

    def disconnect(self) -> None:
        if self.response:
            self.response.close()
        self.connection.close()


@dataclass
class Clients:
    """Clients of the web process, disconnected at the end of the test."""

    web: Web
    made: list[Client] = field(default_factory=list)

    def __call__(self, token: str = "") -> Client:
        self.made.append(Client(self.web, token))
        return self.made[-1]


@pytest.fixture
def clients(web: Web) -> Iterator[Clients]:
    clients = Clients(web)
    yield clients
    for client in clients.made:
        client.disconnect()


@pytest.fixture(scope="module")
def served(django_db_setup: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    """The web process of all tests that do not stop it."""
    with serving_alone(tmp_path_factory.mktemp("web")) as running:
        yield running


@pytest.fixture
def web(served: Web, workers: Workers) -> Web:
    wait_until(lambda: listeners(served) == 0)  # the clients of earlier tests have disconnected
    return served


def metric(web: Web, name: str) -> float:
    """Return the sum of a metric over its labels."""
    client = Client(web)
    text = client.request("/metrics").read().decode()
    client.disconnect()
    return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE))


def queries(web: Web) -> float:
    return metric(web, "django_db_execute_total")


def listeners(web: Web) -> float:
    return metric(web, "export_streams_opened_total") - metric(web, "export_streams_closed_total")


def errors(web: Web) -> list[str]:
    return [line for line in web.started().log.read_text().splitlines() if '"level": "error"' in line]


def numbers(events: list[StreamEvent]) -> list[int]:
    return [each.id for each in events]


def kinds(events: list[StreamEvent]) -> list[str]:
    return [each.event for each in events]


# ---- Contents ------------------------------------------------------------------------------------------------------


def test_a_stream_reports_a_job_from_start_to_end(
    dataset: Dataset, alice: User, workers: Workers, clients: Clients, token: str
) -> None:
    """A25."""
    job = make_job(dataset, alice, 30)
    stream = clients(token).watch(job)
    workers.start()
    events = list(stream)

    assert numbers(events) == sorted(set(numbers(events)))
    first, *_, last = events
    assert (first.event, first.data["status"], first.data["progress"]["total"]) == ("snapshot", "pending", 30)
    assert (last.event, last.data["status"], last.data["error"]) == ("status", "success", None)
    done = {each.data["effectiveDate"] for each in events if each.event == "chunk" and each.data["status"] == "done"}
    assert len(done) == 30
    assert [each.data["percent"] for each in events if each.event == "progress"][-1] == 100
    assert {each.id for each in events if each.event != "progress"} >= set(Event.objects.values_list("seq", flat=True))


def test_a_resumed_stream_misses_and_repeats_nothing(
    dataset: Dataset, alice: User, clients: Clients, token: str
) -> None:
    """A25: the client disconnects after each event."""
    job = make_job(dataset, alice, 4)
    client = clients(token).watch(job)
    (snapshot,) = client.take(1)
    client.disconnect()
    for _ in range(3):
        end_chunk()
    fail_chunk()

    events, last = [], snapshot.id
    while True:
        client = clients(token).watch(job, after=last)
        (event,) = client.take(1)
        client.disconnect()
        events.append(event)
        last = event.id
        if event.event == "status" and event.data["status"] == "failed":
            break
    assert numbers(events) == sorted(set(numbers(events)))
    assert "snapshot" not in kinds(events)
    rows = set(Event.objects.values_list("seq", flat=True))
    assert {each.id for each in events if each.event != "progress"} == rows
    assert events[-1].data["error"]["code"] == "EXPORT_SOURCE_ERROR"
    assert clients(token).request(f"/exports/{job.pk}/events", after=last).status == 204


def test_a_stream_cut_inside_an_event_resumes_with_that_event(
    dataset: Dataset, alice: User, clients: Clients, token: str
) -> None:
    """A25: the client has half of the event and did not dispatch it, so Last-Event-ID is that of the event before."""
    job = make_job(dataset, alice, 1)
    client = clients(token).watch(job)
    (snapshot,) = client.take(1)
    fail_chunk()
    assert client.line().startswith(b"id: ")
    client.disconnect()

    assert kinds(list(clients(token).watch(job, after=snapshot.id)))[-1] == "status"


def test_the_stream_of_an_ended_job_ends_at_once(dataset: Dataset, alice: User, clients: Clients, token: str) -> None:
    """A25."""
    job = make_job(dataset, alice, 1)
    fail_chunk()
    snapshot, end = clients(token).watch(job)

    assert (snapshot.event, end.event) == ("snapshot", "status")
    assert snapshot.data["status"] == end.data["status"] == "failed"
    assert end.data["error"] == snapshot.data["error"] != None  # noqa: E711
    assert snapshot.id < end.id
    again = list(clients(token).watch(job, after=snapshot.id))
    assert (again[-1].id, again[-1].event) == (end.id, "status")
    assert clients(token).request(f"/exports/{job.pk}/events", after=end.id).status == 204


@pytest.mark.slow
def test_a_retried_job_continues_its_event_sequence(
    dataset: Dataset, alice: User, clients: Clients, token: str
) -> None:
    """A25."""
    job = make_job(dataset, alice, 2)
    end_chunk()
    fail_chunk()
    before = list(clients(token).watch(job, after=0))
    assert before[-1].data["status"] == "failed"
    actions.retry(job)
    stream = clients(token).watch(job, after=before[-1].id)
    chunk, progress, status = stream.take(3)

    assert before[-1].id < chunk.id < progress.id < status.id
    assert (chunk.data["status"], progress.data["failed"], status.data["status"]) == ("pending", 0, "running")
    fail_chunk()
    assert list(stream)[-1].data["status"] == "failed"
    everything = list(clients(token).watch(job, after=0))
    assert [each.data["status"] for each in everything if each.event == "status"].count("failed") == 2


@pytest.mark.slow
def test_an_idle_stream_sends_keepalive_comments(dataset: Dataset, alice: User, clients: Clients, token: str) -> None:
    """A25: a comment at least every 15 seconds."""
    stream = clients(token).watch(make_job(dataset, alice, 1))
    stream.take(1)
    began = time.monotonic()

    assert stream.line() == b":\n"
    assert time.monotonic() - began < 15


# ---- Access --------------------------------------------------------------------------------------------------------


def test_only_the_owner_and_staff_may_open_a_stream(
    dataset: Dataset, alice: User, bob: User, clients: Clients, token: str
) -> None:
    """A7."""
    path = f"/exports/{make_job(dataset, alice, 1).pk}/events"
    staff = User.objects.create_user("staff", is_staff=True, is_superuser=True)

    assert clients().problem(path) == (401, "not_authenticated")
    assert clients("slc_unknown").problem(path) == (401, "authentication_failed")
    assert clients(token_of(bob)).problem(path) == (404, "not_found")
    assert clients(token).problem(f"/exports/{UNKNOWN_ID}/events") == (404, "not_found")
    assert clients(token_of(staff)).request(path).status == 200
    for method in ("HEAD", "POST", "PUT", "DELETE", "OPTIONS"):
        assert clients(token).problem(path, method=method)[0] == 405


# ---- Cost ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_stream_ends_when_its_token_is_deleted(dataset: Dataset, alice: User, clients: Clients) -> None:
    """A25: within ten seconds. The stream of another token of the same user continues."""
    job = make_job(dataset, alice, 1)
    lost, kept = token_of(alice), token_of(alice)
    ended, continuing = clients(lost).watch(job), clients(kept).watch(job)
    assert ended.take(1)[0].event == continuing.take(1)[0].event == "snapshot"
    AuthToken.objects.filter(token_key=lost[: CONSTANTS.TOKEN_KEY_LENGTH]).delete()
    since = time.monotonic()
    assert list(ended) == []
    assert time.monotonic() - since < 10
    assert clients(lost).problem(f"/exports/{job.pk}/events") == (401, "authentication_failed")

    actions.cancel(job)
    assert [event.event for event in continuing][-1] == "status"


@pytest.mark.slow
def test_a_stream_ends_when_its_user_is_deactivated(
    dataset: Dataset, alice: User, clients: Clients, token: str
) -> None:
    """A25: within ten seconds."""
    stream = clients(token).watch(make_job(dataset, alice, 1))
    stream.take(1)
    User.objects.filter(pk=alice.pk).update(is_active=False)
    since = time.monotonic()
    assert list(stream) == []
    assert time.monotonic() - since < 10


@pytest.mark.slow
def test_a_hundred_listeners_cost_no_more_queries_than_one(
    dataset: Dataset, alice: User, web: Web, clients: Clients
) -> None:
    """A25: twelve chunks, and at most three queries per half second."""
    job = make_job(dataset, alice, 12)
    staff = [User.objects.create_user(name, is_staff=True, is_superuser=True) for name in ("staff", "other")]
    streams = [clients(of).watch(job) for of in (token_of(user) for user in staff) for _ in range(MAX_STREAMS_PER_USER)]
    assert clients(token_of(staff[0])).problem(f"/exports/{job.pk}/events") == (429, "too_many_streams")
    wait_until(lambda: listeners(web) == 100)
    before, began = queries(web), time.monotonic()
    for _ in range(11):
        end_chunk()
    fail_chunk()
    events = [list(stream) for stream in streams]

    rounds = (time.monotonic() - began) / 0.5 + 2
    assert queries(web) - before <= 3 * rounds
    assert {each[-1].data["status"] for each in events} == {"failed"}
    assert len({tuple(numbers(each)) for each in events}) == 1


@pytest.mark.slow
def test_streams_hold_no_connection_to_the_database(
    dataset: Dataset, alice: User, clients: Clients, token: str
) -> None:
    """Open more streams than the pool has connections. The API still responds."""
    job = make_job(dataset, alice, 1)
    for _ in range(3 * settings.SLUICE.database_pool_size):
        clients(token).watch(job)

    assert clients(token).request(f"/exports/{job.pk}").status == 200


@pytest.mark.slow
def test_streams_hold_no_thread(dataset: Dataset, alice: User, web: Web, clients: Clients, token: str) -> None:
    job = make_job(dataset, alice, 1)
    streams = [clients(token).watch(job) for _ in range(MAX_STREAMS_PER_USER)]
    wait_until(lambda: listeners(web) == len(streams))

    assert len(list(Path(f"/proc/{web.pid}/task").iterdir())) < 40


@pytest.mark.slow
def test_queries_stop_when_the_last_listener_disconnects(
    dataset: Dataset, alice: User, web: Web, clients: Clients, token: str
) -> None:
    job = make_job(dataset, alice, 1)
    streams = [clients(token).watch(job) for _ in range(5)]
    wait_until(lambda: listeners(web) == 5)
    for stream in streams:
        stream.disconnect()
    wait_until(lambda: listeners(web) == 0)
    wait_until(NoQueries(web))
    assert errors(web) == []


@pytest.mark.slow
def test_a_client_that_does_not_read_causes_no_work(
    dataset: Dataset, alice: User, web: Web, clients: Clients, token: str
) -> None:
    """A25: more data than the kernel buffers. One client disconnects in the middle, and one continues to read."""
    job = make_job(dataset, alice, 20_000)
    disconnecting, reader = [clients(token).limit_receive_buffer().watch(job) for _ in range(2)]
    wait_until(lambda: listeners(web) == 2)
    actions.cancel(job)
    wait_until(NoQueries(web))
    assert listeners(web) == 2
    disconnecting.disconnect()
    wait_until(lambda: listeners(web) == 1)

    events = list(reader)
    assert numbers(events) == sorted(set(numbers(events)))
    assert kinds(events).count("chunk") == 20_000
    assert errors(web) == []


@pytest.mark.slow
def test_many_simultaneous_changes_are_reported_in_order(
    dataset: Dataset, alice: User, clients: Clients, token: str
) -> None:
    """A25: one statement causes more events than a page holds."""
    job = make_job(dataset, alice, 2500)
    stream = clients(token).watch(job)
    actions.cancel(job)
    events = list(stream)

    assert numbers(events) == sorted(set(numbers(events)))
    assert kinds(events) == ["snapshot", *["chunk"] * 2500, "progress", "status"]
    assert events[-2].data["cancelled"] == 2500
    assert events[-1].data["status"] == "cancelled"


class NoQueries:
    """A condition: no query for three polling rounds."""

    def __init__(self, web: Web) -> None:
        self.web, self.count, self.since = web, -1.0, time.monotonic()

    def __call__(self) -> bool:
        if (count := queries(self.web)) != self.count:
            self.count, self.since = count, time.monotonic()
        return time.monotonic() - self.since > 1.5


# ---- Failures ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_streams_end_on_shutdown(dataset: Dataset, alice: User, own_web: Web, token: str) -> None:
    """Streams end after a complete event and with a regular end of the response, so that clients reconnect."""
    web = own_web
    stream = Client(web, token).watch(make_job(dataset, alice, 1))
    stream.take(1)
    wait_until(lambda: listeners(web) == 1)  # the hub starts to listen after the stream has opened
    process = web.started()
    process.send_stop_signal()
    assert list(stream) == []
    stream.disconnect()
    wait_until(lambda: not process.alive, limit=4)

    assert errors(web) == []


@pytest.mark.slow
def test_streams_survive_a_database_outage(dataset: Dataset, alice: User, own_web: Web, token: str) -> None:
    web = own_web
    stream = Client(web, token).watch(make_job(dataset, alice, 1))
    stream.take(1)
    name = connection.settings_dict["NAME"]
    # With three broken connections in the pool, the first query would fail only after 1 + 2 + 4 s.
    connection.close()
    connection.close_pool()  # type: ignore[attr-defined]
    with psycopg.connect(settings.SLUICE.database_url.get_secret_value(), autocommit=True) as elsewhere:
        elsewhere.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        try:
            elsewhere.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
            wait_until(lambda: "streams_wait_for_database" in web.started().log.read_text())
        finally:
            elsewhere.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
    fail_chunk()

    assert list(stream)[-1].data["status"] == "failed"
    stream.disconnect()
    assert web.started().log.read_text().count("streams_wait_for_database") == 1
    assert errors(web) == []
