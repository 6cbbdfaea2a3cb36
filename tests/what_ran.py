"""Diagnostics for a failed test with several processes: the state of each, and of the broker."""

from collections.abc import Iterable
from pathlib import Path

from config.dev.stack.process import Process
from tests.broker import valkey


def described(processes: Iterable[Process]) -> str:
    return "\n".join([*map(of_process, processes), of_broker()])


def of_process(process: Process) -> str:
    """Return the state of a process and its descendants, and the end of its log."""
    how = f"lives: {process.name}" if process.alive else process.exit_reason()
    return "\n".join([how, *map(of_member, process.members()), process.tail(40)])


def of_member(pid: int) -> str:
    """Return a process' state, its kernel wait channel, and its open files."""
    folder = Path(f"/proc/{pid}")
    try:
        state = next(line for line in (folder / "status").read_text().splitlines() if line.startswith("State"))
        held = sorted(str(each.readlink()) for each in (folder / "fd").iterdir())
        return f"  {pid}: {state}, {(folder / 'wchan').read_text()}, {' '.join(held)}"
    except OSError as error:
        return f"  {pid}: {error}"


def of_broker() -> str:
    """Return the contents of each key, and the clients' commands."""
    server = valkey()
    keys = [f"  {key!r}: {server.memory_usage(key)} bytes" for key in server.keys("*")]
    clients = [
        f"  client {each['id']} at {each['addr']}: {each['cmd']}, idle {each['idle']} s, old {each['age']} s"
        for each in server.client_list()
    ]
    return "\n".join(["valkey holds", *keys, *clients])
