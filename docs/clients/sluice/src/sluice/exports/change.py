"""What a person may do to an export: cancel it, run it again, get a link."""

from typing import Annotated

import typer

from sluice.api import AGENT
from sluice.exports.finish import go_on
from sluice.exports.shared import Force, Job, Target, Timeout, Wait, app, path_of
from sluice.session import Session, command
from sluice.terminal import moment


@command(app, "cancel")
def cancel(session: Session, job: Job) -> None:
    """End an export. Slices that are done stay, for later exports."""
    told = session.api.post(f"{path_of(job)}/cancel")
    session.terminal.say("Cancelled.")
    if session.terminal.as_json:
        session.terminal.json(told)


@command(app, "retry")
def retry(
    session: Session,
    job: Job,
    *,
    wait: Wait = False,
    download: Target = None,
    force: Force = False,
    timeout: Timeout = None,
) -> None:
    """Run the failed slices of a failed export again."""
    told = session.api.post(f"{path_of(job)}/retry")
    go_on(session, told, wait=wait, download=download, force=force, timeout=timeout)


@command(app, "replay")
def replay(
    session: Session,
    job: Job,
    *,
    wait: Wait = False,
    download: Target = None,
    force: Force = False,
    timeout: Timeout = None,
) -> None:
    """Export the same once more, as a new export; files that are there are reused."""
    told = session.api.post(f"{path_of(job)}/replay")
    go_on(session, told, wait=wait, download=download, force=force, timeout=timeout)


@command(app, "link")
def link(
    session: Session,
    job: Job,
    *,
    user_agent: Annotated[
        str, typer.Option(metavar="TEXT", help="The program that the link is for, as it calls itself.")
    ] = AGENT,
) -> None:
    """Print a link that works once. The one before is revoked."""
    answer = session.api.ask("POST", f"{path_of(job)}/link", repeatable=True, headers={"User-Agent": user_agent})
    told = answer.json()
    if session.terminal.as_json:
        session.terminal.json(told)
    else:
        session.terminal.put(told["signedUrl"])
    session.terminal.say(
        f"It works once, until {moment(told['expiresAt'])}, from this network and for the User-Agent {user_agent!r}."
    )
