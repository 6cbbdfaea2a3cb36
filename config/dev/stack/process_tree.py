"""A process and its descendants: find them, signal the leader, kill all.

Run as a script with a pipe as standard input, it is the orphan watchdog: it ends the processes of a killed supervisor.
The other end of the pipe closes when the supervisor ends, even after kill -9. The pipe carries lines: `watch PID
SIGNAL`, `ended PID`, or `remove PATH`. The script is run by its path and imports no other module of the project, so it
starts quickly and uses little memory.

PR_SET_PDEATHSIG is no alternative: it fires when the starting *thread* ends, reaches only direct children, and sends
Postgres the same signal as the other processes.
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

    A process group is no alternative: every backend of Postgres creates its own session.
    """
    children: dict[int, list[int]] = {}
    for pid, parent, _ in all_processes():
        children.setdefault(parent, []).append(pid)
    found = [leader]
    for pid in found:
        found.extend(children.get(pid, []))
    return found


def orphans(leader: int, *, title: str = "") -> list[int]:
    """Return the remaining processes of an ended leader: those in its session, and those with this title.

    Celery's children end with their parent, except for one that was just forked. A Postgres backend first finishes its
    query.
    """
    # The kernel does not reuse a pid that is still a session ID: a process with this pid means an unrelated session.
    return [
        pid
        for pid, _, session in all_processes()
        if (session == leader and not exists(leader)) or (title and command_line(pid).startswith(title))
    ]


def command_line(pid: int) -> str:
    """Return the command line, with NUL after each argument, or the title that replaced it.

    Empty when the process has ended.
    """
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""


def all_processes() -> list[tuple[int, int, int]]:
    """Return the pid, parent and session of every running process."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            # The process may have ended since the listing.
            with suppress(OSError):
                # The name in brackets may contain spaces and brackets: the fields follow the last bracket.
                state, parent, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
                if state != "Z":
                    found.append((int(entry.name), int(parent), int(session)))
    return found


def exists(pid: int) -> bool:
    """Return whether the process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def send(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def wait_gone(pids: list[int], *, limit: float) -> bool:
    """Wait for the processes to end. Return whether all of them ended within `limit` seconds."""
    deadline = time.monotonic() + limit
    while any(map(exists, pids)):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def read(lines: Iterable[str]) -> tuple[dict[int, int], set[str]]:
    """Read commands until the pipe closes. Return the signals by remaining process, and the files to remove."""
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
