"""Free TCP ports on the loopback address."""

import random
import socket
from contextlib import ExitStack
from pathlib import Path

LOOPBACK = "127.0.0.1"
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
LOWEST = 10_000


def free(count: int) -> list[int]:
    """Return `count` different free ports in ascending order."""
    ports: list[int] = []
    with ExitStack() as held:
        for port in candidates():
            holder = held.enter_context(socket.socket())
            if try_bind(holder, port):
                ports.append(holder.getsockname()[1])
            if len(ports) == count:
                break
    return sorted(ports)


def is_free(port: int) -> bool:
    with socket.socket() as holder:
        return try_bind(holder, port)


def candidates() -> list[int]:
    """Return ports to try, in order of preference; 0 is the kernel's choice.

    The kernel's choice comes last, because it is in the range of outgoing connections. After a restart of a server, its
    port could be in use, or a client that retries could have connected to itself.
    """
    first_ephemeral = int(EPHEMERAL.read_text().split()[0]) if EPHEMERAL.exists() else LOWEST
    below = range(LOWEST, max(first_ephemeral, LOWEST))
    return random.sample(below, min(len(below), 200)) + [0] * 20


def try_bind(holder: socket.socket, port: int) -> bool:
    # Servers set this too: otherwise, closing connections of the last run would block the port.
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        holder.bind((LOOPBACK, port))
        # With SO_REUSEADDR, two sockets can bind the same port, but only one can listen.
        holder.listen(1)
    except OSError:
        return False
    return True
