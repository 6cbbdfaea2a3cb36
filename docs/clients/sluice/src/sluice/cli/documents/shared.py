"""Options and error texts that the document commands share."""

from typing import Annotated, Any

import typer

from sluice.errors import CliError, Exit

app = typer.Typer(help="Convert documents to text and JSON.", no_args_is_help=True, rich_markup_mode=None)
ROOT = "/api/v1/etl"
ENDED = frozenset({"completed", "failed", "cancelled"})

Task = Annotated[int, typer.Argument(metavar="TASK", min=1, help="The task id that `submit` printed.")]
Rule = Annotated[str | None, typer.Option("--rule", metavar="NAME|ID", help="See `sluice rule list`.")]
Wait = Annotated[bool, typer.Option("--wait", "-w", help="Wait for the end and show progress.")]
Timeout = Annotated[
    float | None,
    typer.Option("--timeout", metavar="SECONDS", min=0, help="The longest time to wait. The documents continue."),
]


def path_of(task: int) -> str:
    return f"{ROOT}/tasks/{task}"


def warning_of(warning: Any) -> str:
    return str(warning.get("detail") or warning.get("code")) if isinstance(warning, dict) else str(warning)


def failure(task: dict[str, Any]) -> CliError:
    name, number_of = task["filename"], task["task_id"]
    if task["status"] == "cancelled":
        return CliError(f"{name} was cancelled.", code=Exit.CANCELLED)
    error = task["error"]
    lines = [f"{name} failed at {error['stage']}: {error['detail']} [{error['code']}]"]
    if error["retryable"]:
        lines.append(f"Retry it with: sluice document retry {number_of} --from {error['stage']} --wait")
    return CliError(*lines, code=Exit.FAILED)
