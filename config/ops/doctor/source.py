"""The source database: that calls can be made there, and that the role can do little else."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from django.conf import settings
from psycopg import sql

from config.ops.doctor import database
from config.ops.doctor.database import CONNECT_SECONDS, STATEMENT_SECONDS, scalar
from config.ops.doctor.findings import Finding, Subject, failure, ok, warning
from exports.source.database import SESSION

OLDEST = 14  # client_connection_check_interval
SPARE = 4  # connections beside those of the slots: docs/source-database.md
PAGE = "docs/source-database.md#the-role"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A session as a worker opens it, and the role's own row of pg_roles."""

    connection: psycopg.Connection
    role: dict[str, Any]


ROLE = """
SELECT rolname AS name, rolsuper AS is_super, rolbypassrls AS passes_rls, rolconnlimit AS connections,
       rolcreatedb OR rolcreaterole OR rolreplication AS has_more,
       (SELECT datdba = r.oid FROM pg_database WHERE datname = current_database()) AS owns_database
FROM pg_roles r WHERE rolname = current_user
"""


@contextmanager
def opened() -> Iterator[Source]:
    with psycopg.connect(
        settings.SLUICE.source_url,
        autocommit=True,
        options=SESSION,
        connect_timeout=CONNECT_SECONDS,
        tcp_user_timeout=CONNECT_SECONDS * 1000,
        application_name="sluice-doctor",
    ) as connection:
        connection.execute(f"SET statement_timeout = {STATEMENT_SECONDS * 1000}")
        with connection.cursor(row_factory=psycopg.rows.dict_row) as cursor:
            role = cursor.execute(ROLE).fetchone()
        yield Source(connection=connection, role=role or {})


def check_version(source: Source) -> Iterator[Finding]:
    major = source.connection.info.server_version // 10_000
    if major < OLDEST:
        yield failure(
            f"It is Postgres {major}: queries of killed workers would run on.",
            f"Move the source, or a replica for exports, to Postgres {OLDEST} or newer.",
        )
    else:
        yield ok(f"It answers, and is Postgres {major}.")


def check_session(source: Source) -> Iterator[Finding]:
    """Whether what we set when we connect has come through. A pooler drops it."""
    interval = scalar(source.connection, "SHOW client_connection_check_interval")
    if interval != "1s":
        yield failure(
            "What Sluice sets at the start of a session does not arrive: there is a pooler in between.",
            "Lead SOURCE_DATABASE_URL past it, to Postgres itself: docs/source-database.md.",
        )
    else:
        yield ok("Sessions are as Sluice sets them.")


def check_role(source: Source) -> Iterator[Finding]:
    role = source.role
    if role["is_super"]:
        yield failure(
            "The role of SOURCE_DATABASE_URL is a superuser: a function that an export calls may do anything there.",
            f"Make a role of its own that may execute the datasets' functions and nothing else: {PAGE}.",
        )
    elif role["owns_database"] or role["has_more"] or role["passes_rls"]:
        yield warning(
            "The role of SOURCE_DATABASE_URL owns the database, or may more than read it.",
            f"Make a role of its own that may execute the datasets' functions and nothing else: {PAGE}.",
        )
    else:
        yield ok("The role has no rights but those it was granted.")


DEFAULTS = "SELECT reset_val FROM pg_settings WHERE name = %s"


def check_read_only(source: Source) -> Iterator[Finding]:
    if scalar(source.connection, "SELECT pg_is_in_recovery()"):
        yield ok("It is a replica: nobody can write there.")
    elif scalar(source.connection, DEFAULTS, "default_transaction_read_only") != "on":
        yield warning(
            "The role's transactions may write.",
            f"ALTER ROLE … SET default_transaction_read_only = on: {PAGE}.",
        )
    else:
        yield ok("The role's transactions are read-only.")


def check_statement_timeout(source: Source) -> Iterator[Finding]:
    if scalar(source.connection, DEFAULTS, "statement_timeout") == "0":
        yield warning(
            "The role has no statement_timeout of its own, beside the one that Sluice sets for each call.",
            f"ALTER ROLE … SET statement_timeout = '10min': {PAGE}.",
        )
    else:
        yield ok("The role has a statement_timeout.")


def check_room(source: Source) -> Iterator[Finding]:
    """Whether so many calls at once find a connection each."""
    needed = settings.SLUICE.export_db_slots + SPARE
    limit = source.role["connections"]
    most = int(str(scalar(source.connection, "SHOW max_connections")))
    if 0 <= limit < needed or most < needed:
        allowed = limit if 0 <= limit < most else most
        yield warning(
            f"{allowed} connections are allowed and up to {needed} are wanted: chunks are handed back and wait.",
            f"ALTER ROLE … CONNECTION LIMIT {needed}, raise max_connections, or lower EXPORT_DB_SLOTS.",
        )
    else:
        yield ok(f"There is room for the {needed} connections that EXPORT_DB_SLOTS wants.")


DATASETS = "SELECT name, function, statement_timeout FROM exports_dataset ORDER BY name"
# Never called. `to_regprocedure` is null for what is not there; the right to use its schema is asked apart.
FUNCTION = """
SELECT p.oid IS NOT NULL AS is_there, has_function_privilege(p.oid, 'EXECUTE') AS may_execute,
       has_schema_privilege(p.pronamespace, 'USAGE') AS may_use, p.proretset AS is_table,
       p.proowner = (SELECT oid FROM pg_roles WHERE rolname = current_user) AS is_own
FROM (SELECT to_regprocedure(%s) AS oid) f LEFT JOIN pg_proc p ON p.oid = f.oid
"""


def check_datasets(source: Source) -> Iterator[Finding]:
    """Each registered function: is it there, may it be executed, does a call end before its task does?"""
    with database.open_database() as main:
        datasets = main.execute(DATASETS).fetchall()
    fine = 0
    for name, function, timeout in datasets:
        faults = [*function_faults(source, name, function), *timeout_faults(name, timeout)]
        yield from faults
        fine += not faults
    if not datasets:
        yield warning(
            "No dataset is registered: there is nothing to export.",
            "python manage.py register_dataset NAME --function SCHEMA.NAME --base-path PATH: docs/datasets.md.",
        )
    elif fine:
        yield ok(f"The functions of {fine} of {len(datasets)} datasets can be called.")


def function_faults(source: Source, name: str, function: str) -> Iterator[Finding]:
    schema, _, own = function.partition(".")
    signature = sql.SQL("{}(text,date)").format(sql.Identifier(schema, own)).as_string(source.connection)
    try:
        row = source.connection.execute(FUNCTION, [signature]).fetchone()
    except psycopg.errors.InsufficientPrivilege:
        row = (True, False, False, True, False)
    is_there, may_execute, may_use, is_table, is_own = row or (False, False, False, False, False)
    if not is_there:
        yield failure(
            f"Dataset {name}: {function}(text, date) is not there.",
            "Make the function, or change the dataset with register_dataset.",
        )
    elif not (may_execute and may_use):
        yield failure(
            f"Dataset {name}: the role may not execute {function}.",
            f"GRANT USAGE on its schema and EXECUTE on the function to the role: {PAGE}.",
        )
    elif not is_table:
        yield failure(
            f"Dataset {name}: {function} returns one value, no table.",
            "Have it return a table: docs/datasets.md.",
        )
    elif is_own:
        yield warning(
            f"Dataset {name}: the role owns {function}, and could replace it.",
            f"Have another role own it, and grant EXECUTE: {PAGE}.",
        )


def timeout_faults(name: str, timeout: int) -> Iterator[Finding]:
    soft = settings.CELERY_TASK_SOFT_TIME_LIMIT
    if timeout >= soft:
        yield failure(
            f"Dataset {name}: its statement_timeout, {timeout} s, is not below the workers' own limit, {soft} s.",
            "Lower it with register_dataset --statement-timeout; 540 is the most.",
        )


def check_conflicts(source: Source) -> Iterator[Finding]:
    """On a replica: what replay does to calls that take long."""
    if not scalar(source.connection, "SELECT pg_is_in_recovery()"):
        return
    feedback = scalar(source.connection, "SHOW hot_standby_feedback")
    delay = int(str(scalar(source.connection, DEFAULTS, "max_standby_streaming_delay")))
    if feedback != "on" and 0 <= delay <= 60_000:  # noqa: PLR2004  milliseconds
        yield warning(
            f"It is a replica that ends calls which stand in the way of replay after {delay / 1000:g} s.",
            "Set hot_standby_feedback = on there, or raise max_standby_streaming_delay: docs/source-database.md.",
        )
    else:
        yield ok("It is a replica that lets calls end.")


def open_source() -> AbstractContextManager[Source]:
    return opened()


SUBJECT = Subject(
    name="source",
    open=open_source,
    checks=(
        check_version, check_session, check_role, check_read_only, check_statement_timeout, check_room,
        check_datasets, check_conflicts,
    ),
    away="See that the source runs and that SOURCE_DATABASE_URL leads there: docs/runbook.md#source-is-slow.",
)  # fmt: skip
