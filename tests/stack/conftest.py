"""Servers for the tests in this folder only, because these tests kill and restart them."""

import json
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from config.dev.stack import servers
from config.dev.stack.seaweedfs import ADMIN_GRPC_OFFSET
from config.dev.stack.servers import Servers


@pytest.fixture(scope="session")
def stack_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with servers.running(tmp_path_factory.mktemp("servers"), durable=False) as running:
        yield running


def listening(pids: list[int]) -> list[str]:
    """Return the local addresses that these processes listen on, in the hexadecimal notation of /proc/net/tcp."""
    inodes = {inode for pid in pids for inode in sockets(pid)}
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                found.append(fields[1].partition(":")[0])
    return found


def sockets(pid: int) -> Iterator[str]:
    for target in open_files(pid):
        if target.startswith("socket:["):
            yield target[len("socket:[") : -1]


def open_files(pid: int) -> Iterator[str]:
    with suppress(FileNotFoundError, ProcessLookupError):  # the process has exited, such as a Postgres session
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed since the listing
                yield str(descriptor.readlink())


def is_served(path: Path) -> bool:
    """Return whether a Unix socket has a listener. Another stack may have taken a released port, and its socket."""
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


def temporary_sockets(root: Path) -> list[Path]:
    """Return the sockets in /tmp of the SeaweedFS server with this data folder."""
    ports = json.loads((root / "identity.json").read_text())["ports"]["seaweedfs"]
    names = {f"{port}.sock" for port in (*ports, ports[0] + ADMIN_GRPC_OFFSET)}
    return [path for path in Path("/tmp").glob("seaweedfs-*-grpc-*.sock") if path.name.rpartition("-")[2] in names]  # noqa: S108
