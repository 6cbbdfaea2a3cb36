"""Machines that are made on this one: network namespaces, each with an address of its own and a cable to us.

The servers listen on 127.0.0.1 alone. Inside a namespace that is an address like any other, at our end of the cable,
and `route_localnet` has both ends let it pass. So no relay costs CPU, no address is translated, and programs in there
need no variables of their own. Servers see where each comes from, so Postgres has to be told to let them in.
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
NETWORK = "198.18.0"  # of the addresses that RFC 2544 keeps for benchmarks of networks
THERE = "eth0"  # the cable's other end
ALLOW = "echo 1 > /proc/sys/net/ipv4/conf/{cable}/route_localnet"
# What is run there to see that they reach our servers, and that Postgres lets them in.
CONNECT = """
import os, socket, sys
import psycopg
for port in sys.argv[2:]:
    socket.create_connection((sys.argv[1], int(port)), 5).close()
psycopg.connect(os.environ["DATABASE_URL"], connect_timeout=5).close()
"""


class Unavailable(Exception):
    """There can be no such machines here; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """`name` is that of its namespace; empty: this machine itself."""

    name: str = ""

    def command(self, arguments: Sequence[str]) -> list[str]:
        """Return the command that runs another one there, in a process of the same number."""
        return ["ip", "netns", "exec", self.name, *arguments] if self.name else list(arguments)


@contextmanager
def made(*, ports: Iterable[int], postmaster: int) -> Iterator[list[Machine]]:
    """Make the machines, from which these of our ports can be reached, and remove them at the end.

    Their names are always the same, and what a killed run has left is removed by the next: there can be one at a time.
    Raises Unavailable; then they are removed, too.
    """
    if os.geteuid() != 0:
        raise Unavailable("only root may make them")
    if shutil.which("ip") is None:
        raise Unavailable("there is no program ip, of iproute2")
    with ExitStack() as stack:
        stack.enter_context(admitted(postmaster))
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
    ip("link", "add", cable, "type", "veth", "peer", "name", THERE, "netns", machine.name)
    ip("address", "add", f"{ours}/30", "dev", cable)
    ip("link", "set", cable, "up")
    ip("-n", machine.name, "address", "add", f"{theirs}/30", "dev", THERE)
    ip("-n", machine.name, "link", "set", THERE, "up")
    run(["sh", "-c", ALLOW.format(cable=cable)])
    run(machine.command(["sh", "-c", ALLOW.format(cable=THERE)]))
    # Its own loopback stays down: with it 127.0.0.1 would be the machine itself.
    ip("-n", machine.name, "route", "add", LOOPBACK, "via", ours)
    return machine


def remove(number: int) -> None:
    # The cable by itself: the kernel takes its time with a namespace.
    for arguments in (("link", "delete", cable_of(number)), ("netns", "delete", name_of(number))):
        subprocess.run(["ip", *arguments], check=False, capture_output=True)


def name_of(number: int) -> str:
    return f"sluice-bench-{number}"


def cable_of(number: int) -> str:
    return f"sluice-veth{number}"  # 15 characters at most


def ip(*arguments: str) -> None:
    run(["ip", *arguments])


def run(command: Sequence[str]) -> None:
    """Raises Unavailable, with the last of what the command said."""
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        said = done.stderr.strip().rpartition("\n")[2]
        raise Unavailable(f"{' '.join(command[:6])} …: {said}")


# ---- Postgres -------------------------------------------------------------------------------------------------------


@contextmanager
def admitted(postmaster: int) -> Iterator[None]:
    """Have Postgres talk to those machines, who must know their passwords all the same."""
    file = data_of(postmaster) / "pg_hba.conf"
    before = file.read_text()

    def write(text: str) -> None:
        file.write_text(text)
        process_tree.send(postmaster, signal.SIGHUP)  # read it again

    write(f"{before}\nhost all all {NETWORK}.0/24 scram-sha-256\n")
    try:
        yield
    finally:
        write(before)


def data_of(postmaster: int) -> Path:
    arguments = process_tree.command_line(postmaster).split("\0")
    return Path(arguments[arguments.index("-D") + 1])
