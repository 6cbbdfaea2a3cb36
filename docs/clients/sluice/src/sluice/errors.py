"""What can go wrong, in words for people, and the exit code that scripts see."""

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
    Exit.UNEXPECTED: "something unexpected; --debug says more",
    Exit.USAGE: "wrong usage: an option, a file that cannot be read, a file that is there already",
    Exit.FORBIDDEN: "not signed in, or not allowed",
    Exit.NOT_FOUND: "not found, or gone",
    Exit.REFUSED: "refused by the server: the input, or not possible as things are",
    Exit.LIMITED: "the day's quota or the rate of requests is used up",
    Exit.FAILED: "the export or document failed",
    Exit.CANCELLED: "the export or document was cancelled",
    Exit.TIMED_OUT: "--timeout is over; the work goes on",
    Exit.UNREACHABLE: "the server or the object storage cannot be reached",
    Exit.CHECKSUM: "the downloaded bytes are not those of the receipt",
    Exit.INTERRUPTED: "interrupted by Ctrl-C; the work goes on",
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


class Trouble(Exception):
    """The command cannot go on. `lines` are for a person: the first says what, the others what to do."""

    def __init__(self, *lines: str, code: Exit = Exit.UNEXPECTED, document: Any = None) -> None:
        super().__init__(*lines)
        self.says: Sequence[str] = lines
        self.code = code
        self.document = document  # for --json: what the API answered

    @property
    def lines(self) -> Sequence[str]:
        return self.says


class TimedOut(Trouble):
    """The time that was given by --timeout is over."""

    def __init__(self) -> None:
        super().__init__("The time of --timeout is over.", code=Exit.TIMED_OUT)


class Unreachable(Trouble):
    """The server did not answer."""

    def __init__(self, *lines: str) -> None:
        super().__init__(*lines, code=Exit.UNREACHABLE)


class Problem(Trouble):
    """What the server answered instead: `application/problem+json`, or whatever a proxy in between makes of it."""

    def __init__(self, document: dict[str, Any], *, status: int, retry_after: float | None = None) -> None:
        super().__init__(code=OF_STATUS.get(status, Exit.UNEXPECTED), document=document)
        self.status = status
        self.retry_after = retry_after
        self.advice: tuple[str, ...] = ()
        self.wrong: list[str] = []
        self.locate(lambda pointer: pointer)

    def locate(self, place: Callable[[str], str]) -> None:
        """Word each error with its place: `place` makes of a JSON Pointer what the person at the terminal typed."""
        told = [(place(str(each.get("pointer", ""))), each.get("detail")) for each in self.document.get("errors") or []]
        self.wrong = [f"{where}: {detail}" if where else str(detail) for where, detail in told]

    @property
    def name(self) -> str:
        """The word that programs switch on."""
        return str(self.document.get("code", ""))

    @property
    def lines(self) -> Sequence[str]:
        return [*(self.wrong or [f"{self.detail} [{self.name or self.status}]"]), *self.advice]

    @property
    def detail(self) -> str:
        text = str(self.document.get("detail") or self.document.get("title") or f"The server answered {self.status}.")
        request = self.document.get("requestId")
        return f"{text} (request {request})" if self.status >= 500 and request else text  # noqa: PLR2004 - HTTP's 5xx
