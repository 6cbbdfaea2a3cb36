"""Fixtures for fault injection: a site, whose invariants are checked after each test."""

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection

from config.platform import storage
from exports.models import Slot
from rules.models import Rule
from tests import servers
from tests.broker import lose_messages
from tests.chaos import changes, invariants
from tests.chaos.documents import scripted_rule
from tests.chaos.site import SLOTS, Site
from tests.chaos.source import FUNCTION
from tests.chaos.watch import Monitor
from tests.integration import openai_server
from tests.integration.openai_server import ModelServer

failed = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    if call.when == "call":
        item.stash[failed] = report.failed
    if report.failed and isinstance(site := getattr(item, "funcargs", {}).get("site"), Site):
        report.sections.append(("Processes and logs", site.describe_processes()))
    return report


@pytest.fixture(scope="session")
def _change_log(django_db_setup: None, django_db_blocker: Any) -> None:
    with django_db_blocker.unblock():
        changes.record_changes()


@pytest.fixture
def chance(request: pytest.FixtureRequest) -> Random:
    """Seeded random numbers for a test. `--randomly-seed=…`, which pytest prints at the start, reproduces a run."""
    return Random(f"{request.config.getoption('randomly_seed', 0)}:{request.node.name}")


@pytest.fixture
def site(
    _change_log: None,
    transactional_db: None,
    alice: User,
    tmp_path: Path,
    chance: Random,
    request: pytest.FixtureRequest,
) -> Iterator[Site]:
    """Servers behind proxies, without a running Sluice process. The teardown checks all invariants."""
    clean()
    (server,) = servers.started
    site = Site(tmp_path, server, chance, alice)
    site.source.run("DROP SCHEMA IF EXISTS data CASCADE")
    site.source.run("CREATE SCHEMA data")
    site.source.run(FUNCTION)
    site.dataset()
    watch = Monitor(site.source.url, site.children)
    try:
        yield site
        if not request.node.stash.get(failed, True):
            invariants.check(site, watch)
    finally:
        site.stop()
        watch.stop()
        connection.close()


@pytest.fixture
def rule(site: Site) -> Rule:
    return scripted_rule(site)


@pytest.fixture
def models() -> Iterator[ModelServer]:
    with openai_server.running() as running:
        yield running


def clean() -> None:
    """Remove messages, objects, and uploads of earlier tests."""
    lose_messages()
    storage.delete_many([item.key for item in storage.list_objects("")])
    for upload in list(storage.list_uploads("")):
        storage.abort_upload(upload.key, upload.upload_id)
    Slot.objects.provide(count=SLOTS)
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE chaos.move")
