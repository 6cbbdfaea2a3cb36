"""One command on its way: what all commands have in common, their options, their errors and their exit codes."""

import inspect
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Annotated, Any, TypeVar

import httpx2
import typer

from sluice import settings
from sluice.api import Api, lost
from sluice.errors import Exit, Trouble
from sluice.settings import Account
from sluice.terminal import Terminal

Json = Annotated[bool, typer.Option("--json", help="Print what the API answered, as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no talk; errors are still told.")]
Debug = Annotated[bool, typer.Option("--debug", help="Say what is asked and answered; never the token.")]
Patience = Annotated[
    float | None,
    typer.Option("--patience", metavar="SECONDS", min=0, help="How long to go on while the server is away or busy."),
]
COMMON = {"as_json": (Json, False), "quiet": (Quiet, False), "debug": (Debug, False), "patience": (Patience, None)}


@dataclass(kw_only=True)
class Session:
    """Where a command prints to, and the server that it asks."""

    terminal: Terminal
    patience: float | None
    opened: ExitStack

    @cached_property
    def api(self) -> Api:
        return self.api_of(settings.load())

    def api_of(self, account: Account) -> Api:
        api = Api(account, say=self.terminal.say, debug=self.terminal.debug, patience=self.patience)
        self.opened.enter_context(api.client)
        return api


Function = TypeVar("Function", bound=Callable[..., None])


def command(app: typer.Typer, name: str) -> Callable[[Function], Function]:
    """Make a command of a function that takes a Session first, with the options that all commands have."""

    def add(function: Function) -> Function:
        @wraps(function)
        def run(*, as_json: bool, quiet: bool, debug: bool, patience: float | None, **arguments: Any) -> None:
            terminal = Terminal(as_json=as_json, quiet=quiet, debug=debug)
            with ExitStack() as opened:
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


# ---- Ends -----------------------------------------------------------------------------------------------------------


def guard(terminal: Terminal, action: Callable[[], None]) -> None:
    """Do it, and turn what goes wrong into a few lines and an exit code: no traceback unless somebody asks for it."""
    try:
        action()
    except Trouble as trouble:
        end(terminal, trouble)
    except httpx2.TransportError as error:
        end(terminal, lost("The server", error))
    except KeyboardInterrupt:
        end(terminal, Trouble("Interrupted.", code=Exit.INTERRUPTED))
    except BrokenPipeError:  # whoever read us has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(Exit.UNEXPECTED) from None
    except (typer.Exit, typer.Abort, typer.TyperException):
        raise
    except Exception as error:  # noqa: BLE001 - the last door before the person at the terminal
        if terminal.debugs:
            terminal.complain(*traceback.format_exc().splitlines())
        end(terminal, Trouble(f"Something unexpected: {type(error).__name__}.", "--debug says more."))


def end(terminal: Terminal, trouble: Trouble) -> None:
    """Say it and leave. With --json stdout has what the API answered, also when that is a problem."""
    if terminal.as_json and trouble.document is not None:
        terminal.json(trouble.document)
    first, *others = trouble.lines
    terminal.complain(f"Error: {first}" if trouble.code != Exit.INTERRUPTED else first, *others)
    raise typer.Exit(trouble.code)
