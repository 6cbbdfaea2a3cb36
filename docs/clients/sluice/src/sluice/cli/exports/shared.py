"""Options and error texts that the export commands share."""

from typing import Annotated, Any
from uuid import UUID

import typer

app = typer.Typer(help="Export chunks of a dataset as files.", no_args_is_help=True, rich_markup_mode=None)
ENDED = frozenset({"success", "failed", "cancelled"})

Job = Annotated[UUID, typer.Argument(metavar="JOB", help="The job id that `submit` printed.")]
Wait = Annotated[bool, typer.Option("--wait", "-w", help="Wait for the end and show progress.")]
Target = Annotated[
    str | None,
    typer.Option("--download", "-d", metavar="PATH", help="Wait, then download to a file, a folder, or - for stdout."),
]
Force = Annotated[bool, typer.Option("--force", "-f", help="Overwrite an existing file.")]
Timeout = Annotated[
    float | None,
    typer.Option("--timeout", metavar="SECONDS", min=0, help="The longest time to wait. The export continues."),
]


def path_of(job: object) -> str:
    return f"/exports/{job}"


def given(**options: Any) -> dict[str, Any]:
    """Return the options that were given; the server has defaults for the others."""
    return {name: value for name, value in options.items() if value is not None}


def reason(error: dict[str, Any] | None) -> str:
    return f"{error['title']}. {error['detail']} [{error['code']}]" if error else ""


def title(error: dict[str, Any] | None) -> str:
    return f"{error['title']} [{error['code']}]" if error else ""


def failed_chunk(chunk: dict[str, Any]) -> str:
    return f"Failed: {chunk['key']} {chunk['effectiveDate']}: {title(chunk['error'])}"
