"""What the doctor says of times that do not fit into each other, of clocks, and how it examines."""

import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml
from django.conf import settings

from config.dev.stack.orphan_watchdog import PROJECT
from config.ops.doctor import clocks, examination, storage, timeouts
from config.ops.doctor.findings import Finding, Level, Subject, ok
from config.ops.doctor.timeouts import Times

CHECKS = {check.__name__.removeprefix("check_"): check for check in timeouts.SUBJECT.checks}


def found(check: Callable[[Any], Iterator[Finding]], thing: Any) -> tuple[Level, str]:
    findings = list(check(thing))
    worst = max(findings, key=lambda finding: list(Level).index(finding.level))
    return worst.level, f"{worst.says} {worst.do}"


# ---- Rules of a bucket ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("rule", "is_for_all"),
    [
        ({"Prefix": "a/"}, True),
        ({"Filter": {"Prefix": "a/"}}, True),
        ({"Filter": {"And": {"Prefix": "a/"}}}, True),
        ({"Filter": {}}, False),
        ({"Filter": {"Prefix": "a/b/"}}, False),
        ({"Filter": {"Tag": {"Key": "k", "Value": "v"}}, "Prefix": "a/"}, False),
        ({"Filter": {"And": {"Prefix": "a/", "ObjectSizeGreaterThan": 1}}}, False),
    ],
)
def test_a_rule_of_a_bucket_may_be_for_some_objects_alone(rule: dict[str, Any], *, is_for_all: bool) -> None:
    assert storage.is_for_all_below(rule, "a/") == is_for_all


# ---- Times ----------------------------------------------------------------------------------------------------------
def test_our_own_settings_fit() -> None:
    assert {finding.level for check in CHECKS.values() for finding in check(timeouts.read())} == {Level.OK}


BROKEN = [
    ("leases", {"lease": 14}, Level.WARNING, "Set EXPORT_LEASE_SECONDS to 15"),
    ("leases", {"stage_lease": 5}, Level.WARNING, "Set ETL_LEASE_SECONDS to 6"),
    ("reaper", {"lease": 15, "reaper": 16}, Level.WARNING, "wait for 31 s"),
    ("limits", {"soft": 660}, Level.FAILURE, "CELERY_TASK_SOFT_TIME_LIMIT, 660 s, does not come before"),
    ("limits", {"stage_hard": 610}, Level.FAILURE, "ETL_TIME_LIMIT, 610 s"),
    ("stages", {"stage": 610}, Level.FAILURE, "Leave ETL_SOFT_TIME_LIMIT"),
    ("stages", {"model": 600}, Level.WARNING, "Set ETL_LLM_TIMEOUT_SECONDS"),
    ("stages", {"state": 1200}, Level.WARNING, "Set ETL_STATE_TTL_SECONDS"),
    ("patience", {"patience": 660}, Level.FAILURE, "visibility_timeout, 660 s"),
    ("patience", {"stage_hard": 1830, "patience": 1800, "is_rabbitmq": True}, Level.FAILURE, "above 1830000"),
    ("leaving", {"leaving": 41}, Level.FAILURE, "stop_grace_period"),
]


@pytest.mark.parametrize(("check", "changes", "level", "words"), BROKEN)
def test_it_says_which_time_does_not_fit(check: str, changes: dict[str, Any], level: Level, words: str) -> None:
    times = replace(
        Times(
            lease=60, reaper=15, database_wait=5, soft=600, hard=660, stage=600, stage_soft=610, stage_hard=630,
            stage_lease=30, redis_wait=1, model=120, state=86_400, patience=1800, is_rabbitmq=False, leaving=20,
        ),
        **changes,
    )  # fmt: skip
    told, text = found(CHECKS[check], times)
    assert told is level
    assert words in text


def test_the_grace_period_is_the_one_of_the_manifests() -> None:
    compose = yaml.safe_load((PROJECT / "docker" / "compose.yaml").read_text())
    assert compose["x-worker"]["stop_grace_period"] == f"{timeouts.GRACE_SECONDS}s"
    workers = yaml.safe_load((PROJECT / "docker/kubernetes/base/shared/worker.yaml").read_text())
    assert workers["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == timeouts.GRACE_SECONDS


def test_the_limits_of_every_task_are_looked_at() -> None:
    annotated = {name for each in settings.CELERY_TASK_ANNOTATIONS.values() for name in each.values()}
    assert annotated == {settings.ETL_SOFT_TIME_LIMIT, settings.ETL_TIME_LIMIT}


# ---- Clocks ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("off", "level"), [(0, Level.OK), (3, Level.OK), (8, Level.WARNING), (-8, Level.WARNING), (600, Level.FAILURE)]
)
def test_it_says_how_far_a_clock_is_off(off: int, level: Level) -> None:
    asked = datetime.now(UTC)
    told, text = found(lambda theirs: clocks.compare(theirs, asked=asked), asked + timedelta(seconds=off))
    assert told is level
    assert level is Level.OK or "NTP" in text


def test_a_clock_that_shows_full_seconds_is_not_off_by_that() -> None:
    asked = datetime.now(UTC)
    late = asked - clocks.WORRYING - timedelta(seconds=0.5)
    assert found(lambda theirs: clocks.compare(theirs, asked=asked, step=1), late)[0] is Level.OK


# ---- How it examines ------------------------------------------------------------------------------------------------
def subject(*checks: Callable[[Any], Iterator[Finding]], opened: Any = nullcontext) -> Subject[Any]:
    return Subject(name="thing", open=opened, checks=checks, away="Mend the thing.")


def check_good(_thing: object) -> Iterator[Finding]:
    yield ok("It is good.")


def check_bad(_thing: object) -> Iterator[Finding]:
    yield ok("Half of it is good.")
    raise KeyError("secret")


def test_a_check_that_fails_hides_no_other() -> None:
    lines = examination.examine([subject(check_bad, check_good), subject(check_good)])
    assert [(line.check, line.finding.level) for line in lines] == [
        ("thing.bad", Level.OK),
        ("thing.bad", Level.FAILURE),
        ("thing.good", Level.OK),
        ("thing.good", Level.OK),
    ]
    assert "KeyError" in lines[1].finding.says
    assert "secret" not in lines[1].finding.says
    assert examination.worst(lines) is Level.FAILURE


def test_what_cannot_be_opened_says_what_to_do() -> None:
    def away() -> Any:
        raise ConnectionRefusedError("at host secret")

    (line,) = examination.examine([subject(check_good, opened=away)])
    assert (line.check, line.finding.level, line.finding.do) == ("thing.reachable", Level.FAILURE, "Mend the thing.")
    assert line.finding.says == "It does not answer."


def test_what_hangs_is_told_in_time_with_what_was_found_before() -> None:
    over = threading.Event()

    def check_endless(_thing: object) -> Iterator[Finding]:
        over.wait(60)
        yield from ()

    lines = examination.examine([subject(check_good, check_endless), subject(check_good)], seconds=0.2)
    over.set()
    assert [(line.check, line.finding.level) for line in lines] == [
        ("thing.good", Level.OK),
        ("thing.endless", Level.FAILURE),
        ("thing.good", Level.OK),
    ]
    assert "longer than" in lines[1].finding.says
