"""The checks of the doctor, such as clock skew, and the system checks of timeouts."""

import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml
from django.conf import LazySettings, settings
from pydantic import SecretStr

from config.dev.stack.orphan_watchdog import PROJECT
from config.env import Environment
from config.ops.checks import timeouts
from config.ops.doctor import clocks, examination, storage
from config.ops.doctor.findings import Finding, Level, Subject, ok

CHECKS = {check.__name__.removeprefix("check_"): check for check in timeouts.CHECKS}


def found(check: Callable[[Any], Finding | Iterator[Finding]], thing: Any) -> tuple[Level, str]:
    result = check(thing)
    findings = [result] if isinstance(result, Finding) else list(result)
    worst = max(findings, key=lambda finding: list(Level).index(finding.level))
    return worst.level, f"{worst.state} {worst.remedy}"


# ---- Lifecycle rules ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("rule", "is_covered"),
    [
        ({"Prefix": "a/"}, True),
        ({"Filter": {"Prefix": "a/"}}, True),
        ({"Filter": {"And": {"Prefix": "a/"}}}, True),
        ({"Filter": {}}, True),
        ({"Filter": {"Prefix": "a/b/"}}, False),
        ({"Filter": {"Tag": {"Key": "k", "Value": "v"}}, "Prefix": "a/"}, False),
        ({"Filter": {"And": {"Prefix": "a/", "ObjectSizeGreaterThan": 1}}}, False),
    ],
)
def test_a_lifecycle_rule_may_cover_only_some_objects(rule: dict[str, Any], *, is_covered: bool) -> None:
    assert storage.covers_prefix(rule, "a/") == is_covered


# ---- Timeouts -------------------------------------------------------------------------------------------------------
def test_the_default_settings_pass() -> None:
    assert timeouts.check_timeouts() == []


INVALID = [
    ("leases", {"export_lease_seconds": 14}, "ops.W101", "Set EXPORT_LEASE_SECONDS to 15"),
    ("leases", {"etl_lease_seconds": 5}, "ops.W102", "Set ETL_LEASE_SECONDS to 6"),
    ("reaper", {"export_lease_seconds": 15, "export_reaper_seconds": 16}, "ops.W103", "wait for up to 31 s"),
    ("limits", {"CELERY_TASK_SOFT_TIME_LIMIT": 660}, "ops.E101", "CELERY_TASK_SOFT_TIME_LIMIT, 660 s, is not shorter"),
    ("limits", {"ETL_TIME_LIMIT": 610}, "ops.E101", "ETL_TIME_LIMIT, 610 s"),
    ("stages", {"etl_task_timeout": 610}, "ops.E102", "Leave ETL_SOFT_TIME_LIMIT"),
    ("stages", {"etl_llm_timeout_seconds": 600}, "ops.W104", "Set ETL_LLM_TIMEOUT_SECONDS"),
    ("stages", {"etl_state_ttl_seconds": 1200}, "ops.W105", "Set ETL_STATE_TTL_SECONDS"),
    (
        "redelivery",
        {"CELERY_BROKER_TRANSPORT_OPTIONS": {"visibility_timeout": 660}},
        "ops.E104",
        "visibility_timeout, 660 s",
    ),
    (
        "redelivery",
        {"ETL_TIME_LIMIT": 1830, "celery_broker_url": SecretStr("amqp://127.0.0.1:1//")},
        "ops.E103",
        "more than 1830000",
    ),
    ("shutdown", {"CELERY_WORKER_SOFT_SHUTDOWN_TIMEOUT": 41}, "ops.E105", "stop_grace_period"),
]


@pytest.mark.parametrize(("check", "changes", "check_id", "words"), INVALID)
def test_it_names_the_timeout_that_is_too_short(
    settings: LazySettings, check: str, changes: dict[str, Any], check_id: str, words: str
) -> None:
    defaults = {
        name: Environment.model_fields[name].default
        for name in (
            "export_lease_seconds", "export_reaper_seconds", "etl_lease_seconds", "etl_task_timeout",
            "etl_llm_timeout_seconds", "etl_state_ttl_seconds", "celery_broker_url",
        )
    }  # fmt: skip
    given = {name: value for name, value in changes.items() if name.islower()}
    settings.SLUICE = settings.SLUICE.model_copy(update=defaults | given)
    for name in changes.keys() - given.keys():
        setattr(settings, name, changes[name])
    messages = list(CHECKS[check]())
    assert [message.id for message in messages] == [check_id]
    assert words in f"{messages[0].msg} {messages[0].hint}"


def test_all_settings_of_stages_that_are_too_short_are_reported_together(settings: LazySettings) -> None:
    changes = {"etl_llm_timeout_seconds": settings.SLUICE.etl_task_timeout, "etl_state_ttl_seconds": 1200}
    settings.SLUICE = settings.SLUICE.model_copy(update=changes)
    assert [message.id for message in CHECKS["stages"]()] == ["ops.W104", "ops.W105"]


def test_the_grace_period_equals_that_of_the_manifests() -> None:
    compose = yaml.safe_load((PROJECT / "docker" / "compose.yaml").read_text())
    assert compose["x-worker"]["stop_grace_period"] == f"{timeouts.GRACE_SECONDS}s"
    workers = yaml.safe_load((PROJECT / "docker/kubernetes/base/shared/worker.yaml").read_text())
    assert workers["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == timeouts.GRACE_SECONDS


def test_the_limits_of_every_task_are_checked() -> None:
    annotated = {name for each in settings.CELERY_TASK_ANNOTATIONS.values() for name in each.values()}
    assert annotated == {settings.ETL_SOFT_TIME_LIMIT, settings.ETL_TIME_LIMIT}


# ---- Clocks ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("off", "level"), [(0, Level.OK), (3, Level.OK), (8, Level.WARNING), (-8, Level.WARNING), (600, Level.FAILURE)]
)
def test_it_reports_clock_skew(off: int, level: Level) -> None:
    requested = datetime.now(UTC)
    actual, text = found(lambda remote: clocks.compare(remote, requested=requested), requested + timedelta(seconds=off))
    assert actual is level
    assert level is Level.OK or "NTP" in text


def test_a_clock_with_a_resolution_of_a_second_is_not_reported_as_skewed() -> None:
    requested = datetime.now(UTC)
    late = requested - clocks.WARNING_SKEW - timedelta(seconds=0.5)
    assert found(lambda remote: clocks.compare(remote, requested=requested, resolution=1), late)[0] is Level.OK


# ---- Examination ----------------------------------------------------------------------------------------------------
def subject(*checks: Callable[[Any], Iterator[Finding]], opened: Any = nullcontext) -> Subject[Any]:
    return Subject(name="thing", open=opened, checks=checks, remedy_if_unreachable="Fix the thing.")


def check_good(_thing: object) -> Iterator[Finding]:
    yield ok("It is good.")


def check_bad(_thing: object) -> Iterator[Finding]:
    yield ok("Half of it is good.")
    raise KeyError("secret")


def test_an_error_in_one_check_does_not_hide_other_findings() -> None:
    results = examination.examine([subject(check_bad, check_good), subject(check_good)])
    assert [(result.check, result.finding.level) for result in results] == [
        ("thing.bad", Level.OK),
        ("thing.bad", Level.FAILURE),
        ("thing.good", Level.OK),
        ("thing.good", Level.OK),
    ]
    assert "KeyError" in results[1].finding.state
    assert "secret" not in results[1].finding.state
    assert examination.worst(results) is Level.FAILURE


def test_an_unreachable_subject_is_reported_with_a_remedy() -> None:
    def unreachable() -> Any:
        raise ConnectionRefusedError("at host secret")

    (result,) = examination.examine([subject(check_good, opened=unreachable)])
    assert (result.check, result.finding.level, result.finding.remedy) == (
        "thing.reachable",
        Level.FAILURE,
        "Fix the thing.",
    )
    assert result.finding.state == "It does not respond."


@pytest.mark.slow
def test_a_check_that_hangs_is_reported_in_time_with_earlier_findings() -> None:
    test_done = threading.Event()

    def check_endless(_thing: object) -> Iterator[Finding]:
        test_done.wait(60)
        yield from ()

    results = examination.examine([subject(check_good, check_endless), subject(check_good)], seconds=1)
    test_done.set()
    assert [(result.check, result.finding.level) for result in results] == [
        ("thing.good", Level.OK),
        ("thing.endless", Level.FAILURE),
        ("thing.good", Level.OK),
    ]
    assert "did not finish" in results[1].finding.state
