"""`sluice export submit`: create an export from arguments, a CSV file, or filters."""

from csv import reader
from pathlib import Path
from typing import Annotated, Any

import typer

from sluice.api import given
from sluice.cli import items
from sluice.cli.errors import CliError, Exit, located
from sluice.cli.exports.finish import follow
from sluice.cli.exports.shared import Force, Target, Timeout, Wait, app
from sluice.cli.session import Session, command
from sluice.cli.terminal import number
from sluice.models import Preview

DOCUMENTS = "documents"  # the dataset without keys


@command(app, "submit")
def submit(
    session: Session,
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="See `sluice export datasets`.")],
    chunks: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY:DATE]...", help="For example JFK:2013-02-15.")
    ] = None,
    *,
    csv: Annotated[
        str | None, typer.Option(metavar="FILE", help="A CSV file with the columns key and effectiveDate; - for stdin.")
    ] = None,
    keys: Annotated[
        str | None, typer.Option(metavar="KEY,…", help="Export these keys for each day from --from to --to.")
    ] = None,
    rule: Annotated[
        int | None, typer.Option(metavar="RULE", help="For the dataset documents: only results of this rule.")
    ] = None,
    batch: Annotated[
        int | None, typer.Option(metavar="BATCH", help="For the dataset documents: only this batch.")
    ] = None,
    status: Annotated[
        str | None, typer.Option(metavar="completed|failed|cancelled|pending", help="For the dataset documents.")
    ] = None,
    first: Annotated[str | None, typer.Option("--from", metavar="DATE", help="YYYY-MM-DD")] = None,
    last: Annotated[str | None, typer.Option("--to", metavar="DATE", help="YYYY-MM-DD, inclusive")] = None,
    name: Annotated[str | None, typer.Option(metavar="TEXT", help="A name to find the export by.")] = None,
    file_format: Annotated[str | None, typer.Option("--format", metavar="csv|jsonl|json|parquet")] = None,
    compression: Annotated[str | None, typer.Option(metavar="none|gzip|zstd")] = None,
    columns: Annotated[
        str | None,
        typer.Option(metavar="NAME,…", help="Only these columns, in this order. See `sluice export dataset`."),
    ] = None,
    delivery: Annotated[str | None, typer.Option(metavar="auto|single|zip|manifest")] = None,
    delimiter: Annotated[str | None, typer.Option(metavar="CHAR", help=", ; | or tab")] = None,
    bom: Annotated[
        bool | None, typer.Option("--bom/--no-bom", help="Start the file with a byte order mark, for Excel.")
    ] = None,
    formula_policy: Annotated[
        str | None, typer.Option(metavar="none|escape", help="Escape cells that spreadsheets run as formulas.")
    ] = None,
    reuse: Annotated[str | None, typer.Option(metavar="if-present|never", help="Reuse existing files.")] = None,
    allow_degraded: Annotated[
        bool | None, typer.Option("--allow-degraded/--no-allow-degraded", help="Use an older file if the source fails.")
    ] = None,
    delivery_ttl: Annotated[
        int | None,
        typer.Option(metavar="SECONDS", help="How long to keep the delivery. Default: the server's setting."),
    ] = None,
    idempotency_key: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Requests with the same key create one export. Default: a random key."),
    ] = None,
    preview: Annotated[
        bool, typer.Option("--preview", help="Only show what the export would contain and cost.")
    ] = False,
    wait: Wait = False,
    download: Target = None,
    force: Force = False,
    timeout: Timeout = None,
) -> None:
    """Export chunks of a dataset: as KEY:DATE, from a CSV file, or by --keys with --from and --to.

    The dataset documents has the results of your documents: select them with --rule, --batch, --status, --from, --to.
    """
    of_documents = given(ruleId=rule, batchId=batch, status=status)
    if of_documents or (dataset == DOCUMENTS and not chunks and csv is None and keys is None):
        filters: dict[str, Any] | None = document_filters(of_documents, keys, first, last)
    else:
        filters = filters_of(keys, first, last)
    dialect = {"bom": bom, "delimiter": "\t" if delimiter == "tab" else delimiter, "formulaPolicy": formula_policy}
    options = given(
        name=name, dataset=dataset, format=file_format, compression=compression, delivery=delivery,
        csv=given(**dialect) or None, reuse=reuse, allowDegraded=allow_degraded, filters=filters,
        deliveryTtlSeconds=delivery_ttl, columns=columns_of(columns),
    )  # fmt: skip
    if download:
        check_target(download, force=force)
    with body_of(options, chunks or [], csv) as body, located(body.place):
        if preview:
            show_preview(session, session.client.exports.preview_from(body.as_request))
            return
        accepted = session.client.exports.create_from(body.as_request, idempotency_key=idempotency_key)
    follow(session, accepted, wait=wait, download=download, force=force, timeout=timeout)


def check_target(output: str, *, force: bool) -> None:
    """Raise CliError before the export starts if the file cannot be written."""
    path = Path(output)
    if path.is_file() and not force:
        raise CliError(f"{path} already exists. Use --force to overwrite it.", code=Exit.USAGE)
    if not output.endswith("/") and not path.parent.is_dir():
        raise CliError(f"The folder {path.parent} does not exist.", code=Exit.USAGE)


def document_filters(chosen: dict[str, Any], keys: str | None, first: str | None, last: str | None) -> dict[str, Any]:
    if keys is not None:
        raise CliError("--keys cannot be used with --rule, --batch and --status.", code=Exit.USAGE)
    return given(**chosen, dateFrom=first, dateTo=last)


def filters_of(keys: str | None, first: str | None, last: str | None) -> dict[str, Any] | None:
    if keys is None and first is None and last is None:
        return None
    if keys is None or first is None or last is None:
        raise CliError("--keys, --from and --to must be used together.", code=Exit.USAGE)
    return {"keys": [key.strip() for key in keys.split(",") if key.strip()], "dateFrom": first, "dateTo": last}


def columns_of(names: str | None) -> list[str] | None:
    """Return the names in a line of CSV. Names that contain commas are in quotes."""
    return None if names is None else [name.strip() for name in next(reader([names], skipinitialspace=True), [])]


def body_of(options: dict[str, Any], chunks: list[str], csv: str | None) -> items.Body:
    if sum((bool(chunks), csv is not None, "filters" in options)) != 1:
        raise CliError("Use exactly one of KEY:DATE …, --csv FILE, or --keys with --from and --to.", code=Exit.USAGE)
    if csv is not None:
        return items.Body(options, items.of_csv(csv), source="stdin" if csv == "-" else csv)
    return items.Body(options, None if "filters" in options else items.of_arguments(chunks))


def show_preview(session: Session, preview: Preview) -> None:
    if session.terminal.as_json:
        session.terminal.json(preview.raw)
        return
    session.terminal.pairs(
        [
            ("Chunks", number(preview.total_chunks)),
            ("Duplicates", number(preview.duplicates)),
            ("Reusable files", number(preview.reusable)),
            ("Quota cost", number(preview.quota_cost)),
        ]
    )
