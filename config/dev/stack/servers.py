"""The three servers together, with the environment that leads to them. Tests need no more than this:
`with servers.running(tmp_path, durable=False) as running`, `running.environment()`, `running.valkey.kill()`.
"""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from config.dev.stack.identity import Identity
from config.dev.stack.postgres import Postgres
from config.dev.stack.process import Process
from config.dev.stack.seaweedfs import REGION, SeaweedFS
from config.dev.stack.server import Server
from config.dev.stack.valkey import Valkey

NOTHING: Mapping[str, str] = MappingProxyType({})


class Servers:
    def __init__(self, root: Path, *, durable: bool, given: Mapping[str, str] = NOTHING) -> None:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.root = root
        self.identity = Identity(root)
        self.postgres = Postgres(root, self.identity, durable=durable)
        self.valkey = Valkey(root, self.identity, durable=durable)
        self.seaweedfs = SeaweedFS(root, self.identity, durable=durable, given=given)

    @property
    def all(self) -> tuple[Server, ...]:
        return self.postgres, self.valkey, self.seaweedfs

    def start(self) -> None:
        at_once(lambda server: server.start(), self.all)

    def stop(self) -> None:
        at_once(lambda server: server.stop(), self.all)

    def processes(self) -> list[Process]:
        """Return the processes of the servers that were started."""
        return [server.process for server in self.all if server.process is not None]

    def environment(self) -> dict[str, str]:
        """Return the variables of Sluice's that lead to these servers."""
        return {
            "DATABASE_URL": self.postgres.url("sluice"),
            "SOURCE_DATABASE_URL": self.postgres.url("source"),
            "REDIS_URL": self.valkey.url(),
            "S3_ENDPOINT_URL": self.seaweedfs.url,
            "S3_REGION": REGION,
            "S3_BUCKET": self.seaweedfs.bucket,
            **self.seaweedfs.keys,
        }


def at_once(action: Callable[[Server], None], servers: tuple[Server, ...]) -> None:
    """Do it to all of them at the same time; the first error is raised when all have ended."""
    with ThreadPoolExecutor(len(servers)) as threads:
        for _ in threads.map(action, servers):
            pass


@contextmanager
def running(root: Path, *, durable: bool, given: Mapping[str, str] = NOTHING) -> Iterator[Servers]:
    """Start the servers with their data under `root`, which is made; stop them at the end. The data stays.

    Several copies run side by side, each with its own root. Raises StackError when one does not start.
    """
    servers = Servers(root, durable=durable, given=given)
    try:
        servers.start()
        yield servers
    finally:
        servers.stop()
