"""`sluice export submit`: from arguments, a CSV file or filters to an accepted export."""

import uuid
from pathlib import Path
from typing import Annotated, Any

import typer

from sluice import items
from sluice.api import checked_json
from sluice.errors import Exit, Problem, Trouble
from sluice.exports.finish import go_on
from sluice.exports.shared import Force, Target, Timeout, Wait, app, given
from sluice.session import Session, command
from sluice.terminal import number


@command(app, "submit")
def submit(
    session: Session,
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="Its name; `sluice export datasets` lists them.")],
    slices: Annotated[list[str] | None, typer.Argument(metavar="[KEY:DATE]...", help="JFK:2013-02-15 …")] = None,
    *,
    csv: Annotated[str | None, typer.Option(metavar="FILE", help="Columns key and effectiveDate; - is stdin.")] = None,
    keys: Annotated[str | None, typer.Option(metavar="KEY,…", help="These, on each day of --from to --to.")] = None,
    first: Annotated[str | None, typer.Option("--from", metavar="DATE", help="YYYY-MM-DD")] = None,
    last: Annotated[str | None, typer.Option("--to", metavar="DATE", help="YYYY-MM-DD, included")] = None,
    file_format: Annotated[str | None, typer.Option("--format", metavar="csv|jsonl|json")] = None,
    compression: Annotated[str | None, typer.Option(metavar="none|gzip")] = None,
    delivery: Annotated[str | None, typer.Option(metavar="auto|single|zip|manifest")] = None,
    delimiter: Annotated[str | None, typer.Option(metavar="CHAR", help=", ; | or tab")] = None,
    bom: Annotated[bool | None, typer.Option("--bom/--no-bom", help="Begin with a byte order mark, for Excel.")] = None,
    formula_policy: Annotated[str | None, typer.Option(metavar="none|escape", help="Guard cells like =A1.")] = None,
    reuse: Annotated[str | None, typer.Option(metavar="if-present|never", help="Take files that are there.")] = None,
    allow_degraded: Annotated[
        bool | None, typer.Option("--allow-degraded/--no-allow-degraded", help="Let an older file stand in.")
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="The same key is the same export. Without it one is made up.")
    ] = None,
    preview: Annotated[bool, typer.Option("--preview", help="Only say what it would do and cost.")] = False,
    wait: Wait = False,
    download: Target = None,
    force: Force = False,
    timeout: Timeout = None,
) -> None:
    """Export slices of a dataset: KEY:DATE each, a CSV file of them, or --keys with --from and --to."""
    dialect = {"bom": bom, "delimiter": "\t" if delimiter == "tab" else delimiter, "formulaPolicy": formula_policy}
    options = given(
        dataset=dataset, format=file_format, compression=compression, delivery=delivery, csv=given(**dialect) or None,
        reuse=reuse, allowDegraded=allow_degraded, filters=filters_of(keys, first, last),
    )  # fmt: skip
    if download:
        check_target(download, force=force)
    with body_of(options, slices or [], csv) as body:
        if preview:
            show_preview(session, send(session, "/exports/preview", body, {}))
            return
        accepted = send(session, "/exports", body, {"Idempotency-Key": idempotency_key or str(uuid.uuid4())})
    go_on(session, accepted, wait=wait, download=download, force=force, timeout=timeout)


def check_target(output: str, *, force: bool) -> None:
    """Raise Trouble now, and not after an hour of waiting, when the file cannot be written there."""
    path = Path(output)
    if path.is_file() and not force:
        raise Trouble(f"{path} is there already. --force overwrites it.", code=Exit.USAGE)
    if not path.parent.is_dir():
        raise Trouble(f"There is no folder {path.parent}.", code=Exit.USAGE)


def filters_of(keys: str | None, first: str | None, last: str | None) -> dict[str, Any] | None:
    if keys is None and first is None and last is None:
        return None
    if keys is None or first is None or last is None:
        raise Trouble("--keys, --from and --to belong together.", code=Exit.USAGE)
    return {"keys": [key.strip() for key in keys.split(",") if key.strip()], "dateFrom": first, "dateTo": last}


def body_of(options: dict[str, Any], slices: list[str], csv: str | None) -> items.Body:
    if sum((bool(slices), csv is not None, "filters" in options)) != 1:
        raise Trouble("Say what to export in one way: KEY:DATE …, --csv FILE, or --keys --from --to.", code=Exit.USAGE)
    if csv is not None:
        return items.Body(options, items.of_csv(csv), source="stdin" if csv == "-" else csv)
    return items.Body(options, None if "filters" in options else items.of_arguments(slices))


def send(session: Session, path: str, body: items.Body, headers: dict[str, str]) -> dict[str, Any]:
    """Send it, again when the answer is lost: the key makes one export of any number of tries."""
    try:
        answer = session.api.ask("POST", path, body=body.as_request, headers=headers, repeatable=True)
    except Problem as problem:
        problem.locate(body.place)
        raise
    told: dict[str, Any] = checked_json(answer)
    return told


def show_preview(session: Session, told: dict[str, Any]) -> None:
    if session.terminal.as_json:
        session.terminal.json(told)
        return
    session.terminal.pairs(
        [
            ("Slices", number(told["totalChunks"])),
            ("Named twice", number(told["duplicates"])),
            ("There already", number(told["reusable"])),
            ("Costs of the day's quota", number(told["quotaCost"])),
        ]
    )
