"""`sluice rule …`: what is made of documents."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from sluice.api import Api
from sluice.errors import Exit, Problem, Trouble
from sluice.lists import MOST, Limit, print_list
from sluice.session import Session, command
from sluice.terminal import moment

app = typer.Typer(help="Rules: what is made of documents.", no_args_is_help=True, rich_markup_mode=None)
ROOT = "/api/v1/etl/rules"
# What `show --json` prints and the server sets itself: so that what was shown can be changed and sent back.
SET_BY_SERVER = ("rule_id", "version", "is_system", "created_at", "updated_at")

Name = Annotated[str, typer.Argument(metavar="NAME|ID")]
File = Annotated[str, typer.Argument(metavar="FILE", help="JSON, as `sluice rule show --json` prints it; - is stdin.")]


def rule_id_of(session: Session, rule: str | None) -> int | None:
    """Return the number of a rule by its name or number. Raises Trouble when none or several have the name."""
    if rule is None or (rule.isascii() and rule.isdecimal()):
        return None if rule is None else int(rule)
    found = [each["rule_id"] for each in every(session.api) if each["name"].casefold() == rule.casefold()]
    if not found:
        raise Trouble(f"There is no rule {rule!r}. What there is: sluice rule list", code=Exit.NOT_FOUND)
    if len(found) > 1:
        raise Trouble(f"Several rules are called {rule!r}: say which one, {found}.", code=Exit.USAGE)
    return int(found[0])


def every(api: Api) -> Iterator[dict[str, Any]]:
    return api.pages(ROOT, {"limit": MOST}, limit=1_000_000)


def path_of(session: Session, rule: str) -> str:
    return f"{ROOT}/{rule_id_of(session, rule)}"


# ---- Look -----------------------------------------------------------------------------------------------------------


@command(app, "list")
def list_rules(session: Session, *, limit: Limit = 200) -> None:
    """List the rules you can use, your own and the system's. --json prints one line each."""
    rules = session.api.pages(ROOT, {"limit": min(limit, MOST)}, limit=limit)
    print_list(session, ("ID", "NAME", "MODE", "VERSION", "OWNER", "CHANGED"), rules, summary)


def summary(rule: dict[str, Any]) -> tuple[str, ...]:
    owner = "system" if rule["is_system"] else "you"
    version = str(rule["version"])
    return (str(rule["rule_id"]), rule["name"], rule["postprocess_mode"], version, owner, moment(rule["updated_at"]))


@command(app, "show")
def show(session: Session, rule: Name) -> None:
    """Print a rule, as JSON that `create` and `update` take."""
    session.terminal.json(session.api.get(path_of(session, rule)))


# ---- Change ---------------------------------------------------------------------------------------------------------


@command(app, "create")
def create(session: Session, file: File) -> None:
    """Make a rule of a JSON file."""
    tell(session, send(session, "POST", ROOT, file), "Made")


@command(app, "update")
def update(
    session: Session,
    rule: Name,
    file: File,
    *,
    replace: Annotated[bool, typer.Option("--replace", help="What the file leaves out gets its default.")] = False,
) -> None:
    """Change what a JSON file says of a rule, and leave the rest. Documents keep the version that they came with."""
    method = "PUT" if replace else "PATCH"
    tell(session, send(session, method, path_of(session, rule), file), "Changed")


@command(app, "delete")
def delete(
    session: Session,
    rule: Name,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete a rule. Documents that came with it keep it."""
    path = path_of(session, rule)
    if not yes and sys.stdin.isatty():
        typer.confirm(f"Delete the rule {rule}?", abort=True, err=True)
    session.api.ask("DELETE", path, repeatable=True)
    session.terminal.say("Deleted.")


def send(session: Session, method: str, path: str, file: str) -> dict[str, Any]:
    says = read(file)
    try:
        told: dict[str, Any] = session.api.ask(
            method, path, body=lambda: {"json": says}, repeatable=method != "POST"
        ).json()
    except Problem as problem:
        problem.locate(lambda pointer: f"{'stdin' if file == '-' else file} at {pointer or '/'}")
        raise
    return told


def read(file: str) -> dict[str, Any]:
    """Return what a file says of a rule. Raises Trouble when it is no JSON object."""
    try:
        says = json.loads(sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes())
    except OSError as error:
        raise Trouble(f"{file} cannot be read: {error.strerror}.", code=Exit.USAGE) from None
    except ValueError as error:
        raise Trouble(f"{file} is no JSON: {error}.", code=Exit.USAGE) from None
    if not isinstance(says, dict):
        raise Trouble(f"{file} must hold one JSON object.", code=Exit.USAGE)
    return {name: value for name, value in says.items() if name not in SET_BY_SERVER}


def tell(session: Session, rule: dict[str, Any], done: str) -> None:
    if session.terminal.as_json:
        session.terminal.json(rule)
    else:
        session.terminal.put(str(rule["rule_id"]))
    session.terminal.say(f"{done}: {rule['name']}, version {rule['version']}.")


# ---- Try ------------------------------------------------------------------------------------------------------------


@command(app, "test")
def test(
    session: Session, rule: Name, file: Annotated[str, typer.Argument(metavar="MARKDOWN_FILE", help="- is stdin.")]
) -> None:
    """Try a rule on a text, and print what it makes of it. Nothing is stored."""
    try:
        text = (sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()).decode()
    except OSError as error:
        raise Trouble(f"{file} cannot be read: {error.strerror}.", code=Exit.USAGE) from None
    except UnicodeDecodeError:
        raise Trouble(f"{file} is not UTF-8.", code=Exit.USAGE) from None
    told = session.api.post(f"{path_of(session, rule)}/test", {"markdown": text})
    if not told["ok"]:
        why = f"{told['error']['detail']} [{told['error']['code']}]"
        raise Trouble(f"The rule failed: {why}", code=Exit.FAILED, document=told)
    session.terminal.json(told if session.terminal.as_json else told["result"])
