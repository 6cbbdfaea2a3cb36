"""Checks of the source database: the datasets' functions can be called, and the role has few other privileges."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import psycopg
from django.conf import settings
from psycopg import sql

from config.ops.doctor import database
from config.ops.doctor.database import STATEMENT_SECONDS, scalar
from config.ops.doctor.findings import Finding, Level, Subject, failure, ok, warning
from config.platform.http import health
from exports.models.dataset import MAX_TIMEOUT, RESERVED
from exports.source.database import SESSION

MIN_VERSION = 14  # has client_connection_check_interval
SPARE = 4  # connections in addition to one for each slot: docs/source-database.md
PAGE = "docs/source-database.md#the-role"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceConnection:
    """A session with a worker's settings, and the role's row of pg_roles."""

    connection: psycopg.Connection
    role: dict[str, Any]


ROLE = """
SELECT rolname AS name, rolsuper AS is_super, rolbypassrls AS bypasses_rls, rolconnlimit AS connections,
       rolcreatedb OR rolcreaterole OR rolreplication AS has_admin_attributes,
       (SELECT datdba = r.oid FROM pg_database WHERE datname = current_database()) AS owns_database
FROM pg_roles r WHERE rolname = current_user
"""


@contextmanager
def open_source() -> Iterator[SourceConnection]:
    """Connect like a worker. An older server refuses session settings that it does not know, so it gets none."""
    connect = partial(health.postgres_connection, settings.SLUICE.source_url, application_name="sluice-doctor")
    with connect() as connection:
        options = None if is_too_old(connection) else SESSION
    with connect(options=options) as connection:
        connection.execute(f"SET statement_timeout = {STATEMENT_SECONDS * 1000}")
        with connection.cursor(row_factory=psycopg.rows.dict_row) as cursor:
            role = cursor.execute(ROLE).fetchone()
        yield SourceConnection(connection=connection, role=role or {})


def is_too_old(connection: psycopg.Connection) -> bool:
    return connection.info.server_version < MIN_VERSION * 10_000


def check_version(source: SourceConnection) -> Finding:
    major = source.connection.info.server_version // 10_000
    if is_too_old(source.connection):
        return failure(
            f"It runs Postgres {major}; Sluice needs {MIN_VERSION} or newer, which ends the queries of killed workers.",
            f"Upgrade the source, or a replica used for exports, to Postgres {MIN_VERSION} or newer.",
        )
    return ok(f"It responds and runs Postgres {major}.")


def check_session(source: SourceConnection) -> Iterator[Finding]:
    """Check the session settings: a pooler may drop those in the startup packet."""
    if is_too_old(source.connection):
        return
    interval = scalar(source.connection, "SHOW client_connection_check_interval")
    if interval != "1s":
        yield failure(
            "Sluice's session settings are lost: SOURCE_DATABASE_URL points to a pooler.",
            "Point SOURCE_DATABASE_URL to Postgres itself: docs/source-database.md.",
        )
    else:
        yield ok("Session settings take effect.")


def check_role(source: SourceConnection) -> Finding:
    role = source.role
    if role["is_super"]:
        return failure(
            "The role of SOURCE_DATABASE_URL is a superuser: functions that exports call have full privileges.",
            f"Create a role that can only execute the datasets' functions: {PAGE}.",
        )
    if role["owns_database"] or role["has_admin_attributes"] or role["bypasses_rls"]:
        return warning(
            "The role of SOURCE_DATABASE_URL owns the database or has privileges beyond reading it.",
            f"Create a role that can only execute the datasets' functions: {PAGE}.",
        )
    return ok("The role has only the privileges that it was granted.")


DEFAULTS = "SELECT reset_val FROM pg_settings WHERE name = %s"


def check_read_only(source: SourceConnection) -> Finding:
    if scalar(source.connection, "SELECT pg_is_in_recovery()"):
        return ok("It is a read-only replica.")
    if scalar(source.connection, DEFAULTS, "default_transaction_read_only") != "on":
        return warning(
            "The role's transactions can write.",
            f"Run ALTER ROLE … SET default_transaction_read_only = on: {PAGE}.",
        )
    return ok("The role's transactions are read-only.")


def check_statement_timeout(source: SourceConnection) -> Finding:
    if scalar(source.connection, DEFAULTS, "statement_timeout") == "0":
        return warning(
            "The role has no statement_timeout of its own; only the one that Sluice sets for each call applies.",
            f"Run ALTER ROLE … SET statement_timeout = '10min': {PAGE}.",
        )
    return ok("The role has a statement_timeout.")


def check_connection_limit(source: SourceConnection) -> Finding:
    """Check that there is a connection for each slot."""
    needed = settings.SLUICE.export_db_slots + SPARE
    limit = source.role["connections"]
    max_connections = int(str(scalar(source.connection, "SHOW max_connections")))
    if 0 <= limit < needed or max_connections < needed:
        allowed = limit if 0 <= limit < max_connections else max_connections
        return warning(
            f"{allowed} connections are allowed and up to {needed} are needed: chunks without a connection wait.",
            f"Run ALTER ROLE … CONNECTION LIMIT {needed}, raise max_connections, or lower EXPORT_DB_SLOTS.",
        )
    return ok(f"The {needed} connections that EXPORT_DB_SLOTS needs are available.")


DATASETS = """
SELECT name, function, statement_timeout, base_path, allow_writes FROM exports_dataset
WHERE kind = 'function' ORDER BY name
"""
# The function is not called. `to_regprocedure` returns null if it does not exist; USAGE on its schema is separate.
FUNCTION = """
SELECT p.oid IS NOT NULL AS exists, has_function_privilege(p.oid, 'EXECUTE') AS can_execute,
       has_schema_privilege(p.pronamespace, 'USAGE') AS can_use, p.proretset AS is_table,
       p.proowner = (SELECT oid FROM pg_roles WHERE rolname = current_user) AS is_own,
       p.provolatile = 'v' AS is_volatile
FROM (SELECT to_regprocedure(%s) AS oid) f LEFT JOIN pg_proc p ON p.oid = f.oid
"""


def check_datasets(source: SourceConnection) -> Iterator[Finding]:
    """Check that each registered function exists, is executable, and times out before its Celery task does."""
    with database.open_database() as main:
        datasets = main.execute(DATASETS).fetchall()
    valid = 0
    for name, function, timeout, path, allow_writes in datasets:
        findings = [
            *function_findings(source, name, function, allow_writes=allow_writes),
            *timeout_findings(name, timeout),
            *path_findings(name, path),
        ]
        yield from findings
        valid += all(finding.level != Level.FAILURE for finding in findings)
    if not datasets:
        yield warning(
            "No dataset is registered, so nothing can be exported from the source.",
            "Run python manage.py register_dataset NAME --function SCHEMA.NAME --base-path PATH: docs/datasets.md.",
        )
    elif valid:
        yield ok(f"The functions of {valid} of {len(datasets)} datasets can be called.")


def function_findings(source: SourceConnection, name: str, function: str, *, allow_writes: bool) -> Iterator[Finding]:
    schema, _, own = function.partition(".")
    signature = sql.SQL("{}(text,date)").format(sql.Identifier(schema, own)).as_string(source.connection)
    try:
        row = source.connection.execute(FUNCTION, [signature]).fetchone()
    except psycopg.errors.InsufficientPrivilege:
        row = (True, False, False, True, False, False)
    exists, can_execute, can_use, is_table, is_own, is_volatile = row or (False,) * 6
    if not exists:
        yield failure(
            f"Dataset {name}: {function}(text, date) does not exist.",
            "Create the function, or change the dataset with register_dataset.",
        )
    elif not (can_execute and can_use):
        yield failure(
            f"Dataset {name}: the role does not have permission to execute {function}.",
            f"GRANT USAGE on its schema and EXECUTE on the function to the role: {PAGE}.",
        )
    elif not is_table:
        yield failure(
            f"Dataset {name}: {function} returns one value instead of a table.",
            "Change it to return a table: docs/datasets.md.",
        )
    else:
        yield from function_warnings(name, function, is_own=is_own, may_fail=is_volatile and not allow_writes)


def function_warnings(name: str, function: str, *, is_own: bool, may_fail: bool) -> Iterator[Finding]:
    if is_own:
        yield warning(
            f"Dataset {name}: the role owns {function} and could replace it.",
            f"Make another role its owner, and grant EXECUTE: {PAGE}.",
        )
    if may_fail:
        yield warning(
            f"Dataset {name}: {function} is VOLATILE, but its calls are read-only: they fail if it writes.",
            "Declare it STABLE if it only reads. If it writes, use register_dataset with --allow-writes.",
        )


def timeout_findings(name: str, timeout: int) -> Iterator[Finding]:
    soft = settings.CELERY_TASK_SOFT_TIME_LIMIT
    if timeout >= soft:
        yield failure(
            f"Dataset {name}: its statement_timeout, {timeout} s, is not below the workers' soft time limit, {soft} s.",
            f"Lower it with register_dataset --statement-timeout; the maximum is {MAX_TIMEOUT}.",
        )


def path_findings(name: str, path: str) -> Iterator[Finding]:
    if path.split("/", maxsplit=1)[0].lower() == RESERVED:
        yield failure(
            f"Dataset {name}: its base path, {path}, is reserved for documents.",
            "Move its files to another folder, and run register_dataset with the new --base-path.",
        )


def check_conflicts(source: SourceConnection) -> Iterator[Finding]:
    """Check whether the source is a replica that cancels long calls in conflict with WAL replay."""
    if not scalar(source.connection, "SELECT pg_is_in_recovery()"):
        return
    feedback = scalar(source.connection, "SHOW hot_standby_feedback")
    delay = int(str(scalar(source.connection, DEFAULTS, "max_standby_streaming_delay")))
    if feedback != "on" and 0 <= delay < MAX_TIMEOUT * 1000:  # milliseconds
        yield warning(
            f"It is a replica that cancels calls that conflict with WAL replay after {delay / 1000:g} s.",
            "Set hot_standby_feedback = on there, or raise max_standby_streaming_delay: docs/source-database.md.",
        )
    else:
        yield ok("It is a replica that does not cancel long calls.")


SUBJECT = Subject(
    name="source",
    open=open_source,
    checks=(
        check_version, check_session, check_role, check_read_only, check_statement_timeout, check_connection_limit,
        check_datasets, check_conflicts,
    ),
    remedy_if_unreachable="Check that the source is running and that SOURCE_DATABASE_URL points to it: "
    "docs/runbook.md#source-is-slow.",
)  # fmt: skip
