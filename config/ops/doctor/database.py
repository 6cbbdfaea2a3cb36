"""Checks of the main database: version, settings, schema, slots, and the periodic tasks recorded in it."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import psycopg
from django.conf import settings
from django.core.checks import Tags, run_checks
from django.db import connection as django_connection

from config.ops.doctor import clocks, system_checks
from config.ops.doctor.findings import Finding, Subject, failure, ok, warning
from config.platform import storage
from config.platform.durations import duration
from config.platform.http import health
from exports.maintenance import watermark

STATEMENT_SECONDS = 3
MIN_VERSION = 15  # has NULLS NOT DISTINCT, which keeps the numbers of slots unique
Connection = psycopg.Connection


def scalar(connection: Connection, statement: str, *values: object) -> object:
    row = connection.execute(statement, values).fetchone()
    return row[0] if row else None


def check_version(connection: Connection) -> Finding:
    major = connection.info.server_version // 10_000
    if major < MIN_VERSION:
        return failure(
            f"It runs Postgres {major}; Sluice needs {MIN_VERSION} or newer.",
            "Upgrade Postgres. The tests run with Postgres 18.",
        )
    return ok(f"It responds and runs Postgres {major}.")


def check_encoding(connection: Connection) -> Finding:
    encoding = scalar(connection, "SHOW server_encoding")
    if encoding != "UTF8":
        return failure(
            f"Its encoding is {encoding}: keys and names that it cannot represent are rejected.",
            "Create a new database WITH ENCODING 'UTF8' TEMPLATE template0, and restore a dump into it.",
        )
    return ok("Its encoding is UTF8.")


def check_timezone(connection: Connection) -> Finding:
    zone = scalar(connection, "SELECT reset_val FROM pg_settings WHERE name = 'TimeZone'")
    if zone not in {"UTC", "Etc/UTC", "GMT", "Etc/GMT"}:
        return warning(
            f"Its time zone is {zone}: in sessions shared by a pooler, daily quotas start at midnight there.",
            "Run ALTER ROLE … SET timezone = 'UTC' for the role of DATABASE_URL.",
        )
    return ok("Its time zone is UTC.")


def check_defaults(connection: Connection) -> Finding:
    """Report unsuitable defaults. Each connection overrides them, but not in every session of a transaction pooler."""
    for name, suitable in (("DateStyle", "ISO"), ("default_transaction_isolation", "read committed")):
        found = str(scalar(connection, "SELECT reset_val FROM pg_settings WHERE name = %s", name))
        if not found.startswith(suitable):
            return warning(
                f"Its {name} is {found}: in sessions shared by a pooler, statements may fail.",
                f"Run ALTER ROLE … RESET {name} for the role of DATABASE_URL, or set it to '{suitable}'.",
            )
    return ok("Its date style and transaction isolation are those that Sluice uses.")


def check_writable(connection: Connection) -> Finding:
    if scalar(connection, "SELECT pg_is_in_recovery()"):
        return failure(
            "It is a read-only replica.",
            "Point DATABASE_URL to the primary; with several hosts, add target_session_attrs=read-write.",
        )
    if scalar(connection, "SHOW default_transaction_read_only") == "on":
        return failure(
            "Its transactions are read-only.",
            "Find out why default_transaction_read_only is set: a full disk, or a failover in progress.",
        )
    return ok("It is writable.")


def check_migrations(connection: Connection) -> Finding:
    known, applied = health.migrations(), health.applied(connection)
    missing = sorted(f"{app}.{name}" for app, name in known - applied)
    ours = {app for app, _ in known}
    newer = sorted(f"{app}.{name}" for app, name in applied - known if app in ours)
    if missing:
        return failure(
            f"Unapplied migrations: {len(missing)}. The first is {missing[0]}.",
            "Run python manage.py migrate before you start web and workers of this release.",
        )
    if newer:
        return warning(
            f"It has a migration of a newer release: {newer[-1]}.",
            "No action is needed, unless the changelog of that release says that it removes something: "
            "docs/upgrade.md#rollback.",
        )
    return ok("All migrations are applied.")


# Without platform_audit, for which a role may lack UPDATE and DELETE: docs/access.md.
RIGHTS = """
SELECT tablename FROM pg_tables
WHERE schemaname = 'public' AND tablename ~ '^(exports|etl|platform)_' AND tablename <> 'platform_audit' AND NOT (
    SELECT bool_and(has_table_privilege(format('%%I.%%I', schemaname, tablename), right_to))
    FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) right_to)
ORDER BY tablename
"""


def check_rights(connection: Connection) -> Finding:
    lacking = [name for (name,) in connection.execute(RIGHTS, [])]
    if lacking:
        return failure(
            f"The role lacks privileges on {len(lacking)} of Sluice's tables, such as {lacking[0]}.",
            "Run migrate as the role of DATABASE_URL, or GRANT SELECT, INSERT, UPDATE, DELETE on them to it.",
        )
    return ok("The role can read and write Sluice's tables.")


INVALID_INDEXES = """
SELECT indexrelid::regclass::text FROM pg_index
WHERE NOT indisvalid AND indrelid::regclass::text ~ '^"?(exports|etl|platform)_' ORDER BY 1
"""


def check_indexes(connection: Connection) -> Finding:
    invalid = [name for (name,) in connection.execute(INVALID_INDEXES, [])]
    if invalid:
        return failure(
            f"The index {invalid[0]} is invalid: it costs writes and serves no query.",
            "If a migration was interrupted, run python manage.py migrate again, which replaces the index. "
            f"Otherwise run REINDEX INDEX CONCURRENTLY {invalid[0]}.",
        )
    return ok("All indexes are valid.")


def check_slots(connection: Connection) -> Finding:
    wanted = settings.SLUICE.export_db_slots
    found = scalar(connection, "SELECT count(*) FROM exports_slot WHERE dataset_id IS NULL AND number <= %s", wanted)
    if found != wanted:
        return failure(
            f"It has {found} of the {wanted} slots of EXPORT_DB_SLOTS, so fewer source calls run in parallel.",
            "The periodic task `reap` creates them: check that beat and a worker for the queue maintenance run.",
        )
    return ok(f"It has all {wanted} slots.")


OVERDUE = "SELECT count(*) FROM exports_slot WHERE lease_until < clock_timestamp() - %s * interval '1 second'"


def check_held_slots(connection: Connection) -> Finding:
    """Check for slots held by lost workers.

    A slot is freed when its source call is known to have ended, which may be long after its lease expired.
    """
    env = settings.SLUICE
    limit = 3 * (env.export_lease_seconds + env.export_reaper_seconds)
    held = scalar(connection, OVERDUE, limit)
    if held:
        return failure(
            f"{held} slots are held by workers that were lost more than {duration(limit)} ago.",
            "Either the source cannot be reached to cancel their calls, or the periodic task `reap` does not run: "
            "docs/runbook.md#source-is-slow.",
        )
    return ok("No slot is held by a lost worker.")


def check_lost_clients(connection: Connection) -> Finding:
    if scalar(connection, "SELECT setting::int FROM pg_settings WHERE name = 'client_connection_check_interval'") == 0:
        return warning(
            "client_connection_check_interval is 0: statements of killed processes continue and keep their locks.",
            "Set client_connection_check_interval = '1s' in postgresql.conf, and reload.",
        )
    return ok("Statements of killed processes are cancelled.")


PERIODS = {"schedules": 15, "sweep": 3600, "purge": 86_400}
AGES = "SELECT name, extract(epoch FROM clock_timestamp() - ran_at)::float FROM exports_tick"


def check_ticks(connection: Connection) -> Iterator[Finding]:
    """Check that `reap` has run, and that each recorded periodic task ran within the last four periods."""
    ages: dict[str, float] = dict(connection.execute(AGES).fetchall())
    if "reap" not in ages:
        yield failure(
            "The periodic task `reap` has never run: work of lost workers is not recovered.",
            "Start beat and a worker for the queue maintenance: docs/runbook.md#nothing-runs.",
        )
        return
    periods = {"reap": settings.SLUICE.export_reaper_seconds, **PERIODS}
    for name, age in ages.items():
        if age < 0:
            yield failure(
                f"The last run of `{name}` is recorded {duration(-age)} in the future: the database's clock was ahead.",
                "It runs again after its interval. If this finding stays, synchronize the database server's clock.",
            )
    late = {name: age for name, age in ages.items() if name in periods and age > max(60, 4 * periods[name])}
    for name, age in late.items():
        level = failure if name == "reap" else warning
        yield level(
            f"`{name}` last ran {duration(age)} ago; it should run every {duration(periods[name])}.",
            "Check that beat and a worker for the queue maintenance run: docs/runbook.md#nothing-runs.",
        )
    if not late and min(ages.values()) >= 0:
        yield ok("The periodic tasks run on time.")


WATERMARK = "SELECT database, number, reached_at FROM exports_watermark"


def check_watermark(connection: Connection) -> Finding:
    """Compare the database's watermark with its copy in the bucket, which a restore of the database does not change."""
    row = connection.execute(WATERMARK).fetchone()
    if row is None:
        return ok("It has no watermark yet: the periodic task `reap` creates it.")
    try:
        copy = watermark.read_copy(row[0])
    except storage.StorageError as error:
        return warning(
            f"Its watermark could not be compared with that of the bucket: {error}.",
            "Fix the findings about the storage first.",
        )
    _, number, reached_at = connection.execute(WATERMARK).fetchall()[0]  # after the copy, which may have been replaced
    if copy.number > number:
        return failure(
            f"It is older than the bucket: its watermark is from {reached_at:%Y-%m-%d %H:%M:%S}, and that of the "
            f"bucket from {copy.reached_at:%Y-%m-%d %H:%M:%S}. It was restored to an earlier point, or a failover lost "
            "commits.",
            "Stop Sluice, run python manage.py reconcile, and start again: docs/runbook.md#restoring-a-backup.",
        )
    return ok("It is as new as the bucket.")


def check_clock(connection: Connection) -> Finding:
    requested = datetime.now(UTC)
    seconds = float(str(scalar(connection, "SELECT extract(epoch FROM clock_timestamp())")))
    return clocks.compare(datetime.fromtimestamp(seconds, UTC), requested=requested)


def check_rules(_connection: Connection) -> Iterator[Finding]:
    """Run the system checks that query the database, such as the one for the default rule."""
    try:
        messages = run_checks(tags=[Tags.database], databases=["default"])
    finally:
        django_connection.close()  # this thread's
    yield from system_checks.findings(messages) or [ok("The default rule exists.")]


@contextmanager
def open_database() -> Iterator[Connection]:
    """Connect to the database of Django's settings: in tests, its name differs from that in the URL."""
    url, name = settings.SLUICE.database_url.get_secret_value(), django_connection.settings_dict["NAME"]
    with health.postgres_connection(url, dbname=name, application_name="sluice-doctor") as connection:
        connection.execute(f"SET statement_timeout = {STATEMENT_SECONDS * 1000}")
        yield connection


SUBJECT = Subject(
    name="database",
    open=open_database,
    checks=(
        check_version, check_encoding, check_timezone, check_defaults, check_writable, check_clock, check_lost_clients,
        check_migrations, check_rights, check_indexes, check_slots, check_held_slots, check_ticks, check_watermark,
        check_rules,
    ),
    remedy_if_unreachable="Check that Postgres is running and that DATABASE_URL points to it: "
    "docs/runbook.md#database-is-unreachable.",
)  # fmt: skip
