"""The pipe to the undertaker, which ends our processes if we die without doing so. One for each Python process."""

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


class Lifeline:
    def __init__(self) -> None:
        self.lock = Lock()
        reading, writing = os.pipe()
        self.pipe = os.fdopen(writing, "w")
        # A session of its own: a Ctrl-C at the terminal, or a kill of the whole group, must not end it with us.
        command = [sys.executable, "-IS", process_tree.__file__]
        self.undertaker = subprocess.Popen(command, stdin=reading, stdout=subprocess.DEVNULL, start_new_session=True)
        os.close(reading)
        atexit.register(self.close)

    def tell(self, verb: str, what: object) -> None:
        # Without an undertaker the stack still works; it is only no longer safe against kill -9.
        with self.lock, suppress(BrokenPipeError):
            self.pipe.write(f"{verb} {what}\n")
            self.pipe.flush()

    def close(self) -> None:
        """Let the undertaker end whatever is still there, and wait for it."""
        with suppress(BrokenPipeError):
            self.pipe.close()
        self.undertaker.wait()


starting = Lock()


def lifeline() -> Lifeline:
    # Servers start in threads, and `cache` alone would let each of them make its own.
    with starting:
        return the_one()


@cache
def the_one() -> Lifeline:
    return Lifeline()
