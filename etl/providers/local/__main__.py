"""The reader process: `python -m etl.providers.local <process ID of its worker>`.

Standard input is a socket. A request is a line of JSON with two open files: the document, because the sandbox cannot
open files, and a pipe for the messages about the document. The reader process imports the libraries and forks a child
process for each document. It parses nothing itself, so a document that compromises its child process cannot reach the
documents of other users. Neither process loads Django or has secrets.

The child process may crash, hang, or be killed at any time. The reader process then reports its exit status on the
socket.
"""

import ctypes
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO

from etl.providers.local import sandbox

PR_SET_PDEATHSIG = 1
# Seconds between a document's deadline and the exit of its process, in case its worker no longer exists.
ALARM_DELAY = 10
MAX_REQUEST = 65_536  # bytes
MAXRSS_UNIT = 1024  # bytes; Linux reports peak memory in kilobytes

Message = dict[str, Any]


def main(worker: int) -> None:
    discard_output()
    control = socket.socket(fileno=0)
    try:
        sandbox.confine()
        exit_with_parent(worker)
        # Imported in the sandbox and after output is discarded, because libraries may print or open files.
        from etl.providers.local import ocr_engine, reading

        ocr_engine.warm_up()
    except Exception as error:  # noqa: BLE001 - any failure before the first document is a startup error
        report(control, {"startup_error": f"{type(error).__name__} {getattr(error, 'name', None) or ''}"})
        return
    report(control, {"ready": True, "missing": sandbox.missing()})
    reader = os.getpid()
    for request, document, output in receive(control):
        with document, output:
            reading.prepare(request)
            if not (pid := os.fork()):
                control.close()
                send_and_exit(reading.read(ocr_engine.Engine(), request, document), request, output, reader)
        report(control, {"started": pid})
        _, status, usage = os.wait4(pid, 0)
        report(control, {"exit": os.waitstatus_to_exitcode(status), "memory": usage.ru_maxrss * MAXRSS_UNIT})


def discard_output() -> None:
    """Discard the output of libraries."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    os.dup2(null, 2)
    os.close(null)


def report(control: socket.socket, message: Message) -> None:
    control.sendall(json.dumps(message).encode() + b"\n")


def receive(control: socket.socket) -> Iterator[tuple[Message, BinaryIO, BinaryIO]]:
    while True:
        line, descriptors, _, _ = socket.recv_fds(control, MAX_REQUEST, 2)
        if not line:
            return
        yield json.loads(line), os.fdopen(descriptors[0], "rb"), os.fdopen(descriptors[1], "wb")


def send_and_exit(messages: Iterator[Message], request: Message, output: BinaryIO, reader: int) -> None:
    """Send the messages about a document, then exit. Runs in the forked process and skips the parent's cleanup."""
    code = 1
    try:
        exit_with_parent(reader)
        if processor_seconds := request.get("processor_seconds"):
            sandbox.limit_processor_time(processor_seconds)
        sandbox.confine_further()
        signal.setitimer(signal.ITIMER_REAL, request["seconds"] + ALARM_DELAY)
        for message in messages:
            output.write(json.dumps(message).encode() + b"\n")
            output.flush()
        code = 0
    finally:
        os._exit(code)


def exit_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent exits. Linux only. A `parent` of 0 disables this."""
    if sys.platform == "linux" and parent:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it exited before the call
            os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
