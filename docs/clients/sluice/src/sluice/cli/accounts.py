"""Commands for signing in and out, and for the account's limits."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from sluice import account
from sluice.account import Account
from sluice.cli.errors import unwritable
from sluice.cli.session import Session, command
from sluice.cli.terminal import moment, number
from sluice.models import DayLimit


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
    """Sign in: check the token with the server, and store the server's URL and the token."""
    checked = account.checked_url(url, insecure=insecure_http)
    token = sys.stdin.readline() if token_stdin else typer.prompt("Token", hide_input=True, err=True)
    signed_in = Account(url=checked, token=account.checked_token(token.strip()))
    limits = session.client_of(signed_in).exports.limits()  # only a valid token can read them
    session.terminal.info(f"Signed in to {checked}. Credentials are stored in {save(signed_in)}.")
    if session.terminal.as_json:
        session.terminal.json(limits.raw)


def save(signed_in: Account) -> Path:
    """Write the account file atomically, readable only by its owner."""
    target = account.path()
    with unwritable(target):
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        new = target.with_name(f"{target.name}.new")
        new.unlink(missing_ok=True)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump({"url": signed_in.url, "token": signed_in.token}, file)
        return new.replace(target)


def logout(session: Session) -> None:
    """Delete the stored URL and token. The token stays valid until you revoke it on the account page."""
    existed = account.path().exists()
    account.path().unlink(missing_ok=True)
    session.terminal.info("Signed out." if existed else "You were not signed in.")


def whoami(session: Session) -> None:
    """Show the server, the source of the token, and whether the token is valid."""
    limits, used = session.client.exports.limits(), session.client.account
    if session.terminal.as_json:
        session.terminal.json({"url": used.url, "source": used.source, "limits": limits.raw})
        return
    session.terminal.pairs([("Server", used.url), ("Token", f"valid; from {used.source}")])


def limits(session: Session) -> None:
    """Show the daily quota, its usage, and the other limits."""
    found = session.client.exports.limits()
    if session.terminal.as_json:
        session.terminal.json(found.raw)
        return
    day = [day_of("exports", found.jobs_per_day), day_of("chunks", found.chunks_per_day)]
    session.terminal.table(("PER DAY", "USED", "LIMIT", "REMAINING", "RESETS AT"), day)
    session.terminal.put(
        "", f"Limits: {number(found.max_chunks_per_job)} chunks per export, {found.rate} POST requests."
    )


def day_of(name: str, day: DayLimit) -> tuple[str, ...]:
    return (name, number(day.used), number(day.limit), number(day.remaining), moment(day.resets_at))


def add_to(app: typer.Typer) -> None:
    for function in (login, logout, whoami, limits):
        command(app, function.__name__)(function)
