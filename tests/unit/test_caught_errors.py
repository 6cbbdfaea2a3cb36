"""Broad `except Exception` handlers, which log and count the exception, and continue with other work."""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import pytest
import structlog
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from config.ops.doctor import examination
from config.ops.doctor.findings import Subject, failure
from config.platform.cleanup import run_steps
from config.platform.http import health, sse
from config.platform.http.auth import Credential
from config.platform.observability import error_reports


class Unforeseen(Exception):
    """An exception that no code handles by its class."""


def fail(*_arguments: object, **_options: object) -> Any:
    raise Unforeseen("private")


def caught_errors(place: str) -> float:
    return REGISTRY.get_sample_value("sluice_caught_errors_total", {"place": place}) or 0.0


def test_a_failed_cleanup_step_is_logged_and_the_next_step_runs() -> None:
    before, ran = caught_errors("cleanup"), []

    def succeed() -> None:
        ran.append("succeed")

    with capture_logs() as lines:
        assert run_steps(fail, succeed) == ["fail"]

    assert ran == ["succeed"]
    assert [(line["event"], line["step"], line["exc_info"]) for line in lines] == [
        ("cleanup_step_failed", "fail", True)
    ]
    assert caught_errors("cleanup") == before + 1


@pytest.mark.parametrize(
    ("opens", "results"),
    [(nullcontext, ["things.fail", "things.later"]), (fail, ["things.reachable"])],
    ids=["a check fails", "the subject cannot be opened"],
)
def test_an_exception_in_a_doctor_check_is_a_finding(opens: Any, results: list[str]) -> None:
    def later(_opened: object) -> Any:
        yield from ()
        yield failure("It was checked.", "Nothing.")

    before = caught_errors("doctor")
    subject: Subject[Any] = Subject(name="things", open=opens, checks=(fail, later), remedy_if_unreachable="Look.")
    with capture_logs() as lines:
        found = examination.examine([subject])

    assert [result.check for result in found] == results
    assert [(line["event"], line["error"]) for line in lines] == [("doctor_check_failed", f"{__name__}.Unforeseen")]
    assert caught_errors("doctor") == before + 1


def test_an_exception_in_a_readiness_probe_means_not_ready() -> None:
    before = caught_errors("readiness")
    with capture_logs() as lines:
        assert health.outcome("storage", fail) == health.UNKNOWN

    assert [(line["event"], line["part"], line["error"]) for line in lines] == [
        ("readiness_failed", "storage", f"{__name__}.Unforeseen")
    ]
    assert caught_errors("readiness") == before + 1


async def run(kind: type[sse.EventHub[int]]) -> None:
    """Run a hub with one listener."""
    hub = kind()
    hub.listeners = {1: {sse.Listener(1, Credential(1), 0)}}
    await hub.run()


def test_an_event_hub_logs_read_errors_once_and_retries() -> None:
    class FailingHub(sse.EventHub[int]):
        poll_seconds = 0.0
        reads = 0

        def read(self, after: Mapping[int, int]) -> Any:
            self.reads += 1
            if self.reads == 3:
                self.listeners.clear()
            raise Unforeseen

    before = caught_errors("event_stream")
    with capture_logs() as lines:
        asyncio.run(run(FailingHub))

    assert [(line["event"], type(line["exc_info"])) for line in lines] == [("streams_broken", Unforeseen)]
    assert caught_errors("event_stream") == before + 3


def test_the_access_check_of_streams_is_retried_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hub(sse.EventHub[int]):
        poll_seconds = 0.0
        checks = 0

        def read(self, after: Mapping[int, int]) -> Any:
            return {}, False

        async def end_revoked(self) -> None:
            self.checks += 1
            if self.checks == 2:
                self.listeners.clear()
            raise Unforeseen

    monkeypatch.setattr(sse, "ACCESS_SECONDS", 0)
    before = caught_errors("stream_access")
    with capture_logs() as lines:
        asyncio.run(run(Hub))

    assert [(line["event"], type(line["exc_info"])) for line in lines] == [("stream_access_not_checked", Unforeseen)]
    assert caught_errors("stream_access") >= before + 2


def test_a_failed_error_report_does_not_raise_in_the_code_that_logs() -> None:
    class Client:
        capture_event = fail

    before = caught_errors("error_report")
    logger = logging.getLogger("test_caught_errors")
    handler = error_reports.Reporter(Client())  # type: ignore[arg-type]
    logger.addHandler(handler)
    try:
        with capture_logs() as lines:
            logger.error("It broke.", exc_info=ValueError("private"))
    finally:
        logger.removeHandler(handler)

    assert [(line["event"], line["error"]) for line in lines] == [("error_report_failed", f"{__name__}.Unforeseen")]
    assert caught_errors("error_report") == before + 1


def test_an_error_report_has_the_ids_of_its_log_line() -> None:
    ids = {"webhook_id": "1", "delivery_id": "2", "schedule_id": "3", "evaluation_id": "4", "sample_id": "5"}
    with structlog.contextvars.bound_contextvars(**ids):
        event = error_reports.report(Unforeseen("private"), {"action": "unexpected_error"}, logger="exports")
    assert event["tags"] == {"action": "unexpected_error", **ids}
