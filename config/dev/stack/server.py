"""Base class of the servers: free ports, start until ready, stop, kill, and restart."""

import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

from config.dev.stack.kept_settings import KeptSettings
from config.dev.stack.process import Process, StackError

# Another process may take a free port before the server listens on it.
ATTEMPTS = 4
PORT_TAKEN = ("address already in use", "is not available on")


class LocalServer(ABC):
    """A server with its data in `root/<name>` and its log in `root/logs/<name>.log`.

    Without `durable`, it is faster, and its data survives a crash of the server but not of the machine.
    """

    name: ClassVar[str]
    port_count: ClassVar[int] = 1

    def __init__(self, root: Path, kept: KeptSettings, *, durable: bool) -> None:
        self.root, self.kept, self.durable = root, kept, durable
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

    def prepare(self) -> None:  # noqa: B027  # optional
        """Create the data folder and the configuration."""

    @abstractmethod
    def new_process(self) -> Process:
        """Return a process that is not started yet, with the current ports."""

    @abstractmethod
    def is_ready(self) -> bool: ...

    def provision(self) -> None:  # noqa: B027
        """Create roles, databases, or the bucket on the running server. Repeated at every start."""

    def remove_leftovers(self) -> None:  # noqa: B027
        """Remove files that the server left outside of its folder."""

    def start(self) -> None:
        """Start the server and wait until it responds. Later starts use the same ports."""
        if self.ports:
            self.launch()
        else:
            self.start_on_free_ports()
        self.provision()

    def start_on_free_ports(self) -> None:
        for attempt in range(1, ATTEMPTS + 1):
            self.ports = self.kept.free_ports(self.name, self.port_count)
            self.prepare()
            self.process = self.new_process()
            try:
                self.launch()
            except StackError:
                self.process.kill()
                self.remove_leftovers()
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
            self.remove_leftovers()

    def kill(self) -> None:
        """Kill the server, like `kill -9`."""
        if self.process is not None:
            self.process.kill()

    def restart(self) -> None:
        self.stop()
        self.start()

    def environment(self) -> dict[str, str]:
        """Return a minimal environment: SeaweedFS, for example, would use the shell's S3_BUCKET."""
        return {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(self.data), "LANG": "C.UTF-8", "TZ": "UTC"}


def port_was_taken(process: Process) -> bool:
    text = process.log.read_text(errors="replace").lower()
    return any(words in text for words in PORT_TAKEN)
