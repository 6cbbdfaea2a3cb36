"""The source database on a separate server: a role with its own limits, and a hot standby. A13, A14."""

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.conf import LazySettings
from django.contrib.auth.models import User
from pydantic import SecretStr

from config.dev.stack.kept_settings import KeptSettings
from config.dev.stack.orphan_watchdog import PROJECT
from config.dev.stack.ports import LOOPBACK
from config.dev.stack.postgres import SUPERUSER, Postgres, as_postgres, chown_to_nobody
from config.dev.stack.process import StackError
from exports.models import Chunk, Dataset, Job, Slot
from exports.source import database
from exports.worker import execution
from tests.e2e.conftest import Workers
from tests.integration.factories import make_job
from tests.integration.test_execution import content
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("empty_bucket")

PATH = "things/2024/02/28/JFK_20240228.csv"
TABLES = """
CREATE SCHEMA data;
CREATE TABLE data.facts (n int);
INSERT INTO data.facts SELECT generate_series(1, 3);
CREATE TABLE data.pauses (seconds float);
CREATE FUNCTION data.rows_for(key text, effective_date date) RETURNS TABLE (k text, n int, d date)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = data, pg_temp AS $$ #variable_conflict use_column
BEGIN
    PERFORM pg_sleep(coalesce(max(seconds), 0)) FROM data.pauses;
    RETURN QUERY SELECT key, n, effective_date FROM data.facts ORDER BY n;
END $$
"""
SLUICE_SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'sluice-export-%'"


class Standby(Postgres):
    """A hot standby that follows the primary by streaming replication."""

    name = "standby"

    def __init__(self, root: Path, primary: Postgres) -> None:
        super().__init__(root, primary.kept, durable=False)
        self.primary = primary

    def create_cluster(self) -> None:
        self.data.mkdir(mode=0o700)
        chown_to_nobody(self.data)
        done = subprocess.run(
            as_postgres(
                "pg_basebackup", f"--dbname={self.primary.url(SUPERUSER)}", f"--pgdata={self.data}",
                "--write-recovery-conf", "--checkpoint=fast", "--wal-method=stream", "--no-sync", "--no-manifest",
            ),
            check=False, cwd="/", env=self.environment(), capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode != 0:
            raise StackError(f"pg_basebackup failed:\n{done.stderr}")
        with (self.data / "postgresql.auto.conf").open("a") as file:
            file.write("max_standby_streaming_delay = '100ms'\n")

    def provision(self) -> None:
        """Do nothing: roles and databases come from the primary."""


@pytest.fixture(scope="module")
def primary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """A separate server, since tests create roles in it."""
    yield from running(lambda root: Postgres(root, KeptSettings(root), durable=False), tmp_path_factory)


@pytest.fixture(scope="module")
def standby(primary: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    yield from running(lambda root: Standby(root, primary), tmp_path_factory)


def running(make: Callable[[Path], Postgres], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    root = tmp_path_factory.mktemp("postgres")
    for folder in (root, root.parent, root.parent.parent):
        folder.chmod(0o755)  # as root, the server runs as the user nobody, who needs access to its data
    server = make(root)
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture
def owner(primary: Postgres) -> Iterator[psycopg.Connection]:
    """The superuser of the primary's source database, which has the function and its tables."""
    with psycopg.connect(primary.url(SUPERUSER, "source"), autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS data CASCADE")
        connection.execute(TABLES)
        yield connection


@pytest.fixture
def functions(owner: psycopg.Connection, slots: int) -> Dataset:
    assert owner
    assert slots
    return Dataset.objects.create(name="things", function="data.rows_for", base_path="things")


@pytest.fixture
def exporter(owner: psycopg.Connection, primary: Postgres) -> Callable[..., str]:
    """Create the role of docs/source-database.md with this connection limit, and return its URL."""

    def make(*, limit: int) -> str:
        if owner.execute("SELECT 1 FROM pg_roles WHERE rolname = 'exporter'").fetchone():
            owner.execute("DROP OWNED BY exporter; DROP ROLE exporter")
        owner.execute(documented_role().replace("CONNECTION LIMIT 12", f"CONNECTION LIMIT {limit}"))
        return f"postgresql://exporter:change-me@{LOOPBACK}:{primary.port}/source"

    return make


def documented_role() -> str:
    """Return the statements of docs/source-database.md that create the role, for the database of the tests."""
    text = (PROJECT / "docs" / "source-database.md").read_text()
    block = re.search(r"```sql\n(.*?)```", text, flags=re.DOTALL)
    assert block
    return block[1].replace("warehouse", "source")


@pytest.fixture
def use_source(settings: LazySettings, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Set the URL of the source for this process and for the workers that it starts."""

    def use_source(url: str) -> None:
        monkeypatch.setenv("SOURCE_DATABASE_URL", url)
        settings.SLUICE = settings.SLUICE.model_copy(update={"source_database_url": SecretStr(url)})

    return use_source


@pytest.fixture
def limited_role(exporter: Callable[..., str], use_source: Callable[[str], None]) -> str:
    """Let workers connect as a role with a limit of two connections."""
    use_source(url := exporter(limit=2))
    return url


@pytest.fixture
def unlimited_role(primary: Postgres, use_source: Callable[[str], None]) -> str:
    """Let workers connect as a role without a connection limit."""
    use_source(url := primary.url(SUPERUSER, "source"))
    return url


@pytest.fixture
def no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers retry almost immediately."""
    monkeypatch.setenv("EXPORT_BACKOFF_BASE_SECONDS", "0.1")


def read_number(connection: psycopg.Connection, statement: str) -> int:
    row = connection.execute(statement).fetchone()
    assert row
    return int(row[0])


def succeeded(job: Job) -> bool:
    job.refresh_from_db()
    assert job.status != "failed"
    return job.status == "success"


def maximum_until(condition: Callable[[], bool], sample: Callable[[], int]) -> int:
    """Wait for the condition, and return the largest sample in the meantime."""
    maximum = 0

    def check() -> bool:
        nonlocal maximum
        maximum = max(maximum, sample())
        return condition()

    wait_until(check)
    return maximum


# ---- The role -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("transactional_db")
def test_the_documented_role_can_export_and_do_nothing_else(
    exporter: Any, functions: Dataset, alice: User, use_source: Any
) -> None:
    """A13: minimal privileges, read-only."""
    url = exporter(limit=3)
    use_source(url)
    make_job(functions, alice, 1)
    execution.drain()
    assert Chunk.objects.get().status == "done"

    with psycopg.connect(url, autocommit=True) as connection:
        for statement in ("SELECT * FROM data.facts", "CREATE TABLE mine ()", "CREATE TEMP TABLE mine ()"):
            with pytest.raises((psycopg.errors.InsufficientPrivilege, psycopg.errors.ReadOnlySqlTransaction)):
                connection.execute(statement)
        assert [setting(connection, name) for name in ("statement_timeout", "temp_file_limit")] == ["10min", "2GB"]
        # The reaper terminates calls as the same role.
        with psycopg.connect(url, application_name="sluice-export-lost") as lost:
            assert database.end_calls(["sluice-export-lost"]) == set()
            with pytest.raises(psycopg.OperationalError):
                lost.execute("SELECT 1")


def setting(connection: psycopg.Connection, name: str) -> str:
    row = connection.execute("SELECT current_setting(%s)", [name]).fetchone()
    assert row
    return str(row[0])


@pytest.mark.slow
@pytest.mark.usefixtures("transactional_db")
def test_a_session_sets_its_own_limits(
    exporter: Any, owner: psycopg.Connection, functions: Dataset, alice: User, use_source: Any
) -> None:
    """A13: the function returns the settings of its session. The dataset's timeout applies, not the role's."""
    names = ("statement_timeout", "client_connection_check_interval", "lock_timeout", "timezone")
    owner.execute(f"""
        CREATE OR REPLACE FUNCTION data.rows_for(key text, effective_date date) RETURNS TABLE (k text, n int, d date)
        LANGUAGE sql SECURITY DEFINER AS $$
            SELECT name || '=' || current_setting(name), 1, effective_date
            FROM unnest('{{{",".join(names)}}}'::text[]) name
        $$
    """)
    use_source(exporter(limit=3))
    functions.statement_timeout = 90
    functions.save()
    make_job(functions, alice, 1)
    execution.drain()

    found = [line.partition(",")[0] for line in content(PATH).decode().splitlines()[1:]]
    assert found == [
        "statement_timeout=90s", "client_connection_check_interval=1s", "lock_timeout=5s", "timezone=UTC"
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("limited_role")
def test_a_role_with_too_few_connections_slows_a_job_without_failures(
    owner: psycopg.Connection, functions: Dataset, alice: User, workers: Workers
) -> None:
    """A13: a chunk whose connection is refused returns to the queue and costs no attempt."""
    owner.execute("INSERT INTO data.pauses VALUES (0.2)")
    workers.start_beat()
    workers.start("bundles,maintenance", concurrency=1)
    workers.start("exports", concurrency=4)
    job = make_job(functions, alice, 20)
    maximum = maximum_until(
        lambda: succeeded(job),
        lambda: read_number(owner, "SELECT count(*) FROM pg_stat_activity WHERE usename = 'exporter'"),
    )

    assert maximum == 2
    assert "source_full" in workers.logs()
    assert set(Chunk.objects.values_list("status", "attempts")) == {("done", 1)}
    wait_until(lambda: not Slot.objects.held().exists())


@pytest.mark.slow
@pytest.mark.usefixtures("unlimited_role")
def test_a_dataset_limit_holds_across_all_workers(
    owner: psycopg.Connection, functions: Dataset, alice: User, workers: Workers
) -> None:
    """A13: two calls of the limited dataset and more calls of another, counted in the source."""
    # Long enough for calls to overlap on a busy machine, where workers take longer than 0.2 s between two calls.
    owner.execute("INSERT INTO data.pauses VALUES (1)")
    owner.execute("""
        CREATE FUNCTION data.others(key text, effective_date date) RETURNS TABLE (k text, n int, d date)
        LANGUAGE sql AS $$ SELECT * FROM data.rows_for(key, effective_date) $$
    """)
    functions.max_concurrency = 2
    functions.save()
    Slot.objects.provide(count=2, dataset=functions)
    free = Dataset.objects.create(name="others", function="data.others", base_path="others")
    workers.start(concurrency=6)
    jobs = [make_job(functions, alice, 10), make_job(free, alice, 10)]

    calls = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'BEGIN%COPY%\"{}\"%' AND state = 'active'"
    maximum_of_others = 0

    def calls_of_limited_dataset() -> int:
        nonlocal maximum_of_others
        maximum_of_others = max(maximum_of_others, read_number(owner, calls.format("others")))
        return read_number(owner, calls.format("rows_for"))

    assert maximum_until(lambda: all(map(succeeded, jobs)), calls_of_limited_dataset) == 2
    assert maximum_of_others > 2


# ---- A hot standby --------------------------------------------------------------------------------------------------


@pytest.fixture
def replica(standby: Postgres, owner: psycopg.Connection, use_source: Any) -> Iterator[psycopg.Connection]:
    """The superuser of the standby, which has caught up with the primary. Exports use it as their source."""
    use_source(standby.url(SUPERUSER, "source"))
    with psycopg.connect(standby.url(SUPERUSER, "source"), autocommit=True) as connection:
        wait_for_replay(owner, connection)
        yield connection


def wait_for_replay(owner: psycopg.Connection, replica: psycopg.Connection) -> None:
    """Wait until the standby has replayed everything that the primary has written so far."""
    lsn = owner.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
    assert lsn
    wait_until(lambda: replica.execute("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", lsn).fetchone() == (True,))


@pytest.mark.slow
def test_exports_read_from_a_hot_standby_only(
    functions: Dataset, alice: User, workers: Workers, owner: psycopg.Connection, replica: psycopg.Connection
) -> None:
    """A14."""
    owner.execute("INSERT INTO data.pauses VALUES (0.2)")
    wait_for_replay(owner, replica)
    workers.start()
    job = make_job(functions, alice, 6)
    sessions_on_primary = 0

    def sessions_on_standby() -> int:
        nonlocal sessions_on_primary
        sessions_on_primary = max(sessions_on_primary, read_number(owner, SLUICE_SESSIONS))
        return read_number(replica, SLUICE_SESSIONS)

    assert maximum_until(lambda: succeeded(job), sessions_on_standby) == 2
    assert sessions_on_primary == 0
    assert read_number(replica, "SELECT pg_is_in_recovery()::int") == 1
    assert content(PATH) == b"k,n,d\nJFK,1,2024-02-28\nJFK,2,2024-02-28\nJFK,3,2024-02-28\n"


@pytest.mark.slow
@pytest.mark.usefixtures("no_backoff")
def test_a_call_cancelled_by_replay_is_retried(
    functions: Dataset, alice: User, workers: Workers, owner: psycopg.Connection, replica: psycopg.Connection
) -> None:
    """A14, A17: the standby cancels it with SQLSTATE 40001."""
    owner.execute("INSERT INTO data.pauses VALUES (60)")
    wait_for_replay(owner, replica)
    workers.start()
    job = make_job(functions, alice, 1)
    wait_until(lambda: read_number(replica, f"{SLUICE_SESSIONS} AND state = 'active' AND wait_event = 'PgSleep'"))
    owner.execute("TRUNCATE data.pauses")  # the call reads this table, and replay needs its lock

    wait_until(lambda: succeeded(job))
    assert "SQLSTATE 40001" in workers.logs()
    assert Chunk.objects.get().attempts == 2


@pytest.mark.slow
def test_the_call_of_a_lost_worker_is_terminated_on_the_standby(standby: Postgres, replica: psycopg.Connection) -> None:
    """A13, A14."""
    url = standby.url(SUPERUSER, "source")
    with psycopg.connect(url, application_name="sluice-export-lost") as lost:
        assert database.end_calls(["sluice-export-lost"]) == set()
        with pytest.raises(psycopg.OperationalError):
            lost.execute("SELECT 1")
    assert read_number(replica, SLUICE_SESSIONS) == 0
