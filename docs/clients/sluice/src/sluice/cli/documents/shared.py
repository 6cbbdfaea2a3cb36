"""Options and error texts that the document commands share."""

from pathlib import Path
from typing import Annotated

import typer

from sluice import models
from sluice.cli.errors import CliError, Exit

app = typer.Typer(help="Convert documents to text and JSON.", no_args_is_help=True, rich_markup_mode=None)

Task = Annotated[int, typer.Argument(metavar="TASK", min=1, help="The task id that `submit` printed.")]
Rule = Annotated[str | None, typer.Option("--rule", metavar="NAME|ID", help="See `sluice rule list`.")]
FILES = typer.Argument(metavar="FILE...", exists=True, dir_okay=False, readable=True)
Files = Annotated[list[Path], FILES]
FilesOrNone = Annotated[list[Path] | None, FILES]
Direct = Annotated[
    bool | None,
    typer.Option("--direct/--through", help="Upload to the object storage or through the service. Default: by size."),
]
Wait = Annotated[bool, typer.Option("--wait", "-w", help="Wait for the end and show progress.")]
Timeout = Annotated[
    float | None,
    typer.Option("--timeout", metavar="SECONDS", min=0, help="The longest time to wait. The documents continue."),
]


def failure(task: models.Task) -> CliError:
    if task.status == "cancelled":
        return CliError(f"{task.filename} was cancelled.", code=Exit.CANCELLED)
    error = task.error
    lines = [f"{task.filename} failed at {error.stage}: {error.detail} [{error.code}]" if error else "It failed."]
    if error and error.retryable:
        lines.append(f"Retry it with: sluice document retry {task.id} --from {error.stage} --wait")
    return CliError(*lines, code=Exit.FAILED)
