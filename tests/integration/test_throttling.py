"""Rate limits: shared windows in Valkey, and a Valkey that does not respond. A2."""

import gc
import socket
import time
from collections.abc import Iterator
from ipaddress import ip_network
from typing import Any

import limits
import pytest
from django.conf import LazySettings
from django.contrib.auth.models import User
from django.test import Client
from django.urls import URLPattern
from prometheus_client import REGISTRY
from pydantic import SecretStr
from redis import Redis
from rest_framework.test import APIClient

from config import env
from config.platform.http import circuit_breaker, health, throttling
from exports import urls
from exports.models import Dataset, Job
from tests.broker import valkey
from tests.conftest import change_settings, client_of
from tests.integration.faulty_redis import relaying
from tests.integration.test_leases import in_threads
from tests.waiting import expect_within, wait_until

BODY = {"dataset": "things", "items": [{"key": "JFK", "effectiveDate": "2024-02-29"}]}
UNKNOWN_JOB = "/exports/00000000-0000-0000-0000-000000000000"
BAD_LINK = f"{UNKNOWN_JOB}/download?token=x"
RESPONSE_SECONDS = throttling.RESPONSE_SECONDS  # before the tests' longer timeouts apply


@pytest.fixture(autouse=True)
def windows() -> Iterator[Redis]:
    """Empty the windows in Valkey, and drop the connections of this process to it."""
    throttling.limiter_of.cache_clear()
    server = valkey()
    server.flushdb()
    yield server
    throttling.limiter_of.cache_clear()


@pytest.fixture
def production_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the timeout of production for Valkey, not the longer timeout of the tests."""
    monkeypatch.setattr(throttling, "RESPONSE_SECONDS", RESPONSE_SECONDS)


@pytest.fixture
def silent(production_timeout: None) -> Iterator[socket.socket]:
    """A server that accepts connections and never responds."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listener:
        yield listener


def valkey_at(settings: LazySettings, port: int) -> None:
    change_settings(settings, redis_url=SecretStr(f"redis://:hunter2@127.0.0.1:{port}/0"))


def connections_to(listener: socket.socket) -> int:
    """Return the number of connections to a server since the last call."""
    listener.settimeout(0.2)
    count = 0
    while True:
        try:
            listener.accept()[0].close()
        except TimeoutError:
            return count
        count += 1


def wait_seconds(response: Any) -> int:
    """Check that a response is a refusal by a rate limit, and return its Retry-After."""
    assert response.status_code == 429
    assert response["Content-Type"] == "application/problem+json"
    assert response.json()["code"] == "rate_limited"
    return int(response["Retry-After"])


# ---- Rates ----------------------------------------------------------------------------------------------------------


def test_parallel_requests_cannot_exceed_the_limit(
    dataset: Dataset, api: APIClient, bob: User, settings: LazySettings
) -> None:
    """A2: refused requests change nothing, and other users are not affected."""
    change_settings(settings, export_rate="5/h")
    statuses = in_threads(20, lambda _: api.post("/exports", BODY).status_code)

    assert (statuses.count(202), statuses.count(429)) == (5, 15)
    assert Job.objects.count() == 5
    assert 3570 <= wait_seconds(api.post("/exports", BODY)) <= 3600
    assert api.get("/exports").status_code == 200
    assert client_of(bob).post("/exports", BODY).status_code == 202


def test_refusals_are_counted(api: APIClient, settings: LazySettings) -> None:
    """A27."""

    def refusals() -> float:
        text = APIClient().get("/metrics", REMOTE_ADDR="127.0.0.1").content.decode()
        return float(text.partition("\nexport_rate_limited_total ")[2].partition("\n")[0])

    change_settings(settings, export_rate="1/min", export_download_rate="1/min")
    before = refusals()
    assert [api.post("/exports", {}).status_code for _ in range(3)] == [400, 429, 429]
    assert [APIClient().get(BAD_LINK).status_code for _ in range(2)] == [403, 429]
    assert refusals() == before + 3


def test_refusals_of_document_etl_and_rules_are_counted(api: APIClient, settings: LazySettings) -> None:
    """A27, B23: both share one rate limit."""

    def refusals() -> float:
        return REGISTRY.get_sample_value("etl_rate_limited_total") or 0

    change_settings(settings, etl_rate="1/min", etl_poll_rate="1/min")
    before = refusals()
    assert [api.post("/api/v1/etl/rules", {}).status_code for _ in range(2)] == [400, 429]
    assert api.post("/api/v1/etl/submit", {}).status_code == 429
    assert [api.get("/api/v1/etl/rules").status_code for _ in range(2)] == [200, 429]
    assert api.get("/api/v1/etl/tasks").status_code == 429
    assert refusals() == before + 4


def test_processes_share_the_limit(settings: LazySettings) -> None:
    """A2: each thread has its own limiter, as each process has."""
    rate = limits.RateLimitItemPerHour(5, namespace="test")
    url = settings.SLUICE.redis_url.get_secret_value()
    waits = in_threads(20, lambda _: throttling.Limiter(url).wait(rate, "x"))
    assert waits.count(0) == 5
    assert all(3590 < wait <= 3600 for wait in waits if wait)


def test_only_posts_count_toward_the_write_limit(api: APIClient, settings: LazySettings) -> None:
    """A2: also invalid ones."""
    change_settings(settings, export_rate="1/min")
    for method in ("get", "put", "patch", "delete"):
        assert getattr(api, method)(f"{UNKNOWN_JOB}/retry").status_code == 405
    assert api.post(f"{UNKNOWN_JOB}/retry").status_code == 404
    assert wait_seconds(api.post("/exports/preview", BODY))


def test_reads_have_a_separate_limit(api: APIClient, settings: LazySettings) -> None:
    change_settings(settings, export_poll_rate="2/min")
    assert [api.get(path).status_code for path in ("/exports", UNKNOWN_JOB)] == [200, 404]
    assert wait_seconds(api.get("/exports/datasets"))
    assert api.post("/exports", {}).status_code == 400


def test_refusals_have_a_retry_after(api: APIClient, alice: User, settings: LazySettings, windows: Redis) -> None:
    """Retry-After is the time until the oldest request leaves the window."""
    change_settings(settings, export_rate="3/h")
    ages = {"oldest": 3600 - 900, "middle": 20, "youngest": 10}
    windows.rpush(f"sluice:rate:export_rate/{alice.pk}/3/1/hour", *[time.time() - age for age in sorted(ages.values())])

    assert 870 <= wait_seconds(api.post("/exports", {})) <= 900


@pytest.mark.slow
def test_a_request_after_retry_after_is_accepted(api: APIClient, settings: LazySettings) -> None:
    """Refused requests do not count: a client that waits is accepted."""
    change_settings(settings, export_rate="2/sec")
    while (refused := api.post("/exports", {})).status_code != 429:
        pass
    deadline = asked_at = time.monotonic() + wait_seconds(refused)
    while api.post("/exports", {}).status_code == 429:
        assert asked_at <= deadline
        asked_at = time.monotonic()


@pytest.mark.django_db
def test_a_download_counts_by_address_behind_trusted_proxies(settings: LazySettings) -> None:
    """A2, A22: the rate limit against guessing. HEAD requests count, too."""
    change_settings(settings, export_download_rate="3/min", trusted_proxy_cidrs=[ip_network("10.0.0.0/8")])

    def ask(address: str, method: str = "get", **headers: Any) -> Any:
        proxied: dict[str, Any] = {"REMOTE_ADDR": "10.0.0.1", "HTTP_X_FORWARDED_FOR": address}
        return getattr(APIClient(), method)(BAD_LINK, **proxied, **headers)

    accepted = [ask("192.0.2.1"), ask("192.0.2.1", "head"), ask("6.6.6.6, 192.0.2.1", HTTP_PURPOSE="prefetch")]
    assert [each.status_code for each in accepted] == [403] * 3
    assert wait_seconds(ask("192.0.2.1"))
    assert ask("192.0.2.1", "head").status_code == 429
    assert ask("192.0.2.2").status_code == 403
    assert APIClient().get(BAD_LINK, REMOTE_ADDR="6.6.6.6", HTTP_X_FORWARDED_FOR="192.0.2.1").status_code == 403


@pytest.mark.django_db
def test_ipv6_addresses_count_by_their_64_bit_prefix(settings: LazySettings) -> None:
    change_settings(settings, export_download_rate="1/min")
    peers = ["2001:db8:0:1::1", "2001:db8:0:1:ffff::2", "2001:db8:0:2::1", "::ffff:192.0.2.1", "192.0.2.1"]
    statuses = [APIClient().get(BAD_LINK, REMOTE_ADDR=peer).status_code for peer in peers]
    assert statuses == [403, 429, 403, 403, 429]


@pytest.mark.django_db
def test_unknown_addresses_share_one_window(settings: LazySettings) -> None:
    change_settings(settings, export_download_rate="1/min", trusted_proxy_cidrs=[ip_network("10.0.0.0/8")])
    proxied: list[dict[str, Any]] = [{"REMOTE_ADDR": "10.0.0.1", "HTTP_X_FORWARDED_FOR": text} for text in ("a", "b")]
    assert [APIClient().get(BAD_LINK, **each).status_code for each in proxied] == [403, 429]


def test_links_count_separately_from_users(api: APIClient, settings: LazySettings) -> None:
    change_settings(settings, export_poll_rate="1/min")
    assert api.get("/exports").status_code == 200
    assert api.get(BAD_LINK).status_code == 403


def test_every_view_of_exports_has_a_limit() -> None:
    for pattern in urls.urlpatterns:
        assert isinstance(pattern, URLPattern)
        classes = pattern.callback.view_class.throttle_classes  # type: ignore[attr-defined]
        assert classes, pattern
        assert all(issubclass(each, throttling.Throttle) for each in classes)


@pytest.mark.slow
def test_operator_routes_and_documentation_do_not_count_toward_the_poll_rate(
    client: Client, alice: User, settings: LazySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("CHECK_SECONDS", "CONNECT_SECONDS"):  # a machine that stalls must not look like an outage
        monkeypatch.setattr(health, limit, 30)
    monkeypatch.setattr(health, "readiness", health.Readiness(health.readiness.checks))  # no results of earlier tests
    change_settings(settings, export_poll_rate="1/min")
    client.force_login(alice)
    for path in ("/livez", "/readyz", "/metrics", "/api/schema", "/api/docs"):
        assert [client.get(path, REMOTE_ADDR="127.0.0.1").status_code for _ in range(3)] == [200] * 3, path


def test_the_schema_is_limited_by_address(client: Client, settings: LazySettings) -> None:
    change_settings(settings, export_download_rate="2/min")
    statuses = [client.get("/api/schema", REMOTE_ADDR="192.0.2.7").status_code for _ in range(3)]
    assert statuses == [200, 200, 429]
    assert client.get("/api/schema", REMOTE_ADDR="192.0.2.8").status_code == 200


def test_the_schema_documents_429_on_every_limited_operation(client: Client) -> None:
    paths = client.get("/api/schema").json()["paths"]
    documented = {
        path for path, operations in paths.items() if all("429" in each["responses"] for each in operations.values())
    }
    assert documented == {path for path in paths if path.startswith(("/exports", "/api/v1/etl", "/tokens"))}
    both = paths["/exports"]["post"]["responses"]["429"]["content"]["application/problem+json"]
    assert both["x-codes"] == ["quota_exceeded", "rate_limited"]


@pytest.mark.parametrize("unit", env.RATE_UNITS)
def test_every_unit_of_the_settings_is_supported(settings: LazySettings, unit: str) -> None:
    seconds = {"s": 1, "sec": 1, "second": 1, "min": 60, "minute": 60, "h": 3600, "hour": 3600, "day": 86400}
    change_settings(settings, export_rate=f"7/{unit}")
    rate = throttling.rate("export_rate")
    assert (rate.amount, rate.get_expiry()) == (7, seconds[unit])


def test_stores_only_an_id_or_a_network(api: APIClient, alice: User, settings: LazySettings, windows: Redis) -> None:
    api.post("/exports", {})
    APIClient().get(BAD_LINK, REMOTE_ADDR="2001:db8::7", HTTP_USER_AGENT="secret")
    keys = {str(key, "ascii") for key in windows.scan_iter("sluice:rate:*")}
    assert keys == {
        f"sluice:rate:export_rate/{alice.pk}/60/1/minute",
        "sluice:rate:export_download_rate/2001:db8::/64/600/1/minute",
    }
    assert all(0 < windows.ttl(key) <= 60 for key in keys)


# ---- Valkey outages -------------------------------------------------------------------------------------------------


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in caplog.messages if "rates_" in line]


@pytest.mark.slow
def test_a_silent_valkey_delays_one_request_briefly(
    api: APIClient,
    settings: LazySettings,
    silent: socket.socket,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A2."""
    monkeypatch.setattr(circuit_breaker, "PAUSE_SECONDS", 60.0)
    change_settings(settings, export_poll_rate="1/min")
    valkey_at(settings, silent.getsockname()[1])
    asked: list[int] = []

    def ask() -> None:
        throttling.limiter_of.cache_clear()
        asked.append(throttling.limiter().wait(throttling.rate("export_rate"), "x"))

    expect_within(0.4, ask)  # 0.25 s, and a tolerance for a busy machine
    assert asked == [0] * connections_to(silent)

    assert in_threads(5, lambda _: api.get("/exports").status_code) == [200] * 5
    assert connections_to(silent) == 0
    assert len(warnings(caplog)) == len(asked)
    assert "hunter2" not in caplog.text


def test_requests_are_not_limited_during_a_valkey_outage(
    api: APIClient, settings: LazySettings, closed_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A2."""
    change_settings(settings, export_poll_rate="1/min", export_download_rate="1/min")
    valkey_at(settings, closed_port)
    assert [api.get("/exports").status_code for _ in range(5)] == [200] * 5
    assert [APIClient().get(BAD_LINK).status_code for _ in range(5)] == [403] * 5
    assert len(warnings(caplog)) == 1


def test_one_request_probes_for_the_end_of_an_outage(
    settings: LazySettings, silent: socket.socket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    valkey_at(settings, silent.getsockname()[1])
    limiter = throttling.limiter()
    monkeypatch.setattr(circuit_breaker, "PAUSE_SECONDS", 0.0)
    limiter.wait(throttling.rate("export_rate"), "x")
    assert connections_to(silent) == 1
    monkeypatch.setattr(circuit_breaker, "PAUSE_SECONDS", 60.0)  # after the next failed request
    in_threads(10, lambda _: limiter.wait(throttling.rate("export_rate"), "x"))
    assert connections_to(silent) == 1
    assert len(warnings(caplog)) == 1


@pytest.mark.usefixtures("production_timeout")
def test_requests_are_limited_again_after_an_outage(
    settings: LazySettings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(circuit_breaker, "PAUSE_SECONDS", 0.05)
    rate = limits.RateLimitItemPerHour(1, namespace="test")
    with relaying(settings.SLUICE.redis_url.get_secret_value()) as relay:
        change_settings(settings, redis_url=SecretStr(relay.url))
        relay.drop_replies("test/x")
        # If the machine stalls, a request may fail before the proxy receives it.
        wait_until(lambda: throttling.limiter().wait(rate, "x") == 0 and relay.dropped == 1)
        wait_until(lambda: throttling.limiter().wait(rate, "x"))
    assert [line.partition("rates_")[2].partition("'")[0] for line in warnings(caplog)] == [
        "not_counted",
        "counted_again",
    ]


def test_a_restart_of_valkey_does_not_suspend_the_limit(windows: Redis) -> None:
    """The old connections are closed, and the next request opens a new one."""
    rate = limits.RateLimitItemPerHour(1, namespace="test")
    assert throttling.limiter().wait(rate, "x") == 0
    windows.client_kill_filter(_type="normal", skipme=True)
    assert throttling.limiter().wait(rate, "x") > 3500
    assert not throttling.limiter().is_open


def test_a_discarded_limiter_leaves_no_connection(windows: Redis, settings: LazySettings) -> None:
    def connected() -> set[str]:
        return {each["id"] for each in windows.client_list()}

    limiter = throttling.Limiter(settings.SLUICE.redis_url.get_secret_value())
    before = connected()
    assert limiter.wait(limits.RateLimitItemPerHour(9, namespace="test"), "x") == 0
    own_connections = connected() - before
    assert own_connections
    del limiter
    gc.collect()
    wait_until(lambda: not own_connections & connected())


def test_a_window_that_empties_in_the_meantime_admits_the_request(
    windows: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The window empties between the refusal and the query for the wait time."""
    limiter = throttling.limiter()
    rate = limits.RateLimitItemPerHour(1, namespace="test")
    assert limiter.wait(rate, "x") == 0
    refused = limiter.windows.hit

    def hit(*args: Any) -> bool:
        taken = refused(*args)
        windows.flushdb()
        return taken

    monkeypatch.setattr(limiter.windows, "hit", hit)
    assert limiter.wait(rate, "x") == 1
