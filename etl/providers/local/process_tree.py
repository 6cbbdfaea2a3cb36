"""Functions that find, measure, and kill the descendants of a process. Without /proc, they find none."""

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Usage(NamedTuple):
    parent: int
    threads: int
    memory: int  # resident bytes


def usage(pid: int) -> Usage | None:
    """Return the resources of a process, or None if it has exited."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(") ")[2].split()
        return Usage(parent=int(fields[1]), threads=int(fields[17]), memory=int(fields[21]) * PAGE_BYTES)
    except (OSError, IndexError, ValueError):
        return None


def descendants(root: int) -> list[int]:
    """Return the process IDs of all descendants. Reads the /proc entry of every process on the machine."""
    children: dict[int, list[int]] = {}
    with suppress(OSError):
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and (found := usage(int(entry.name))):
                children.setdefault(found.parent, []).append(int(entry.name))
    result = list(children.get(root, []))
    for pid in result:
        result.extend(children.get(pid, []))
    return result


def kill(leader: int) -> None:
    """Kill a process group, and descendants of its leader outside of the group."""
    members = descendants(leader)
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
    for pid in members:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
