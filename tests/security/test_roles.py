"""C14: tests of each API operation and page with every role. MATRIX has the expected outcomes."""

import re
from collections.abc import Callable
from contextlib import closing
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
from django.apps import apps
from django.contrib.auth.models import Group, Permission, User
from django.core.management import CommandError, call_command
from django.db import connection
from rest_framework.test import APIClient

from config.platform.http import roles
from config.platform.models import AuditEntry
from etl import runstate
from etl.models import Task
from exports.models import Dataset
from tests.conftest import browser_of, client_of
from tests.contract.test_document import document
from tests.integration.factories import make_job
from tests.integration.staff import fail, page_of, press, text_of
from tests.security.conftest import State
from tests.security.routes import ROUTES, UNSAFE, required_query

ALLOWED, FORBIDDEN, HIDDEN = "allowed", 403, 404
STRANGER, OPERATOR, AUDITOR, ADMINISTRATOR = PERSONAS = ("stranger", *roles.GROUPS)
Row = dict[str, Any]


def operations() -> list[tuple[str, str]]:
    paths = document()["paths"]
    return sorted((path, method) for path in paths for method in paths[path] if method in ("get", *UNSAFE))


def row(stranger: Any, operator: Any, auditor: Any, administrator: Any) -> Row:
    return dict(zip(PERSONAS, (stranger, operator, auditor, administrator), strict=True))


# Expected outcomes of requests for objects of alice.
OWN = row(ALLOWED, ALLOWED, ALLOWED, ALLOWED)  # for objects of the requesting user
CREATION = row(ALLOWED, ALLOWED, FORBIDDEN, ALLOWED)
STATE = row(HIDDEN, ALLOWED, ALLOWED, ALLOWED)
DATA = row(HIDDEN, FORBIDDEN, ALLOWED, ALLOWED)
CONTROL = row(HIDDEN, ALLOWED, FORBIDDEN, ALLOWED)
REVIEW = row(HIDDEN, FORBIDDEN, FORBIDDEN, ALLOWED)
PRIVATE = row(HIDDEN, HIDDEN, HIDDEN, HIDDEN)
PRIVATE_WRITE = row(HIDDEN, HIDDEN, FORBIDDEN, HIDDEN)
RULE = row(HIDDEN, HIDDEN, ALLOWED, ALLOWED)
RULE_WRITE = row(HIDDEN, HIDDEN, FORBIDDEN, FORBIDDEN)

ETL, TASK, BATCH, ONE = r"/api/v1/etl", r"/api/v1/etl/tasks/{\w+}", r"/api/v1/etl/batches/{\w+}", r"{\w+}"
JOB, A_RULE = r"/exports/{\w+}", r"/api/v1/etl/rules/{\w+}"
WITHOUT_USER = r"/livez|/readyz|/metrics|/api/schema|/exports/{\w+}/download"  # protected by address or link
# Patterns of complete paths, with the expected outcomes of reads and writes. The first matching pattern counts.
MATRIX: list[tuple[str, Row | None, Row | None]] = [
    (r"/tokens", OWN, OWN),
    (r"/tokens/{\w+}", None, PRIVATE),
    (r"/exports/preview", None, OWN),
    (r"/exports(/datasets|/limits|/schedules|/webhooks)?", OWN, CREATION),
    (r"/exports/datasets/{\w+}", OWN, None),
    (rf"/exports/(schedules|webhooks)/{ONE}(/.+)?", PRIVATE, PRIVATE_WRITE),
    (rf"{JOB}(/chunks|/events)?", STATE, None),
    (rf"{JOB}/(cancel|retry|replay)", None, CONTROL),
    (rf"{JOB}/link", None, PRIVATE_WRITE),
    (rf"{JOB}/files/{ONE}/{ONE}", PRIVATE, None),
    (rf"{ETL}/(submit|submit/uploaded|uploads|tasks|batches|batches/uploaded|limits|usage|rules)", OWN, CREATION),
    (TASK, STATE, REVIEW),  # deletion is not for operators
    (rf"{TASK}/events", STATE, None),
    (rf"{TASK}/(markdown|history|answer|layout|pages/{ONE}/image)", DATA, None),
    (rf"{TASK}/(result|approve)", DATA, REVIEW),
    (rf"{TASK}/(cancel|retry)", None, CONTROL),
    (BATCH, STATE, None),
    (rf"{BATCH}/(cancel|retry)", None, CONTROL),
    (rf"{BATCH}/results", DATA, None),
    (A_RULE, RULE, RULE_WRITE),
    (rf"{A_RULE}/test", None, row(HIDDEN, HIDDEN, FORBIDDEN, ALLOWED)),
    (rf"{A_RULE}/(samples|evaluations)(/.+)?", RULE_WRITE, RULE_WRITE),  # their owners only
]


def expected(path: str, method: str, persona: str) -> Any:
    """Return the expected outcome for a persona, or None for an operation without an expectation."""
    for pattern, *by_kind in MATRIX:
        if re.fullmatch(pattern, path):
            found: Any = by_kind[method != "get"]
            return found and found[persona]
    return None


def user_with(role: str) -> User:
    user = User.objects.create_user(role)
    if role in roles.GROUPS:
        roles.assign(user, role)
    return User.objects.get(pk=user.pk)


def filled(path: str, values: dict[str, Any]) -> str:
    def value(match: re.Match[str]) -> str:
        return str(values[re.sub("([A-Z])", lambda letter: f"_{letter[1].lower()}", match[1])])

    return re.sub(r"{(\w+)}", value, path)


def test_every_operation_of_the_schema_has_an_expectation() -> None:
    """C14. This fails for a new operation until MATRIX has an expectation for it."""
    assert len(operations()) > 75
    for path, method in operations():
        if not re.fullmatch(WITHOUT_USER, path):
            assert expected(path, method, STRANGER), f"{method} {path}"


@pytest.mark.parametrize("persona", PERSONAS)
@pytest.mark.slow
def test_each_role_has_the_access_in_the_matrix(
    objects_of_alice: dict[str, Any], state: Callable[[], State], persona: str
) -> None:
    """C14: refused requests change nothing."""
    api, before = client_of(user_with(persona)), state()
    wanted = {each: expected(*each, persona) for each in operations()}
    refused = [each for each in wanted if wanted[each] in (FORBIDDEN, HIDDEN)]
    for each in refused:
        assert ask(api, *each, objects_of_alice) == wanted[each], each
    assert state() == before
    allowed = [each for each in wanted if wanted[each] == ALLOWED]
    for each in sorted(allowed, key=lambda each: (each[1] == "delete", -len(each[0]))):  # deletions last
        assert ask(api, *each, objects_of_alice) not in (401, 403, 404), each


def ask(api: APIClient, path: str, method: str, objects_of_alice: dict[str, Any]) -> int:
    body = required_query(path) if method == "get" else {}
    with closing(getattr(api, method)(filled(path, objects_of_alice), body)) as response:
        return int(response.status_code)


# ---- Operators ------------------------------------------------------------------------------------------------------
SECRET_TEXT = "12.00 EUR, confidential"


@pytest.fixture
def operator(transactional_db: None) -> User:
    return user_with(OPERATOR)


def test_operators_see_states_without_data(objects_of_alice: dict[str, Any], operator: User) -> None:
    """C14: the API, event streams, and pages omit the result, the e-invoice, and details of warnings."""
    task = Task.objects.get(pk=objects_of_alice["task_id"])
    task.result["data"] = {"total": SECRET_TEXT}
    task.result["metadata"]["warnings"] = [{"code": "value_not_in_text", "detail": SECRET_TEXT, "page": None}]
    task.metadata["warnings"] = task.result["metadata"]["warnings"]
    task.save()
    path = f"/api/v1/etl/tasks/{task.pk}"
    body = client_of(operator).get(path).json()
    assert (body["status"], body["result"], body["einvoice"]) == ("completed", None, None)
    assert {each["detail"] for each in body["metadata"]["warnings"]} == {""}
    page = browser_of(operator).get(f"/app/documents/{task.pk}")
    for text in (str(body), text_of(page), b"".join(client_of(operator).get(f"{path}/events")).decode()):
        assert SECRET_TEXT not in text
    assert "/original" not in page.content.decode()
    assert not AuditEntry.objects.filter(method="GET").exists()


@pytest.mark.parametrize(
    ("code", "generic"),
    [
        ("schema_validation", "The language model's response does not match"),
        ("number_unrepresentable", "The language model's response has a number"),
    ],
)
def test_operators_cannot_read_a_document_with_their_own_rule(
    objects_of_alice: dict[str, Any], operator: User, alice: User, code: str, generic: str
) -> None:
    """C14: otherwise, the error for a schema that does not match would reveal members of the result."""
    rule = client_of(operator).post("/api/v1/etl/rules", {"name": "Mine", "postprocess_mode": "skip"}).json()["rule_id"]
    task = Task.objects.get(pk=objects_of_alice["task_id"])
    retry = {"from_stage": "postprocess", "rule_id": rule}
    assert client_of(operator).post(f"/api/v1/etl/tasks/{task.pk}/retry", retry).status_code == 403
    detail = "#/Alice owes 12 EUR: must be an integer"
    error = {"code": code, "detail": detail, "stage": "postprocess", "retryable": True, "attempts": 1}
    Task.objects.filter(pk=task.pk).update(status="failed", error=error)
    runstate.forget_many([task])
    shown = client_of(operator).get(f"/api/v1/etl/tasks/{task.pk}").json()["error"]["detail"]
    assert shown.startswith(generic)


def test_operators_operate_exports_in_the_admin(alice: User, dataset: Dataset, operator: User) -> None:
    job = make_job(dataset, alice, chunks=2)
    fail(job, chunks=1)
    job.chunks.filter(status="failed").update(source_message=SECRET_TEXT)
    browser = browser_of(operator)
    chunk = text_of(browser.get(page_of(job.chunks.get(status="failed"))))
    assert "EXPORT_SOURCE_ERROR" in chunk
    assert SECRET_TEXT not in chunk
    press(browser, job, "retry")
    job.refresh_from_db()
    assert job.status == "running"


@pytest.mark.parametrize("model", ["auth/user", "knox/authtoken", "platform/auditentry", "rules/rule", "exports/link"])
def test_operators_do_not_see_accounts_rules_links_or_the_audit_log(operator: User, model: str) -> None:
    assert browser_of(operator).get(f"/admin/{model}/").status_code == 403


# ---- Auditors -------------------------------------------------------------------------------------------------------
OWN_PAGES = ("app/account", "app/sign-in", "app/sign-out", "admin/login/", "admin/logout/", "admin/password_change/")


@pytest.mark.slow
def test_auditors_change_nothing_on_pages_and_in_the_admin(
    objects_of_alice: dict[str, Any], state: Callable[[], State], dataset: Dataset
) -> None:
    """C14: this covers every page and admin route that changes something, except those of the auditor's own account."""
    browser, refused = browser_of(user_with(AUDITOR)), 0
    values = dict.fromkeys({name for route in ROUTES for name in route.names}, dataset.pk) | objects_of_alice
    before = state()
    for route in (each for each in ROUTES if each.is_page and not each.path.startswith(OWN_PAGES)):
        view: Any = getattr(route.view, "view_class", None)
        if not route.methods & {*UNSAFE} or not getattr(getattr(view, "audited", None), "writes", True):
            continue
        if view is not None and view.__module__.startswith("django."):
            continue  # redirects
        assert browser.post(route.filled(values)).status_code == 403, route
        refused += 1
    assert refused > 100
    assert state() == before


def test_auditors_read_all_data_and_their_reads_are_recorded(objects_of_alice: dict[str, Any], alice: User) -> None:
    auditor = user_with(AUDITOR)
    browser = browser_of(auditor)
    for path in (
        f"/app/documents/{objects_of_alice['task_id']}", f"/app/exports/{objects_of_alice['job_id']}", "/admin/",
        "/admin/platform/auditentry/", "/admin/auth/user/", f"/admin/etl/task/{objects_of_alice['task_id']}/change/",
    ):  # fmt: skip
        assert browser.get(path).status_code == 200, path
    page = browser.get(f"/app/documents/{objects_of_alice['task_id']}").content.decode()
    assert "data-read-only" in page
    assert "(read-only)" in page
    assert not re.search(r'action="[^"]*/(delete|retry|cancel|approve)"', page)
    assert AuditEntry.objects.filter(user=auditor, method="GET").count() == 3
    assert "data-read-only" not in browser_of(alice).get("/app/account").content.decode()


def test_auditors_keep_their_own_account(transactional_db: None) -> None:
    auditor = user_with(AUDITOR)
    created = browser_of(auditor).post("/tokens", {"name": "x", "expiresInDays": 1}, content_type="application/json")
    assert created.status_code == 201
    assert client_of(auditor).delete(f"/tokens/{created.json()['id']}").status_code == 204
    assert browser_of(auditor).post("/app/account/second-factors/confirm").status_code == 200


def test_the_role_of_an_auditor_is_stronger_than_other_permissions(alice: User, dataset: Dataset) -> None:
    user = user_with(AUDITOR)
    roles.assign(user, ADMINISTRATOR)
    job = make_job(dataset, alice)
    assert client_of(user).post(f"/exports/{job.pk}/cancel").json()["detail"] == roles.AuditorIsReadOnly.detail


# ---- Groups ---------------------------------------------------------------------------------------------------------
def test_a_migration_restores_the_permissions_of_roles_and_keeps_members(transactional_db: None) -> None:
    user = user_with(OPERATOR)
    group = Group.objects.get(name=roles.GROUPS[OPERATOR])
    before = set(group.permissions.values_list("codename", flat=True))
    assert "open_data" not in before
    assert {"view_job", "change_task"} < before
    group.permissions.clear()
    call_command("migrate", verbosity=0)
    assert set(group.permissions.values_list("codename", flat=True)) == before
    assert user in group.user_set.all()


def test_staff_of_earlier_releases_keep_access_to_data(transactional_db: None) -> None:
    user = User.objects.create_user("sue", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_task"))
    assert not user.has_perm("platform.open_data")
    import_module("config.platform.migrations.0002_audit_entries").keep_access(
        apps, SimpleNamespace(connection=connection)
    )
    assert User.objects.get(pk=user.pk).has_perm("platform.open_data")


def test_the_command_creates_users_with_a_role(transactional_db: None) -> None:
    call_command("issue_token", "otto", "--create", "--role", "operator", stdout=None)
    otto = User.objects.get(username="otto")
    assert (otto.is_staff, otto.is_superuser) == (True, False)
    assert otto.has_perm("exports.change_job")
    User.objects.create_user("ann")
    with pytest.raises(CommandError, match="without this role"):
        call_command("issue_token", "ann", "--role", "auditor")
