"""Isolation between calls in one source session; files with unusual column names, formulas, and settings."""

import csv
import io
import json
import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.contrib.auth.models import User
from psycopg import sql

from config.dev.stack.postgres import SUPERUSER
from config.platform.heartbeat import LeaseLost
from exports.core.errors import (
    ExportError,
    PermanentSourceError,
    RowTooLarge,
    SourceCancelled,
    SourceError,
    SourceUnavailable,
    explain,
)
from exports.core.planning import Dialect, Pair, Shape
from exports.models import Dataset
from exports.source import database, encoding
from exports.source.copy_stream import CopyStream
from exports.worker import execution
from tests import servers
from tests.chaos.history import source as history
from tests.conftest import change_settings
from tests.integration.factories import make_job
from tests.waiting import wait_until

PAIR = Pair("JFK", date(2024, 2, 29))


@pytest.fixture
def session() -> Any:
    with database.SourceSession() as session:
        yield session


def call(
    session: database.SourceSession, name: str, shape: Shape | None = None, *, allow_writes: bool = False
) -> bytes:
    shape = shape or Shape()
    with session.calling(chunk_id=1):
        session.begin(timeout=30, allow_writes=allow_writes)
        columns = session.columns(("data", name)) if encoding.needs_columns(shape) else []
        statement = encoding.copy_statement(("data", name), PAIR, shape, columns, session.encoding)
        return b"".join(encoding.TextContent(session.stream(statement), shape))


def function(connection: psycopg.Connection, name: str, body: str, *, columns: str = "value text") -> None:
    connection.execute(f"""
        CREATE FUNCTION data.{name}(key text, effective_date date) RETURNS TABLE ({columns})
        LANGUAGE plpgsql AS $$ BEGIN {body} END $$
    """)


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_the_clean_function_of_the_soak_has_the_expected_bytes(
    session: database.SourceSession, source_db: psycopg.Connection, form: str
) -> None:
    source_db.execute(history.TABLES)
    for name in ("clean", "rude"):
        source_db.execute(history.FUNCTIONS[name].format(schema=1))
    expected = history.clean_file([(PAIR.key, PAIR.effective_date.isoformat(), 1)], schema=1, form=form)
    for _ in range(20):
        assert call(session, "clean_1", Shape(format=form)) == expected
        with suppress(ExportError):  # one call in ten fails
            call(session, "rude_1")


# Statements that change the state of the session, and expressions that show the change to a later call.
TRACES = {
    "time zone": ("PERFORM set_config('TimeZone', 'Asia/Tokyo', false);", "current_setting('TimeZone')"),
    "date style": ("PERFORM set_config('DateStyle', 'German', false);", "current_date::text"),
    "digits": ("PERFORM set_config('extra_float_digits', '-15', false);", "(0.1::float8 + 0.2)::text"),
    "bytea output": ("PERFORM set_config('bytea_output', 'escape', false);", "'\\x00ff'::bytea::text"),
    # Long, because it also limits the statements that end the call and reset the session.
    "timeout": ("PERFORM set_config('statement_timeout', '600000', false);", "current_setting('statement_timeout')"),
    "lock timeout": ("PERFORM set_config('lock_timeout', '1', false);", "current_setting('lock_timeout')"),
    "tenant": ("PERFORM set_config('app.tenant', 'acme', false);", "nullif(current_setting('app.tenant', true), '')"),
    "search path": ("PERFORM set_config('search_path', 'pg_catalog', false);", "current_setting('search_path')"),
    "role": ("SET ROLE pg_monitor;", "current_user::text"),
    "name": ("PERFORM set_config('application_name', 'mine', false);", "current_setting('application_name')"),
    "advisory lock": (
        "PERFORM pg_advisory_lock(4711);",
        "(SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711)::text",
    ),
    "prepared statement": (
        "IF NOT EXISTS (SELECT 1 FROM pg_prepared_statements) THEN EXECUTE 'PREPARE mine AS SELECT 1'; END IF;",
        "(SELECT count(*) FROM pg_prepared_statements)::text",
    ),
    "channel": ("EXECUTE 'LISTEN mine';", "(SELECT count(*) FROM pg_listening_channels())::text"),
    "temporary table": (
        "CREATE TEMP TABLE leftover AS SELECT 1 AS n;",
        "(SELECT count(*) FROM pg_class WHERE relname = 'leftover' AND relpersistence = 't')::text",
    ),
    "held cursor": (
        "EXECUTE 'DECLARE mine CURSOR WITH HOLD FOR SELECT 1';",
        "(SELECT count(*) FROM pg_cursors WHERE name = 'mine')::text",
    ),
}


@pytest.fixture
def assumable_role() -> Iterator[None]:
    """Grant a role that functions of the source may assume."""
    with psycopg.connect(servers.started[0].postgres.url(SUPERUSER), autocommit=True) as admin:
        admin.execute("GRANT pg_monitor TO source")
        yield
        admin.execute("REVOKE pg_monitor FROM source")


@pytest.mark.usefixtures("assumable_role")
@pytest.mark.parametrize("allow_writes", [False, True])
@pytest.mark.parametrize("trace", TRACES)
def test_a_call_leaves_no_trace(
    source_db: psycopg.Connection, session: database.SourceSession, trace: str, *, allow_writes: bool
) -> None:
    """A39."""
    change_state, read_state = TRACES[trace]
    function(source_db, "rude", f"RETURN QUERY SELECT 'x'::text; {change_state}")
    function(source_db, "polite", f"RETURN QUERY SELECT {read_state};")
    clean = call(session, "polite")
    backend = session._connection.info.backend_pid if session._connection else 0

    try:
        call(session, "rude", allow_writes=allow_writes)
    except SourceError:
        assert not allow_writes  # a read-only transaction refuses the statement

    assert call(session, "polite") == clean
    assert session._connection
    assert session._connection.info.backend_pid == backend  # the session was kept
    # Calls have a timeout of their own, which would hide this one.
    assert session._connection.execute("SHOW statement_timeout").fetchone() == ("0",)


@pytest.mark.parametrize(("allow_writes", "messages"), [(False, 1), (True, 3)])
def test_a_read_only_call_takes_one_message_and_a_writing_one_three(
    source_db: psycopg.Connection, session: database.SourceSession, tmp_path: Path, *, allow_writes: bool, messages: int
) -> None:
    """P4: with a distant source, each round trip takes as long as a small chunk."""
    function(source_db, "polite", "RETURN QUERY SELECT 'x'::text;")
    content = call(session, "polite")
    assert session._connection
    with (tmp_path / "trace").open("w") as trace:
        session._connection.pgconn.trace(trace.fileno())
        assert call(session, "polite", allow_writes=allow_writes) == content
        session._connection.pgconn.untrace()
    sent = [line for line in (tmp_path / "trace").read_text().splitlines() if "\tF\t" in line]
    assert len(sent) == messages
    assert all("\tQuery\t" in line for line in sent)


@pytest.mark.parametrize("allow_writes", [False, True])
def test_an_error_of_the_reset_closes_the_session(
    source_db: psycopg.Connection,
    session: database.SourceSession,
    monkeypatch: pytest.MonkeyPatch,
    *,
    allow_writes: bool,
) -> None:
    """A39: the rows are complete and writes are committed, but the next call must not find the state of this one."""
    source_db.execute("CREATE TABLE data.audit (key text)")
    write = "INSERT INTO data.audit VALUES (key);" if allow_writes else ""
    function(source_db, "audited", f"{write} RETURN QUERY SELECT 'x'::text;")
    monkeypatch.setattr(database, "RESET", "SELECT 1 / 0")
    assert call(session, "audited", allow_writes=allow_writes) == b"value\nx\n"
    assert session._connection is None
    assert source_db.execute("SELECT count(*) FROM data.audit").fetchone() == (int(allow_writes),)


def opened(session: database.SourceSession, name: str, *, allow_writes: bool = False) -> CopyStream:
    session.begin(timeout=30, allow_writes=allow_writes)
    return session.stream(encoding.copy_statement(("data", name), PAIR, Shape(), [], session.encoding))


def test_a_call_that_is_aborted_during_its_reset_leaves_no_trace(
    source_db: psycopg.Connection, session: database.SourceSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A39: an error of the upload, for example, cancels the whole message."""
    prepare = "EXECUTE 'PREPARE mine AS SELECT 1'; PERFORM pg_advisory_lock(4711);"
    function(source_db, "rude", f"{prepare} RETURN QUERY SELECT repeat('x', 1000) FROM generate_series(1, 400);")
    content = call(session, "rude")
    backend = session._connection.info.backend_pid if session._connection else 0
    resetting = f"SELECT count(*) FROM pg_stat_activity WHERE pid = {backend} AND wait_event = 'PgSleep'"

    def abort() -> None:
        with monkeypatch.context() as patch, session.calling(1):
            patch.setattr(database, "RESET", f"SELECT pg_sleep(60); {database.RESET}")
            for _ in opened(session, "rude"):
                patch.undo()
                wait_until(lambda: source_db.execute(resetting).fetchone() == (1,))
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        abort()
    assert call(session, "rude") == content
    assert session._connection
    assert session._connection.info.backend_pid == backend


def test_a_commit_that_loses_its_connection_is_ended(
    source_db: psycopg.Connection, session: database.SourceSession
) -> None:
    """I3: otherwise, the retry would run at the same time as the commit. The server does not detect the loss."""
    source_db.execute("""
        CREATE TABLE data.audit (key text);
        CREATE FUNCTION data.sleep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(60); RETURN NULL; END';
        CREATE CONSTRAINT TRIGGER sleep AFTER INSERT ON data.audit DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION data.sleep()
    """)
    function(source_db, "writing", "INSERT INTO data.audit VALUES (key); RETURN QUERY SELECT 'x'::text;")
    backend = session.connection().info.backend_pid
    own_socket = session.connection().pgconn.socket
    kept_open, (closed, other_end) = os.dup(own_socket), socket.socketpair()
    other_end.close()
    committing = f"SELECT wait_event = 'PgSleep' FROM pg_stat_activity WHERE pid = {backend}"
    with ThreadPoolExecutor(1) as pool, closed:
        running = pool.submit(call, session, "writing", allow_writes=True)
        wait_until(lambda: source_db.execute(committing).fetchone() == (True,))
        os.dup2(closed.fileno(), own_socket)
        with pytest.raises(SourceUnavailable):
            running.result(30)
    os.close(kept_open)
    assert not session.may_still_run
    assert source_db.execute(committing).fetchone() is None
    assert source_db.execute("SELECT count(*) FROM data.audit").fetchone() == (0,)


@pytest.mark.parametrize("moment", ["before the call", "before the commit"])
def test_a_cancelled_call_commits_nothing(
    source_db: psycopg.Connection, session: database.SourceSession, moment: str
) -> None:
    """I1: the worker that has claimed the chunk since also calls the function."""
    source_db.execute("CREATE TABLE data.audit (key text)")
    rows = "RETURN QUERY SELECT repeat('x', 1000) FROM generate_series(1, 400);"
    function(source_db, "writing", f"INSERT INTO data.audit VALUES (key); {rows}")
    idle = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction' AND query LIKE '%writing%'"

    def cancelled() -> None:
        with session.calling(1):
            stream = opened(session, "writing", allow_writes=True)
            if moment == "before the call":
                session.cancel(1)
            for _ in stream:
                assert moment == "before the commit"
                wait_until(lambda: source_db.execute(idle).fetchone() == (1,))
                session.cancel(1)

    with pytest.raises(LeaseLost):
        cancelled()
    assert source_db.execute("SELECT count(*) FROM data.audit").fetchone() == (0,)
    call(session, "writing", allow_writes=True)
    assert source_db.execute("SELECT count(*) FROM data.audit").fetchone() == (1,)


def test_a_call_is_ended_even_if_it_renames_its_session(
    source_db: psycopg.Connection, session: database.SourceSession
) -> None:
    """I3: the reaper must find the call before it frees the slot."""
    function(
        source_db,
        "renamed",
        "PERFORM set_config('application_name', 'x', false), pg_sleep(60); RETURN QUERY SELECT 'x';",
    )
    asleep = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'x' AND wait_event = 'PgSleep'"
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(call, session, "renamed")
        wait_until(lambda: source_db.execute(asleep).fetchone() == (1,))
        assert database.end_calls([session.backend]) == set()
        assert source_db.execute(asleep).fetchone() == (0,)
        with pytest.raises(ExportError):
            running.result(30)


def test_random_numbers_do_not_depend_on_the_seed_of_another_call(
    source_db: psycopg.Connection, session: database.SourceSession
) -> None:
    """A39."""
    function(source_db, "rude", "PERFORM setseed(0.5); RETURN QUERY SELECT 'x'::text;")
    function(source_db, "polite", "RETURN QUERY SELECT random()::text;")
    numbers = set()
    for _ in range(3):
        call(session, "rude")
        numbers.add(call(session, "polite"))
    assert len(numbers) == 3


def test_values_of_sequences_are_unknown_to_the_next_call(
    source_db: psycopg.Connection, session: database.SourceSession
) -> None:
    """A39: Postgres reports 55000 if `lastval` has no value in this session."""
    source_db.execute("CREATE SEQUENCE data.numbers")
    function(source_db, "rude", "RETURN QUERY SELECT nextval('data.numbers')::text;")
    function(source_db, "polite", "RETURN QUERY SELECT lastval()::text;")
    call(session, "rude", allow_writes=True)
    with pytest.raises(ExportError, match="55000"):
        call(session, "polite")


def test_a_failed_call_leaves_no_trace_and_keeps_the_session(
    source_db: psycopg.Connection, session: database.SourceSession
) -> None:
    """A39."""
    change_state = (
        "PERFORM set_config('TimeZone', 'Asia/Tokyo', false); PERFORM pg_advisory_lock(4711); RAISE division_by_zero;"
    )
    function(source_db, "rude", change_state)
    function(
        source_db, "polite",
        "RETURN QUERY SELECT current_setting('TimeZone') || count(*) FROM pg_locks WHERE objid = 4711;",
    )  # fmt: skip
    clean = call(session, "polite")
    backend = session._connection.info.backend_pid if session._connection else 0
    with pytest.raises(SourceError):
        call(session, "rude")

    assert call(session, "polite") == clean
    assert session._connection
    assert session._connection.info.backend_pid == backend


@pytest.mark.parametrize("setting", ["quote_all_identifiers = on", "standard_conforming_strings = off"])
def test_settings_of_the_role_do_not_change_bytes(source_db: psycopg.Connection, setting: str) -> None:
    """A20: the names of types select the conversion to JSON, and are part of it."""
    function(
        source_db,
        "typed",
        r"RETURN QUERY SELECT '\x00ff'::bytea, ARRAY['\x00ff'::bytea], ARRAY['2024-02-29 12:00'::timestamp];",
        columns="b bytea, bs bytea[], ts timestamp[]",
    )
    with database.SourceSession() as session:
        clean = call(session, "typed", Shape(format="jsonl"))
    with psycopg.connect(servers.started[0].postgres.url(SUPERUSER), autocommit=True) as admin:
        admin.execute(f"ALTER ROLE source SET {setting}")
        try:
            with database.SourceSession() as session:
                assert call(session, "typed", Shape(format="jsonl")) == clean
        finally:
            admin.execute(f"ALTER ROLE source RESET {setting.split(maxsplit=1)[0]}")


def test_calls_are_read_only_unless_writes_are_allowed(
    source_db: psycopg.Connection, session: database.SourceSession
) -> None:
    """A39."""
    source_db.execute("CREATE TABLE data.audit (key text)")
    function(source_db, "writing", "INSERT INTO data.audit VALUES (key); RETURN QUERY SELECT 'x'::text;")
    with pytest.raises(PermanentSourceError, match="25006") as caught:
        call(session, "writing")
    assert not explain(caught.value.code, caught.value.detail)["retryable"]
    assert source_db.execute("SELECT count(*) FROM data.audit").fetchone() == (0,)

    call(session, "writing", allow_writes=True)
    assert source_db.execute("SELECT key FROM data.audit").fetchall() == [("JFK",)]


def test_a_selected_column_that_no_longer_exists_fails_the_chunk(
    source_db: psycopg.Connection, dataset: Dataset, alice: User
) -> None:
    """A20: a function of single values had the column `call`. It returns rows with other columns now."""
    function(source_db, "changed", "RETURN QUERY SELECT 'Ann'::text, 100;", columns="name text, salary int")
    Dataset.objects.filter(pk=dataset.pk).update(function="data.changed")
    job = make_job(Dataset.objects.get(pk=dataset.pk), alice, 1, shape=Shape(columns=("call",)))
    execution.drain()
    chunk = job.chunks.get()
    assert (chunk.status, chunk.error_detail) == ("failed", "SQLSTATE 42703")


# ---- Names of columns -----------------------------------------------------------------------------------------------
ALIASES = ["line", "call", "part", "parts", "place", "t", "row", "rows", "value", "d"]
NAMES = [
    *ALIASES,
    "select",
    "User",
    "Öl",
    'with "quotes"',
    "two words",
    "a,b",
    "x" * 63,
    "é" * 31,
    "=sum",
    "key_",
    "%s",
    "{}",
]


@pytest.mark.parametrize("shape", [Shape(), Shape(dialect=Dialect(formula_policy="escape")), Shape(format="jsonl")])
def test_columns_of_any_name_keep_their_values(
    source_db: psycopg.Connection, session: database.SourceSession, shape: Shape
) -> None:
    """A20."""
    names = sql.SQL(", ").join(sql.SQL("{} text").format(sql.Identifier(name)) for name in NAMES)
    values = sql.SQL(", ").join(sql.Literal(f"v{index}") for index in range(len(NAMES)))
    source_db.execute(sql.SQL("CREATE TYPE data.wide AS ({})").format(names))
    source_db.execute(
        sql.SQL(
            "CREATE FUNCTION data.wide(key text, effective_date date) RETURNS SETOF data.wide LANGUAGE sql AS {}"
        ).format(sql.Literal(sql.SQL("SELECT {}").format(values).as_string(source_db)))
    )
    data = call(session, "wide", shape).decode()

    if shape.format == "jsonl":
        assert list(json.loads(data).items()) == [(name, f"v{index}") for index, name in enumerate(NAMES)]
    else:
        header, row = csv.reader(io.StringIO(data, newline=""))
        escaped = ["'=sum" if name == "=sum" and shape.dialect.formula_policy == "escape" else name for name in NAMES]
        assert header == escaped
        assert row == [f"v{index}" for index in range(len(NAMES))]


@pytest.mark.parametrize("kind", ["data.pair", "text", "bytea[]"])
def test_a_column_named_like_the_alias_of_the_row_loses_no_other_column(
    source_db: psycopg.Connection, session: database.SourceSession, kind: str
) -> None:
    source_db.execute("CREATE TYPE data.pair AS (a int, b int)")
    value = {"data.pair": "ROW(1, 2)::data.pair", "text": "'x'::text", "bytea[]": "ARRAY['\\x00'::bytea]"}[kind]
    function(source_db, "lines", f"RETURN QUERY SELECT 7, {value}, 9;", columns=f"id int, line {kind}, total int")

    row = json.loads(call(session, "lines", Shape(format="jsonl")))

    assert (row["id"], row["total"], list(row)) == (7, 9, ["id", "line", "total"])


@pytest.mark.parametrize("shape", [Shape(), Shape(format="jsonl"), Shape(dialect=Dialect(formula_policy="escape"))])
def test_a_function_that_returns_single_values_works_in_every_format(
    source_db: psycopg.Connection, session: database.SourceSession, shape: Shape
) -> None:
    source_db.execute("""
        CREATE FUNCTION data.names(key text, effective_date date) RETURNS SETOF text
        LANGUAGE sql AS $$ SELECT 'Ann' UNION ALL SELECT 'Bo' $$
    """)
    data = call(session, "names", shape)

    expected = b'{"call":"Ann"}\n{"call":"Bo"}\n' if shape.format == "jsonl" else b"call\nAnn\nBo\n"
    assert data == expected


def test_an_escaped_name_that_is_too_long_is_an_error(
    source_db: psycopg.Connection, session: database.SourceSession
) -> None:
    name = "=" + "x" * 62
    function(source_db, "long", "RETURN QUERY SELECT 'x'::text;", columns=f'"{name}" text')

    with pytest.raises(PermanentSourceError, match="63 bytes") as caught:
        call(session, "long", Shape(dialect=Dialect(formula_policy="escape")))
    assert not explain(caught.value.code, caught.value.detail)["retryable"]
    assert call(session, "long").startswith(name.encode())


# ---- Formulas -------------------------------------------------------------------------------------------------------
DISGUISES = ["", " ", "\t", "\r", "\n", "\u00a0", "\u3000", "\u200b", "\ufeff", "\u2060\u200d "]
DISGUISES += [
    "\x01",
    "\x1f",
    "\x7f",
    "\u115f",
    "\u17b4",
    "\u180b",
    "\u2800",
    "\u3164",
    "\ufe0f",
    "\uffa0",
    "\U000e0020",
]
FORMULAS = [*(f"{before}=1+1" for before in DISGUISES), "+1+1", "-1+1", "@SUM(A1)", "\nx"]


@pytest.mark.parametrize("value", [*FORMULAS, "\uff1d1+1", "\uff0b1+1", "\uff0d1+1", "\uff20SUM(A1)", "\ufe661+1"])
def test_formulas_are_escaped_in_every_notation(
    source_db: psycopg.Connection, session: database.SourceSession, value: str
) -> None:
    """A20."""
    body = sql.Literal(value).as_string(source_db)
    function(source_db, "cells", f"RETURN QUERY SELECT {body}::text;")

    data = call(session, "cells", Shape(dialect=Dialect(formula_policy="escape"))).decode()

    assert list(csv.reader(io.StringIO(data, newline="")))[1] == [f"'{value}"]


def test_formulas_are_escaped_in_every_type_of_text(
    source_db: psycopg.Connection, session: database.SourceSession
) -> None:
    """A20: `refcursor` stands for types without a category, such as xml. Other types may begin with a minus."""
    columns = "a refcursor, b name, u uuid, x bytea, j json, i interval, m money, d date, r int4range"
    source_db.execute(r"""
        CREATE TABLE data.kinds AS
        SELECT '=1+1'::refcursor, '=1+1'::name, gen_random_uuid(), '\x2d00'::bytea, ' -5'::json, '-1 day'::interval,
               '-5'::money, '4000-01-01 BC'::date, '[-5,1)'::int4range
    """)
    function(source_db, "cells", "RETURN QUERY TABLE data.kinds;", columns=columns)
    plain, escaped = (
        list(csv.reader(io.StringIO(call(session, "cells", shape).decode(), newline="")))[1]
        for shape in (Shape(), Shape(dialect=Dialect(formula_policy="escape")))
    )
    assert escaped == ["'=1+1", "'=1+1", *plain[2:]]


@pytest.mark.parametrize("value", ["x=1", "-5", "+.5e-10", "a\u00a0=1", "１", "naïve", ""])
def test_other_values_are_not_escaped(
    source_db: psycopg.Connection, session: database.SourceSession, value: str
) -> None:
    function(source_db, "cells", f"RETURN QUERY SELECT '{value}'::text;")

    data = call(session, "cells", Shape(dialect=Dialect(formula_policy="escape"))).decode()

    assert list(csv.reader(io.StringIO(data, newline="")))[1] == [value]


# ---- Settings that a function changes -------------------------------------------------------------------------------
VALUES = """RETURN QUERY SELECT 0.1::float8 + 0.2, interval '1 day 02:00', timestamptz '2024-02-29 12:00+00',
    date '2024-02-29', bytea '\\x00ff';"""
COLUMNS = "ratio float8, span interval, at timestamptz, day date, raw bytea"
DEFAULTS = {
    "csv": b"0.30000000000000004,1 day 02:00:00,2024-02-29 12:00:00+00,2024-02-29,\\x00ff",
    "jsonl": b'{"ratio":0.30000000000000004,"span":"1 day 02:00:00","at":"2024-02-29T12:00:00+00:00",'
    b'"day":"2024-02-29","raw":"AP8="}',
}
INSTANT, JAPAN = b"2024-02-29T12:00:00+00:00", b"2024-02-29T21:00:00+09:00"
# The setting, and what it replaces in CSV and in JSON Lines.
CHANGES = {
    "extra_float_digits = 0": ((b"0.30000000000000004", b"0.3"), (b"0.30000000000000004", b"0.3")),
    "IntervalStyle = 'iso_8601'": ((b"1 day 02:00:00", b"P1DT2H"), (b"1 day 02:00:00", b"P1DT2H")),
    "TimeZone = 'Asia/Tokyo'": ((b"12:00:00+00", b"21:00:00+09"), (INSTANT, JAPAN)),
    "DateStyle = 'SQL, YMD'": (
        (b"2024-02-29 12:00:00+00,2024-02-29", b"02/29/2024 12:00:00 UTC,02/29/2024"),
        (b"", b""),
    ),
    "bytea_output = 'escape'": ((b"\\x00ff", b"\\000\\377"), (b"", b"")),
}


@pytest.mark.parametrize("setting", CHANGES)
def test_a_setting_applies_to_the_rows_of_a_call_that_changes_it(
    source_db: psycopg.Connection, session: database.SourceSession, setting: str
) -> None:
    function(source_db, "changed", f"SET LOCAL {setting}; {VALUES}", columns=COLUMNS)
    for form, change in zip(DEFAULTS, CHANGES[setting], strict=True):
        assert call(session, "changed", Shape(format=form)).splitlines()[-1] == DEFAULTS[form].replace(*change)


def test_a_setting_in_a_clause_of_the_function_changes_no_rows(
    source_db: psycopg.Connection, session: database.SourceSession
) -> None:
    function(source_db, "clauses", VALUES, columns=COLUMNS)
    for setting in CHANGES:
        source_db.execute(f"ALTER FUNCTION data.clauses SET {setting}")
    for form, expected in DEFAULTS.items():
        assert call(session, "clauses", Shape(format=form)).splitlines()[-1] == expected


# ---- Bounds ---------------------------------------------------------------------------------------------------------
def test_a_row_that_is_too_large_has_a_separate_error(
    source_db: psycopg.Connection, session: database.SourceSession, settings: Any
) -> None:
    change_settings(settings, export_max_row_bytes=1024**2)
    function(source_db, "large", "RETURN QUERY SELECT repeat('x', n) FROM unnest(ARRAY[10, 2000000]) n;")

    with pytest.raises(RowTooLarge, match="2,000,001 bytes, and the limit is 1,048,576") as caught:
        call(session, "large")
    assert not explain(caught.value.code, caught.value.detail)["retryable"]


def test_a_call_that_an_administrator_cancels_is_not_a_timeout(
    source_db: psycopg.Connection, session: database.SourceSession
) -> None:
    function(source_db, "cancelled", "PERFORM pg_cancel_backend(pg_backend_pid()); PERFORM pg_sleep(5); RETURN;")
    with pytest.raises(SourceCancelled) as caught:
        call(session, "cancelled")

    assert caught.value.retryable
