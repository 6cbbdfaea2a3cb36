"""The process that reads documents: `python -m etl.providers.local <pid of its worker>`.

A request is a line of JSON on its standard input, which is a socket, and the document comes with it as an open file: it
could not open one by itself. Answers are lines of JSON on what was its standard output. Knows nothing of Django, and
nothing that is secret. Untrusted documents are parsed here, so it may crash, hang, or be killed at any time; the worker
starts another.
"""

import ctypes
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO

from etl.providers.local.sandbox import confine

DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
# Seconds after the document's deadline at which the process ends by itself, if its worker is gone.
GRACE = 10
REQUEST = 65_536  # bytes of one at most


def main(worker: int) -> None:
    channel = claimed_output()
    asked = socket.socket(fileno=0)
    try:
        confine()
        die_with(worker)
        # Only now: from here on nothing that a library prints, or opens, goes anywhere.
        from etl.providers.local.reading import read
        from etl.providers.local.recognition import Engine
    except Exception as error:  # noqa: BLE001 - whatever it is, documents have nothing to do with it
        send(channel, {"broken": f"{type(error).__name__} {getattr(error, 'name', None) or ''}"})
        return
    send(channel, {"ready": True})
    engine = Engine()
    for request, document in requests(asked):
        signal.setitimer(signal.ITIMER_REAL, request["seconds"] + GRACE)
        for message in read(engine, request, document):
            send(channel, message)
        signal.setitimer(signal.ITIMER_REAL, 0)


def claimed_output() -> BinaryIO:
    """Reserve the standard output for messages; other output goes to /dev/null."""
    channel = os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    return channel


def requests(asked: socket.socket) -> Iterator[tuple[dict[str, Any], BinaryIO]]:
    while True:
        line, files, _, _ = socket.recv_fds(asked, REQUEST, 1)
        if not line:
            return
        with os.fdopen(files[0], "rb") as document:
            yield json.loads(line), document


def send(channel: BinaryIO, message: dict[str, Any]) -> None:
    channel.write(json.dumps(message).encode() + b"\n")
    channel.flush()


def die_with(worker: int) -> None:
    """Have the kernel kill us when the worker is gone, however it went."""
    if sys.platform == "linux" and worker:
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != worker:
            sys.exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
