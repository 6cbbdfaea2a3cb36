"""`sluice rule …`: commands for post-processing rules."""

import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any

import typer

from sluice import exact_json, models
from sluice.cli.errors import CliError, Exit, located, unreadable
from sluice.cli.lists import Limit, print_list
from sluice.cli.session import Session, command
from sluice.cli.terminal import moment
from sluice.uploading import ROOT

app = typer.Typer(help="Manage the rules that convert documents.", no_args_is_help=True, rich_markup_mode=None)
# Read-only fields in the output of `show`. They are dropped, so that the output can be edited and sent back.
SET_BY_SERVER = ("rule_id", "version", "is_system", "created_at", "updated_at")

Name = Annotated[str, typer.Argument(metavar="NAME|ID")]
File = Annotated[
    str, typer.Argument(metavar="FILE", help="A JSON file in the format of `sluice rule show`; - for stdin.")
]


def path_of(session: Session, rule: str) -> str:
    return f"{ROOT}/rules/{session.client.rules.id_of(rule)}"


# ---- Show -----------------------------------------------------------------------------------------------------------


@command(app, "list")
def list_rules(session: Session, *, limit: Limit = 200) -> None:
    """List the rules that you can use: your own and the system's. --json prints one line each."""
    rules = session.client.rules.list(limit=limit)
    print_list(session, ("ID", "NAME", "MODE", "VERSION", "OWNER", "UPDATED"), rules, summary)


def summary(rule: models.Rule) -> tuple[str, ...]:
    owner = "system" if rule.is_system else "you"
    return (str(rule.id), rule.name, rule.postprocess_mode, str(rule.version), owner, moment(rule.updated_at))


@command(app, "show")
def show(session: Session, rule: Name) -> None:
    """Print a rule as JSON, in the format that `create` and `update` read."""
    session.terminal.json(session.client.rules.get(rule).raw)


# ---- Change ---------------------------------------------------------------------------------------------------------


@command(app, "create")
def create(session: Session, file: File) -> None:
    """Create a rule from a JSON file."""
    fields = read(file)
    with in_file(file):
        print_saved(session, session.client.rules.create(fields.pop("name", ""), **fields), "Created")


@command(app, "update")
def update(
    session: Session,
    rule: Name,
    file: File,
    *,
    replace: Annotated[
        bool, typer.Option("--replace", help="Reset fields that are missing in the file to their defaults.")
    ] = False,
) -> None:
    """Update a rule with the fields of a JSON file. Submitted documents keep their version."""
    rules = session.client.rules
    with in_file(file):
        print_saved(session, (rules.replace if replace else rules.update)(rule, **read(file)), "Updated")


@command(app, "delete")
def delete(
    session: Session,
    rule: Name,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Delete a rule. Submitted documents still use it."""
    number = session.client.rules.id_of(rule)
    if not yes and sys.stdin.isatty():
        typer.confirm(f"Delete the rule {rule}?", abort=True, err=True)
    session.client.rules.delete(number or rule)
    session.terminal.info("Deleted.")


def in_file(file: str) -> AbstractContextManager[None]:
    """Prefix each error of a rule with its file and JSON Pointer."""
    return located(lambda pointer: f"{'stdin' if file == '-' else file} at {pointer or '/'}")


def read(file: str) -> dict[str, Any]:
    """Return the fields of a rule from a file. Raises CliError if it is not a JSON object."""
    try:
        fields = exact_json.loads(read_bytes(file))
    except ValueError as error:
        raise CliError(f"{file} is not valid JSON: {error}.", code=Exit.USAGE) from None
    if not isinstance(fields, dict):
        raise CliError(f"{file} must contain one JSON object.", code=Exit.USAGE)
    return {name: value for name, value in fields.items() if name not in SET_BY_SERVER}


def read_bytes(file: str) -> bytes:
    """Return the content of a file, or of stdin for `-`. Raises CliError."""
    with unreadable(file):
        return sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()


def print_saved(session: Session, rule: models.Rule, done: str) -> None:
    if session.terminal.as_json:
        session.terminal.json(rule.raw)
    else:
        session.terminal.put(str(rule.id))
    session.terminal.info(f"{done}: {rule.name}, version {rule.version}.")


# ---- Test -----------------------------------------------------------------------------------------------------------


@command(app, "test")
def test(
    session: Session, rule: Name, file: Annotated[str, typer.Argument(metavar="MARKDOWN_FILE", help="- for stdin.")]
) -> None:
    """Test a rule on a text and print the result. Nothing is stored."""
    try:
        text = read_bytes(file).decode()
    except UnicodeDecodeError:
        raise CliError(f"{file} is not UTF-8.", code=Exit.USAGE) from None
    response = session.client.post(f"{path_of(session, rule)}/test", {"markdown": text})
    if not response["ok"]:
        why = f"{response['error']['detail']} [{response['error']['code']}]"
        raise CliError(f"The rule failed: {why}", code=Exit.FAILED, document=response)
    session.terminal.json(response if session.terminal.as_json else response["result"])
