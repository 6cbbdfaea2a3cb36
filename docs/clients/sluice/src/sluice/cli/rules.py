"""`sluice rule …`: commands for post-processing rules."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from sluice import exact_json
from sluice.api import Api, checked_json
from sluice.cli.lists import MOST, Limit, print_list
from sluice.cli.session import Session, command
from sluice.cli.terminal import moment
from sluice.errors import CliError, Exit, Problem

app = typer.Typer(help="Manage the rules that convert documents.", no_args_is_help=True, rich_markup_mode=None)
ROOT = "/api/v1/etl/rules"
# Read-only fields in the output of `show`, removed so that the output can be edited and sent back.
SET_BY_SERVER = ("rule_id", "version", "is_system", "created_at", "updated_at")

Name = Annotated[str, typer.Argument(metavar="NAME|ID")]
File = Annotated[str, typer.Argument(metavar="FILE", help="JSON, as `sluice rule show` prints it; - for stdin.")]


def rule_id_of(session: Session, rule: str | None) -> int | None:
    """Return the id of a rule, given by name or id. Raises CliError if no rule or several have the name."""
    if rule is None or (rule.isascii() and rule.isdecimal()):
        return None if rule is None else int(rule)
    found = [each["rule_id"] for each in every(session.api) if each["name"].casefold() == rule.casefold()]
    if not found:
        raise CliError(f"Rule {rule!r} not found. List the rules with: sluice rule list", code=Exit.NOT_FOUND)
    if len(found) > 1:
        raise CliError(f"Several rules are named {rule!r}. Use one of the ids {found}.", code=Exit.USAGE)
    return int(found[0])


def every(api: Api) -> Iterator[dict[str, Any]]:
    return api.pages(ROOT, {"limit": MOST}, limit=1_000_000)


def path_of(session: Session, rule: str) -> str:
    return f"{ROOT}/{rule_id_of(session, rule)}"


# ---- Show -----------------------------------------------------------------------------------------------------------


@command(app, "list")
def list_rules(session: Session, *, limit: Limit = 200) -> None:
    """List the rules that you can use: your own and the system's. --json prints one line each."""
    rules = session.api.pages(ROOT, {"limit": min(limit, MOST)}, limit=limit)
    print_list(session, ("ID", "NAME", "MODE", "VERSION", "OWNER", "UPDATED"), rules, summary)


def summary(rule: dict[str, Any]) -> tuple[str, ...]:
    owner = "system" if rule["is_system"] else "you"
    version = str(rule["version"])
    return (str(rule["rule_id"]), rule["name"], rule["postprocess_mode"], version, owner, moment(rule["updated_at"]))


@command(app, "show")
def show(session: Session, rule: Name) -> None:
    """Print a rule as JSON, in the format that `create` and `update` read."""
    session.terminal.json(session.api.get(path_of(session, rule)))


# ---- Change ---------------------------------------------------------------------------------------------------------


@command(app, "create")
def create(session: Session, file: File) -> None:
    """Create a rule from a JSON file."""
    print_saved(session, send(session, "POST", ROOT, file), "Created")


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
    method = "PUT" if replace else "PATCH"
    print_saved(session, send(session, method, path_of(session, rule), file), "Updated")


@command(app, "delete")
def delete(
    session: Session,
    rule: Name,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Delete a rule. Submitted documents still use it."""
    path = path_of(session, rule)
    if not yes and sys.stdin.isatty():
        typer.confirm(f"Delete the rule {rule}?", abort=True, err=True)
    session.api.request("DELETE", path, repeatable=True)
    session.terminal.info("Deleted.")


def send(session: Session, method: str, path: str, file: str) -> dict[str, Any]:
    fields = read(file)
    try:
        body = {"content": exact_json.dumps(fields).encode(), "headers": {"Content-Type": "application/json"}}
        response: dict[str, Any] = checked_json(
            session.api.request(method, path, body=lambda: body, repeatable=method != "POST")
        )
    except Problem as problem:
        problem.locate(lambda pointer: f"{'stdin' if file == '-' else file} at {pointer or '/'}")
        raise
    return response


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
    try:
        return sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise CliError(f"{file} cannot be read: {error.strerror}.", code=Exit.USAGE) from None


def print_saved(session: Session, rule: dict[str, Any], done: str) -> None:
    if session.terminal.as_json:
        session.terminal.json(rule)
    else:
        session.terminal.put(str(rule["rule_id"]))
    session.terminal.info(f"{done}: {rule['name']}, version {rule['version']}.")


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
    response = session.api.post(f"{path_of(session, rule)}/test", {"markdown": text})
    if not response["ok"]:
        why = f"{response['error']['detail']} [{response['error']['code']}]"
        raise CliError(f"The rule failed: {why}", code=Exit.FAILED, document=response)
    session.terminal.json(response if session.terminal.as_json else response["result"])
