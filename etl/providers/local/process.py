"""The worker's side of the reader process: starts it, sends requests, enforces limits, and kills it.

Each worker process has at most one. It is reused for further documents, because starting it takes longer than most
documents do. It must not be used concurrently.
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
from pathlib import Path
from typing import Any

import structlog

from config.platform.observability import logs
from etl.core.errors import EngineMissing, EtlError, FileTooLarge, OcrFailed
from etl.core.stage_context import StageContext

log = structlog.get_logger(__name__)

ROOT = Path(__file__).resolve().parents[3]
# Environment variables that are passed on. No credentials, because the process parses untrusted files.
INHERITED_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "PYTHONHOME", "PYTHONPATH", "LANG", "LC_ALL", "TMPDIR")
# Prevents files in the user's home directory. onnxruntime stores an ID for its telemetry there.
FIXED_VARIABLES = {"HOME": "/nonexistent", "ORT_DISABLE_TELEMETRY": "1"}
# Resident memory in bytes, above which the process is killed while it reads a document, or restarted after one.
MAX_MEMORY, RESTART_MEMORY = 1024**3, 640 * 1024**2
# Number of documents after which it is restarted, because libraries leak memory.
MAX_DOCUMENTS = 100
POLL_INTERVAL = 0.2  # seconds between checks of the deadline, the lease, and memory
MAX_LINE = 256 * 1024**2  # bytes of a message, far above the largest page
BLOCK_SIZE = 1 << 18

# The last line on stderr if Python cannot start: `ModuleNotFoundError: No module named 'etl'`.
STARTUP_ERROR = re.compile(r"^([A-Za-z_.]{1,80})(?::.*?\bmodule named '?([\w.]{1,80})'?)?")

Message = dict[str, Any]


class ReaderCrashed(OcrFailed):
    """The reader process crashed, or sent an invalid message, while it read the document."""


class ReaderProcess:
    """A running reader process. `owner`: the process ID of the worker that started it; only that one may use it."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.documents = 0
        inherited = {name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ}
        # PR_SET_PDEATHSIG fires when the parent *thread* exits, so it is used only from the main thread.
        parent = self.owner if threading.current_thread() is threading.main_thread() else 0
        self.ready = False  # started; from then on, a crash is caused by a document
        self.requests, theirs = socket.socketpair()
        try:
            self.popen = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-B", "-m", "etl.providers.local", str(parent)],
                stdin=theirs.fileno(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                cwd=ROOT, env={"LANG": "C.UTF-8", **inherited, **FIXED_VARIABLES}, bufsize=0, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            self.requests.close()
            raise engine_missing(logs.describe(error)) from None
        finally:
            theirs.close()
        self.pid = self.popen.pid

    def is_usable(self) -> bool:
        return self.owner == os.getpid() and self.popen.poll() is None

    def read(self, request: Message, context: StageContext) -> Generator[Message]:
        """Yield the messages about a document. Kills the process on any exception, also one at the `yield`."""
        self.documents += 1
        finished = False
        try:
            self.send(request)
            for line in self.read_lines(context):
                message = parse(line)
                if "ready" in message:
                    self.ready = True
                    continue
                if "startup_error" in message:
                    raise engine_missing(str(message["startup_error"]))
                finished = "done" in message or "error" in message
                yield message
                if finished:
                    return
        finally:
            if not finished:
                self.kill()

    def send(self, request: Message) -> None:
        """Send a request with its document as an open file, because the sandbox cannot open files by `path`."""
        line = json.dumps({**request, "path": None}).encode() + b"\n"
        try:
            with Path(request["path"]).open("rb") as document:
                socket.send_fds(self.requests, [line], [document.fileno()])
        except (BrokenPipeError, ConnectionResetError):
            raise (ReaderCrashed() if self.ready else self.exit_error()) from None
        except OSError:  # the document was deleted, or too many files are open
            raise ReaderCrashed from None

    def read_lines(self, context: StageContext) -> Generator[bytes]:
        assert self.popen.stdout is not None  # noqa: S101 - for mypy
        responses = self.popen.stdout.fileno()
        buffer = bytearray()
        while True:
            readable, _, _ = select.select([responses], [], [], min(POLL_INTERVAL, context.remaining()))
            context.check()
            self.check_memory()
            if not readable:
                continue
            block = os.read(responses, BLOCK_SIZE)
            if not block:
                raise self.exit_error()
            buffer += block
            *lines, buffer = buffer.split(b"\n") if b"\n" in block else (buffer,)
            yield from map(bytes, lines)
            if len(buffer) > MAX_LINE:
                raise ReaderCrashed

    def check_memory(self) -> None:
        if self.memory() > MAX_MEMORY:
            log.warning("reader_stopped", reason="memory")
            raise FileTooLarge("Reading the file takes more memory than allowed.")

    def memory(self) -> int:
        """Return the resident memory in bytes, or 0 if the system does not report it."""
        try:
            pages = Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()[1]
        except (OSError, IndexError):
            return 0
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def exit_error(self) -> EtlError:
        """Return the error for a process that exited on its own."""
        _, status, usage = os.wait4(self.pid, 0)
        self.popen.returncode = os.waitstatus_to_exitcode(status)
        if not self.ready:
            return engine_missing(self.startup_error(), code=self.popen.returncode)
        peak = usage.ru_maxrss * 1024
        log.warning("reader_died", code=self.popen.returncode, memory=peak)
        # Libraries abort, or access a null pointer, if an allocation fails.
        if peak > MAX_MEMORY / 2 and self.popen.returncode in {-signal.SIGABRT, -signal.SIGSEGV}:
            return FileTooLarge("Reading the file takes more memory than allowed.")
        return ReaderCrashed()

    def startup_error(self) -> str:
        """Return the class of the exception on stderr and the missing module, or "" if there is none."""
        assert self.popen.stderr is not None  # noqa: S101 - for mypy
        os.set_blocking(self.popen.stderr.fileno(), False)
        line = (self.popen.stderr.read() or b"").decode(errors="replace").strip().rpartition("\n")[2]
        match = STARTUP_ERROR.match(line)
        return " ".join(filter(None, match.groups())) if match else ""

    def needs_restart(self) -> bool:
        return self.documents >= MAX_DOCUMENTS or self.memory() > RESTART_MEMORY

    def kill(self) -> None:
        """Kill the process and close its pipes. In a fork of its owner, only close them."""
        if self.owner == os.getpid() and self.popen.returncode is None:
            self.popen.kill()
            self.popen.wait()
        for pipe in (self.requests, self.popen.stdout, self.popen.stderr):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()


def engine_missing(reason: str, **details: object) -> EngineMissing:
    """Log why the reader process did not start, and return the error. The reason is untrusted."""
    log.error("reader_not_started", reason=re.sub(r"[^\w.()+ -]", "", reason)[:200].strip(), **details)
    return EngineMissing()


def parse(line: bytes) -> Message:
    # The process has parsed an untrusted file, so its messages are untrusted too.
    try:
        message = json.loads(line)
    except ValueError:
        raise ReaderCrashed from None
    if not isinstance(message, dict):
        raise ReaderCrashed
    return message
