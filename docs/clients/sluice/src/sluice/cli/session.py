"""The common options, error handling, and exit codes of all commands."""

import inspect
import logging
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Annotated, Any, TypeVar

import typer

from sluice import Client, SluiceError
from sluice.account import Account
from sluice.cli.errors import CliError, Exit, cli_error_of
from sluice.cli.terminal import Terminal

Json = Annotated[bool, typer.Option("--json", help="Print the response of the API as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors and data, no progress.")]
Debug = Annotated[bool, typer.Option("--debug", help="Log requests and responses to stderr, without the token.")]
Patience = Annotated[
    float | None,
    typer.Option(
        "--patience", metavar="SECONDS", min=0, help="How long to retry while the server is unreachable or busy."
    ),
]
COMMON = {"as_json": (Json, False), "quiet": (Quiet, False), "debug": (Debug, False), "patience": (Patience, None)}


@dataclass(kw_only=True)
class Session:
    """The terminal and the server of one command."""

    terminal: Terminal
    patience: float | None
    opened: ExitStack

    @cached_property
    def client(self) -> Client:
        return self.opened.enter_context(Client(patience=self.patience))

    def client_of(self, account: Account) -> Client:
        """Return a client for an account whose URL was checked already."""
        opened = Client(account.url, account.token, insecure_http=True, patience=self.patience)
        return self.opened.enter_context(opened)


class ClientLogHandler(logging.Handler):
    """A handler that prints the log messages of the client: retries and, with --debug, requests."""

    def __init__(self, terminal: Terminal) -> None:
        super().__init__()
        self.terminal = terminal

    def emit(self, record: logging.LogRecord) -> None:
        (self.terminal.info if record.levelno >= logging.INFO else self.terminal.debug)(record.getMessage())

    def __enter__(self) -> None:
        log = logging.getLogger("sluice")
        log.setLevel(logging.DEBUG)
        log.propagate = False
        log.addHandler(self)

    def __exit__(self, *_: object) -> None:
        logging.getLogger("sluice").removeHandler(self)


Function = TypeVar("Function", bound=Callable[..., None])


def command(app: typer.Typer, name: str) -> Callable[[Function], Function]:
    """Turn a function whose first parameter is a Session into a command with the common options."""

    def add(function: Function) -> Function:
        @wraps(function)
        def run(*, as_json: bool, quiet: bool, debug: bool, patience: float | None, **arguments: Any) -> None:
            terminal = Terminal(as_json=as_json, quiet=quiet, debug=debug)
            with ClientLogHandler(terminal), ExitStack() as opened:
                session = Session(terminal=terminal, patience=patience, opened=opened)
                guard(terminal, lambda: function(session, **arguments))

        own = [each for each in parameters(function) if each.name != "session"]
        common = [
            inspect.Parameter(each, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for each, (annotation, default) in COMMON.items()
        ]
        run.__signature__ = inspect.Signature([*own, *common])  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in [*own, *common]}
        app.command(name)(run)
        return function

    return add


def parameters(function: Callable[..., None]) -> list[inspect.Parameter]:
    return list(inspect.signature(function, eval_str=True).parameters.values())


# ---- Errors ---------------------------------------------------------------------------------------------------------


def guard(terminal: Terminal, action: Callable[[], None]) -> None:
    """Run an action. Print its error without a traceback, except with --debug, and set the exit code."""
    try:
        action()
    except CliError as error:
        end(terminal, error)
    except SluiceError as error:
        end(terminal, cli_error_of(error))
    except KeyboardInterrupt:
        end(terminal, CliError("Interrupted.", code=Exit.INTERRUPTED))
    except BrokenPipeError:  # the reader of the pipe, such as `head`, has exited
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(Exit.UNEXPECTED) from None
    except (typer.Exit, typer.Abort, typer.BadParameter):
        raise
    except Exception as error:  # noqa: BLE001 - the last handler before the user
        if terminal.is_debug:
            terminal.print_err(*traceback.format_exc().splitlines())
        end(terminal, CliError(f"Unexpected error: {type(error).__name__}.", "Use --debug for details."))


def end(terminal: Terminal, error: CliError) -> None:
    """Print an error and exit. With --json, also print the API's response to stdout, such as a problem document."""
    if terminal.as_json and error.document is not None:
        terminal.json(error.document)
    first, *others = error.lines
    terminal.print_err(f"Error: {first}" if error.code != Exit.INTERRUPTED else first, *others)
    raise typer.Exit(error.code)
