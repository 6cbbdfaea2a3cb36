"""Diagnostics for failed tests with several processes: the state of the processes and of the broker."""

from collections.abc import Iterable
from pathlib import Path

from config.dev.stack.process import Process
from tests.broker import valkey


def describe(processes: Iterable[Process]) -> str:
    return "\n".join([*map(describe_process, processes), describe_broker()])


def describe_process(process: Process) -> str:
    """Return the state of a process and its descendants, and the end of its log."""
    state = f"running: {process.name}" if process.alive else process.exit_reason()
    return "\n".join([state, *map(describe_member, process.members()), process.tail(40)])


def describe_member(pid: int) -> str:
    """Return the state of a process, its kernel wait channel, and its open files."""
    folder = Path(f"/proc/{pid}")
    try:
        state = next(line for line in (folder / "status").read_text().splitlines() if line.startswith("State"))
        files = sorted(str(each.readlink()) for each in (folder / "fd").iterdir())
        return f"  {pid}: {state}, {(folder / 'wchan').read_text()}, {' '.join(files)}"
    except OSError as error:
        return f"  {pid}: {error}"


def describe_broker() -> str:
    """Return the size of each key, and the last command of each client."""
    server = valkey()
    keys = [f"  {key!r}: {server.memory_usage(key)} bytes" for key in server.keys("*")]
    clients = [
        f"  client {each['id']} at {each['addr']}: {each['cmd']}, idle for {each['idle']} s, age {each['age']} s"
        for each in server.client_list()
    ]
    return "\n".join(["broker:", *keys, *clients])
