"""What the commands of exports share: their options, and words for what went wrong."""

from typing import Annotated, Any
from uuid import UUID

import typer

app = typer.Typer(help="Exports: slices of a dataset as files.", no_args_is_help=True, rich_markup_mode=None)
ENDED = frozenset({"success", "failed", "cancelled"})

Job = Annotated[UUID, typer.Argument(metavar="JOB", help="The id that `submit` printed.")]
Wait = Annotated[bool, typer.Option("--wait", "-w", help="Stay until it has ended, and say how it goes.")]
Target = Annotated[
    str | None,
    typer.Option("--download", "-d", metavar="PATH", help="Wait, and download the file: a name, a folder, or - ."),
]
Force = Annotated[bool, typer.Option("--force", "-f", help="Overwrite a file that is there.")]
Timeout = Annotated[
    float | None, typer.Option("--timeout", metavar="SECONDS", min=0, help="Wait no longer. The work goes on.")
]


def path_of(job: object) -> str:
    return f"/exports/{job}"


def given(**options: Any) -> dict[str, Any]:
    """Return what was said; for the rest the server has its defaults."""
    return {name: value for name, value in options.items() if value is not None}


def reason(error: dict[str, Any] | None) -> str:
    return f"{error['title']}. {error['detail']} [{error['code']}]" if error else ""


def title(error: dict[str, Any] | None) -> str:
    return f"{error['title']} [{error['code']}]" if error else ""


def failed_slice(chunk: dict[str, Any]) -> str:
    return f"Failed: {chunk['key']} {chunk['effectiveDate']}: {title(chunk['error'])}"
