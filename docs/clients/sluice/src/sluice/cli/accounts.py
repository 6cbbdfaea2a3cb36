"""Commands for signing in and out, and for the account's limits."""

import sys
from typing import Annotated, Any

import typer

from sluice import settings
from sluice.cli.session import Session, command
from sluice.cli.terminal import moment, number
from sluice.errors import CliError, Exit
from sluice.settings import Account

LIMITS = "/exports/limits"


def login(
    session: Session,
    url: Annotated[str, typer.Argument(metavar="URL", help="The server's URL, such as https://sluice.example")],
    *,
    token_stdin: Annotated[bool, typer.Option("--token-stdin", help="Read the token from stdin.")] = False,
    insecure_http: Annotated[
        bool,
        typer.Option("--insecure-http", help="Allow http:// to another machine, which sends the token unencrypted."),
    ] = False,
) -> None:
    """Sign in: check the token with the server, then store the server's URL and the token."""
    checked = settings.checked_url(url, insecure=insecure_http)
    token = sys.stdin.readline() if token_stdin else typer.prompt("Token", hide_input=True, err=True)
    account = Account(url=checked, token=settings.checked_token(token.strip()))
    limits = fetch_limits(session, account)
    path = settings.save(account)
    session.terminal.info(f"Signed in to {checked}. Credentials are stored in {path}.")
    if session.terminal.as_json:
        session.terminal.json(limits)


def logout(session: Session) -> None:
    """Delete the stored URL and token. The token stays valid until you revoke it on the account page."""
    session.terminal.info("Signed out." if settings.forget() else "You were not signed in.")


def whoami(session: Session) -> None:
    """Show the server, the source of the token, and whether the token is valid."""
    account = settings.load()
    limits = fetch_limits(session, account)
    if session.terminal.as_json:
        session.terminal.json({"url": account.url, "source": account.source, "limits": limits})
        return
    session.terminal.pairs([("Server", account.url), ("Token", f"valid; from {account.source}")])


def limits(session: Session) -> None:
    """Show the daily quota, its usage, and the other limits."""
    response = session.api.get(LIMITS)
    if session.terminal.as_json:
        session.terminal.json(response)
        return
    day = [day_of("exports", response["jobsPerDay"]), day_of("chunks", response["chunksPerDay"])]
    session.terminal.table(("PER DAY", "USED", "LIMIT", "REMAINING", "RESETS AT"), day)
    most, rate = number(response["maxChunksPerJob"]), response["rate"]
    session.terminal.put("", f"Limits: {most} chunks per export, {rate} POST requests.")


def day_of(name: str, response: dict[str, Any]) -> tuple[str, ...]:
    return (name, *(number(response[each]) for each in ("used", "limit", "remaining")), moment(response["resetsAt"]))


def fetch_limits(session: Session, account: Account) -> Any:
    """Return the limits, which only a valid token can read. Raises CliError, also if it is not a Sluice server."""
    response = session.api_of(account).get(LIMITS)
    if not isinstance(response, dict) or "jobsPerDay" not in response:
        raise CliError(f"{account.url} is not the address of a Sluice server.", code=Exit.USAGE)
    return response


def add_to(app: typer.Typer) -> None:
    for function in (login, logout, whoami, limits):
        command(app, function.__name__)(function)
