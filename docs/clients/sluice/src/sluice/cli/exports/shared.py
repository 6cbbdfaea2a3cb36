"""Options and error texts that the export commands share."""

from typing import Annotated
from uuid import UUID

import typer

from sluice.models import Chunk, Failure

app = typer.Typer(help="Export chunks of a dataset as files.", no_args_is_help=True, rich_markup_mode=None)

Job = Annotated[UUID, typer.Argument(metavar="JOB", help="The job id that `submit` printed.")]
Wait = Annotated[bool, typer.Option("--wait", "-w", help="Wait for the end and show progress.")]
Target = Annotated[
    str | None,
    typer.Option(
        "--download",
        "-d",
        metavar="PATH",
        help="Wait, then download to a file, a folder that ends with /, or - for stdout.",
    ),
]
Force = Annotated[bool, typer.Option("--force", "-f", help="Overwrite an existing file.")]
Timeout = Annotated[
    float | None,
    typer.Option("--timeout", metavar="SECONDS", min=0, help="The longest time to wait. The export continues."),
]


def reason(error: Failure | None) -> str:
    return f"{error.title}. {error.detail} [{error.code}]" if error else ""


def title(error: Failure | None) -> str:
    return f"{error.title} [{error.code}]" if error else ""


def failed_chunk(chunk: Chunk) -> str:
    return f"Failed: {chunk.key} {chunk.effective_date}: {title(chunk.error)}"
