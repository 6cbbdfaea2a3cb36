"""What the three servers have in common: free ports, a start that waits until it is ready, stop, kill and restart."""

import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

from config.dev.stack.identity import Identity
from config.dev.stack.process import Process, StackError

# Once a server has been told its ports, someone else may still take one before it listens.
ATTEMPTS = 4
TAKEN = ("address already in use", "is not available on")


class Server(ABC):
    """A server with its data in `root/<name>` and its log in `root/logs/<name>.log`.

    `durable` off trades safety against a crash of the machine (never of the server) for speed.
    """

    name: ClassVar[str]
    port_count: ClassVar[int] = 1

    def __init__(self, root: Path, identity: Identity, *, durable: bool) -> None:
        self.root, self.identity, self.durable = root, identity, durable
        self.data = root / self.name
        self.ports: list[int] = []
        self.process: Process | None = None

    @property
    def port(self) -> int:
        return self.ports[0]

    @property
    def pid(self) -> int:
        return self.started().pid

    def started(self) -> Process:
        if self.process is None:
            raise StackError(f"{self.name} was never started.")
        return self.process

    def prepare(self) -> None:  # noqa: B027  # not every server has any
        """Make the data folder and the configuration."""

    @abstractmethod
    def describe(self) -> Process:
        """Return the process to start on the present ports."""

    @abstractmethod
    def is_ready(self) -> bool: ...

    def complete(self) -> None:  # noqa: B027
        """Make what only the running server can: roles, databases, the bucket. Repeated at every start."""

    def sweep(self) -> None:  # noqa: B027
        """Remove what the ended server has left outside its folder."""

    def start(self) -> None:
        """Start it and return when it answers. A later start keeps the ports: clients know them."""
        if self.ports:
            self.launch()
        else:
            self.start_on_free_ports()
        self.complete()

    def start_on_free_ports(self) -> None:
        for attempt in range(1, ATTEMPTS + 1):
            self.ports = self.identity.free_ports(self.name, self.port_count)
            self.prepare()
            self.process = self.describe()
            try:
                self.launch()
            except StackError:
                self.process.kill()
                self.sweep()
                self.ports = []
                if attempt == ATTEMPTS or not port_was_taken(self.process):
                    raise
            else:
                return

    def launch(self) -> None:
        process = self.started()
        process.start()
        process.wait_until(self.is_ready)

    def stop(self) -> None:
        if self.process is not None:
            self.process.stop()
            self.sweep()

    def kill(self) -> None:
        """End it as `kill -9` would."""
        if self.process is not None:
            self.process.kill()

    def restart(self) -> None:
        self.stop()
        self.start()

    def environment(self) -> dict[str, str]:
        """Return the little that a server needs; the shell's S3_BUCKET, for one, would make SeaweedFS do things."""
        return {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(self.data), "LANG": "C.UTF-8", "TZ": "UTC"}


def port_was_taken(process: Process) -> bool:
    text = process.log.read_text(errors="replace").lower()
    return any(words in text for words in TAKEN)
