"""RabbitMQ from its Debian package, on free ports and without root. Other instances can run at the same time.

Erlang is started by our own script, because the packaged script contains a fixed path. `RabbitMQ` starts epmd itself,
because an epmd that Erlang starts would keep running.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import kombu
from amqp.exceptions import AMQPError

from config.dev.stack.kept_settings import KeptSettings, write_private
from config.dev.stack.ports import LOOPBACK
from config.dev.stack.process import Process
from config.dev.stack.server import LocalServer
from tests.operations import debian

USER = "sluice"
CONFIGURATION = """\
listeners.tcp.local = {host}:{port}
default_user = {user}
default_pass = {password}
loopback_users = none
log.console = true
log.console.level = info
log.file = false
collect_statistics_interval = 1000
# The write-ahead log of the quorum queues: tests need less space than a server.
raft.wal_max_size_bytes = 8000000
disk_free_limit.absolute = 50MB
vm_memory_high_watermark.absolute = 512MB
"""
ADVANCED = """\
[{kernel, [{inet_dist_use_interface, {127,0,0,1}}]},
 {rabbit, [{channel_tick_interval, 1000}]}].
"""
# The package's `erl`, for any location of the package.
ERL = """\
#!/bin/sh
export ROOTDIR="{root}" BINDIR="{bin}" EMU=beam PROGNAME=erl
exec "$BINDIR/erlexec" "$@"
"""


class RabbitMQ(LocalServer):
    """A RabbitMQ node. Data survive `stop`, `kill`, and `start`."""

    name: ClassVar[str] = "rabbitmq"
    port_count: ClassVar[int] = 3

    def __init__(self, root: Path, kept: KeptSettings) -> None:
        super().__init__(root, kept, durable=False)
        self.epmd: Process | None = None

    @property
    def url(self) -> str:
        return f"amqp://{USER}:{self.kept.secret(self.name)}@{LOOPBACK}:{self.port}//"

    @property
    def node(self) -> str:
        return f"sluice-{self.port}@localhost"

    def prepare(self) -> None:
        for folder in (self.data, self.data / "bin"):
            folder.mkdir(mode=0o700, exist_ok=True)
        text = CONFIGURATION.format(host=LOOPBACK, port=self.port, user=USER, password=self.kept.secret(self.name))
        write_private(self.data / "rabbitmq.conf", text)
        write_private(self.data / "advanced.config", ADVANCED)
        write_private(self.data / "enabled_plugins", "[].\n")
        root = erlang()
        (runtime,) = root.glob("erts-*")
        erl = self.data / "bin" / "erl"
        erl.write_text(ERL.format(root=root, bin=runtime / "bin"))
        erl.chmod(0o700)

    def new_process(self) -> Process:
        self.epmd = Process(
            name="epmd",
            command=[str(next(erlang().glob("erts-*/bin/epmd"))), "-address", LOOPBACK, "-port", str(self.ports[2])],
            folder=self.data,
            log=self.root / "logs" / "epmd.log",
            environment=self.environment(),
        )
        return Process(
            name=self.name,
            command=[str(scripts() / "rabbitmq-server")],
            folder=self.data,
            log=self.root / "logs" / "rabbitmq.log",
            environment=self.environment(),
            grace_seconds=30,
        )

    def environment(self) -> dict[str, str]:
        libraries = debian.environment().get("LD_LIBRARY_PATH")
        return {
            **super().environment(),
            **({"LD_LIBRARY_PATH": libraries} if libraries else {}),
            "PATH": f"{self.data / 'bin'}:{os.environ.get('PATH', os.defpath)}",
            "ERL_EPMD_PORT": str(self.ports[2]),
            "ERL_EPMD_ADDRESS": LOOPBACK,
            "RABBITMQ_NODENAME": self.node,
            "RABBITMQ_DIST_PORT": str(self.ports[1]),
            "RABBITMQ_CONF_ENV_FILE": str(self.data / "none"),
            "RABBITMQ_CONFIG_FILE": str(self.data / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(self.data / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.data / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(self.data / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.root / "logs"),
            "RABBITMQ_PID_FILE": str(self.data / "pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 2:2 +sbwt none",
        }

    def launch(self) -> None:
        assert self.epmd
        if not self.epmd.alive:
            self.epmd.start()
        super().launch()

    def stop(self) -> None:
        super().stop()
        if self.epmd:
            self.epmd.stop()

    def kill(self) -> None:
        super().kill()
        if self.epmd:
            self.epmd.kill()

    def is_ready(self) -> bool:
        try:
            with self.connect() as connection:
                return bool(connection.connected)
        except (OSError, AMQPError):
            return False

    def connect(self) -> Any:
        connection = kombu.Connection(self.url, connect_timeout=5, transport="pyamqp")
        connection.connect()
        return connection

    # ---- Inspection and faults --------------------------------------------------------------------------------------
    def ctl(self, *arguments: str) -> str:
        """Return the output of `rabbitmqctl`, which starts a separate Erlang VM and takes seconds."""
        command = [str(scripts() / "rabbitmqctl"), "--quiet", "--node", self.node, *arguments]
        done = subprocess.run(
            command, cwd=self.data, env=self.environment(), check=True, capture_output=True, text=True, timeout=90
        )
        return done.stdout

    def queued(self, queue: str) -> int:
        """Return the number of ready messages in a queue, without the unacknowledged ones."""
        connection: Any
        with self.connect() as connection, connection.channel() as channel:
            return int(channel.queue_declare(queue, passive=True).message_count)

    def unacknowledged(self, queue: str) -> int:
        """Return the number of unacknowledged messages, from the queue's own state."""
        query = f"ra:local_query({{'%2F_{queue}', node()}}, fun rabbit_fifo:query_messages_checked_out/1)"
        return int(self.ctl("eval", f"element(2, element(2, {query}))."))

    def purge(self, *queues: str) -> int:
        """Purge the ready messages, and return their number."""
        connection: Any
        with self.connect() as connection, connection.channel() as channel:
            return sum(int(channel.queue_purge(queue)) for queue in queues)


@contextmanager
def running(root: Path) -> Iterator[RabbitMQ]:
    server = RabbitMQ(root, KeptSettings(root))
    try:
        server.start()
        yield server
    finally:
        server.stop()


def scripts() -> Path:
    """Return the folder of the scripts that run as any user, unlike those on PATH."""
    home = Path(debian.program("rabbitmq-server")).resolve().parent.parent
    return min(home.glob("lib/rabbitmq_server-*")) / "sbin"


def erlang() -> Path:
    """Return the folder of the matching Erlang."""
    found = Path(debian.program("erl")).resolve()
    return found.parent.parent
