"""Free TCP ports on the loopback address."""

import random
import socket
from contextlib import ExitStack
from pathlib import Path

LOOPBACK = "127.0.0.1"
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
LOWEST = 10_000


def free(count: int) -> list[int]:
    """Return that many ports, ascending; all are held until the last is found, so that they differ."""
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
    """Return ports to try, best first; 0 leaves the choice to the kernel.

    The kernel's own choice comes last: it takes it from the range that outgoing connections use, where a server that
    is restarted on its port may find it taken, or find that a client, trying again and again, has connected to itself.
    """
    first_ephemeral = int(EPHEMERAL.read_text().split()[0]) if EPHEMERAL.exists() else LOWEST
    below = range(LOWEST, max(first_ephemeral, LOWEST))
    return random.sample(below, min(len(below), 200)) + [0] * 20


def try_bind(holder: socket.socket, port: int) -> bool:
    # As servers do: without it the closing connections of the last run keep a port from its own next run.
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        holder.bind((LOOPBACK, port))
        # Two sockets with SO_REUSEADDR may both bind; only one of them may listen.
        holder.listen(1)
    except OSError:
        return False
    return True
