"""`sluice export schedule …`: exports that recur at the times of a cron expression."""

import uuid
from collections.abc import Iterator
from typing import Annotated, Any
from uuid import UUID

import typer

from sluice.exports.finish import follow
from sluice.exports.shared import Force, Target, Timeout, Wait, app, given
from sluice.lists import MOST, Limit, print_list
from sluice.session import Session, command
from sluice.terminal import moment

schedules = typer.Typer(help="Exports that recur.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(schedules, name="schedule")

PATH = "/exports/schedules"
Schedule = Annotated[UUID, typer.Argument(metavar="SCHEDULE", help="The id that `create` printed.")]


@command(schedules, "list")
def list_schedules(session: Session, *, limit: Limit = 50) -> None:
    """List your schedules, newest first. --json prints one line each."""
    rows = session.api.pages(PATH, {"limit": min(limit, MOST)}, limit=limit)
    print_list(session, ("SCHEDULE", "NAME", "DATASET", "CRON", "TIMEZONE", "NEXT RUN", "LAST RUN"), rows, summary)


def summary(schedule: dict[str, Any]) -> tuple[str, ...]:
    last = schedule["lastRun"]
    return (
        schedule["id"],
        schedule["name"],
        schedule["request"]["dataset"],
        schedule["cron"],
        schedule["timezone"],
        moment(schedule["nextRunAt"]) if schedule["enabled"] else "disabled",
        f"{last['status']}, {moment(last['startedAt'])}" if last else "",
    )


@command(schedules, "show")
def show(session: Session, schedule: Schedule) -> None:
    """Show a schedule, its next planned time and its last run."""
    print_one(session, session.api.get(f"{PATH}/{schedule}"))


def print_one(session: Session, schedule: dict[str, Any]) -> None:
    if session.terminal.as_json:
        session.terminal.json(schedule)
    else:
        session.terminal.pairs(facts(schedule))


def facts(schedule: dict[str, Any]) -> Iterator[tuple[str, str]]:
    request, window, last = schedule["request"], schedule["window"], schedule["lastRun"]
    yield "Schedule", schedule["id"]
    yield "Name", schedule["name"]
    yield "Times", f"{schedule['cron']} in {schedule['timezone']}"
    yield "Exports", f"{request['dataset']}: {selection(request)}"
    yield "Days", f"{window['from']} to {window['to']}, relative to the day of the run"
    yield "If late", schedule["misfire"]
    yield "Next run", moment(schedule["nextRunAt"]) if schedule["enabled"] else f"none: {schedule['disabledReason']}"
    if last:
        yield (
            "Last run",
            f"{last['status']}, {moment(last['startedAt'])}" + (f": {last['detail']}" * bool(last["detail"])),
        )
        yield "Last export", last["jobId"] or ""


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
        int | None, typer.Option(metavar="RULE", help="Of the dataset documents: results of this rule.")
    ] = None,
    status: Annotated[
        str | None, typer.Option(metavar="completed|failed|cancelled|pending", help="Of the dataset documents.")
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
    delivery_ttl: Annotated[int | None, typer.Option(metavar="SECONDS", help="Keep each delivery for so long.")] = None,
    paused: Annotated[bool, typer.Option("--paused", help="Create it disabled.")] = False,
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
    body = given(
        name=name, cron=cron, timezone=timezone, request=request, misfire=misfire, enabled=not paused,
        window={"unit": "day", "from": first, "to": last}, sinceLastSuccess=since_last_success or None,
    )  # fmt: skip
    headers = {"Idempotency-Key": idempotency_key or str(uuid.uuid4())}
    created = session.api.request("POST", PATH, body=lambda: {"json": body}, headers=headers, repeatable=True).json()
    if session.terminal.as_json:
        session.terminal.json(created)
    else:
        session.terminal.put(created["id"])
    session.terminal.info(f"Next run: {moment(created['nextRunAt'])}." if created["enabled"] else "Created disabled.")


@command(schedules, "pause")
def pause(session: Session, schedule: Schedule) -> None:
    """Stop starting runs. An active export continues."""
    change(session, schedule, {"enabled": False})


@command(schedules, "resume")
def resume(session: Session, schedule: Schedule) -> None:
    """Start runs again, with the next planned time."""
    change(session, schedule, {"enabled": True})


def change(session: Session, schedule: UUID, changes: dict[str, Any]) -> None:
    print_one(
        session,
        session.api.request("PATCH", f"{PATH}/{schedule}", body=lambda: {"json": changes}, repeatable=True).json(),
    )


@command(schedules, "run")
def run(
    session: Session,
    schedule: Schedule,
    *,
    wait: Wait = False,
    download: Target = None,
    force: Force = False,
    timeout: Timeout = None,
) -> None:
    """Create an export now, for today. The next planned time stays."""
    headers = {"Idempotency-Key": str(uuid.uuid4())}
    accepted = session.api.request("POST", f"{PATH}/{schedule}/run", headers=headers, repeatable=True).json()
    follow(session, accepted, wait=wait, download=download, force=force, timeout=timeout)


@command(schedules, "delete")
def delete(session: Session, schedule: Schedule) -> None:
    """Delete a schedule and its history. Its exports stay."""
    session.api.request("DELETE", f"{PATH}/{schedule}", repeatable=True)
    session.terminal.info("Deleted.")
