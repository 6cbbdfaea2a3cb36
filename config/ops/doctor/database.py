"""The main database: Postgres as Sluice needs it, its schema, its slots, and what beat and reaper have left in it."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from datetime import UTC, datetime

import psycopg
from django.conf import settings
from django.core.checks import Tags, run_checks
from django.db import connection as django_connection
from django.db.migrations.loader import MigrationLoader
from psycopg.conninfo import make_conninfo

from config.ops.doctor import clocks
from config.ops.doctor.findings import Finding, Subject, failure, ok, warning

CONNECT_SECONDS = 3
STATEMENT_SECONDS = 3
OLDEST = 15  # NULLS NOT DISTINCT, which the slots' numbers need
Connection = psycopg.Connection


def scalar(connection: Connection, statement: str, *values: object) -> object:
    row = connection.execute(statement, values).fetchone()
    return row[0] if row else None


def check_version(connection: Connection) -> Iterator[Finding]:
    major = connection.info.server_version // 10_000
    if major < OLDEST:
        yield failure(
            f"It is Postgres {major}; Sluice's tables need {OLDEST}.",
            "Move to a newer Postgres: 18 is what the tests run with.",
        )
    else:
        yield ok(f"It answers, and is Postgres {major}.")


def check_encoding(connection: Connection) -> Iterator[Finding]:
    encoding = scalar(connection, "SHOW server_encoding")
    if encoding != "UTF8":
        yield failure(
            f"Its encoding is {encoding}: keys and names that do not fit into it are refused.",
            "Make a new database WITH ENCODING 'UTF8' TEMPLATE template0, and restore a dump into it.",
        )
    else:
        yield ok("Its encoding is UTF8.")


def check_timezone(connection: Connection) -> Iterator[Finding]:
    zone = scalar(connection, "SELECT reset_val FROM pg_settings WHERE name = 'TimeZone'")
    if zone not in {"UTC", "Etc/UTC", "GMT", "Etc/GMT"}:
        yield warning(
            f"Its time zone is {zone}: sessions that a pooler hands on count days of quotas by it.",
            "ALTER ROLE … SET timezone = 'UTC' for the role of DATABASE_URL.",
        )
    else:
        yield ok("Its time zone is UTC.")


def check_writable(connection: Connection) -> Iterator[Finding]:
    if scalar(connection, "SELECT pg_is_in_recovery()"):
        yield failure(
            "It is a replica, which nobody can write to.",
            "Lead DATABASE_URL to the primary; with several hosts add target_session_attrs=read-write.",
        )
    elif scalar(connection, "SHOW default_transaction_read_only") == "on":
        yield failure(
            "Its transactions are read-only.",
            "Find who set default_transaction_read_only: a full disk, or a fail-over that has not ended.",
        )
    else:
        yield ok("It can be written to.")


def check_migrations(connection: Connection) -> Iterator[Finding]:
    known = set(MigrationLoader(None, ignore_no_migrations=True).graph.nodes)
    if scalar(connection, "SELECT to_regclass('django_migrations')") is None:
        applied: set[tuple[str, str]] = set()
    else:
        applied = {(app, name) for app, name in connection.execute("SELECT app, name FROM django_migrations")}
    missing = sorted(f"{app}.{name}" for app, name in known - applied)
    ours = {app for app, _ in known}
    newer = sorted(f"{app}.{name}" for app, name in applied - known if app in ours)
    if missing:
        yield failure(
            f"{len(missing)} migrations are not applied, the first is {missing[0]}.",
            "Run python manage.py migrate, before web and workers of this release start.",
        )
    elif newer:
        yield warning(
            f"It has a migration that this release does not know, {newer[-1]}: a newer release was here.",
            "Leave it: what a release adds harms nobody, unless its changelog says that it contracts: "
            "docs/upgrade.md#going-back.",
        )
    else:
        yield ok("All migrations are applied.")


RIGHTS = """
SELECT tablename FROM pg_tables
WHERE schemaname = 'public' AND tablename ~ '^(exports|etl|rules)_' AND NOT (
    SELECT bool_and(has_table_privilege(format('%%I.%%I', schemaname, tablename), right_to))
    FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) right_to)
ORDER BY tablename
"""


def check_rights(connection: Connection) -> Iterator[Finding]:
    lacking = [name for (name,) in connection.execute(RIGHTS, [])]
    if lacking:
        yield failure(
            f"The role may not read and write {len(lacking)} of Sluice's tables, {lacking[0]} for one.",
            "Run migrate as the role of DATABASE_URL, or GRANT SELECT, INSERT, UPDATE, DELETE on them to it.",
        )
    else:
        yield ok("The role may read and write Sluice's tables.")


def check_slots(connection: Connection) -> Iterator[Finding]:
    wanted = settings.SLUICE.export_db_slots
    found = scalar(connection, "SELECT count(*) FROM exports_slot WHERE dataset_id IS NULL AND number <= %s", wanted)
    if found != wanted:
        yield failure(
            f"It has {found} of the {wanted} slots of EXPORT_DB_SLOTS: fewer calls run at once than may.",
            "The reaper makes them: see that beat and the worker of the queue maintenance run.",
        )
    else:
        yield ok(f"It has a row for each of {wanted} slots.")


OVERDUE = "SELECT count(*) FROM exports_slot WHERE lease_until < clock_timestamp() - %s * interval '1 second'"


def check_held_slots(connection: Connection) -> Iterator[Finding]:
    """A slot whose lease is long over waits for a call that cannot be ended."""
    env = settings.SLUICE
    patience = 3 * (env.export_lease_seconds + env.export_reaper_seconds)
    held = scalar(connection, OVERDUE, patience)
    if held:
        yield failure(
            f"{held} slots are held by workers that were lost more than {patience} s ago.",
            "The source cannot be asked to end their calls, or the reaper does not run: "
            "docs/runbook.md#source-is-slow.",
        )
    else:
        yield ok("No slot is held by a lost worker.")


def check_lost_clients(connection: Connection) -> Iterator[Finding]:
    if scalar(connection, "SELECT setting::int FROM pg_settings WHERE name = 'client_connection_check_interval'") == 0:
        yield warning(
            "client_connection_check_interval is 0: a statement of a killed process goes on, with its locks.",
            "Set client_connection_check_interval = '1s' in postgresql.conf, and reload.",
        )
    else:
        yield ok("Statements of killed processes end.")


# How old the work of beat may be: several of its intervals, since ticks that come close together count once.
HOURLY = {"sweep": 3600, "purge": 86_400}
AGES = "SELECT name, extract(epoch FROM clock_timestamp() - ran_at)::float FROM exports_tick"


def check_ticks(connection: Connection) -> Iterator[Finding]:
    ages: dict[str, float] = dict(connection.execute(AGES).fetchall())
    if "reap" not in ages:
        yield failure(
            "The reaper has never run: what workers lose is not brought back.",
            "Start beat and a worker for the queue maintenance: docs/runbook.md#nothing-runs.",
        )
        return
    every = {"reap": settings.SLUICE.export_reaper_seconds, **HOURLY}
    late = {name: age for name, age in ages.items() if name in every and age > max(60, 4 * every[name])}
    for name, age in late.items():
        tell = failure if name == "reap" else warning
        yield tell(
            f"`{name}` last ran {age:.0f} s ago, and should every {every[name]} s.",
            "See that beat and a worker for the queue maintenance run: docs/runbook.md#nothing-runs.",
        )
    if not late:
        yield ok("Beat and the reaper run on time.")


def check_clock(connection: Connection) -> Iterator[Finding]:
    asked = datetime.now(UTC)
    row = connection.execute("SELECT extract(epoch FROM clock_timestamp())::float").fetchone()
    assert row  # noqa: S101  a SELECT without FROM has one
    yield from clocks.compare(datetime.fromtimestamp(row[0], UTC), asked=asked)


def check_rules(_connection: Connection) -> Iterator[Finding]:
    """What our own checks say of the rows: that the default rule is there, for one."""
    try:
        found = run_checks(tags=[Tags.database], databases=["default"])
    finally:
        django_connection.close()  # this thread's
    for message in found:
        yield (failure if message.is_serious() else warning)(str(message.msg), str(message.hint or ""))
    if not found:
        yield ok("The default rule is there.")


def open_database() -> AbstractContextManager[Connection]:
    """Past Django's pool, which waits longer. The name may be another one than the URL's: that of a test."""
    url = make_conninfo(settings.SLUICE.database_url.get_secret_value(), dbname=django_connection.settings_dict["NAME"])
    connection = psycopg.connect(
        url,
        autocommit=True,
        connect_timeout=CONNECT_SECONDS,
        tcp_user_timeout=CONNECT_SECONDS * 1000,
        application_name="sluice-doctor",
    )
    connection.execute(f"SET statement_timeout = {STATEMENT_SECONDS * 1000}")
    return closing(connection)


SUBJECT = Subject(
    name="database",
    open=open_database,
    checks=(
        check_version, check_encoding, check_timezone, check_writable, check_clock, check_lost_clients,
        check_migrations, check_rights, check_slots, check_held_slots, check_ticks, check_rules,
    ),
    away="See that Postgres runs and that DATABASE_URL leads there: docs/runbook.md#database-is-away.",
)  # fmt: skip
