"""Checks of the main database: version, settings, schema, slots, and the periodic tasks recorded in it."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from datetime import UTC, datetime

import psycopg
from django.conf import settings
from django.core.checks import Tags, run_checks
from django.db import connection as django_connection
from django.db.migrations.loader import MigrationLoader
from psycopg.conninfo import make_conninfo

from config.ops.doctor import clocks, system_checks
from config.ops.doctor.findings import Finding, Subject, failure, ok, warning

CONNECT_SECONDS = 3
STATEMENT_SECONDS = 3
MIN_VERSION = 15  # NULLS NOT DISTINCT, which the slots' numbers need
Connection = psycopg.Connection


def scalar(connection: Connection, statement: str, *values: object) -> object:
    row = connection.execute(statement, values).fetchone()
    return row[0] if row else None


def check_version(connection: Connection) -> Iterator[Finding]:
    major = connection.info.server_version // 10_000
    if major < MIN_VERSION:
        yield failure(
            f"It runs Postgres {major}; Sluice needs {MIN_VERSION} or newer.",
            "Upgrade Postgres. The tests run with Postgres 18.",
        )
    else:
        yield ok(f"It responds and runs Postgres {major}.")


def check_encoding(connection: Connection) -> Iterator[Finding]:
    encoding = scalar(connection, "SHOW server_encoding")
    if encoding != "UTF8":
        yield failure(
            f"Its encoding is {encoding}: keys and names that it cannot represent are rejected.",
            "Create a new database WITH ENCODING 'UTF8' TEMPLATE template0, and restore a dump into it.",
        )
    else:
        yield ok("Its encoding is UTF8.")


def check_timezone(connection: Connection) -> Iterator[Finding]:
    zone = scalar(connection, "SELECT reset_val FROM pg_settings WHERE name = 'TimeZone'")
    if zone not in {"UTC", "Etc/UTC", "GMT", "Etc/GMT"}:
        yield warning(
            f"Its time zone is {zone}: in sessions shared by a pooler, daily quotas start at midnight there.",
            "Run ALTER ROLE … SET timezone = 'UTC' for the role of DATABASE_URL.",
        )
    else:
        yield ok("Its time zone is UTC.")


def check_writable(connection: Connection) -> Iterator[Finding]:
    if scalar(connection, "SELECT pg_is_in_recovery()"):
        yield failure(
            "It is a read-only replica.",
            "Point DATABASE_URL to the primary; with several hosts, add target_session_attrs=read-write.",
        )
    elif scalar(connection, "SHOW default_transaction_read_only") == "on":
        yield failure(
            "Its transactions are read-only.",
            "Find out why default_transaction_read_only is set: a full disk, or a failover in progress.",
        )
    else:
        yield ok("It is writable.")


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
            "Run python manage.py migrate before you start web and workers of this release.",
        )
    elif newer:
        yield warning(
            f"It has a migration of a newer release: {newer[-1]}.",
            "No action is needed, unless the changelog of that release says that it removes something: "
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
            f"The role cannot read and write {len(lacking)} of Sluice's tables, such as {lacking[0]}.",
            "Run migrate as the role of DATABASE_URL, or GRANT SELECT, INSERT, UPDATE, DELETE on them to it.",
        )
    else:
        yield ok("The role can read and write Sluice's tables.")


def check_slots(connection: Connection) -> Iterator[Finding]:
    wanted = settings.SLUICE.export_db_slots
    found = scalar(connection, "SELECT count(*) FROM exports_slot WHERE dataset_id IS NULL AND number <= %s", wanted)
    if found != wanted:
        yield failure(
            f"It has {found} of the {wanted} slots of EXPORT_DB_SLOTS, so fewer source calls run in parallel.",
            "The periodic task `reap` creates them: check that beat and a worker for the queue maintenance run.",
        )
    else:
        yield ok(f"It has all {wanted} slots.")


OVERDUE = "SELECT count(*) FROM exports_slot WHERE lease_until < clock_timestamp() - %s * interval '1 second'"


def check_held_slots(connection: Connection) -> Iterator[Finding]:
    """A slot is freed only once its call is known to have ended, which may be long after its lease expired."""
    env = settings.SLUICE
    limit = 3 * (env.export_lease_seconds + env.export_reaper_seconds)
    held = scalar(connection, OVERDUE, limit)
    if held:
        yield failure(
            f"{held} slots are held by workers that were lost more than {limit} s ago.",
            "Either the source cannot be reached to cancel their calls, or the periodic task `reap` does not run: "
            "docs/runbook.md#source-is-slow.",
        )
    else:
        yield ok("No slot is held by a lost worker.")


def check_lost_clients(connection: Connection) -> Iterator[Finding]:
    if scalar(connection, "SELECT setting::int FROM pg_settings WHERE name = 'client_connection_check_interval'") == 0:
        yield warning(
            "client_connection_check_interval is 0: statements of killed processes continue and keep their locks.",
            "Set client_connection_check_interval = '1s' in postgresql.conf, and reload.",
        )
    else:
        yield ok("Statements of killed processes are cancelled.")


PERIODS = {"sweep": 3600, "purge": 86_400}
AGES = "SELECT name, extract(epoch FROM clock_timestamp() - ran_at)::float FROM exports_tick"


def check_ticks(connection: Connection) -> Iterator[Finding]:
    """A periodic task is late after four periods: runs that come close together count as one."""
    ages: dict[str, float] = dict(connection.execute(AGES).fetchall())
    if "reap" not in ages:
        yield failure(
            "The periodic task `reap` has never run: work of lost workers is not recovered.",
            "Start beat and a worker for the queue maintenance: docs/runbook.md#nothing-runs.",
        )
        return
    periods = {"reap": settings.SLUICE.export_reaper_seconds, **PERIODS}
    late = {name: age for name, age in ages.items() if name in periods and age > max(60, 4 * periods[name])}
    for name, age in late.items():
        level = failure if name == "reap" else warning
        yield level(
            f"`{name}` last ran {age:.0f} s ago; it should run every {periods[name]} s.",
            "Check that beat and a worker for the queue maintenance run: docs/runbook.md#nothing-runs.",
        )
    if not late:
        yield ok("The periodic tasks run on time.")


def check_clock(connection: Connection) -> Iterator[Finding]:
    requested = datetime.now(UTC)
    row = connection.execute("SELECT extract(epoch FROM clock_timestamp())::float").fetchone()
    assert row  # noqa: S101  a SELECT without FROM has one
    yield from clocks.compare(datetime.fromtimestamp(row[0], UTC), requested=requested)


def check_rules(_connection: Connection) -> Iterator[Finding]:
    """Run the system checks that query the database, such as the one for the default rule."""
    try:
        messages = run_checks(tags=[Tags.database], databases=["default"])
    finally:
        django_connection.close()  # this thread's
    yield from system_checks.findings(messages) or [ok("The default rule exists.")]


def open_database() -> AbstractContextManager[Connection]:
    """Connect without Django's pool, which waits longer. Tests use another database name than the URL's."""
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
    unreachable="Check that Postgres runs and that DATABASE_URL points to it: docs/runbook.md#database-is-away.",
)  # fmt: skip
