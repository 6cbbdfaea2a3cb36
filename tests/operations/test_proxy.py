"""Requests through a real nginx with the configuration of docker/proxy: exports, streams, downloads, refusals."""

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
from tests.operations.compose import SERVICES, Machine, machine_with_servers, seconds
from tests.operations.proxy import Proxy
from tests.serving import token_of, variables
from tests.waiting import wait_until

MAX_FILE_BYTES = 1_000_000
DATE = "2024-02-28"


@pytest.fixture
def machine(transactional_db: None, tmp_path: Path) -> Iterator[Machine]:
    with machine_with_servers(tmp_path, variables(tmp_path)) as machine:
        machine.dotenv["ETL_MAX_FILE_BYTES"] = str(MAX_FILE_BYTES)
        machine.dotenv["ETL_MAX_BATCH_BYTES"] = "1"  # the proxy adds it to its limit of all uploads
        yield machine


@pytest.fixture
def proxy(machine: Machine) -> Proxy:
    storage = urlsplit(os.environ["S3_ENDPOINT_URL"]).netloc
    proxy = Proxy(machine, {"web:8000": f"127.0.0.1:{machine.web_port}", "seaweedfs:8333": storage})
    machine.dotenv["S3_PUBLIC_ENDPOINT_URL"] = proxy.files
    return proxy


@pytest.fixture
def site(machine: Machine, proxy: Proxy) -> Proxy:
    """The proxy in front of web, both healthy."""
    start(machine, proxy)
    return proxy


def start(machine: Machine, proxy: Proxy) -> None:
    machine.start("web")
    proxy.start()
    machine.wait_until_healthy("proxy")


class Client:
    """One connection to the proxy. `port`: the port in the container. The test's teardown closes the connection."""

    opened: ClassVar[list[Any]] = []

    def __init__(self, proxy: Proxy, user: User | None = None, *, port: int = 8080) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", proxy.ports[port], timeout=30)
        self.headers = {"Authorization": f"Bearer {token_of(user)}"} if user else {}

    def request(self, method: str, path: str, body: bytes | None = None, **headers: str) -> http.client.HTTPResponse:
        given = self.headers | {name.replace("_", "-"): value for name, value in headers.items()}
        self.connection.request(method, path, body=body, headers=given)
        response = self.connection.getresponse()
        self.opened.extend((response, self.connection))
        return response

    def json(self, method: str, path: str, content: Any = None, **headers: str) -> tuple[int, Any]:
        body = None if content is None else json.dumps(content).encode()
        response = self.request(method, path, body, **{"Content-Type": "application/json", **headers})
        return response.status, json.loads(response.read())


@pytest.fixture(autouse=True)
def _close_connections() -> Iterator[None]:
    yield
    close_connections()


def close_connections() -> None:
    while Client.opened:
        Client.opened.pop().close()


def events(stream: http.client.HTTPResponse) -> Iterator[tuple[str, Any]]:
    """Yield events as they arrive until the stream ends normally. http.client raises an error if it is cut off."""
    name = ""
    while line := stream.readline().decode():
        if line.startswith("event: "):
            name = line.removeprefix("event: ").strip()
        if line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


REQUEST = {"dataset": "things", "items": [{"key": "JFK", "effectiveDate": DATE}]}


# ---- Allowed requests ----------------------------------------------------------------------------------------------
def test_an_export_works_through_the_proxy(machine: Machine, site: Proxy, dataset: Dataset, alice: User) -> None:
    """C6."""
    machine.start("worker-exports")
    machine.start("worker-bundles")
    client = Client(site, alice)
    status, job = client.json("POST", "/exports", REQUEST)
    assert status == 202, job
    stream = Client(site, alice).request("GET", f"/exports/{job['jobId']}/events")
    assert stream.headers["Content-Type"] == "text/event-stream"
    *_, (name, last) = events(stream)
    assert (name, last["status"]) == ("status", "success")

    link = client.json("GET", f"/exports/{job['jobId']}")[1]["receipt"]["signedUrl"]
    assert link.startswith(f"{site.url}/")
    link = link.removeprefix(site.url)
    redirect = client.request("GET", link)
    redirect.read()
    assert redirect.status == 302, redirect.headers
    target = redirect.headers["Location"]
    assert target.startswith(f"{site.files}/"), target
    parts = urlsplit(target)
    files = Client(site, port=8333)
    download = files.request("GET", f"{parts.path}?{parts.query}")
    assert (download.status, download.read()) == (200, f"k,n,d\n{rows()}".encode())
    assert client.json("GET", link)[1]["code"] == "link_used"
    # Object storage refuses unsigned requests, and the proxy refuses DELETE.
    assert b"AccessDenied" in files.request("GET", parts.path).read()
    assert files.request("DELETE", parts.path).status == 403

    log = site.logs()
    assert '"event":"request"' in log
    assert not [
        secret
        for secret in (link, parts.path, parts.query, job["jobId"], client.headers["Authorization"])
        if secret in log
    ]


def rows() -> str:
    return "".join(f"JFK,{number},{DATE}\n" for number in (1, 2, 3))


def test_each_event_arrives_when_it_happens(site: Proxy, dataset: Dataset, alice: User) -> None:
    job = make_job(dataset, alice, 3)
    received = events(Client(site, alice).request("GET", f"/exports/{job.pk}/events"))
    assert next(received)[0] == "snapshot"
    for number in range(3):
        end_chunk()  # the next event is sent only after this one was received
        done = next(data for name, data in received if name == "chunk" and data["status"] == "done")
        assert done["key"] == "JFK", number


# ---- Refused requests ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("path", ["/metrics", "/metrics?a=b", "//metrics", "/%6detrics", "/x/../metrics", "/metrics/"])
def test_metrics_are_not_public_through_the_proxy(machine: Machine, site: Proxy, path: str) -> None:
    response = Client(site).request("GET", path)

    assert response.status == 404
    assert b"# TYPE" not in response.read()
    inside = Client(site)
    inside.connection.port = machine.web_port
    assert b"# TYPE" in inside.request("GET", "/metrics").read()


SPOOFS: dict[str, Any] = {
    "X_Forwarded_For": "203.0.113.9",
    "X_Forwarded_Proto": "https",
    "X_Forwarded_Host": "evil.example",
    "Forwarded": "for=203.0.113.9;host=evil.example",
    "X_Real_IP": "203.0.113.9",
}


def network_and_scheme(site: Proxy, alice: User) -> tuple[str, str]:
    """Submit with spoofed headers, and return the network and the scheme that web derives for the client."""
    status, job = Client(site, alice).json("POST", "/exports", REQUEST, **SPOOFS)
    assert status == 202, job
    sign_in = Client(site).request("GET", "/app/exports", **SPOOFS)
    assert "evil.example" not in str(sign_in.headers)
    home = Client(site).request("GET", "/", **SPOOFS).read().decode()
    scheme = "https" if f"https://{site.url.removeprefix('http://')}" in home else "http"
    assert f"{scheme}://{site.url.removeprefix('http://')}" in home
    return Job.objects.get(pk=job["jobId"]).network, scheme


def test_spoofed_forwarding_headers_are_ignored(site: Proxy, dataset: Dataset, alice: User) -> None:
    assert network_and_scheme(site, alice) == ("127.0.0.0/24", "http")


def test_headers_of_a_trusted_proxy_are_used(machine: Machine, proxy: Proxy, dataset: Dataset, alice: User) -> None:
    machine.dotenv["TRUSTED_PROXY_CIDRS"] = "10.1.0.0/16, 127.0.0.1/32"
    start(machine, proxy)

    assert network_and_scheme(proxy, alice) == ("203.0.113.0/24", "https")


def test_a_body_that_is_too_large_is_refused(site: Proxy, alice: User) -> None:
    clients = iter(partial(Client, site, alice), None)  # a refused body ends its connection
    form = {"Content_Type": "multipart/form-data; boundary=x"}

    by_web = next(clients).json("POST", "/exports", "x" * (5 * 1024**2 + 1))
    by_proxy = next(clients).json("POST", "/exports", "x" * (6 * 1024**2 + 1))
    file_by_web = next(clients).request("POST", "/api/v1/etl/submit", b"x" * (2 * MAX_FILE_BYTES), **form)
    problem = json.loads(file_by_web.read())
    file_by_proxy = next(clients).request("POST", "/api/v1/etl/submit", b"x" * (3 * MAX_FILE_BYTES + 100_000), **form)

    assert (by_web[0], by_web[1]["code"], "requestId" in by_web[1]) == (413, "body_too_large", True)
    assert (by_proxy[0], by_proxy[1]["code"], "requestId" in by_proxy[1]) == (413, "body_too_large", False)
    assert (file_by_web.status, problem["code"]) == (413, "file_too_large")
    assert file_by_proxy.status == 413
    assert "requestId" not in json.loads(file_by_proxy.read()), "web refused it, not the proxy"
    assert file_by_proxy.headers["Content-Type"] == "application/problem+json"


def test_an_anonymous_upload_is_refused_before_the_file_is_sent(site: Proxy) -> None:
    with socket.create_connection(("127.0.0.1", site.ports[8080]), timeout=30) as raw:
        raw.sendall(
            b"POST /api/v1/etl/submit HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500000\r\n"
            b"Content-Type: multipart/form-data; boundary=x\r\n\r\n"
        )
        assert raw.recv(100).startswith(b"HTTP/1.1 401 ")


def test_connections_per_address_are_limited(machine: Machine, proxy: Proxy, dataset: Dataset, alice: User) -> None:
    proxy.replacements["limit_conn addresses 500;"] = "limit_conn addresses 2;"
    start(machine, proxy)
    path = f"/exports/{make_job(dataset, alice, 1).pk}/events"
    streams = [Client(proxy, alice) for _ in range(2)]
    assert [stream.request("GET", path).status for stream in streams] == [200, 200]

    response = Client(proxy, alice).request("GET", "/exports")
    assert (response.status, response.headers["Retry-After"]) == (429, "30")
    assert json.loads(response.read())["code"] == "too_many_connections"
    close_connections()
    wait_until(lambda: Client(proxy, alice).request("GET", "/exports").status == 200)


def test_preflight_requests_reach_the_object_storage(machine: Machine, proxy: Proxy) -> None:
    proxy.replacements["seaweedfs:8333"] = f"127.0.0.1:{machine.web_port}"  # any server
    start(machine, proxy)

    assert Client(proxy, port=8333).request("OPTIONS", "/livez").status not in {403, 502, 503}
    assert Client(proxy, port=8333).request("DELETE", "/livez").status == 403


def test_staff_reach_the_monitoring_tools_on_their_own_ports(machine: Machine, proxy: Proxy) -> None:
    proxy.replacements["grafana:3000"] = f"127.0.0.1:{machine.web_port}"  # any server
    start(machine, proxy)

    assert Client(proxy, port=3000).request("GET", "/livez").status == 200
    assert Client(proxy, port=5555).request("GET", "/livez").status == 502


class Echo(BaseHTTPRequestHandler):
    """A server that responds with the headers of the request."""

    def do_GET(self) -> None:
        body = json.dumps(dict(self.headers.items())).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None:
        pass


def test_spoofed_headers_are_ignored_on_staff_ports_too(machine: Machine, proxy: Proxy) -> None:
    """Grafana counts wrong passwords by address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Echo) as grafana:
        threading.Thread(target=grafana.serve_forever, daemon=True).start()
        proxy.replacements["grafana:3000"] = f"127.0.0.1:{grafana.server_port}"
        start(machine, proxy)

        arrived = Client(proxy, port=3000).json("GET", "/", **SPOOFS)[1]
        upgraded = Client(proxy, port=3000).json("GET", "/", Upgrade="websocket", Connection="upgrade")[1]
        grafana.shutdown()

    assert arrived["X-Forwarded-For"] == "127.0.0.1"
    assert not [value for value in arrived.values() if "203.0.113.9" in value or "evil.example" in value]
    assert arrived["Connection"] == "close"
    assert (upgraded["Upgrade"], upgraded["Connection"]) == ("websocket", "upgrade")


# ---- Shutdown ------------------------------------------------------------------------------------------------------
def test_a_web_shutdown_ends_streams_cleanly_and_asks_clients_to_retry(
    machine: Machine, site: Proxy, dataset: Dataset, alice: User
) -> None:
    job = make_job(dataset, alice, 2)
    received = events(Client(site, alice).request("GET", f"/exports/{job.pk}/events"))
    assert next(received)[0] == "snapshot"
    [web] = [process for process in machine.running if process.name == "web"]
    web.send_stop_signal()
    assert list(received) == []  # to its end, without an error
    web.wait(30)

    response = Client(site, alice).request("GET", "/exports")
    assert (response.status, response.headers["Retry-After"]) == (503, "5")
    assert json.loads(response.read())["code"] == "unavailable"
    assert not machine.is_healthy("proxy")

    web.start()
    wait_until(lambda: Client(site, alice).request("GET", "/exports").status == 200)
    assert machine.is_healthy("proxy")


def test_a_proxy_shutdown_lets_responses_finish(machine: Machine, site: Proxy, dataset: Dataset, alice: User) -> None:
    job = make_job(dataset, alice, 1)
    client = Client(site, alice)
    stream = client.request("GET", f"/exports/{job.pk}/events")
    received = events(stream)
    assert next(received)[0] == "snapshot"
    assert site.process
    site.process.send_stop_signal()
    wait_until(lambda: refused(site))
    end_chunk()
    assert next(name for name, data in received if name == "chunk" and data["status"] == "done")
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
def test_everything_is_https_with_a_certificate(machine: Machine, proxy: Proxy, dataset: Dataset, alice: User) -> None:
    make_certificate(machine)
    start(machine, proxy)

    plain = Client(proxy).request("GET", "/app/exports?a=b")
    assert (plain.status, plain.headers["Location"]) == (308, "https://127.0.0.1/app/exports?a=b")
    context = ssl.create_default_context(cafile=str(machine.secret("tls_certificate")))
    client = Client(proxy, alice)
    client.connection = http.client.HTTPSConnection("localhost", proxy.ports[8443], context=context, timeout=30)
    response = client.request("GET", "/exports")
    assert (response.status, response.headers["Strict-Transport-Security"]) == (200, "max-age=31536000")
    response.read()
    home = client.request("GET", "/").read().decode()
    assert f"https://localhost:{proxy.ports[8443]}" in home
    # Also for the proxy's own responses.
    machine.running[0].kill()
    unavailable = client.request("GET", "/exports")
    assert (unavailable.status, unavailable.headers["Strict-Transport-Security"]) == (503, "max-age=31536000")
    unavailable.read()
    # With a host name that starts with `files.`, S3 responds in its own format.
    files = client.request("GET", "/bucket/key", Host="files.example.org")
    assert (files.status, b"<Code>" in files.read()) == (403, True)


def make_certificate(machine: Machine) -> None:
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=DNS:localhost"]
    files = ["-out", str(machine.secret("tls_certificate")), "-keyout", str(machine.secret("tls_key"))]
    subprocess.run([*command, *names, *files], check=True, capture_output=True)
