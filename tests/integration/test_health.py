"""Probes, against servers that answer, that are not there, and that accept and say nothing."""

import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from django.conf import LazySettings
from django.test import Client
from pydantic import AnyHttpUrl, SecretStr

from config import health


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin without the answers of the test before."""
    monkeypatch.setattr(health, "readiness", health.Readiness(health.readiness.checks))


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Give the port of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.fixture
def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def change(settings: LazySettings, **urls: str) -> None:
    secrets = {name: SecretStr(url) for name, url in urls.items()}
    settings.SLUICE = settings.SLUICE.model_copy(update=secrets)


def ready(client: Client) -> tuple[int, dict[str, Any]]:
    response = client.get("/readyz")
    return response.status_code, response.json()


def test_it_lives_whatever_else_does(client: Client, settings: LazySettings, closed_port: int) -> None:
    change(settings, database_url=f"postgresql://127.0.0.1:{closed_port}/x")

    response = client.get("/livez", headers={"Accept": "text/plain"})

    assert (response.status_code, response.json()) == (200, {"status": "ok"})


def test_it_is_ready_when_all_answer(client: Client) -> None:
    checks = {"database": "ok", "source": "ok", "broker": "ok", "storage": "ok"}

    assert ready(client) == (200, {"status": "ok", "checks": checks})


@pytest.mark.parametrize(
    ("setting", "scheme", "name"),
    [
        ("source_database_url", "postgresql", "source"),
        ("database_url", "postgresql", "database"),
        ("celery_broker_url", "redis", "broker"),
        ("celery_broker_url", "amqp", "broker"),
    ],
)
def test_it_names_what_is_not_there_without_telling_where(
    client: Client, settings: LazySettings, closed_port: int, *, setting: str, scheme: str, name: str
) -> None:
    change(settings, **{setting: f"{scheme}://user:hunter2@127.0.0.1:{closed_port}/0"})

    status, body = ready(client)

    assert (status, body["status"]) == (503, "unavailable")
    assert [part for part, answer in body["checks"].items() if answer != "ok"] == [name]
    assert body["checks"][name] == "cannot be reached, or refuses us"


def test_it_names_object_storage_that_is_not_there(client: Client, settings: LazySettings, closed_port: int) -> None:
    endpoint = AnyHttpUrl(f"http://127.0.0.1:{closed_port}")
    settings.SLUICE = settings.SLUICE.model_copy(update={"s3_endpoint_url": endpoint})

    status, body = ready(client)

    assert status == 503
    assert [part for part, answer in body["checks"].items() if answer != "ok"] == ["storage"]


def test_it_does_not_wait_for_servers_that_say_nothing(
    client: Client, settings: LazySettings, silent_port: int
) -> None:
    change(
        settings,
        database_url=f"postgresql://u:p@127.0.0.1:{silent_port}/x",
        source_database_url=f"postgresql://u:p@127.0.0.1:{silent_port}/x",
        celery_broker_url=f"redis://127.0.0.1:{silent_port}/0",
    )

    began = time.monotonic()
    status, body = ready(client)

    assert time.monotonic() - began < 3
    assert status == 503
    assert all(body["checks"][name].startswith("no answer") for name in ("database", "source", "broker"))
    assert body["checks"]["storage"] == "ok"


def test_it_tells_a_refused_login_by_its_sqlstate(client: Client, settings: LazySettings) -> None:
    url = settings.SLUICE.database_url.get_secret_value()
    change(settings, source_database_url=url.rpartition("/")[0] + "/no_such_database")

    assert ready(client)[1]["checks"]["source"] in ("refused with SQLSTATE 3D000", "cannot be reached, or refuses us")


def test_it_asks_at_most_once_a_second(client: Client, settings: LazySettings, closed_port: int) -> None:
    assert ready(client)[0] == 200
    change(settings, celery_broker_url=f"redis://127.0.0.1:{closed_port}/0")

    assert ready(client)[0] == 200
    end = time.monotonic() + 5
    while ready(client)[0] == 200:
        assert time.monotonic() < end


def test_it_does_not_pile_up_checks_that_hang() -> None:
    """A check that hangs longer than the bound is named, and only one of it runs."""
    started: list[float] = []

    def hang() -> None:
        started.append(time.monotonic())
        time.sleep(health.BOUND_SECONDS + 2)

    readiness = health.Readiness({"hung": hang, "well": lambda: None})

    assert readiness.ask() == {"hung": "no answer within 2.5 seconds", "well": "ok"}
    assert readiness.ask()["well"] == "ok"
    assert len(started) == 1
