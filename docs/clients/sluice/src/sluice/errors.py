"""Errors with messages for users and exit codes for scripts."""

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any


class Exit(IntEnum):
    """Exit codes. `docs/command-line.md` and `sluice --help` list them."""

    DONE = 0
    UNEXPECTED = 1
    USAGE = 2
    FORBIDDEN = 3
    NOT_FOUND = 4
    REFUSED = 5
    LIMITED = 6
    FAILED = 7
    CANCELLED = 8
    TIMED_OUT = 9
    UNREACHABLE = 10
    CHECKSUM = 11
    INTERRUPTED = 130


MEANINGS = {
    Exit.DONE: "done",
    Exit.UNEXPECTED: "unexpected error; use --debug for details",
    Exit.USAGE: "usage error: invalid option, unreadable file, or file that already exists",
    Exit.FORBIDDEN: "not signed in, or permission denied",
    Exit.NOT_FOUND: "not found, or gone",
    Exit.REFUSED: "rejected by the server: invalid input, or not possible in the current state",
    Exit.LIMITED: "daily quota or rate limit exceeded",
    Exit.FAILED: "the export or document failed",
    Exit.CANCELLED: "the export or document was cancelled",
    Exit.TIMED_OUT: "--timeout exceeded; the export or document continues",
    Exit.UNREACHABLE: "the server or the object storage cannot be reached",
    Exit.CHECKSUM: "the download does not match the checksum of the receipt",
    Exit.INTERRUPTED: "interrupted by Ctrl-C; the export or document continues",
}

OF_STATUS = {
    400: Exit.REFUSED,
    401: Exit.FORBIDDEN,
    403: Exit.FORBIDDEN,
    404: Exit.NOT_FOUND,
    409: Exit.REFUSED,
    410: Exit.NOT_FOUND,
    413: Exit.REFUSED,
    415: Exit.REFUSED,
    422: Exit.REFUSED,
    429: Exit.LIMITED,
    502: Exit.UNREACHABLE,
    503: Exit.UNREACHABLE,
    504: Exit.UNREACHABLE,
}


class CliError(Exception):
    """An error that ends the command. The first of `lines` states the error, the others what to do."""

    def __init__(self, *lines: str, code: Exit = Exit.UNEXPECTED, document: Any = None) -> None:
        super().__init__(*lines)
        self.messages: Sequence[str] = lines
        self.code = code
        self.document = document  # for --json: the response of the API

    @property
    def lines(self) -> Sequence[str]:
        return self.messages


class TimedOut(CliError):
    """The time limit set with --timeout is exceeded."""

    def __init__(self) -> None:
        super().__init__("Timed out (--timeout).", code=Exit.TIMED_OUT)


class Unreachable(CliError):
    """The server did not respond."""

    def __init__(self, *lines: str) -> None:
        super().__init__(*lines, code=Exit.UNREACHABLE)


class Problem(CliError):
    """An error response of the server: `application/problem+json`, or the body of a proxy's error."""

    def __init__(self, document: dict[str, Any], *, status: int, retry_after: float | None = None) -> None:
        super().__init__(code=OF_STATUS.get(status, Exit.UNEXPECTED), document=document)
        self.status = status
        self.retry_after = retry_after
        self.advice: tuple[str, ...] = ()
        self.wrong: list[str] = []
        self.locate(lambda pointer: pointer)

    def locate(self, place: Callable[[str], str]) -> None:
        """Prefix each error with its place. `place` converts a JSON Pointer to an option or file."""
        located = [
            (place(str(each.get("pointer", ""))), each.get("detail")) for each in self.document.get("errors") or []
        ]
        self.wrong = [f"{where}: {detail}" if where else str(detail) for where, detail in located]

    @property
    def name(self) -> str:
        """The stable error code."""
        return str(self.document.get("code", ""))

    @property
    def lines(self) -> Sequence[str]:
        return [*(self.wrong or [f"{self.detail} [{self.name or self.status}]"]), *self.advice]

    @property
    def detail(self) -> str:
        text = str(
            self.document.get("detail") or self.document.get("title") or f"The server returned status {self.status}."
        )
        request = self.document.get("requestId")
        return f"{text} (request {request})" if self.status >= 500 and request else text  # noqa: PLR2004 - HTTP's 5xx
