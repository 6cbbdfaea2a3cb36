"""`sluice rule …`: commands for samples and evaluations of rules."""

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from sluice import exact_json
from sluice.cli.documents.shared import Timeout
from sluice.cli.errors import CliError, Exit, located
from sluice.cli.lists import Limit, print_list
from sluice.cli.rules import Name, app, path_of, read_bytes
from sluice.cli.session import Session, command
from sluice.cli.terminal import moment
from sluice.cli.waiting import resumable

__all__ = ["app"]

Number = Annotated[int, typer.Argument(metavar="NUMBER", min=1, help="Number of an evaluation.")]
NAMED = {"/task_id": "--task", "/file": "--file", "/version": "--version"}


def percent(share: float | None) -> str:
    """Format 0.975 as 97.5 %. Round down, so that 100 % means all."""
    return "-" if share is None else f"{int(float(share) * 1000 + 1e-6) / 10:g} %"


def points(change: float | None) -> str:
    return "-" if change is None else f"{float(change) * 100:+.1f}"


# ---- Samples --------------------------------------------------------------------------------------------------------


@command(app, "samples")
def samples(session: Session, rule: Name, *, limit: Limit = 200) -> None:
    """List the samples of a rule: documents with the data that it should extract."""
    print_list(
        session,
        ("ID", "TASK", "FILE", "ADDED"),
        session.client.samples.list(rule, limit=limit),
        lambda each: (str(each.id), str(each.task_id), each.filename, moment(each.created_at)),
    )


@command(app, "add-sample")
def add_sample(
    session: Session,
    rule: Name,
    expected: Annotated[str, typer.Argument(metavar="EXPECTED", help="JSON file; - for stdin.")],
    *,
    task: Annotated[int | None, typer.Option("--task", min=1, help="A document that was submitted before.")] = None,
    file: Annotated[Path | None, typer.Option("--file", exists=True, dir_okay=False, help="A new document.")] = None,
) -> None:
    """Add a document and its expected data to the samples of a rule. Replaces the data of a sample."""
    if (task is None) == (file is None):
        raise CliError("Give either --task or --file.", code=Exit.USAGE)
    data = parsed(read_bytes(expected))
    with located(lambda pointer: NAMED.get(pointer, f"{expected} at {pointer.removeprefix('/expected') or '/'}")):
        sample = session.client.samples.add(rule, file or task or 0, data)
    if session.terminal.as_json:
        session.terminal.json(sample.raw)
    else:
        session.terminal.put(str(sample.id))
    session.terminal.info(f"Sample of task {sample.task_id} saved.")


def parsed(content: bytes) -> Any:
    """Parse JSON. Numbers keep their digits. Raises CliError."""
    try:
        return exact_json.loads(content)
    except ValueError as error:
        raise CliError(f"The expected data is not valid JSON: {error}.", code=Exit.USAGE) from None


@command(app, "delete-sample")
def delete_sample(
    session: Session, rule: Name, sample: Annotated[int, typer.Argument(metavar="SAMPLE", min=1)]
) -> None:
    """Delete a sample of a rule. Its document is kept."""
    session.client.samples.delete(rule, sample)
    session.terminal.info("Deleted.")


# ---- Evaluations ----------------------------------------------------------------------------------------------------


@command(app, "evaluate")
def evaluate(
    session: Session,
    rule: Name,
    *,
    version: Annotated[int | None, typer.Option("--version", min=1, help="Default: the current version.")] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for the result.")] = True,
    timeout: Timeout = None,
) -> None:
    """Run a version of a rule on its samples and measure the accuracy of the results."""
    path = path_of(session, rule)
    with located(lambda pointer: NAMED.get(pointer, pointer)):
        started = session.client.post(f"{path}/evaluations", {"version": version} if version else {})
    if wait:
        print_end(session, rule, started, timeout=timeout)
    else:
        print_evaluation(session, started)


def print_end(session: Session, rule: str, found: dict[str, Any], *, timeout: float | None) -> None:
    """Wait for the end of an evaluation, and print it. Raises CliError if it did not complete."""
    number = found["number"]
    with resumable(f"sluice rule evaluation {shlex.quote(rule)} {number} --wait", timeout=timeout):
        found = session.client.evaluations.wait(rule, number, timeout=timeout).raw
    print_evaluation(session, found)
    if found["status"] != "completed":
        raise CliError(f"The evaluation {outcome_of(found)}", code=Exit.FAILED, document=found)


def outcome_of(evaluation: dict[str, Any]) -> str:
    error = evaluation["error"]
    return f"failed: {error['detail']} [{error['code']}]" if error else f"was {evaluation['status']}."


@command(app, "evaluation")
def evaluation(
    session: Session,
    rule: Name,
    number: Number,
    *,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the result.")] = False,
    timeout: Timeout = None,
) -> None:
    """Show an evaluation of a rule."""
    found = session.client.get(f"{path_of(session, rule)}/evaluations/{number}")
    if wait:
        print_end(session, rule, found, timeout=timeout)
    else:
        print_evaluation(session, found)


def print_evaluation(session: Session, found: dict[str, Any]) -> None:
    if session.terminal.as_json:
        session.terminal.json(found)
        return
    rows = [(name or "/", percent(found["fields"][name])) for name in sorted(found["fields"])]
    session.terminal.table(("FIELD", "ACCURACY"), iter([*rows, ("all", percent(found["accuracy"]))]))
    done = f"{found['ended']} of {found['samples']} samples"
    session.terminal.info(f"Evaluation {found['number']} of version {found['version']}: {found['status']}, {done}.")


@command(app, "evaluations")
def evaluations(session: Session, rule: Name, *, limit: Limit = 200) -> None:
    """List the evaluations of a rule, newest first."""
    found = session.client.pages(f"{path_of(session, rule)}/evaluations", limit=limit)
    print_list(session, ("NUMBER", "VERSION", "STATUS", "ACCURACY", "SAMPLES", "STARTED"), found, summary)


def summary(each: dict[str, Any]) -> tuple[str, ...]:
    numbers = str(each["number"]), str(each["version"])
    return (*numbers, each["status"], percent(each["accuracy"]), str(each["samples"]), moment(each["created_at"]))


@command(app, "compare")
def compare(session: Session, rule: Name, a: Number, b: Number) -> None:
    """Compare two evaluations of a rule by field."""
    found = session.client.get(f"{path_of(session, rule)}/evaluations/compare", {"a": a, "b": b})
    if session.terminal.as_json:
        session.terminal.json(found)
        return
    rows = [
        (each["pointer"] or "/", percent(each["a"]), percent(each["b"]), points(each["change"]))
        for each in found["fields"]
    ]
    whole = ("all", percent(found["a"]["accuracy"]), percent(found["b"]["accuracy"]), points(found["change"]))
    session.terminal.table(("FIELD", f"NO. {a}", f"NO. {b}", "CHANGE"), iter([*rows, whole]))
    if not found["same_samples"]:
        session.terminal.info("Warning: the evaluations have different samples, or samples were deleted since.")


@command(app, "cancel-evaluation")
def cancel(session: Session, rule: Name, number: Number) -> None:
    """Cancel a running evaluation of a rule."""
    session.client.evaluations.cancel(rule, number)
    session.terminal.info("Cancelled.")
