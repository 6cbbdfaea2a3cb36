"""Commands that change an export: cancel, retry, replay, and link."""

from typing import Annotated

import typer

from sluice.api import AGENT
from sluice.cli.exports.finish import follow
from sluice.cli.exports.shared import Force, Job, Target, Timeout, Wait, app
from sluice.cli.session import Session, command
from sluice.cli.terminal import moment


@command(app, "cancel")
def cancel(session: Session, job: Job) -> None:
    """Cancel an export. Finished chunks stay available to later exports."""
    export = session.client.exports.cancel(job)
    session.terminal.info("Cancelled.")
    if session.terminal.as_json:
        session.terminal.json(export.raw)


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
    export = session.client.exports.retry(job)
    follow(session, export, wait=wait, download=download, force=force, timeout=timeout)


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
    accepted = session.client.exports.replay(job)
    follow(session, accepted, wait=wait, download=download, force=force, timeout=timeout)


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
    created = session.client.exports.link(job, user_agent=user_agent)
    if session.terminal.as_json:
        session.terminal.json(created.raw)
    else:
        session.terminal.put(created.signed_url)
    session.terminal.info(
        f"It works once, until {moment(created.expires_at)}, from this network, with User-Agent {user_agent!r}."
    )
