"""PgBouncer from its Debian package, in front of a test's Postgres."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from config.dev.stack.kept_settings import KeptSettings
from config.dev.stack.ports import LOOPBACK
from config.dev.stack.process import Process
from config.dev.stack.server import LocalServer
from tests.operations import debian

CONFIGURATION = """\
[databases]
* = host={host} port={upstream}

[pgbouncer]
listen_addr = {host}
listen_port = {port}
unix_socket_dir =
auth_type = scram-sha-256
auth_file = {users}
admin_users = {user}
pool_mode = transaction
default_pool_size = {size}
max_client_conn = 500
server_round_robin = 1
{more}
"""


class PgBouncer(LocalServer):
    """A PgBouncer in transaction mode.

    `size`: server connections per user and database. `more`: additional lines of pgbouncer.ini. With several server
    connections, `server_round_robin` runs each statement of a client in a different one.
    """

    name: ClassVar[str] = "pgbouncer"

    def __init__(self, root: Path, kept: KeptSettings, *, to: str, size: int, more: str = "") -> None:
        super().__init__(root, kept, durable=False)
        self.to, self.size, self.more = to, size, more
        self.login = conninfo_to_dict(to)

    def url(self, database: str) -> str:
        return make_conninfo(self.to, host=LOOPBACK, port=self.port, dbname=database)

    def prepare(self) -> None:
        self.data.mkdir(exist_ok=True)
        users = self.data / "users.txt"
        users.write_text(f'"{self.login["user"]}" "{self.login["password"]}"\n')
        text = CONFIGURATION.format(
            host=LOOPBACK, port=self.port, upstream=self.login["port"], users=users, user=self.login["user"],
            size=self.size, more=self.more,
        )  # fmt: skip
        (self.data / "pgbouncer.ini").write_text(text)

    def new_process(self) -> Process:
        # PgBouncer refuses to run as root.
        other = ["-u", "nobody"] if os.geteuid() == 0 else []
        return Process(
            name=self.name, command=[debian.program("pgbouncer"), *other, str(self.data / "pgbouncer.ini")],
            folder=self.data, log=self.root / "logs" / "pgbouncer.log", environment=debian.environment(),
        )  # fmt: skip

    def is_ready(self) -> bool:
        try:
            self.show("VERSION")
        except psycopg.OperationalError:
            return False
        return True

    def show(self, what: str) -> list[dict[str, object]]:
        with psycopg.connect(
            self.url("pgbouncer"), autocommit=True, connect_timeout=5, cursor_factory=psycopg.ClientCursor
        ) as connection:
            cursor = connection.execute(f"SHOW {what}")
            names = [column.name for column in cursor.description or []]
            return [dict(zip(names, row, strict=True)) for row in cursor]


@contextmanager
def running(root: Path, *, to: str, size: int, more: str = "") -> Iterator[PgBouncer]:
    root.chmod(0o755)  # if root starts PgBouncer, it runs as an unprivileged user
    server = PgBouncer(root, KeptSettings(root), to=to, size=size, more=more)
    try:
        server.start()
        yield server
    finally:
        server.stop()
