"""The orphan watchdog: ends the stack's processes if the supervisor is killed. One per Python process."""

import atexit
import os
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import Lock

from config.dev.stack import process_tree

PROJECT = Path(__file__).resolve().parents[3]


class OrphanWatchdog:
    """A child process that reads a pipe; it acts when the pipe closes, even after kill -9 of this process."""

    def __init__(self) -> None:
        self.lock = Lock()
        reading, writing = os.pipe()
        self.pipe = os.fdopen(writing, "w")
        # In a separate session: Ctrl-C, or a kill of the process group, must not end it together with this process.
        command = [sys.executable, "-IS", process_tree.__file__]
        self.process = subprocess.Popen(command, stdin=reading, stdout=subprocess.DEVNULL, start_new_session=True)
        os.close(reading)
        atexit.register(self.close)

    def send(self, verb: str, argument: object) -> None:
        # Without the watchdog the stack works, but leaves processes behind after kill -9.
        with self.lock, suppress(BrokenPipeError):
            self.pipe.write(f"{verb} {argument}\n")
            self.pipe.flush()

    def close(self) -> None:
        """Close the pipe, so that the watchdog ends the remaining processes, and wait for it."""
        with suppress(BrokenPipeError):
            self.pipe.close()
        self.process.wait()


starting = Lock()
create = cache(OrphanWatchdog)


def watchdog() -> OrphanWatchdog:
    with starting:  # servers start in threads, and `cache` alone could create one in each
        return create()
