"""Errors with messages for users and exit codes for scripts."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import Any

from sluice import errors
from sluice.errors import Problem, SluiceError

SIGN_IN = "Sign in with: sluice login URL"


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
    412: Exit.REFUSED,
    413: Exit.REFUSED,
    415: Exit.REFUSED,
    422: Exit.REFUSED,
    429: Exit.LIMITED,
    502: Exit.UNREACHABLE,
    503: Exit.UNREACHABLE,
    504: Exit.UNREACHABLE,
}
OF_CLASS: dict[type[SluiceError], Exit] = {
    errors.NotSignedIn: Exit.FORBIDDEN,
    errors.InvalidUrl: Exit.USAGE,
    errors.Unreachable: Exit.UNREACHABLE,
    errors.TimedOut: Exit.TIMED_OUT,
    errors.TargetExists: Exit.USAGE,
    errors.ChecksumMismatch: Exit.CHECKSUM,
    errors.RuleNotFound: Exit.NOT_FOUND,
}
ADVICE: dict[type[SluiceError], str] = {
    errors.NotSignedIn: SIGN_IN,
    errors.InsecureUrl: "In a network that you trust: `sluice login --insecure-http`, or SLUICE_INSECURE_HTTP=1.",
    errors.TargetExists: "Use --force to overwrite it.",
    errors.RuleNotFound: "List the rules with: sluice rule list",
}


class CliError(Exception):
    """An error that ends the command. The first of `lines` states the error, the others give advice."""

    def __init__(self, *lines: str, code: Exit = Exit.UNEXPECTED, document: Any = None) -> None:
        super().__init__(*lines)
        self.lines: Sequence[str] = lines
        self.code = code
        self.document = document  # the response of the API, which is printed with --json


def cli_error_of(error: SluiceError, *advice: str) -> CliError:
    """Convert an error of the client into one with an exit code and advice."""
    if isinstance(error, Problem):
        code = OF_STATUS.get(error.status, Exit.UNEXPECTED)
        return CliError(*str(error).splitlines(), *advice_of(error), *advice, code=code, document=error.document)
    if isinstance(error, errors.RuleNotFound) and error.found:
        return CliError(f"{error} Use one of the ids.", code=Exit.USAGE)
    code = next((code for kind, code in OF_CLASS.items() if isinstance(error, kind)), Exit.UNEXPECTED)
    more = [line for kind, line in ADVICE.items() if isinstance(error, kind)]
    return CliError(*str(error).splitlines(), *more, *advice, code=code)


def advice_of(problem: Problem) -> tuple[str, ...]:
    if problem.redirect:
        where = problem.redirect
        return (f"The server redirects to {where}. The token is not sent there; sign in with the right URL.",)
    if problem.status == 401:  # noqa: PLR2004
        return (SIGN_IN,)
    return ("Show the quota and when it resets with: sluice limits",) if problem.code == "quota_exceeded" else ()


@contextmanager
def located(place: Callable[[str], str]) -> Iterator[None]:
    """Prefix each error of a request with its place. `place` converts a JSON Pointer into an option or a file."""
    try:
        yield
    except Problem as problem:
        found = cli_error_of(problem)
        if problem.errors:
            wrong = [(place(each.pointer), each.detail) for each in problem.errors]
            found.lines = [*(f"{where}: {detail}" if where else detail for where, detail in wrong), *advice_of(problem)]
        raise found from None


def options(**named: str) -> Callable[[str], str]:
    """Return a function that converts the JSON Pointer of a field into its option. Example: `rule_id="--rule"`."""
    return lambda pointer: named.get(pointer.removeprefix("/"), pointer)


def option(pointer: str) -> str:
    """Convert the JSON Pointer of a parameter into the option of the same name."""
    return pointer.replace("/", "--", 1)


@contextmanager
def unreadable(name: object) -> Iterator[None]:
    """Translate errors of reading a file into CliError."""
    try:
        yield
    except OSError as error:
        raise CliError(f"{error.filename or name} cannot be read: {error.strerror}.", code=Exit.USAGE) from None


@contextmanager
def unwritable(name: object) -> Iterator[None]:
    """Translate errors of writing a file into CliError."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise CliError(f"{error.filename or name} cannot be written: {error.strerror}.", code=Exit.USAGE) from None
