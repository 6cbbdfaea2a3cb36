"""The reader process: `python -m etl.providers.local <process ID of its worker>`.

Standard input is a socket. Each request is a line of JSON with an open file, because the sandbox cannot open documents.
Responses are lines of JSON on standard output. The process does not load Django and has no secrets. It parses untrusted
documents and may therefore crash, hang, or be killed at any time; the worker then starts a new one.
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

PR_SET_PDEATHSIG = 1
# Seconds after a document's deadline at which the process exits, in case its worker no longer exists.
ALARM_DELAY = 10
MAX_REQUEST = 65_536  # bytes


def main(worker: int) -> None:
    output = reserve_stdout()
    requests = socket.socket(fileno=0)
    try:
        confine()
        exit_with(worker)
        # Imported in the sandbox, and after standard output is reserved: libraries may print or open files.
        from etl.providers.local.reading import read
        from etl.providers.local.recognition import Engine
    except Exception as error:  # noqa: BLE001 - any failure before the first document is a startup error
        send(output, {"startup_error": f"{type(error).__name__} {getattr(error, 'name', None) or ''}"})
        return
    send(output, {"ready": True})
    engine = Engine()
    for request, document in receive(requests):
        signal.setitimer(signal.ITIMER_REAL, request["seconds"] + ALARM_DELAY)
        for message in read(engine, request, document):
            send(output, message)
        signal.setitimer(signal.ITIMER_REAL, 0)


def reserve_stdout() -> BinaryIO:
    """Return the standard output for messages. Other output, also to stderr, then goes to /dev/null."""
    output = os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    os.dup2(null, 2)
    return output


def receive(requests: socket.socket) -> Iterator[tuple[dict[str, Any], BinaryIO]]:
    while True:
        line, descriptors, _, _ = socket.recv_fds(requests, MAX_REQUEST, 1)
        if not line:
            return
        with os.fdopen(descriptors[0], "rb") as document:
            yield json.loads(line), document


def send(output: BinaryIO, message: dict[str, Any]) -> None:
    output.write(json.dumps(message).encode() + b"\n")
    output.flush()


def exit_with(worker: int) -> None:
    """Have the kernel kill this process when its worker exits. Linux only; 0: no worker to watch."""
    if sys.platform == "linux" and worker:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != worker:  # it exited before the call
            sys.exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
