"""Signing in and out, and what an account may do."""

import sys
from typing import Annotated, Any

import typer

from sluice import settings
from sluice.errors import Exit, Trouble
from sluice.session import Session, command
from sluice.settings import Account
from sluice.terminal import moment, number

LIMITS = "/exports/limits"


def login(
    session: Session,
    url: Annotated[str, typer.Argument(metavar="URL", help="The server, such as https://sluice.example")],
    *,
    token_stdin: Annotated[bool, typer.Option("--token-stdin", help="Read the token from stdin.")] = False,
    insecure_http: Annotated[
        bool, typer.Option("--insecure-http", help="Send the token over http:// to another machine.")
    ] = False,
) -> None:
    """Keep the server's address and a token, once the server has taken it."""
    checked = settings.checked_url(url, insecure=insecure_http)
    token = sys.stdin.readline() if token_stdin else typer.prompt("Token", hide_input=True, err=True)
    account = Account(url=checked, token=settings.checked_token(token.strip()))
    limits = ask(session, account)
    path = settings.save(account)
    session.terminal.say(f"Signed in at {checked}; kept in {path}.")
    if session.terminal.as_json:
        session.terminal.json(limits)


def logout(session: Session) -> None:
    """Forget the address and the token. The token itself stays good until it is revoked, on the account page."""
    session.terminal.say("Signed out." if settings.forget() else "You were not signed in.")


def whoami(session: Session) -> None:
    """Say which server is asked, where the token comes from, and whether the server takes it."""
    account = settings.load()
    limits = ask(session, account)
    if session.terminal.as_json:
        session.terminal.json({"url": account.url, "source": account.source, "limits": limits})
        return
    session.terminal.pairs([("Server", account.url), ("Token", f"taken; from {account.source}")])


def limits(session: Session) -> None:
    """Say what is left of the day's quota, and the other bounds."""
    told = session.api.get(LIMITS)
    if session.terminal.as_json:
        session.terminal.json(told)
        return
    day = [day_of("exports", told["jobsPerDay"]), day_of("slices", told["chunksPerDay"])]
    session.terminal.table(("A DAY", "USED", "LIMIT", "LEFT", "MORE AT"), day)
    most, rate = number(told["maxChunksPerJob"]), told["rate"]
    session.terminal.put("", f"At most {most} slices an export, and {rate} POSTs.")


def day_of(name: str, told: dict[str, Any]) -> tuple[str, ...]:
    return (name, *(number(told[each]) for each in ("used", "limit", "remaining")), moment(told["resetsAt"]))


def ask(session: Session, account: Account) -> Any:
    """Return the limits: whoever can read them is signed in. Raises Trouble, also when it is no Sluice server."""
    told = session.api_of(account).get(LIMITS)
    if not isinstance(told, dict) or "jobsPerDay" not in told:
        raise Trouble(f"{account.url} is not the address of a Sluice server.", code=Exit.USAGE)
    return told


def add_to(app: typer.Typer) -> None:
    for function in (login, logout, whoami, limits):
        command(app, function.__name__)(function)
