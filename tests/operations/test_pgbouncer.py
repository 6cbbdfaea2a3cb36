"""PgBouncer in front of Sluice's database, in transaction mode, with fewer sessions than clients.

Also: a pooler in front of the source is refused.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from django.apps import apps
from django.conf import settings
from django.contrib import admin
from django.contrib.auth.hashers import PBKDF2PasswordHasher
from django.db import connection

from config.dev.stack.orphan_watchdog import PROJECT
from config.platform.checks import is_pooled
from exports.models import Chunk
from tests.chaos.documents import ALL, code_of, scripted_rule, settle, submit
from tests.chaos.site import Site
from tests.integration.receiver import receiver
from tests.operations.pgbouncer import PgBouncer, running
from tests.waiting import wait_until

SESSIONS = 2
POOLER = "is a connection pooler; a direct connection to Postgres is required"
# Error messages of statements that run in a different session than expected.
OTHER_SESSION = re.compile(
    r"prepared statement|cursor \\?\".*does not exist|InvalidCursorName|SQLSTATE (26000|34000|42P05)"
)


@pytest.fixture(scope="module")
def pgbouncer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PgBouncer]:
    with running(tmp_path_factory.mktemp("pgbouncer"), to=os.environ["DATABASE_URL"], size=SESSIONS) as server:
        yield server


@pytest.fixture
def pooled(pgbouncer: PgBouncer, site: Site) -> Iterator[Site]:
    site.variables["DATABASE_URL"] = pgbouncer.url(connection.settings_dict["NAME"])
    site.variables["DATABASE_PREPARE"] = "false"
    yield site
    assert not OTHER_SESSION.search(site.logs())


@pytest.mark.timeout(300)
def test_all_work_succeeds_through_two_sessions(pooled: Site, pgbouncer: PgBouncer) -> None:
    """C7. Exports of each delivery, a document, a stream, webhooks, cleanup, and a lost worker's chunk."""
    site = pooled
    site.source.behave("SLOW", pause=3)
    victim = site.start_worker("exports", children=1)
    site.start_worker("maintenance", children=1)
    site.start_beat()
    site.start_web()
    events, clients = "", 0
    with receiver() as receiving:
        site.receivers.append(receiving)
        site.subscribe(receiving.url)
        lost = site.submit("SLOW")
        site.wait_for_call()
        victim.kill()
        jobs = [
            site.submit("A", "B", days=20, delivery="zip"),
            site.submit("A", "C", days=3, delivery="single"),
            site.submit("D", days=3, delivery="manifest"),
        ]
        task = submit(site, "once:raise ProviderUnavailable\npost:wait 0.2", rule=scripted_rule(site))
        with site.client.stream("GET", f"/exports/{jobs[0].pk}/events", timeout=60) as stream:
            site.start_worker(ALL, children=4)  # now, so that the stream has the events of all chunks
            for text in stream.iter_text():
                events += text
                clients = max(clients, len(connections_of_sluice(pgbouncer, "CLIENTS")))
        site.settle(lost, *jobs, limit=90)
        settle(task)
        wait_until(lambda: len(receiving.ids) == 4)

    assert {job.status for job in (lost, *jobs)} == {"success"}
    assert Chunk.objects.get(job=lost).attempts == 2
    assert code_of(task) == ("completed", "postprocess")
    assert events.count('"status":"done"') >= 40
    assert site.client.get("/readyz").json()["checks"]["database"] == "ok"
    assert "sluice_database_up 1.0" in site.client.get("/metrics").text
    assert len(connections_of_sluice(pgbouncer, "SERVERS")) <= SESSIONS < clients


def connections_of_sluice(pgbouncer: PgBouncer, what: str) -> list[dict[str, object]]:
    return [row for row in pgbouncer.show(what) if row["database"] == connection.settings_dict["NAME"]]


def test_all_staff_pages_render(pooled: Site) -> None:
    site = pooled
    site.owner.is_staff = site.owner.is_superuser = True
    site.owner.password = PBKDF2PasswordHasher().encode("only for this test", "salt")  # as the web process hashes
    site.owner.save()
    site.start_worker(ALL)
    site.start_web(DEBUG="true")  # cookies without TLS
    site.settle(site.submit("A", "B", days=3))
    site.client.headers.pop("Authorization")
    form = site.client.get("/admin/login/?next=/admin/", follow_redirects=True)
    token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', form.text)
    assert token
    login = {"username": site.owner.username, "password": "only for this test", "csrfmiddlewaretoken": token[1]}
    assert site.client.post(form.url, data=login).status_code == 302

    pages = ["/admin/", "/app/exports"]
    admin.autodiscover()  # as config.urls does in the web process
    administered = [model for model in apps.get_models() if admin.site.is_registered(model)]
    pages += [f"/admin/{model._meta.app_label}/{model._meta.model_name}/" for model in administered]
    statuses = {page: site.client.get(page, follow_redirects=True).status_code for page in pages}
    assert len(pages) > 12
    assert set(statuses.values()) == {200}, statuses


def manage(*arguments: str, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "manage.py", *arguments], cwd=PROJECT, env={**os.environ, **variables}, check=True,
        capture_output=True, text=True,
    )  # fmt: skip
    return done.stdout + done.stderr


def test_migrations_run_through_pgbouncer(pgbouncer: PgBouncer) -> None:
    """On an empty database."""
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as direct:
        direct.execute("DROP DATABASE IF EXISTS migrated")
        direct.execute("CREATE DATABASE migrated")
        try:
            url = {"DATABASE_URL": pgbouncer.url("migrated"), "DATABASE_PREPARE": "false"}
            manage("migrate", **url)
            assert "No planned migration operations" in manage("migrate", "--plan", **url)
        finally:
            direct.execute("DROP DATABASE migrated WITH (FORCE)")


def test_a_pooler_without_its_setting_is_detected(pgbouncer: PgBouncer) -> None:
    """`migrate`, which runs before web and workers start, includes this check."""
    pooled_url = pgbouncer.url("sluice")
    output = manage("check", "--database", "default", DATABASE_URL=pooled_url)
    assert "DATABASE_URL points to a connection pooler, and DATABASE_PREPARE is on." in output
    for good in ({"DATABASE_URL": pooled_url, "DATABASE_PREPARE": "false"}, {}):
        assert "pooler" not in manage("check", "--database", "default", **good)
    assert is_pooled(pooled_url)
    assert not is_pooled(os.environ["DATABASE_URL"])


@pytest.fixture(params=["", "ignore_startup_parameters = options"], ids=["default", "ignoring options"])
def source_behind_pooler(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PgBouncer]:
    with running(tmp_path, to=settings.SLUICE.source_url, size=5, more=request.param) as server:
        yield server


def test_a_pooler_in_front_of_the_source_is_refused(source_behind_pooler: PgBouncer, site: Site) -> None:
    """It would drop session settings, on which the bytes of files depend, and share sessions between workers."""
    site.variables["SOURCE_DATABASE_URL"] = source_behind_pooler.url("source")
    site.start_worker(EXPORT_MAX_ATTEMPTS="2")
    site.start_beat()
    site.start_web()
    assert site.client.get("/readyz").json()["checks"]["source"] == POOLER
    job = site.submit("A")
    site.settle(job)

    chunk = Chunk.objects.get(job=job)
    assert (chunk.status, chunk.error_code) == ("failed", "EXPORT_SOURCE_UNAVAILABLE")
    assert site.source.calls() == 0
