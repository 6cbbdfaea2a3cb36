"""Local Postgres, Valkey, and SeaweedFS servers, and the settings that use them.

Tests use `with servers.running(tmp_path, durable=False) as running`, `running.environment()`, and
`running.valkey.kill()`.
"""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from config.dev.stack.kept_settings import KeptSettings
from config.dev.stack.postgres import Postgres
from config.dev.stack.process import Process
from config.dev.stack.seaweedfs import REGION, SeaweedFS
from config.dev.stack.server import LocalServer
from config.dev.stack.valkey import Valkey

NOTHING: Mapping[str, str] = MappingProxyType({})


class Servers:
    def __init__(self, root: Path, *, durable: bool, given: Mapping[str, str] = NOTHING) -> None:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.root = root
        self.kept = KeptSettings(root)
        self.postgres = Postgres(root, self.kept, durable=durable)
        self.valkey = Valkey(root, self.kept, durable=durable)
        self.seaweedfs = SeaweedFS(root, self.kept, durable=durable, given=given)

    @property
    def all(self) -> tuple[LocalServer, ...]:
        return self.postgres, self.valkey, self.seaweedfs

    def start(self) -> None:
        run_in_parallel(lambda server: server.start(), self.all)

    def stop(self) -> None:
        run_in_parallel(lambda server: server.stop(), self.all)

    def processes(self) -> list[Process]:
        """Return the processes of the servers that were started."""
        return [server.process for server in self.all if server.process is not None]

    def environment(self) -> dict[str, str]:
        """Return Sluice's settings for these servers."""
        return {
            "DATABASE_URL": self.postgres.url("sluice"),
            "SOURCE_DATABASE_URL": self.postgres.url("source"),
            "REDIS_URL": self.valkey.url(),
            "S3_ENDPOINT_URL": self.seaweedfs.url,
            "S3_REGION": REGION,
            "S3_BUCKET": self.seaweedfs.bucket,
            **self.seaweedfs.keys,
        }


def run_in_parallel(action: Callable[[LocalServer], None], servers: tuple[LocalServer, ...]) -> None:
    """Run the action for all servers in parallel. Raise the first error after all have ended."""
    with ThreadPoolExecutor(len(servers)) as threads:
        for _ in threads.map(action, servers):
            pass


@contextmanager
def running(root: Path, *, durable: bool, given: Mapping[str, str] = NOTHING) -> Iterator[Servers]:
    """Start the servers with their data in `root`, and stop them at the end. The data is kept.

    `durable`: as for LocalServer. `given`: as for SeaweedFS. Copies with different roots can run in parallel. Raises
    StackError if a server does not start.
    """
    servers = Servers(root, durable=durable, given=given)
    try:
        servers.start()
        yield servers
    finally:
        servers.stop()
