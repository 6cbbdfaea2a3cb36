"""The documents API over real connections to a real web process: large bodies, long polling, streams. B1, B5, B12."""

import http.client
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.contrib.auth.models import User

from config.dev.stack.ports import LOOPBACK
from config.dev.stack.processes import Web
from etl import runstate
from etl.models import Task
from tests.e2e.conftest import Workers, serving_alone
from tests.e2e.test_streams import Client, Clients, errors, metric
from tests.integration.etl_factories import make_task
from tests.integration.etl_progress import MARKDOWN, begin, complete, read
from tests.serving import token_of
from tests.waiting import expect_within, wait_until

SUBMIT = "/api/v1/etl/submit"
MAX_FILE_BYTES = 100_000
BOUNDARY = "bound"
TYPE = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}


@pytest.fixture(scope="module")
def served(django_db_setup: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    """The web process of all tests that do not stop it."""
    with serving_alone(tmp_path_factory.mktemp("web"), ETL_MAX_FILE_BYTES=str(MAX_FILE_BYTES)) as running:
        yield running


@pytest.fixture
def web(served: Web, workers: Workers) -> Web:
    wait_until(lambda: waiting_requests(served) == 0)
    return served


@pytest.fixture
def clients(web: Web) -> Iterator[Clients]:
    clients = Clients(web)
    yield clients
    for client in clients.made:
        client.disconnect()


class RawClient:
    """A client with full control over its request body."""

    def __init__(self, web: Web, token: str) -> None:
        self.connection = http.client.HTTPConnection(LOOPBACK, web.port, timeout=20)
        self.headers = {"Authorization": f"Bearer {token}"}

    def send(self, body: Any, **headers: str) -> tuple[int, Any]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            self.connection.request("POST", SUBMIT, body=body, headers=self.headers | TYPE | named)
            return self.read_response()
        finally:
            self.connection.close()

    def send_headers_only(self, size: int) -> tuple[int, Any]:
        """Send the headers only, and read the response."""
        self.put_headers(size)
        try:
            self.connection.endheaders()
            return self.read_response()
        finally:
            self.connection.close()

    def put_headers(self, size: int) -> None:
        self.connection.putrequest("POST", SUBMIT)
        for name, value in (self.headers | TYPE | {"Content-Length": str(size)}).items():
            self.connection.putheader(name, value)

    def read_response(self) -> tuple[int, Any]:
        response = self.connection.getresponse()
        return response.status, json.loads(response.read())


@pytest.fixture
def raw_client(web: Web, token: str) -> RawClient:
    return RawClient(web, token)


def form(content: bytes) -> bytes:
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\n'
    return head.encode() + content + f"\r\n--{BOUNDARY}--\r\n".encode()


def in_parts(body: bytes) -> Iterator[bytes]:
    """Yield parts of the body. `http.client` sends them as chunks, without Content-Length."""
    for start in range(0, len(body), 10_000):
        yield body[start : start + 10_000]


# ---- Bodies ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_files_up_to_the_limit_are_accepted_with_or_without_a_length(raw_client: RawClient) -> None:
    """B12."""
    assert raw_client.send(form(b"x" * MAX_FILE_BYTES))[0] == 202
    assert raw_client.send(in_parts(form(b"y" * MAX_FILE_BYTES)))[0] == 202
    assert sorted(Task.objects.values_list("size", flat=True)) == [MAX_FILE_BYTES, MAX_FILE_BYTES]


def test_a_body_declared_too_large_is_refused_before_it_is_sent(raw_client: RawClient) -> None:
    """B12."""
    status, body = raw_client.send_headers_only(10**12)
    assert (status, body["code"]) == (413, "file_too_large")
    status, body = raw_client.send(form(b"x" * 50_000_000))  # a client that reads only after it has sent everything
    assert (status, body["code"]) == (413, "file_too_large")


@pytest.mark.parametrize("size", [MAX_FILE_BYTES + 1, MAX_FILE_BYTES + 20_000_000])
def test_a_body_found_too_large_is_refused(raw_client: RawClient, size: int) -> None:
    """B12: the parser refuses it, or the server does so earlier."""
    status, body = raw_client.send(in_parts(form(b"x" * size)))
    assert (status, body["code"]) == (413, "file_too_large")
    assert not Task.objects.exists()


def test_only_file_fields_may_be_large(raw_client: RawClient) -> None:
    status, body = raw_client.send(b" " * 6_000_000, Content_Type="application/json")
    assert (status, body["code"]) == (413, "body_too_large")


def test_a_truncated_body_creates_nothing(web: Web, raw_client: RawClient) -> None:
    raw_client.put_headers(5_000)
    raw_client.connection.endheaders(form(b"x")[:50])
    raw_client.connection.close()
    assert raw_client.send(form(b"Hello."))[0] == 202
    assert Task.objects.count() == 1
    assert errors(web) == []


# ---- Long polling and streams ---------------------------------------------------------------------------------------


def test_a_stream_reports_a_task_to_its_end(alice: User, web: Web, clients: Clients, token: str) -> None:
    """A25, B5."""
    task = make_task(alice)
    client = clients(token)
    response = client.request(f"/api/v1/etl/tasks/{task.pk}/events")
    assert (response.status, response.headers["Content-Type"]) == (200, "text/event-stream")
    assert response.readline() + response.readline() == b"retry: 3000\n\n"
    events = client.take(1)
    assert (events[0].event, events[0].data["status"]) == ("snapshot", "pending")
    complete(task)
    events += list(client)

    numbers = [each.id for each in events]
    assert numbers == sorted(set(numbers))
    assert (events[-1].event, events[-1].data["status"]) == ("status", "completed")
    assert clients(token).request(f"/api/v1/etl/tasks/{task.pk}/events", after=numbers[-1]).status == 204
    assert clients(token).problem(f"/api/v1/etl/tasks/{task.pk}/events", method="HEAD") == (405, "")
    assert clients().problem(f"/api/v1/etl/tasks/{task.pk}/events") == (401, "not_authenticated")
    assert errors(web) == []


def test_large_markdown_is_complete(alice: User, web: Web, clients: Clients, token: str) -> None:
    """B8."""
    task = make_task(alice)
    text = MARKDOWN + "§ line of text\n" * 100_000
    read(task, text)
    response = clients(token).request(f"/api/v1/etl/tasks/{task.pk}/markdown")
    assert response.read().decode() == text
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert errors(web) == []


@pytest.mark.slow
def test_more_requests_can_wait_than_the_database_pool_has_connections(
    alice: User,
    web: Web,
    clients: Clients,
    token: str,
) -> None:
    """B5: every waiting request gets the first change, and other requests get responses meanwhile."""
    users = [alice, *(User.objects.create_user(name, is_staff=True, is_superuser=True) for name in ("sam", "sue"))]
    tokens = [token, *(token_of(user) for user in users[1:])]
    task = make_task(alice)
    url = f"/api/v1/etl/tasks/{task.pk}"

    def wait(number: int) -> Any:
        # Longer than any timeout of this client, so that no response is due to a timeout.
        return json.loads(clients(tokens[number % 3]).request(f"{url}?wait=60").read())

    def fetch(url: str) -> None:
        assert clients(token).request(url).status == 200

    with ThreadPoolExecutor(36) as pool:
        waiting = [pool.submit(wait, number) for number in range(36)]
        wait_until(lambda: waiting_requests(web) == 36)
        expect_within(3, lambda: fetch(url))
        begin(task)
        assert {future.result(timeout=10)["status"] for future in waiting} == {"mineru_parsing"}
    assert errors(web) == []


def waiting_requests(web: Web) -> float:
    return metric(web, "etl_waits_begun_total") - metric(web, "etl_waits_ended_total")


@pytest.mark.slow
def test_a_stopping_process_responds_to_waiting_requests(alice: User, own_web: Web, token: str) -> None:
    web, client = own_web, Client(own_web, token)
    task = make_task(alice)
    state = runstate.read(task.pk)
    assert state
    process = web.started()
    statuses: list[int] = []
    waiter = threading.Thread(
        target=lambda: statuses.append(client.request(f"/api/v1/etl/tasks/{task.pk}?wait=60").status)
    )
    waiter.start()
    wait_until(lambda: waiting_requests(web) == 1)
    process.send_stop_signal()
    waiter.join(timeout=5)
    wait_until(lambda: not process.alive, limit=4)
    client.disconnect()
    assert statuses == [200]
    assert errors(web) == []
