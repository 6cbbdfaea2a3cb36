"""Errors of the client. All are subclasses of SluiceError."""

from dataclasses import dataclass
from typing import Any

from sluice.models import Export, Task


class SluiceError(Exception):
    """The root of all errors of this package."""


class NotSignedIn(SluiceError):
    """There is no token, or it cannot be sent."""


class InvalidUrl(SluiceError):
    """The text is not the URL of a server."""


class InsecureUrl(InvalidUrl):
    """A token must not be sent to this URL, because the connection is not encrypted."""


class Unreachable(SluiceError):
    """The server or the object storage did not respond."""


class InvalidResponse(SluiceError):
    """The response is not from a Sluice server."""


class TimedOut(SluiceError):
    """The time limit was exceeded. The server continues its work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputError:
    """An error in a request. `pointer`: a JSON Pointer into the body, or `/` and the name of a parameter."""

    pointer: str
    code: str
    detail: str


class Problem(SluiceError):
    """An error response of the server: `application/problem+json`, or the body of a proxy's error.

    `code` is stable. `retry_after`: the seconds of the header Retry-After. `redirect`: the URL to which the server
    redirects. The client does not follow it.
    """

    def __init__(
        self, document: dict[str, Any], *, status: int, retry_after: float | None = None, redirect: str = ""
    ) -> None:
        super().__init__(document, status)
        self.document, self.status = document, status
        self.retry_after, self.redirect = retry_after, redirect
        self.code = str(document.get("code", ""))
        self.request_id = str(document.get("requestId") or "")
        self.errors = [
            InputError(**{name: str(each.get(name, "")) for name in ("pointer", "code", "detail")})
            for each in document.get("errors") or []
        ]

    @property
    def detail(self) -> str:
        text = str(
            self.document.get("detail") or self.document.get("title") or f"The server returned status {self.status}."
        )
        return f"{text} (request {self.request_id})" if self.status >= 500 and self.request_id else text  # noqa: PLR2004 - HTTP's 5xx

    def __str__(self) -> str:
        lines = [f"{each.pointer}: {each.detail}" if each.pointer else each.detail for each in self.errors]
        return "\n".join(lines or [f"{self.detail} [{self.code or self.status}]"])


# ---- Results --------------------------------------------------------------------------------------------------------


class ExportFailed(SluiceError):
    """The export failed or was cancelled: see `export.status` and `export.error`."""

    def __init__(self, export: Export) -> None:
        super().__init__(f"The export {export.id} {end_of(export.status, export.error)}")
        self.export = export


class DocumentFailed(SluiceError):
    """The document failed or was cancelled: see `task.status` and `task.error`."""

    def __init__(self, task: Task) -> None:
        super().__init__(f"The document {task.id}, {task.filename}, {end_of(task.status, task.error)}")
        self.task = task


def end_of(status: str, error: Any) -> str:
    return f"{status}: {error.detail} [{error.code}]" if error else f"was {status}."


# ---- Downloads ------------------------------------------------------------------------------------------------------


class NoFile(SluiceError):
    """The export has no file: it has not ended, it failed, or its delivery has expired."""

    def __init__(self, export: Export, reason: str) -> None:
        super().__init__(reason)
        self.export = export


class TargetExists(SluiceError):
    """The target of a download exists and has other content."""


class ChecksumMismatch(SluiceError):
    """The download does not have the checksum of the receipt."""


# ---- Rules ----------------------------------------------------------------------------------------------------------


class RuleNotFound(SluiceError):
    """No rule has the name, or several rules have it. `found`: their ids."""

    def __init__(self, name: str, found: list[int]) -> None:
        super().__init__(f"Several rules are named {name!r}: {found}." if found else f"Rule {name!r} not found.")
        self.name, self.found = name, found
