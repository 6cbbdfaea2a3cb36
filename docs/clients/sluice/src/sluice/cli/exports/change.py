"""Commands that change an export: cancel, retry, replay, and link."""

from typing import Annotated

import typer

from sluice.api import AGENT
from sluice.cli.exports.finish import follow
from sluice.cli.exports.shared import Force, Job, Target, Timeout, Wait, app, path_of
from sluice.cli.session import Session, command
from sluice.cli.terminal import moment


@command(app, "cancel")
def cancel(session: Session, job: Job) -> None:
    """Cancel an export. Finished chunks stay available to later exports."""
    response = session.api.post(f"{path_of(job)}/cancel")
    session.terminal.info("Cancelled.")
    if session.terminal.as_json:
        session.terminal.json(response)


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
    """Retry the failed chunks of a failed export."""
    response = session.api.post(f"{path_of(job)}/retry")
    follow(session, response, wait=wait, download=download, force=force, timeout=timeout)


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
    """Start a new export with the same request. Existing files are reused."""
    response = session.api.post(f"{path_of(job)}/replay")
    follow(session, response, wait=wait, download=download, force=force, timeout=timeout)


@command(app, "link")
def link(
    session: Session,
    job: Job,
    *,
    user_agent: Annotated[
        str, typer.Option(metavar="TEXT", help="The User-Agent of the program that will use the link.")
    ] = AGENT,
) -> None:
    """Print a new link, which works once. The previous link is revoked."""
    headers = {"User-Agent": user_agent}
    response = session.api.request("POST", f"{path_of(job)}/link", repeatable=True, headers=headers).json()
    if session.terminal.as_json:
        session.terminal.json(response)
    else:
        session.terminal.put(response["signedUrl"])
    session.terminal.info(
        f"It works once, until {moment(response['expiresAt'])}, from this network, with User-Agent {user_agent!r}."
    )
