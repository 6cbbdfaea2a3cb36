"""The command `register_dataset`, which creates and changes datasets. A8."""

from collections.abc import Callable
from io import StringIO
from typing import Any

import psycopg
import pytest
from django.contrib.admin.models import LogEntry
from django.core.management import CommandError, call_command
from pydantic import SecretStr

from config.platform.http.staff import COMMAND_LINE
from etl.pipeline import artifacts
from exports.management.commands import register_dataset as command
from exports.models import Dataset
from exports.models.dataset import RESERVED
from exports.source.examination import Examination, examine
from tests.conftest import change_settings


def register(path: str) -> str:
    out = StringIO()
    call_command("register_dataset", "flights", "--function", "data.rows_for", "--base-path", path, stdout=out)
    return out.getvalue()


@pytest.mark.parametrize("path", ["rb/x", "rb/x/", "rb/x//"])
def test_a_base_path_may_have_trailing_slashes(dataset: Dataset, path: str) -> None:
    """A8."""
    assert register(path) == "dataset flights: data.rows_for to rb/x/\n"
    assert Dataset.objects.get(name="flights").base_path == "rb/x"


@pytest.mark.parametrize("path", ["etl", "etl/", "etl/uploads", "etl/exports", "ETL", "Etl/uploads"])
def test_the_folder_of_documents_is_reserved(dataset: Dataset, path: str) -> None:
    """The sweep of documents deletes old objects there."""
    with pytest.raises(CommandError, match="reserved"):
        register(path)
    assert not Dataset.objects.filter(name="flights").exists()


def test_documents_are_stored_only_below_the_reserved_folder(dataset: Dataset) -> None:
    for prefix in (artifacts.DOCUMENTS, artifacts.UPLOADS, artifacts.TASKS):
        assert prefix.startswith(f"{RESERVED}/")
    assert "etl2/" in register("etl2")


@pytest.mark.parametrize("path", ["", "/", "/rb/x", "rb//x/", "rb/../x", "rb/x ", "rb/x/ "])
def test_invalid_base_paths_are_refused(dataset: Dataset, path: str) -> None:
    with pytest.raises(CommandError, match="base_path"):
        register(path)
    assert not Dataset.objects.filter(name="flights").exists()


# ---- Unusable functions ---------------------------------------------------------------------------------------------


def refusal(function: str) -> str:
    with pytest.raises(CommandError) as refused:
        call_command("register_dataset", "new", "--function", function, "--base-path", "new")
    assert not Dataset.objects.filter(name="new").exists()
    return str(refused.value)


@pytest.mark.parametrize(
    ("sql", "function", "reason"),
    [
        ("", "data.missing", "data.missing does not exist in the source database. Names are case-sensitive."),
        ("", "nowhere.rows_for", "nowhere.rows_for does not exist in the source database."),
        ("", "data.Rows_For", "Did you mean data.rows_for?"),
        (
            "CREATE FUNCTION data.turned(d date, k text) RETURNS TABLE (n int) LANGUAGE sql STABLE AS 'SELECT 1'",
            "data.turned",
            "data.turned takes (d date, k text). It must take (key text, effective_date date).",
        ),
        (
            "CREATE PROCEDURE data.done(key text, effective_date date) LANGUAGE sql AS 'SELECT 1'",
            "data.done",
            "data.done is a procedure. It must be a function that returns a table.",
        ),
        (
            "CREATE FUNCTION data.one(key text, effective_date date) RETURNS int LANGUAGE sql STABLE AS 'SELECT 1'",
            "data.one",
            "data.one returns one value of type integer. It must return a table",
        ),
        (
            """CREATE TABLE data.bare ();
            CREATE FUNCTION data.blank(key text, d date) RETURNS SETOF data.bare LANGUAGE sql STABLE AS 'SELECT'""",
            "data.blank",
            "data.blank returns no columns. It must return a table",
        ),
        (
            "CREATE FUNCTION data.wild(key text, d date) RETURNS SETOF record LANGUAGE sql STABLE AS 'SELECT 1, 2'",
            "data.wild",
            "data.wild(key text, effective_date date) cannot be called. SQLSTATE 42601: syntax error: a column",
        ),
    ],
)
def test_it_explains_why_a_function_cannot_be_used(
    dataset: Dataset, source_db: psycopg.Connection, sql: str, function: str, reason: str
) -> None:
    """A34."""
    if sql:
        source_db.execute(sql)
    assert reason in refusal(function)


def test_it_names_the_missing_permission(dataset: Dataset, source_db: psycopg.Connection) -> None:
    """A34: even the owner of a function can lose it."""
    source_db.execute("REVOKE EXECUTE ON FUNCTION data.rows_for(text, date) FROM PUBLIC, CURRENT_USER")
    assert refusal("data.rows_for") == (
        "The role of SOURCE_DATABASE_URL may not call data.rows_for: permission denied for function rows_for. It needs "
        "USAGE on the schema and EXECUTE on the function."
    )


def test_it_reports_that_the_source_is_unavailable(dataset: Dataset, settings: Any) -> None:
    """A34."""
    away = SecretStr("postgresql://127.0.0.1:1/none")
    change_settings(settings, source_database_url=away)
    assert refusal("data.rows_for") == "The source database cannot be reached."


def test_it_warns_of_volatile_functions_that_may_not_write(dataset: Dataset, source_db: psycopg.Connection) -> None:
    """A34: the functions are registered nevertheless."""
    source_db.execute("ALTER FUNCTION data.rows_for(text, date) VOLATILE")
    for options, is_warned in (((), True), (("--allow-writes",), False)):
        out, err = StringIO(), StringIO()
        arguments = ("new", "--function", "data.rows_for", "--base-path", "new", *options)
        call_command("register_dataset", *arguments, stdout=out, stderr=err)
        assert ("data.rows_for is VOLATILE" in err.getvalue()) is is_warned
        assert out.getvalue() == "dataset new: data.rows_for to new/\n"
    source_db.execute("ALTER FUNCTION data.rows_for(text, date) STABLE")
    err = StringIO()
    call_command(
        "register_dataset", "new", "--function", "data.rows_for", "--base-path", "new", "--no-allow-writes", stderr=err
    )
    assert err.getvalue() == ""


def test_a_registration_is_in_the_audit_log(dataset: Dataset) -> None:
    """A34: the entry has the values of a new dataset, or the changed values."""
    arguments = ("new", "--function", "data.rows_for", "--base-path", "new")
    call_command("register_dataset", *arguments)
    call_command("register_dataset", *arguments, "--show-errors", "--statement-timeout", "30")
    call_command("register_dataset", *arguments)
    first, second, third = LogEntry.objects.order_by("pk")
    assert (str(first.user), first.object_id, first.is_addition()) == (
        COMMAND_LINE, str(Dataset.objects.get(name="new").pk), True,
    )  # fmt: skip
    assert first.change_message.startswith("Registered by register_dataset. function: data.rows_for; base_path: new;")
    assert second.change_message == ("Registered again by register_dataset. show_errors: True; statement_timeout: 30")
    assert third.change_message == "Registered again by register_dataset. No changes."
    assert Dataset.objects.get(name="new").show_errors


def test_a_refused_registration_leaves_nothing(dataset: Dataset) -> None:
    """A34."""
    refusal("data.missing")
    assert not LogEntry.objects.exists()


# ---- Concurrent changes ---------------------------------------------------------------------------------------------


def during_examination(monkeypatch: pytest.MonkeyPatch, change: Callable[[], object]) -> None:
    """Call `change` after the command has read the dataset, and before it examines the function."""

    def changed_before(*arguments: Any, **options: Any) -> Examination:
        change()
        return examine(*arguments, **options)

    monkeypatch.setattr(command, "examine", changed_before)


def test_a_concurrent_change_is_kept(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """A8: only the given options are written, and the audit log shows only their changes."""
    register("rb/x")
    change = {"show_errors": True, "statement_timeout": 30, "formats": ["csv"]}
    during_examination(monkeypatch, lambda: Dataset.objects.filter(name="flights").update(**change))
    register("rb/y")

    assert Dataset.objects.filter(name="flights", base_path="rb/y", **change).exists()
    entry = LogEntry.objects.order_by("-pk").first()
    assert entry
    assert entry.change_message == "Registered again by register_dataset. base_path: rb/y"


def test_a_dataset_that_is_deleted_meanwhile_is_not_created_again(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A8."""
    register("rb/x")
    during_examination(monkeypatch, lambda: Dataset.objects.filter(name="flights").delete())
    with pytest.raises(CommandError, match="flights was deleted"):
        register("rb/y")
    assert not Dataset.objects.filter(name="flights").exists()
