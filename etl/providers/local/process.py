"""Control of the reader process by the worker: start, requests, limits, and kill.

Each worker process has at most one reader process. The reader process has already imported the libraries and forks a
child process for each document, which takes milliseconds. It must not be used concurrently.
"""

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any

import structlog
from django.conf import settings

from config.platform.observability import logs
from etl.core.errors import EngineMissing, EtlError, FileTooLarge, OcrFailed, SandboxMissing, TooMuchProcessing
from etl.core.stage_context import StageContext
from etl.providers.local import process_tree

log = structlog.get_logger(__name__)

ROOT = Path(__file__).resolve().parents[3]
# Environment variables that the reader process inherits. No credentials, because it parses untrusted files.
INHERITED_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "PYTHONHOME", "PYTHONPATH", "LANG", "LC_ALL", "TMPDIR")
# HOME keeps onnxruntime from storing a telemetry ID in the user's home directory. The other variables keep telemetry
# and OpenBLAS from starting threads at import, because threads do not survive a fork.
FIXED_VARIABLES = {"HOME": "/nonexistent", "ORT_DISABLE_TELEMETRY": "1", "OPENBLAS_NUM_THREADS": "1"}
# Maximum resident memory in bytes and maximum number of threads. Above a limit, the processes are killed.
MAX_MEMORY, MAX_THREADS = 1024**3, 64
TOO_MUCH_MEMORY = f"Reading the file takes more than {MAX_MEMORY:,} bytes of memory, which is the limit."
POLL_INTERVAL = 0.2  # seconds between checks of the deadline, the lease, and memory
MAX_LINE = 256 * 1024**2  # bytes of a message, far above the largest page
BLOCK_SIZE = 1 << 18

# The last line on stderr if Python cannot start, such as `ModuleNotFoundError: No module named 'etl'`.
STARTUP_ERROR = re.compile(r"^([A-Za-z_.]{1,80})(?::.*?\bmodule named '?([\w.]{1,80})'?)?")

Message = dict[str, Any]


class ReaderCrashed(OcrFailed):
    """The document's process crashed, or sent an invalid message."""


class ReaderProcess:
    """A running reader process. `owner`: the process ID of the worker that started it. Only that worker may use it."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        inherited = {name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ}
        # PR_SET_PDEATHSIG fires when the parent *thread* exits, so it is only used in the main thread.
        parent = self.owner if threading.current_thread() is threading.main_thread() else 0
        self.ready = False  # has started: from then on, only a document can cause a crash
        self.can_fork = True  # whether a document's process can start other processes
        self.child: int | None = None  # the process of the current document
        self.exit_code, self.peak = 0, 0  # of the last document's process; `peak` in resident bytes
        self.received = b""
        self.control, theirs = socket.socketpair()
        try:
            self.popen = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-B", "-m", "etl.providers.local", str(parent)],
                stdin=theirs.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                cwd=ROOT, env={"LANG": "C.UTF-8", **inherited, **FIXED_VARIABLES}, bufsize=0, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            self.control.close()
            raise engine_missing(logs.describe(error)) from None
        finally:
            theirs.close()
        self.pid = self.popen.pid

    def is_usable(self) -> bool:
        return self.owner == os.getpid() and self.popen.poll() is None

    def read(self, request: Message, context: StageContext) -> Generator[Message]:
        """Yield the messages about a document. Kill all processes on any exception, including one at the `yield`."""
        finished = False
        try:
            self.wait_until_ready(context)
            with self.send(request) as responses:
                self.child = int(self.receive(context)["started"])
                for message in self.read_messages(responses.fileno(), context):
                    if last := "done" in message or "error" in message:
                        responses.close()
                        self.wait_for_exit(context)
                        finished = True
                    yield message
                    if last:
                        return
            self.wait_for_exit(context)
            raise self.crash_error()
        finally:
            if not finished:
                self.kill()

    def wait_until_ready(self, context: StageContext) -> None:
        if self.ready:
            return
        message = self.receive(context)
        if "startup_error" in message:
            raise engine_missing(str(message["startup_error"]))
        if message["missing"]:
            log.warning("sandbox_incomplete", missing=message["missing"])
            if settings.SLUICE.etl_require_sandbox:
                raise SandboxMissing
        self.ready = True
        self.can_fork = "seccomp" in message["missing"]

    def send(self, request: Message) -> FileIO:
        """Send a request with its document as an open file, because the sandboxed process cannot open its `path`.

        Returns the pipe for the responses.
        """
        line = json.dumps({**request, "path": None}).encode() + b"\n"
        try:
            with Path(request["path"]).open("rb") as document:
                reader, writer = os.pipe()
                with FileIO(writer, "wb"):
                    responses = FileIO(reader)
                    socket.send_fds(self.control, [line], [document.fileno(), writer])
                    return responses
        except (BrokenPipeError, ConnectionResetError):
            raise self.exit_error() from None
        except OSError:  # the document was deleted, or too many files are open
            raise ReaderCrashed from None

    def receive(self, context: StageContext) -> Message:
        """Return the next message of the reader process. It is trusted, unlike those of a document's process."""
        while b"\n" not in self.received:
            block = b""
            with suppress(ConnectionResetError):
                block = self.read_block(self.control.fileno(), context)
            if not block:
                raise self.exit_error()
            self.received += block
        line, _, self.received = self.received.partition(b"\n")
        return parse(line)

    def read_messages(self, responses: int, context: StageContext) -> Generator[Message]:
        """Yield the messages of the document's process until it closes its pipe. They are untrusted."""
        buffer = bytearray()
        while block := self.read_block(responses, context):
            buffer += block
            *lines, buffer = buffer.split(b"\n") if b"\n" in block else (buffer,)
            for line in lines:
                message = parse(line)
                if "startup_error" in message:
                    raise engine_missing(str(message["startup_error"]))
                yield message
            if len(buffer) > MAX_LINE:
                raise ReaderCrashed

    def read_block(self, source: int, context: StageContext) -> bytes:
        """Wait for data and return it, or b"" at the end of the stream. Raises an error if a limit is exceeded."""
        while True:
            readable, _, _ = select.select([source], [], [], min(POLL_INTERVAL, context.remaining()))
            context.check()
            self.check_limits()
            if readable:
                return os.read(source, BLOCK_SIZE)

    def wait_for_exit(self, context: StageContext) -> None:
        """Wait until the document's process has exited, so that it cannot affect the next document."""
        message = self.receive(context)
        self.child, self.exit_code, self.peak = None, int(message["exit"]), int(message["memory"])
        if self.processes():
            log.warning("reader_stopped", reason="processes")
            raise ReaderCrashed

    # ---- Limits -----------------------------------------------------------------------------------------------------
    def processes(self) -> list[int]:
        """Return the IDs of the current document's process and of its descendants, which only exist without seccomp."""
        if self.ready and self.can_fork:
            return process_tree.descendants(self.pid)
        return [self.child] if self.child else []

    def check_limits(self) -> None:
        usages = [usage for pid in self.processes() if (usage := process_tree.usage(pid))]
        if sum(usage.memory for usage in usages) > MAX_MEMORY:
            log.warning("reader_stopped", reason="memory")
            raise FileTooLarge(TOO_MUCH_MEMORY)
        if sum(usage.threads for usage in usages) > MAX_THREADS:
            log.warning("reader_stopped", reason="threads")
            raise ReaderCrashed

    # ---- Exits ------------------------------------------------------------------------------------------------------
    def crash_error(self) -> EtlError:
        """Return the error for a document whose process exited without a result."""
        log.warning("reader_died", code=self.exit_code, memory=self.peak)
        if self.exit_code == -signal.SIGXCPU:
            return TooMuchProcessing()
        # Libraries abort or access a null pointer if an allocation fails.
        if self.peak > MAX_MEMORY / 2 and self.exit_code in {-signal.SIGABRT, -signal.SIGSEGV}:
            return FileTooLarge(TOO_MUCH_MEMORY)
        return ReaderCrashed()

    def exit_error(self) -> EtlError:
        """Return the error for a reader process that exited unexpectedly."""
        process_tree.kill(self.pid)  # remaining processes; before `wait`, because afterwards the ID may be reused
        code = self.popen.wait()
        if not self.ready:
            return engine_missing(self.startup_error(), code=code)
        log.warning("reader_died", code=code)
        return ReaderCrashed()

    def startup_error(self) -> str:
        """Return the class of the exception on stderr and the missing module, or "" if there is none."""
        assert self.popen.stderr is not None  # noqa: S101 - for mypy
        os.set_blocking(self.popen.stderr.fileno(), False)
        line = (self.popen.stderr.read() or b"").decode(errors="replace").strip().rpartition("\n")[2]
        match = STARTUP_ERROR.match(line)
        return " ".join(filter(None, match.groups())) if match else ""

    def kill(self) -> None:
        """Kill all processes and close the pipes. In a fork of the owner, only close them."""
        if self.owner == os.getpid() and self.popen.returncode is None:
            process_tree.kill(self.pid)
            self.popen.wait()
        self.control.close()
        if self.popen.stderr is not None:
            self.popen.stderr.close()


def engine_missing(reason: str, **details: object) -> EngineMissing:
    """Log why the reader process did not start, and return the error. `reason` is untrusted."""
    log.error("reader_not_started", reason=re.sub(r"[^\w.()+ -]", "", reason)[:200].strip(), **details)
    return EngineMissing()


def parse(line: bytes | bytearray) -> Message:
    # The process parses untrusted files, so its messages are untrusted too.
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        raise ReaderCrashed from None
    if not isinstance(message, dict):
        raise ReaderCrashed
    return message
