"""`sluice export schedule …`: recurring exports, at the times of a cron expression."""

from collections.abc import Iterator
from typing import Annotated, Any, cast
from uuid import UUID

import typer

from sluice.api import given
from sluice.cli.exports.finish import follow
from sluice.cli.exports.shared import Force, Target, Timeout, Wait, app
from sluice.cli.lists import Limit, print_list
from sluice.cli.session import Session, command
from sluice.cli.terminal import moment
from sluice.models import Schedule

schedules = typer.Typer(help="Manage recurring exports.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(schedules, name="schedule")

Which = Annotated[UUID, typer.Argument(metavar="SCHEDULE", help="The id that `create` printed.")]


@command(schedules, "list")
def list_schedules(session: Session, *, limit: Limit = 50) -> None:
    """List your schedules, newest first. --json prints one line each."""
    rows = session.client.schedules.list(limit=limit)
    print_list(session, ("SCHEDULE", "NAME", "DATASET", "CRON", "TIMEZONE", "NEXT RUN", "LAST RUN"), rows, summary)


def summary(schedule: Schedule) -> tuple[str, ...]:
    last = schedule.last_run
    return (
        schedule.id,
        schedule.name,
        schedule.request["dataset"],
        schedule.cron,
        schedule.timezone,
        moment(schedule.next_run_at) if schedule.enabled else "disabled",
        f"{last.status}, {moment(last.started_at)}" if last else "",
    )


@command(schedules, "show")
def show(session: Session, schedule: Which) -> None:
    """Show a schedule, its next planned time, and its last run."""
    print_one(session, session.client.schedules.get(schedule))


def print_one(session: Session, schedule: Schedule) -> None:
    if session.terminal.as_json:
        session.terminal.json(schedule.raw)
    else:
        session.terminal.pairs(facts(schedule))


def facts(schedule: Schedule) -> Iterator[tuple[str, str]]:
    request, window, last = schedule.request, schedule.window, schedule.last_run
    yield "Schedule", schedule.id
    yield "Name", schedule.name
    yield "Times", f"{schedule.cron} in {schedule.timezone}"
    yield "Exports", f"{request['dataset']}: {selection(request)}"
    yield "Days", f"{window['from']} to {window['to']}, relative to the day of the run"
    yield "If late", schedule.misfire
    yield "Next run", moment(schedule.next_run_at) if schedule.enabled else f"none: {schedule.disabled_reason}"
    if last:
        yield "Last run", f"{last.status}, {moment(last.started_at)}" + (f": {last.detail}" if last.detail else "")
        yield "Last export", last.export_id or ""


def selection(request: dict[str, Any]) -> str:
    if "keys" in request:
        return ", ".join(request["keys"])
    filters = {"rule": request.get("ruleId"), "status": request.get("status")}
    return ", ".join(f"{name} {value}" for name, value in filters.items() if value) or "all documents"


@command(schedules, "create")
def create(
    session: Session,
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="See `sluice export datasets`.")],
    *,
    name: Annotated[str, typer.Option(help="A name for the list.")],
    cron: Annotated[str, typer.Option(metavar="EXPRESSION", help="For example '0 6 * * *': each day at 06:00.")],
    keys: Annotated[str | None, typer.Option(metavar="KEY,…", help="Export these keys.")] = None,
    rule: Annotated[
        int | None, typer.Option(metavar="RULE", help="For the dataset documents: only results of this rule.")
    ] = None,
    status: Annotated[
        str | None, typer.Option(metavar="completed|failed|cancelled|pending", help="For the dataset documents.")
    ] = None,
    timezone: Annotated[str | None, typer.Option(metavar="ZONE", help="Default: UTC.")] = None,
    first: Annotated[int, typer.Option("--from-day", help="First day, relative to the day of the run.")] = -1,
    last: Annotated[int, typer.Option("--to-day", help="Last day, inclusive.")] = -1,
    since_last_success: Annotated[
        bool, typer.Option("--since-last-success", help="Also the days since the last successful export.")
    ] = False,
    misfire: Annotated[str | None, typer.Option(metavar="skip|catch_up", help="If a run cannot start on time.")] = None,
    file_format: Annotated[str | None, typer.Option("--format", metavar="csv|jsonl|json|parquet")] = None,
    compression: Annotated[str | None, typer.Option(metavar="none|gzip|zstd")] = None,
    delivery: Annotated[str | None, typer.Option(metavar="auto|single|zip|manifest")] = None,
    reuse: Annotated[str | None, typer.Option(metavar="if-present|never", help="Reuse existing files.")] = None,
    delivery_ttl: Annotated[int | None, typer.Option(metavar="SECONDS", help="How long to keep each delivery.")] = None,
    paused: Annotated[bool, typer.Option("--paused", help="Create the schedule disabled.")] = False,
    idempotency_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Requests with the same key create one schedule.")
    ] = None,
) -> None:
    """Export keys of a dataset at the times of a cron expression, each time for days relative to that day."""
    names = [key.strip() for key in keys.split(",") if key.strip()] if keys is not None else None
    request = given(
        dataset=dataset, keys=names, ruleId=rule, status=status, format=file_format, compression=compression,
        delivery=delivery, reuse=reuse, deliveryTtlSeconds=delivery_ttl,
    )  # fmt: skip
    created = session.client.schedules.create(
        name, cron, request, timezone=timezone, first_day=first, last_day=last, misfire=cast("Any", misfire),
        since_last_success=since_last_success, enabled=not paused, idempotency_key=idempotency_key,
    )  # fmt: skip
    if session.terminal.as_json:
        session.terminal.json(created.raw)
    else:
        session.terminal.put(created.id)
    session.terminal.info(f"Next run: {moment(created.next_run_at)}." if created.enabled else "Created disabled.")


@command(schedules, "pause")
def pause(session: Session, schedule: Which) -> None:
    """Disable a schedule. An export that has started continues."""
    print_one(session, session.client.schedules.update(schedule, enabled=False))


@command(schedules, "resume")
def resume(session: Session, schedule: Which) -> None:
    """Enable a schedule. It runs again at its next planned time."""
    print_one(session, session.client.schedules.update(schedule, enabled=True))


@command(schedules, "run")
def run(
    session: Session,
    schedule: Which,
    *,
    wait: Wait = False,
    download: Target = None,
    force: Force = False,
    timeout: Timeout = None,
) -> None:
    """Create an export now, for today. The next planned time does not change."""
    export = session.client.schedules.run(schedule)
    follow(session, export, wait=wait, download=download, force=force, timeout=timeout)


@command(schedules, "delete")
def delete(session: Session, schedule: Which) -> None:
    """Delete a schedule and its history. Its exports are kept."""
    session.client.schedules.delete(schedule)
    session.terminal.info("Deleted.")
