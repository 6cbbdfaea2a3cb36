"""Requests through the real nginx with the configuration of docker/proxy: exports, streams, downloads, refusals."""

import http.client
import json
import os
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import pytest
from django.contrib.auth.models import User

from exports.models import Dataset, Job
from tests.integration.factories import end_chunk, make_job
from tests.operations.compose import SERVICES, Machine, own_machine, seconds
from tests.operations.proxy import Proxy
from tests.serving import token_of, variables
from tests.waiting import wait_until

MOST = 1_000_000  # bytes of a file
DATE = "2024-02-28"


@pytest.fixture
def machine(transactional_db: None, tmp_path: Path) -> Iterator[Machine]:
    with own_machine(tmp_path, variables(tmp_path)) as machine:
        machine.given["ETL_MAX_FILE_BYTES"] = str(MOST)
        yield machine


@pytest.fixture
def proxy(machine: Machine) -> Proxy:
    storage = urlsplit(os.environ["S3_ENDPOINT_URL"]).netloc
    proxy = Proxy(machine, {"web:8000": f"127.0.0.1:{machine.web_port}", "seaweedfs:8333": storage})
    machine.given["S3_PUBLIC_ENDPOINT_URL"] = proxy.files
    return proxy


@pytest.fixture
def site(machine: Machine, proxy: Proxy) -> Proxy:
    """The proxy before web, both healthy."""
    machine.start("web")
    proxy.start()
    machine.wait_until_healthy("proxy")
    return proxy


class Client:
    """One connection, by the port that the container would listen on. All of them are closed after each test."""

    opened: ClassVar[list[Any]] = []

    def __init__(self, proxy: Proxy, user: User | None = None, *, port: int = 8080) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", proxy.ports[port], timeout=30)
        self.headers = {"Authorization": f"Bearer {token_of(user)}"} if user else {}

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> http.client.HTTPResponse:
        given = self.headers | {name.replace("_", "-"): value for name, value in headers.items()}
        self.connection.request(method, path, body=body, headers=given)
        answer = self.connection.getresponse()
        self.opened.extend((answer, self.connection))
        return answer

    def json(self, method: str, path: str, content: Any = None, **headers: str) -> tuple[int, Any]:
        body = None if content is None else json.dumps(content).encode()
        answer = self.ask(method, path, body, **{"Content-Type": "application/json", **headers})
        return answer.status, json.loads(answer.read())


@pytest.fixture(autouse=True)
def _connections_end() -> Iterator[None]:
    yield
    while Client.opened:
        Client.opened.pop().close()


def events(stream: http.client.HTTPResponse) -> Iterator[tuple[str, Any]]:
    """Yield events as they come, until the stream ends as it should: http.client raises at a cut."""
    name = ""
    while line := stream.readline().decode():
        if line.startswith("event: "):
            name = line.removeprefix("event: ").strip()
        if line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


REQUEST = {"dataset": "things", "items": [{"key": "JFK", "effectiveDate": DATE}]}


# ---- What passes ----------------------------------------------------------------------------------------------------
def test_an_export_runs_from_the_request_to_the_file(
    machine: Machine, site: Proxy, dataset: Dataset, alice: User
) -> None:
    """C6."""
    machine.start("worker-exports")
    machine.start("worker-bundles")
    client = Client(site, alice)
    status, job = client.json("POST", "/exports", REQUEST)
    assert status == 202, job
    stream = Client(site, alice).ask("GET", f"/exports/{job['jobId']}/events")
    assert stream.headers["Content-Type"] == "text/event-stream"
    *_, (name, last) = events(stream)
    assert (name, last["status"]) == ("status", "success")

    link = client.json("GET", f"/exports/{job['jobId']}")[1]["receipt"]["signedUrl"]
    assert link.startswith(f"{site.url}/")
    link = link.removeprefix(site.url)
    redirect = client.ask("GET", link)
    redirect.read()
    assert redirect.status == 302, redirect.headers
    target = redirect.headers["Location"]
    assert target.startswith(f"{site.files}/"), target
    parts = urlsplit(target)
    files = Client(site, port=8333)
    download = files.ask("GET", f"{parts.path}?{parts.query}")
    assert (download.status, download.read()) == (200, f"k,n,d\n{rows()}".encode())
    assert client.json("GET", link)[1]["code"] == "link_used"
    # Object storage is there for what is signed, and is not written to or deleted from but by presigned PUTs.
    assert b"AccessDenied" in files.ask("GET", parts.path).read()
    assert files.ask("DELETE", parts.path).status == 403

    told = site.logs()
    assert '"event":"request"' in told
    assert not [
        secret
        for secret in (link, parts.path, parts.query, job["jobId"], client.headers["Authorization"])
        if secret in told
    ]


def rows() -> str:
    return "".join(f"JFK,{number},{DATE}\n" for number in (1, 2, 3))


def test_each_event_arrives_when_it_happens(site: Proxy, dataset: Dataset, alice: User) -> None:
    job = make_job(dataset, alice, 3)
    told = events(Client(site, alice).ask("GET", f"/exports/{job.pk}/events"))
    assert next(told)[0] == "snapshot"
    for number in range(3):
        end_chunk()  # the next one only when this one was told
        done = next(data for name, data in told if name == "chunk" and data["status"] == "done")
        assert done["key"] == "JFK", number


# ---- What does not --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("path", ["/metrics", "/metrics?a=b", "//metrics", "/%6detrics", "/x/../metrics", "/metrics/"])
def test_metrics_are_not_public(machine: Machine, site: Proxy, path: str) -> None:
    answer = Client(site).ask("GET", path)

    assert answer.status == 404
    assert b"# TYPE" not in answer.read()
    inside = Client(site)
    inside.connection.port = machine.web_port
    assert b"# TYPE" in inside.ask("GET", "/metrics").read()


SPOOFS: dict[str, Any] = {
    "X_Forwarded_For": "203.0.113.9",
    "X_Forwarded_Proto": "https",
    "X_Forwarded_Host": "evil.example",
    "Forwarded": "for=203.0.113.9;host=evil.example",
    "X_Real_IP": "203.0.113.9",
}


def network_and_scheme(site: Proxy, alice: User) -> tuple[str, str]:
    """Submit as somebody who says to be elsewhere; return what web takes the client's network and scheme for."""
    status, job = Client(site, alice).json("POST", "/exports", REQUEST, **SPOOFS)
    assert status == 202, job
    sign_in = Client(site).ask("GET", "/app/exports", **SPOOFS)
    assert "evil.example" not in str(sign_in.headers)
    home = Client(site).ask("GET", "/", **SPOOFS).read().decode()
    scheme = "https" if f"https://{site.url.removeprefix('http://')}" in home else "http"
    assert f"{scheme}://{site.url.removeprefix('http://')}" in home
    return Job.objects.get(pk=job["jobId"]).network, scheme


def test_what_a_client_says_of_itself_is_not_believed(site: Proxy, dataset: Dataset, alice: User) -> None:
    assert network_and_scheme(site, alice) == ("127.0.0.0/24", "http")


def test_a_proxy_that_is_trusted_is_believed(machine: Machine, proxy: Proxy, dataset: Dataset, alice: User) -> None:
    machine.given["TRUSTED_PROXY_CIDRS"] = "10.1.0.0/16, 127.0.0.1/32"
    machine.start("web")
    proxy.start()
    machine.wait_until_healthy("proxy")

    assert network_and_scheme(proxy, alice) == ("203.0.113.0/24", "https")


def test_a_body_that_is_too_large_is_told_so(site: Proxy, alice: User) -> None:
    clients = iter(partial(Client, site, alice), None)  # a refused body ends its connection
    form = {"Content_Type": "multipart/form-data; boundary=x"}

    by_web = next(clients).json("POST", "/exports", "x" * (5 * 1024**2 + 1))
    by_proxy = next(clients).json("POST", "/exports", "x" * (6 * 1024**2 + 1))
    file_by_web = next(clients).ask("POST", "/api/v1/etl/submit", b"x" * (2 * MOST), **form)
    told = json.loads(file_by_web.read())
    file_by_proxy = next(clients).ask("POST", "/api/v1/etl/submit", b"x" * (3 * MOST + 100_000), **form)

    assert (by_web[0], by_web[1]["code"], "requestId" in by_web[1]) == (413, "body_too_large", True)
    assert (by_proxy[0], by_proxy[1]["code"], "requestId" in by_proxy[1]) == (413, "body_too_large", False)
    assert (file_by_web.status, told["code"]) == (413, "file_too_large")
    assert file_by_proxy.status == 413
    assert file_by_proxy.headers["Content-Type"] == "application/problem+json"


def test_a_stranger_is_refused_before_the_file_is_sent(site: Proxy) -> None:
    with socket.create_connection(("127.0.0.1", site.ports[8080]), timeout=30) as raw:
        raw.sendall(
            b"POST /api/v1/etl/submit HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500000\r\n"
            b"Content-Type: multipart/form-data; boundary=x\r\n\r\n"
        )
        assert raw.recv(100).startswith(b"HTTP/1.1 401 ")


def test_an_address_may_have_so_many_connections(machine: Machine, proxy: Proxy, dataset: Dataset, alice: User) -> None:
    proxy.instead["limit_conn addresses 500;"] = "limit_conn addresses 2;"
    machine.start("web")
    proxy.start()
    machine.wait_until_healthy("proxy")
    path = f"/exports/{make_job(dataset, alice, 1).pk}/events"
    streams = [Client(proxy, alice) for _ in range(2)]
    assert [stream.ask("GET", path).status for stream in streams] == [200, 200]

    answer = Client(proxy, alice).ask("GET", "/exports")
    assert (answer.status, answer.headers["Retry-After"]) == (429, "30")
    assert json.loads(answer.read())["code"] == "too_many_connections"
    while Client.opened:
        Client.opened.pop().close()
    wait_until(lambda: Client(proxy, alice).ask("GET", "/exports").status == 200)


def test_staff_reach_what_is_beside_by_a_port_of_its_own(machine: Machine, proxy: Proxy) -> None:
    proxy.instead["grafana:3000"] = f"127.0.0.1:{machine.web_port}"  # something that answers
    machine.start("web")
    proxy.start()
    machine.wait_until_healthy("proxy")

    assert Client(proxy, port=3000).ask("GET", "/livez").status == 200
    assert Client(proxy, port=5555).ask("GET", "/livez").status == 502


class Echo(BaseHTTPRequestHandler):
    """Answers with what it was asked, as it arrived."""

    def do_GET(self) -> None:
        body = json.dumps(dict(self.headers.items())).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_told: object) -> None:
        pass


def test_nor_is_it_on_the_ports_of_staff(machine: Machine, proxy: Proxy) -> None:
    """Grafana counts wrong passwords by address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Echo) as grafana:
        threading.Thread(target=grafana.serve_forever, daemon=True).start()
        proxy.instead["grafana:3000"] = f"127.0.0.1:{grafana.server_port}"
        machine.start("web")
        proxy.start()
        machine.wait_until_healthy("proxy")

        arrived = Client(proxy, port=3000).json("GET", "/", **SPOOFS)[1]
        upgraded = Client(proxy, port=3000).json("GET", "/", Upgrade="websocket", Connection="upgrade")[1]
        grafana.shutdown()

    assert arrived["X-Forwarded-For"] == "127.0.0.1"
    assert not [value for value in arrived.values() if "203.0.113.9" in value or "evil.example" in value]
    assert arrived["Connection"] == "close"
    assert (upgraded["Upgrade"], upgraded["Connection"]) == ("websocket", "upgrade")


# ---- Ends -----------------------------------------------------------------------------------------------------------
def test_when_web_ends_streams_end_well_and_clients_are_told_to_come_again(
    machine: Machine, site: Proxy, dataset: Dataset, alice: User
) -> None:
    job = make_job(dataset, alice, 2)
    told = events(Client(site, alice).ask("GET", f"/exports/{job.pk}/events"))
    assert next(told)[0] == "snapshot"
    [web] = [process for process in machine.running if process.name == "web"]
    web.ask_to_stop()
    assert list(told) == []  # to its end, without an error
    web.wait(30)

    answer = Client(site, alice).ask("GET", "/exports")
    assert (answer.status, answer.headers["Retry-After"]) == (503, "5")
    assert json.loads(answer.read())["code"] == "unavailable"
    assert not machine.is_healthy("proxy")

    web.start()
    wait_until(lambda: Client(site, alice).ask("GET", "/exports").status == 200)
    assert machine.is_healthy("proxy")


def test_the_proxy_lets_responses_end(machine: Machine, site: Proxy, dataset: Dataset, alice: User) -> None:
    job = make_job(dataset, alice, 1)
    client = Client(site, alice)
    stream = client.ask("GET", f"/exports/{job.pk}/events")
    told = events(stream)
    assert next(told)[0] == "snapshot"
    assert site.process
    site.process.ask_to_stop()
    wait_until(lambda: refused(site))
    end_chunk()
    assert next(name for name, data in told if name == "chunk" and data["status"] == "done")
    stream.close()
    client.connection.close()  # the last one
    site.process.wait(seconds(SERVICES["proxy"]["stop_grace_period"]))
    assert site.process.exit_status == 0


def refused(site: Proxy) -> bool:
    try:
        socket.create_connection(("127.0.0.1", site.ports[8080]), timeout=5).close()
    except ConnectionRefusedError:
        return True
    return False


# ---- TLS ------------------------------------------------------------------------------------------------------------
def test_with_a_certificate_everything_is_https(machine: Machine, proxy: Proxy, dataset: Dataset, alice: User) -> None:
    make_certificate(machine)
    machine.start("web")
    proxy.start()
    machine.wait_until_healthy("proxy")

    plain = Client(proxy).ask("GET", "/app/exports?a=b")
    assert (plain.status, plain.headers["Location"]) == (308, "https://127.0.0.1/app/exports?a=b")
    context = ssl.create_default_context(cafile=str(machine.secret("tls_certificate")))
    client = Client(proxy, alice)
    client.connection = http.client.HTTPSConnection("localhost", proxy.ports[8443], context=context, timeout=30)
    answer = client.ask("GET", "/exports")
    assert (answer.status, answer.headers["Strict-Transport-Security"]) == (200, "max-age=31536000")
    answer.read()
    home = client.ask("GET", "/").read().decode()
    assert f"https://localhost:{proxy.ports[8443]}" in home
    # Also where the proxy answers by itself.
    machine.running[0].kill()
    away = client.ask("GET", "/exports")
    assert (away.status, away.headers["Strict-Transport-Security"]) == (503, "max-age=31536000")
    away.read()
    # By the name that begins with `files.`, S3 answers in its own words.
    files = client.ask("GET", "/bucket/key", Host="files.example.org")
    assert (files.status, b"<Code>" in files.read()) == (403, True)


def make_certificate(machine: Machine) -> None:
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=DNS:localhost"]
    files = ["-out", str(machine.secret("tls_certificate")), "-keyout", str(machine.secret("tls_key"))]
    subprocess.run([*command, *names, *files], check=True, capture_output=True)
