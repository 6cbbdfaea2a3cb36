"""A process and its descendants: finding them, signalling the first, killing all.

As a script, `python family.py` with a pipe as standard input, it is the undertaker: it ends what a killed supervisor
leaves behind. The other end of the pipe closes when the supervisor ends, however it ends, kill -9 included.
PR_SET_PDEATHSIG would not do: it fires when the starting *thread* ends, it reaches only the direct child, and Postgres
wants another signal than the rest. Lines: `watch PID SIGNAL`, `ended PID`, `remove PATH`. It is run by its path and
imports nothing of ours, so it is there at once and small.
"""

import os
import signal
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

POLL_SECONDS = 0.02
GRACE_SECONDS = 4.0


def members(leader: int) -> list[int]:
    """Return the process and all its descendants, from /proc.

    A process group would not do: every backend of Postgres makes a session of its own.
    """
    children: dict[int, list[int]] = {}
    for pid, parent, _ in everyone():
        children.setdefault(parent, []).append(pid)
    found = [leader]
    for pid in found:
        found.extend(children.get(pid, []))
    return found


def orphans(leader: int, *, title: str = "") -> list[int]:
    """Return what a leader that has ended left behind: its session, and what shows itself with this title.

    Children of Celery end with their parent, but for one just made. A backend of Postgres first finishes its query.
    """
    # The kernel reuses no number that is still a session's: if there is such a process, it is a stranger.
    return [
        pid
        for pid, _, session in everyone()
        if (session == leader and not exists(leader)) or (title and shown(pid).startswith(title))
    ]


def shown(pid: int) -> str:
    """Return the command line as `ps` shows it; empty when the process has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""


def everyone() -> list[tuple[int, int, int]]:
    """Return all processes that run, each with its parent and its session."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            # It may have ended since the listing.
            with suppress(OSError):
                # The name in brackets may hold anything, spaces and brackets too: the fields follow the last one.
                state, parent, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
                if state != "Z":
                    found.append((int(entry.name), int(parent), int(session)))
    return found


def exists(pid: int) -> bool:
    """Tell whether the process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def send(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def kill(leader: int, *, limit: float = 5) -> None:
    """Kill the process and all its descendants, and wait until none runs."""
    pids = members(leader)
    for pid in pids:
        send(pid, signal.SIGKILL)
    wait_gone(pids, limit=limit)


def wait_gone(pids: list[int], *, limit: float) -> bool:
    """Return whether all of them ended within that many seconds."""
    deadline = time.monotonic() + limit
    while any(map(exists, pids)):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def read(lines: Iterable[str]) -> tuple[dict[int, int], set[str]]:
    """Return what was left when the pipe closed: the signals by process, and the files."""
    processes: dict[int, int] = {}
    files: set[str] = set()
    for line in lines:
        verb, _, rest = line.rstrip("\n").partition(" ")
        if verb == "watch":
            pid, number = rest.split()
            processes[int(pid)] = int(number)
        elif verb == "ended":
            processes.pop(int(rest), None)
        elif verb == "remove":
            files.add(rest)
    return processes, files


def end(processes: dict[int, int]) -> None:
    pids = [pid for leader in processes for pid in members(leader)]
    for pid, number in processes.items():
        send(pid, number)
    if not wait_gone(pids, limit=GRACE_SECONDS):
        for pid in pids:
            send(pid, signal.SIGKILL)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    processes, files = read(sys.stdin)
    end(processes)
    for name in files:
        Path(name).unlink(missing_ok=True)


if __name__ == "__main__":
    main()
