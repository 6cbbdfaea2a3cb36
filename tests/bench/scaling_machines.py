"""Simulated machines: network namespaces with separate addresses, connected by veth pairs.

The servers only listen on 127.0.0.1. Inside a namespace, this address is routed to the host's end of the pair, which
`route_localnet` permits on both ends. Therefore, no relay takes CPU time, no address is translated, and programs in the
namespace need no special environment variables. Servers see the client's address, so Postgres must allow it.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from config.dev.stack import process_tree
from config.dev.stack.ports import LOOPBACK

COUNT = 3
NETWORK = "198.18.0"  # RFC 2544 reserves these addresses for network benchmarks
NAMESPACE_INTERFACE = "eth0"  # interface in the namespace
ALLOW = "echo 1 > /proc/sys/net/ipv4/conf/{cable}/route_localnet"
# A program that checks the connections to the servers, and Postgres's permission, from a namespace.
CONNECT = """
import os, socket, sys
import psycopg
for port in sys.argv[2:]:
    socket.create_connection((sys.argv[1], int(port)), 5).close()
psycopg.connect(os.environ["DATABASE_URL"], connect_timeout=5).close()
"""


class Unavailable(Exception):
    """Network namespaces cannot be created. The message has the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine. `name`: its namespace, or "" for this machine itself."""

    name: str = ""

    def command(self, arguments: Sequence[str]) -> list[str]:
        """Return a command that runs another command on the machine, with the same process ID."""
        return ["ip", "netns", "exec", self.name, *arguments] if self.name else list(arguments)


@contextmanager
def running_machines(*, ports: Iterable[int], postmaster: int) -> Iterator[list[Machine]]:
    """Create machines from which these local ports are reachable. Remove them at the end.

    Only one run at a time is possible, because the names are fixed and a run removes leftovers of killed runs. Raises
    Unavailable.
    """
    if os.geteuid() != 0:
        raise Unavailable("they require root")
    if shutil.which("ip") is None:
        raise Unavailable("the program ip of iproute2 is not installed")
    with ExitStack() as stack:
        stack.enter_context(allowed_in_postgres(postmaster))
        machines = []
        for number in range(COUNT):
            stack.callback(remove, number)
            machines.append(make(number))
        for machine in machines:
            run(machine.command([sys.executable, "-I", "-c", CONNECT, LOOPBACK, *map(str, ports)]))
        yield machines


def make(number: int) -> Machine:
    machine, cable = Machine(name=name_of(number)), cable_of(number)
    ours, theirs = f"{NETWORK}.{4 * number + 1}", f"{NETWORK}.{4 * number + 2}"
    remove(number)
    ip("netns", "add", machine.name)
    ip("link", "add", cable, "type", "veth", "peer", "name", NAMESPACE_INTERFACE, "netns", machine.name)
    ip("address", "add", f"{ours}/30", "dev", cable)
    ip("link", "set", cable, "up")
    ip("-n", machine.name, "address", "add", f"{theirs}/30", "dev", NAMESPACE_INTERFACE)
    ip("-n", machine.name, "link", "set", NAMESPACE_INTERFACE, "up")
    run(["sh", "-c", ALLOW.format(cable=cable)])
    run(machine.command(["sh", "-c", ALLOW.format(cable=NAMESPACE_INTERFACE)]))
    # The loopback interface of the namespace stays down. Otherwise, 127.0.0.1 would be the namespace itself.
    ip("-n", machine.name, "route", "add", LOOPBACK, "via", ours)
    return machine


def remove(number: int) -> None:
    # Delete the veth pair explicitly, because the kernel delays the removal of a namespace.
    for arguments in (("link", "delete", cable_of(number)), ("netns", "delete", name_of(number))):
        subprocess.run(["ip", *arguments], check=False, capture_output=True)


def name_of(number: int) -> str:
    return f"sluice-bench-{number}"


def cable_of(number: int) -> str:
    return f"sluice-veth{number}"  # 15 characters at most


def ip(*arguments: str) -> None:
    run(["ip", *arguments])


def run(command: Sequence[str]) -> None:
    """Run a command. Raises Unavailable with the last line of its error output."""
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        error = done.stderr.strip().rpartition("\n")[2]
        raise Unavailable(f"{' '.join(command[:6])} …: {error}")


# ---- Postgres -------------------------------------------------------------------------------------------------------


@contextmanager
def allowed_in_postgres(postmaster: int) -> Iterator[None]:
    """Let Postgres accept connections with passwords from these machines."""
    file = data_of(postmaster) / "pg_hba.conf"
    before = file.read_text()

    def write(text: str) -> None:
        file.write_text(text)
        process_tree.send(postmaster, signal.SIGHUP)  # reload it

    write(f"{before}\nhost all all {NETWORK}.0/24 scram-sha-256\n")
    try:
        yield
    finally:
        write(before)


def data_of(postmaster: int) -> Path:
    arguments = process_tree.command_line(postmaster).split("\0")
    return Path(arguments[arguments.index("-D") + 1])
