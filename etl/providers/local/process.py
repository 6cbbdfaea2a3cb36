"""The worker's end of the process that reads documents: starts it, asks it, watches it, ends it.

The process stays for the next document, because starting it takes longer than most documents do. It is one for each
worker process, and must not be used concurrently.
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
# What it needs to run at all. No credentials: it opens strangers' files.
ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "PYTHONHOME", "PYTHONPATH", "LANG", "LC_ALL", "TMPDIR")
# Else it would leave things in the user's home: onnxruntime keeps a number there by which it reports to its makers.
WITHOUT = {"HOME": "/nonexistent", "ORT_DISABLE_TELEMETRY": "1"}
# Resident bytes: at which it is ended in the middle of a document, and after a document.
MOST, RETIRED = 1024**3, 640 * 1024**2
# Documents after which it is replaced in any case: libraries leak.
DOCUMENTS = 100
TICK = 0.2  # seconds between looks at the clock, the lease, and its memory
ANSWER = 256 * 1024**2  # bytes of one line, far beyond what a page can have
BLOCK = 1 << 18

# How Python ends when it cannot even begin: `ModuleNotFoundError: No module named 'etl'`.
LAST_WORDS = re.compile(r"^([A-Za-z_.]{1,80})(?::.*?\bmodule named '?([\w.]{1,80})'?)?")

Message = dict[str, Any]


class Died(OcrFailed):
    """The process that read this document died of it."""


class ReaderProcess:
    """`pid`: its own; `owner`: of the process that started it, and alone may use it."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.documents = 0
        kept = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
        # The kernel's signal at the parent's death is one at the death of the thread that started it.
        parent = self.owner if threading.current_thread() is threading.main_thread() else 0
        self.ready = False  # it has begun, and whatever befalls it now is about a document
        self.channel, theirs = socket.socketpair()
        try:
            self.popen = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-B", "-m", "etl.providers.local", str(parent)],
                stdin=theirs.fileno(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                cwd=ROOT, env={"LANG": "C.UTF-8", **kept, **WITHOUT}, bufsize=0, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            self.channel.close()
            raise missing(logs.describe(error)) from None
        finally:
            theirs.close()
        self.pid = self.popen.pid

    def usable(self) -> bool:
        return self.owner == os.getpid() and self.popen.poll() is None

    def ask(self, request: Message, context: StageContext) -> Generator[Message]:
        """Yield its answers. Whatever is raised here or at the `yield`, the process does not outlive it."""
        self.documents += 1
        finished = False
        try:
            self.send(request)
            for line in self.lines(context):
                message = parsed(line)
                if "ready" in message:
                    self.ready = True
                    continue
                if "broken" in message:
                    raise missing(str(message["broken"]))
                finished = "done" in message or "error" in message
                yield message
                if finished:
                    return
        finally:
            if not finished:
                self.kill()

    def send(self, request: Message) -> None:
        """Send a request, and the file of its `path` opened: the process may open none."""
        line = json.dumps({**request, "path": None}).encode() + b"\n"
        try:
            with Path(request["path"]).open("rb") as document:
                socket.send_fds(self.channel, [line], [document.fileno()])
        except (BrokenPipeError, ConnectionResetError):
            raise (Died() if self.ready else self.died()) from None
        except OSError:  # the document is gone, or there are too many open files
            raise Died from None

    def lines(self, context: StageContext) -> Generator[bytes]:
        assert self.popen.stdout is not None  # noqa: S101 - for mypy
        answers = self.popen.stdout.fileno()
        buffer = bytearray()
        while True:
            ready, _, _ = select.select([answers], [], [], min(TICK, context.remaining()))
            context.check()
            self.watch()
            if not ready:
                continue
            block = os.read(answers, BLOCK)
            if not block:
                raise self.died()
            buffer += block
            *whole, rest = buffer.split(b"\n") if b"\n" in block else (buffer,)
            buffer = rest
            yield from map(bytes, whole)
            if len(buffer) > ANSWER:
                raise Died

    def watch(self) -> None:
        if self.memory() > MOST:
            log.warning("reader_stopped", reason="memory")
            raise FileTooLarge("Reading the file takes more memory than allowed.")

    def memory(self) -> int:
        """Return the resident memory in bytes; 0 if the system does not report it."""
        try:
            pages = Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()[1]
        except (OSError, IndexError):
            return 0
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def died(self) -> EtlError:
        """Return the cause of the death of a process that was not killed by us."""
        _, status, used = os.wait4(self.pid, 0)
        self.popen.returncode = os.waitstatus_to_exitcode(status)
        if not self.ready:
            return missing(self.last_words(), code=self.popen.returncode)
        log.warning("reader_died", code=self.popen.returncode, memory=used.ru_maxrss * 1024)
        if used.ru_maxrss * 1024 > MOST / 2 and self.popen.returncode in {-signal.SIGABRT, -signal.SIGSEGV}:
            return FileTooLarge("Reading the file takes more memory than allowed.")
        return Died()

    def last_words(self) -> str:
        """Return the exception and a module's name from the last line of stderr, for a process that failed to start."""
        assert self.popen.stderr is not None  # noqa: S101 - for mypy
        os.set_blocking(self.popen.stderr.fileno(), False)
        line = (self.popen.stderr.read() or b"").decode(errors="replace").strip().rpartition("\n")[2]
        found = LAST_WORDS.match(line)
        return " ".join(filter(None, found.groups())) if found else ""

    def is_worn(self) -> bool:
        return self.documents >= DOCUMENTS or self.memory() > RETIRED

    def kill(self) -> None:
        """End it at once. One that belongs to the process that we were forked from is let go only."""
        if self.owner == os.getpid() and self.popen.returncode is None:
            self.popen.kill()
            self.popen.wait()
        for pipe in (self.channel, self.popen.stdout, self.popen.stderr):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()


def missing(reason: str, **facts: object) -> EngineMissing:
    """Log why no document can be read on this machine. A compromised process may have written the reason."""
    log.error("reader_not_started", reason=re.sub(r"[^\w.()+ -]", "", reason)[:200].strip(), **facts)
    return EngineMissing()


def parsed(line: bytes) -> Message:
    # It has parsed an untrusted file, so its messages are not trusted either.
    try:
        message = json.loads(line)
    except ValueError:
        raise Died from None
    if not isinstance(message, dict):
        raise Died
    return message
