"""C13: the audit log has an entry for each request that opens data or changes something, and is append-only."""

import json
import re
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from asgiref.sync import async_to_sync
from django.conf import settings
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connection
from django.test import AsyncClient, Client
from django.utils import timezone
from rest_framework.test import APIClient

from config.dev.stack.ports import LOOPBACK
from config.dev.stack.postgres import SUPERUSER
from config.ops.command_line import Commands
from config.platform.admin import audit_log
from config.platform.http import audit, tokens
from config.platform.models import AuditEntry
from config.platform.observability import metrics
from exports.delivery import links
from exports.models import Dataset, Job, Receipt, Webhook
from rules.models import Rule
from tests import servers
from tests.conftest import browser_of, client_of
from tests.security.routes import LINK_ROUTE, OWNED_ROUTES, ROUTES, UNSAFE, Route, required_query

OURS = ("config", "exports", "etl", "rules")
# Last parts of paths whose GET responses have data: the content of documents and files.
DATA = {
    "answer", "branch", "download", "edit", "files", "history", "image", "images", "json", "layout", "markdown",
    "original", "result", "results", "samples",
}  # fmt: skip
# Exceptions from DATA, by complete path: whether GET responses have data.
EXCEPTIONS = {
    "app/documents/<int:task_id>/pages": True,
    "app/rules/<int:rule_id>/evaluations": True,
    "app/exports/schedules/<uuid:schedule_id>/edit": False,
}
# Responses have a status, and also the result once it exists.
DATA_WHEN_COMPLETED = {
    "app/documents/<int:task_id>",
    "api/v1/etl/tasks/<int:task_id>",
    "api/v1/etl/tasks/<int:task_id>/events",
}
# Routes with unsafe methods that change nothing.
UNCHANGING = {
    "app/exports/new/preview", "app/exports/schedules/preview", "exports/preview",
    "app/rules/check", "app/rules/fields",
    "app/sign-in",
    "app/sign-in/second-factor",
}  # fmt: skip


def is_data(route: Route) -> bool:
    parts = [part for part in route.path.split("/") if "<" not in part]
    return EXCEPTIONS.get(route.path, bool(DATA & set(parts[-1:])))


def written(**conditions: Any) -> list[AuditEntry]:
    return list(AuditEntry.objects.filter(**conditions).exclude(via="sign_in").order_by("pk"))


# ---- Declarations ---------------------------------------------------------------------------------------------------
def test_every_view_declares_what_is_recorded() -> None:
    """C13. This fails for a new route until its view declares whether its GET opens data."""
    checked = 0
    for route in ROUTES:
        view = route.view_class
        if route.is_admin or view is None or view.__module__.split(".")[0] not in OURS:
            continue
        if "get" in route.methods:
            assert hasattr(view, "audited"), f"{route}: its view needs `audited`"
            assert view.audited.reads == is_data(route), route
        if route.methods & {*UNSAFE}:
            assert getattr(view, "audited", audit.CHANGES).writes == (route.path not in UNCHANGING), route
        checked += 1
    assert checked > 120


@pytest.mark.slow
def test_owners_who_open_data_are_recorded_once_and_polls_are_not(
    objects_of_alice: dict[str, Any], alice: User
) -> None:
    """C13: the test requests each route, independent of the declarations of the views."""
    by_api, by_page, opened = client_of(alice), browser_of(alice), 0
    for route in OWNED_ROUTES:
        if "get" not in route.methods or route.path == LINK_ROUTE:
            continue
        before = AuditEntry.objects.count()
        client, query = by_page if route.is_page else by_api, required_query(route.path)
        with closing(client.get(route.filled(objects_of_alice), query)) as response:
            assert response.status_code in (200, 302), route
        expected = int(is_data(route) or route.path in DATA_WHEN_COMPLETED)
        assert AuditEntry.objects.count() - before == expected, route
        opened += expected
    assert opened > 20
    assert {(each.user_id, each.outcome, each.method) for each in written()} == {(alice.pk, "success", "GET")}


def test_head_is_recorded_where_its_response_has_the_url_of_data(objects_of_alice: dict[str, Any], alice: User) -> None:
    """C13."""
    browser = browser_of(alice)
    before = AuditEntry.objects.count()
    response = browser.head(f"/app/documents/{objects_of_alice['task_id']}/original")
    assert "X-Amz-Signature" in response["Location"]
    assert AuditEntry.objects.count() == before + 1


def test_a_refused_form_is_recorded_as_refused(alice: User) -> None:
    """C13: although the status of the response is 200."""
    response = browser_of(alice).post("/app/account/password", {"old_password": "wrong"})
    assert response.status_code == 200
    (entry,) = written()
    assert (entry.status, entry.outcome) == (200, "refused")


# ---- Entries --------------------------------------------------------------------------------------------------------
def test_an_entry_has_user_action_objects_and_address(objects_of_alice: dict[str, Any], alice: User) -> None:
    token, text = tokens.create(alice)
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {text}")
    path = f"/exports/{objects_of_alice['job_id']}/files/{objects_of_alice['key']}/{objects_of_alice['day']}"
    assert client.get(path, headers={"X-Request-ID": "mine-1"}, REMOTE_ADDR="192.0.2.7").status_code == 302
    (entry,) = written()
    assert (entry.user, entry.token, entry.via) == (alice, tokens.id_of(token), "api")
    assert (entry.status, entry.outcome, entry.request_id, entry.address) == (302, "success", "mine-1", "192.0.2.7")
    assert entry.action == "/exports/<uuid:job_id>/files/<str:key>/<day:effective_date>"
    assert {f"job_id={objects_of_alice['job_id']}", f"effective_date={objects_of_alice['day']}"} < set(entry.object_ids)
    assert objects_of_alice["key"] not in str(entry.object_ids)


def test_refusals_are_recorded_but_not_requests_without_a_user(objects_of_alice: dict[str, Any], bob: User) -> None:
    path = f"/api/v1/etl/tasks/{objects_of_alice['task_id']}"
    assert client_of(bob).get(f"{path}/markdown").status_code == 404
    assert client_of(bob).delete(path).status_code == 404
    assert APIClient().delete(path).status_code == 401
    assert APIClient().get(f"/exports/{objects_of_alice['job_id']}/download?token=x").status_code == 403
    assert [(each.user, each.status, each.outcome) for each in written()] == [(bob, 404, "refused")] * 2


def test_redeeming_a_link_is_recorded_without_its_token(objects_of_alice: dict[str, Any]) -> None:
    receipt = Receipt.objects.get(pk=objects_of_alice["job_id"])
    path = links.path_of(links.mint(receipt))
    assert APIClient().get(path, REMOTE_ADDR="192.0.2.9").status_code == 302
    (entry,) = written()
    assert (entry.user, entry.address, entry.object_ids) == (None, "192.0.2.9", [f"job_id={receipt.pk}"])
    assert path.partition("token=")[2] not in str(list(AuditEntry.objects.values()))


def test_messages_of_the_source_are_data(objects_of_alice: dict[str, Any], alice: User, dataset: Dataset) -> None:
    path = f"/exports/{objects_of_alice['job_id']}/chunks"
    Job.objects.get(pk=objects_of_alice["job_id"]).chunks.update(source_message="ERROR: a row")
    client_of(alice).get(path)
    assert not written()
    Dataset.objects.filter(pk=dataset.pk).update(show_errors=True)
    client_of(alice).get(path)
    assert [each.action for each in written()] == ["/exports/<uuid:job_id>/chunks"]


def test_pages_of_the_admin_are_recorded_and_lists_are_not(pages: Client, objects_of_alice: dict[str, Any]) -> None:
    pages.get("/admin/exports/job/")
    assert not written()
    pages.get(f"/admin/exports/job/{objects_of_alice['job_id']}/change/")
    path = Job.objects.get(pk=objects_of_alice["job_id"]).chunks.all()[0].path
    pages.get(f"/admin/exports/file/{path.replace('/', '_2F')}/change/")
    of_job, of_file = written(via="admin")
    assert of_job.object_ids == [f"object_id={objects_of_alice['job_id']}"]
    assert path not in str(of_file.object_ids)


def test_asynchronous_requests_are_recorded(objects_of_alice: dict[str, Any], alice: User) -> None:
    client = AsyncClient()
    client.force_login(alice)
    response = async_to_sync(client.get)(f"/api/v1/etl/tasks/{objects_of_alice['task_id']}/result")
    assert response.status_code == 200
    assert [each.action for each in written()] == ["/api/v1/etl/tasks/<int:task_id>/result"]


# ---- Sign-ins and commands ------------------------------------------------------------------------------------------
def test_sign_ins_are_recorded_without_the_typed_input(alice: User) -> None:
    """Users sometimes type their password into the user name field."""
    alice.set_password("correct horse")
    alice.save()
    browser = Client()
    browser.post("/app/sign-in", {"username": "alice", "password": "wrong"})
    browser.post("/app/sign-in", {"username": "battery staple", "password": "wrong"})
    browser.post("/app/sign-in", {"username": "alice", "password": "correct horse"})
    browser.post("/app/sign-out")
    found = AuditEntry.objects.order_by("pk")
    assert [(each.user, each.action, each.outcome) for each in found] == [
        (alice, "sign-in", "refused"), (None, "sign-in", "refused"), (alice, "sign-in", "success"),
        (alice, "sign-out", "success"),
    ]  # fmt: skip
    assert "battery" not in str(list(found.values()))


@pytest.mark.parametrize(("arguments", "outcome"), [(["--create"], "success"), (["--days", "0"], "failed")])
def test_commands_are_recorded(transactional_db: None, arguments: list[str], outcome: str) -> None:
    """C13: commands that fail are recorded too. Entries have the arguments, but not the options."""
    with suppress(SystemExit):
        Commands(["manage.py", "issue_token", "shop", *arguments, "--name", "secret"]).execute()
    (entry,) = AuditEntry.objects.all()
    assert (entry.via, entry.action, entry.outcome) == ("command", "issue_token", outcome)
    assert entry.object_ids == ["argument=shop"]
    assert User.objects.filter(username="shop").exists() == (outcome == "success")


def test_a_shell_is_recorded_at_its_start(transactional_db: None, capsys: pytest.CaptureFixture[str]) -> None:
    """C13: the entry is written at the start, because a killed process could not write it at its end."""
    code = "from config.platform.models import AuditEntry as A; print(A.objects.values_list('action', 'outcome'))"
    Commands(["manage.py", "shell", "--no-imports", "-c", code]).execute()
    assert capsys.readouterr().out == "<QuerySet [('shell', 'success')]>\n"
    with pytest.raises(SystemExit):
        Commands(["manage.py", "shell", "--help"]).execute()
    assert AuditEntry.objects.count() == 1


def test_commands_that_change_nothing_are_not_recorded(transactional_db: None) -> None:
    Commands(["manage.py", "showmigrations", "platform"]).execute()
    assert not AuditEntry.objects.exists()


# ---- Together with the change ---------------------------------------------------------------------------------------
RULE = {"name": "Mine", "postprocess_mode": "skip"}
CHANGES: dict[str, tuple[str, dict[str, Any], Any]] = {
    "export": ("/exports", {"dataset": "things", "items": [{"key": "k", "effectiveDate": "2024-02-29"}]}, Job),
    "rule": ("/api/v1/etl/rules", RULE, Rule),
    "webhook": ("/exports/webhooks", {"url": "http://127.0.0.1:9/", "events": ["export.succeeded"]}, Webhook),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_and_its_entry_are_one_transaction(alice: User, dataset: Dataset, name: str) -> None:
    """C13: the entry cannot be lost if the process dies after the change."""
    path, body, model = CHANGES[name]
    rows = model.objects.filter(owner=alice) if model is Rule else model.objects.all()
    response = client_of(alice).post(path, body)
    assert response.status_code in (201, 202), response.content
    (entry,) = written()
    assert any(each.endswith(f"={rows.get().pk}") for each in entry.object_ids)
    assert transaction_of(AuditEntry, entry.pk) == transaction_of(model, rows.get().pk)


def transaction_of(model: Any, pk: Any) -> str:
    with connection.cursor() as cursor:
        name = model._meta.pk.column
        cursor.execute(f"SELECT xmin::text FROM {model._meta.db_table} WHERE {name} = %s", [pk])
        return str(cursor.fetchone()[0])


@pytest.fixture
def without_log(transactional_db: None) -> Iterator[None]:
    """Make the database refuse audit entries."""
    run("ALTER TABLE platform_audit ADD CONSTRAINT no_entries CHECK (false) NOT VALID")
    yield
    run("ALTER TABLE platform_audit DROP CONSTRAINT no_entries")


def run(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


def test_without_an_entry_no_data_is_sent_and_no_change_is_made(
    objects_of_alice: dict[str, Any], alice: User, without_log: None
) -> None:
    client = client_of(alice)
    client.raise_request_exception = False
    response = client.get(f"/api/v1/etl/tasks/{objects_of_alice['task_id']}/result")
    assert (response.status_code, response.json()["code"]) == (500, "internal_error")
    before = Job.objects.count()
    assert client.post(CHANGES["export"][0], CHANGES["export"][1]).status_code == 500
    assert Job.objects.count() == before


def test_an_unusual_method_is_recorded(pages: Client, objects_of_alice: dict[str, Any]) -> None:
    """C13: Django shows a page of the admin for any method."""
    path = f"/admin/exports/job/{objects_of_alice['job_id']}/change/"
    assert pages.generic("PROPPATCH", path).status_code == 200
    assert [each.method for each in written(via="admin")] == ["PROPPATC"]


@pytest.mark.parametrize("name", ["delivery_id", "token_id", "sample_id", "factor_id"])
def test_the_list_finds_objects_of_all_routes(pages: Client, alice: User, name: str) -> None:
    AuditEntry.objects.create(via="api", user=alice, action="/", outcome="success", object_ids=[f"{name}=71"])
    assert pages.get("/admin/platform/auditentry/", {"q": "71"}).context["cl"].result_count == 1


def test_a_change_without_a_transaction_is_logged_if_it_has_no_entry(
    objects_of_alice: dict[str, Any], alice: User, without_log: None, caplog: pytest.LogCaptureFixture
) -> None:
    lost = metrics.AUDIT_ENTRIES_LOST._value.get()
    path = f"/exports/webhooks/{objects_of_alice['webhook_id']}/rotate-secret"
    token, text = tokens.create(alice)
    assert APIClient().post(path, headers={"Authorization": f"Bearer {text}"}).status_code == 200
    assert metrics.AUDIT_ENTRIES_LOST._value.get() == lost + 1
    assert "audit_entry_not_written" in caplog.text
    assert str(objects_of_alice["webhook_id"]) in caplog.text
    assert str(tokens.id_of(token)) in caplog.text


# ---- Append-only ----------------------------------------------------------------------------------------------------
CHANGING = (
    "UPDATE platform_audit SET outcome = 'refused'",
    "DELETE FROM platform_audit",
    "TRUNCATE platform_audit",
)


@pytest.mark.parametrize("statement", CHANGING)
def test_entries_are_not_changed(alice: User, statement: str) -> None:
    browser_of(alice)
    with pytest.raises(DatabaseError, match="append-only"):
        run(statement)
    assert AuditEntry.objects.get().outcome == "success"


@pytest.fixture
def other_role(transactional_db: None) -> Iterator[psycopg.Connection]:
    """Return a session of the role that the SQL in docs/access.md creates for Sluice's processes."""
    (block,) = re.findall(r"```sql\n(.*?)```", (settings.BASE_DIR / "docs" / "access.md").read_text(), re.DOTALL)
    postgres, name = servers.started[0].postgres, connection.settings_dict["NAME"]
    with psycopg.connect(postgres.url(SUPERUSER, name), autocommit=True) as superuser:
        superuser.execute(block)
        url = f"postgresql://sluice_processes:change-me@{LOOPBACK}:{postgres.port}/{name}"
        with psycopg.connect(url, autocommit=True) as session:
            yield session
        superuser.execute("DROP OWNED BY sluice_processes; DROP ROLE sluice_processes")


def test_a_role_that_is_not_the_owner_can_only_add_and_read(other_role: psycopg.Connection) -> None:
    """C13."""
    other_role.execute(
        "INSERT INTO platform_audit (via, account, method, action, object_ids, outcome, request_id)"
        " VALUES ('api', '', 'GET', '/', '{}', 'success', '')"
    )
    for statement in (
        *CHANGING,
        "ALTER TABLE platform_audit DISABLE TRIGGER ALL",
        "DROP TRIGGER platform_audit_append_only ON platform_audit",
        "ALTER TABLE platform_audit OWNER TO sluice_processes",
        "SET sluice.trim_audit = 'on'; DELETE FROM platform_audit",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            other_role.execute(statement)
    assert AuditEntry.objects.count() == 1


def test_the_owner_deletes_old_entries_by_a_command(
    alice: User, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("config.ops.management.commands.trim_audit.BATCH_SIZE", 2)
    now = timezone.now()
    for days in (400, 399, 398, 3):
        AuditEntry.objects.create(via="api", action="/", outcome="success", at=now - timedelta(days=days))
    call_command("trim_audit", before=(now - timedelta(days=365)).date())
    assert "Deleted 3 entries" in capsys.readouterr().out
    assert AuditEntry.objects.count() == 1
    with pytest.raises(CommandError, match="future"):
        call_command("trim_audit", before=(now + timedelta(days=2)).date())


EXPORT = "/admin/platform/auditentry/export/"


# ---- Export ---------------------------------------------------------------------------------------------------------
def exported(browser: Client, **conditions: str) -> list[dict[str, Any]]:
    response = browser.get(EXPORT, {"download": "1", **conditions})
    assert response.status_code == 200, response.content[:500]
    assert response["Content-Disposition"].endswith('.jsonl"')
    return [json.loads(line) for line in b"".join(response).splitlines()]


def test_the_export_has_all_entries_that_match(
    pages: Client, alice: User, bob: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C13."""
    monkeypatch.setattr(audit_log, "BATCH_SIZE", 2)
    for number in range(5):
        AuditEntry.objects.create(
            via="api", user=alice, action="/exports", outcome="success", object_ids=[f"job_id={number}"]
        )
    AuditEntry.objects.create(via="page", user=bob, action="/app", outcome="refused", at=timezone.now() - timedelta(9))
    today = AuditEntry.objects.get(object_ids=["job_id=3"]).at.date().isoformat()
    found = exported(pages, user="alice")
    assert [each["object_ids"] for each in found] == [[f"job_id={number}"] for number in range(5)]
    assert {each["username"] for each in found} == {"alice"}
    assert [each["username"] for each in exported(pages, outcome="refused")] == ["bob"]
    assert [each["object_ids"] for each in exported(pages, subject="3", since=today, until=today)] == [["job_id=3"]]
    assert not exported(pages, user="alice", until="2020-01-01")
    assert len(exported(pages, user="alice", until="9999-12-31")) == 5
    assert [each.action for each in written(via="admin")] == [EXPORT] * 5


def test_the_form_of_the_export_explains_what_is_invalid(pages: Client) -> None:
    response = pages.get(EXPORT, {"download": "1", "since": "yesterday"})
    assert response.status_code == 400
    assert "Enter a valid date" in response.content.decode()
    assert not written()


def test_the_list_finds_objects_users_and_requests(pages: Client, alice: User) -> None:
    for request_id in ("first", "second"):
        AuditEntry.objects.create(
            via="api", user=alice, action=f"/{request_id}", outcome="success", object_ids=["task_id=7"],
            request_id=request_id,
        )  # fmt: skip
    for term, expected in {"first": 1, "alice": 2, "7": 2, "task_id=7": 2, "8": 0}.items():
        response = pages.get("/admin/platform/auditentry/", {"q": term})
        assert response.context["cl"].result_count == expected, term
