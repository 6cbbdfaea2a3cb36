"""What the commands of documents share: their options, and words for what went wrong."""

from typing import Annotated, Any

import typer

from sluice.errors import Exit, Trouble

app = typer.Typer(help="Documents: text and JSON from files.", no_args_is_help=True, rich_markup_mode=None)
ROOT = "/api/v1/etl"
ENDED = frozenset({"completed", "failed", "cancelled"})

Task = Annotated[int, typer.Argument(metavar="TASK", min=1, help="The number that `submit` printed.")]
Rule = Annotated[str | None, typer.Option("--rule", metavar="NAME|ID", help="`sluice rule list` lists them.")]
Wait = Annotated[bool, typer.Option("--wait", "-w", help="Stay until they have ended, and say how it goes.")]
Timeout = Annotated[
    float | None, typer.Option("--timeout", metavar="SECONDS", min=0, help="Wait no longer. The work goes on.")
]


def path_of(task: int) -> str:
    return f"{ROOT}/tasks/{task}"


def warning_of(warning: Any) -> str:
    return str(warning.get("detail") or warning.get("code")) if isinstance(warning, dict) else str(warning)


def failure(task: dict[str, Any]) -> Trouble:
    name, number_of = task["filename"], task["task_id"]
    if task["status"] == "cancelled":
        return Trouble(f"{name} was cancelled.", code=Exit.CANCELLED)
    error = task["error"]
    lines = [f"{name} failed at {error['stage']}: {error['detail']} [{error['code']}]"]
    if error["retryable"]:
        lines.append(f"Try again: sluice document retry {number_of} --from {error['stage']} --wait")
    return Trouble(*lines, code=Exit.FAILED)
