"""Errors of commands that wait, with the command that resumes waiting."""

from collections.abc import Iterator
from contextlib import contextmanager

from sluice.cli.errors import CliError, Exit, cli_error_of
from sluice.errors import Problem, TimedOut, Unreachable


@contextmanager
def resumable(command: str, *, timeout: float | None) -> Iterator[None]:
    """Add the command that resumes waiting to errors that end it early: --timeout, Ctrl-C, or an unreachable server."""
    try:
        yield
    except TimedOut:
        raise CliError(
            f"Not finished after {timeout:g} s. Resume waiting with: {command}", code=Exit.TIMED_OUT
        ) from None
    except KeyboardInterrupt:
        raise CliError(f"Interrupted. Resume waiting with: {command}", code=Exit.INTERRUPTED) from None
    except (Problem, Unreachable) as error:
        found = cli_error_of(error)
        if found.code == Exit.UNREACHABLE:
            found.lines = [*found.lines, f"The server continues the work. Resume waiting with: {command}"]
        raise found from None
