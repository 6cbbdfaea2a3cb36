"""`docs/lifecycle.md`, compared with the states and the SQL statements in the code."""

import ast
import re
from collections import defaultdict
from importlib import import_module
from itertools import product
from pathlib import Path
from pkgutil import walk_packages
from typing import NamedTuple

import pytest
from django.db.models import TextChoices

import etl
import exports
from config.platform import webhooks
from config.platform.db.sql import PreparedStatement
from etl.core.states import ENDED, Status
from etl.models import Task
from etl.runstate import transitions as run_state_transitions
from exports.core.states import JOB_ENDED, ChunkStatus, JobStatus
from exports.models import Chunk, Delivery, Job

PACKAGE = Path(exports.__file__).parent
PAGE = (PACKAGE.parent / "docs" / "lifecycle.md").read_text()
STATEMENTS = {
    f"{module.rpartition('.')[2]}.{name}": re.sub(r"--.*", "", value)
    for package in (exports, webhooks)
    for module in (found.name for found in walk_packages(package.__path__, f"{package.__name__}.") if not found.ispkg)
    if ".migrations." not in module
    for name, value in vars(import_module(module)).items()
    if name.isupper() and isinstance(value, str) and not isinstance(value, PreparedStatement)  # built from others
}


class Row(NamedTuple):
    before: frozenset[str]
    after: frozenset[str]
    who: str
    statement: str


def section(title: str) -> tuple[set[tuple[str, str]], list[Row]]:
    """Return the arrows of the diagram of a section of the page, and the rows of its table."""
    text = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    cells = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return set(re.findall(r"^ +(\S+) --> (\w+)", text, re.MULTILINE)), [
        Row(frozenset(before.split(", ")), frozenset(after.split(", ")), who, statement.strip("`"))
        for before, after, who, statement in cells[2:]
    ]


class Part:
    """A section of the page, `## Chunk`, `## Job`, or `## Webhook delivery`, with its states and its model."""

    def __init__(self, title: str, states: type[TextChoices], model: type[Chunk | Job | Delivery]) -> None:
        self.title, self.states, self.model = title, states, model
        self.table = model._meta.db_table
        self.drawn, self.rows = section(title)

    def writes(self, statement: str) -> set[str]:
        """Return the states that a statement sets in rows of this table.

        If the state is a bound parameter, the clause must compare it with each possible state.
        """
        clauses = re.findall(
            rf"\bUPDATE {self.table}\b.*?\bSET\b(.*?)\b(?:FROM|WHERE|RETURNING)\b", STATEMENTS[statement], re.DOTALL
        )
        found: set[str] = set()
        for clause in clauses:
            for value in re.findall(r"(?:^|,)\s*status = (.*?)\s*(?=,\s*\w+ =|$)", clause, re.DOTALL):
                bound = re.fullmatch(r"%\(\w+\)s", value)
                text = clause if bound else value
                states = re.findall(rf"{re.escape(value)} = '(\w+)'" if bound else r"(?:^|THEN |ELSE )'(\w+)'", text)
                assert states, f"{statement} sets a status in a way that this test cannot read: {value}"
                found.update(states)
        return found


PARTS = [
    Part("Chunk", ChunkStatus, Chunk),
    Part("Job", JobStatus, Job),
    Part("Webhook delivery", Delivery.Status, Delivery),
]
each_part = pytest.mark.parametrize("part", PARTS, ids=lambda part: part.title)


@each_part
def test_every_state_is_in_the_diagram_or_listed_as_unused(part: Part) -> None:
    unused = set(re.findall(r"`(\w+)` is a state that nothing moves to yet", PAGE))

    assert {state for arrow in part.drawn for state in arrow} - {"[*]"} == set(part.states.values) - unused
    assert not unused & {state for name in STATEMENTS for state in part.writes(name)}


@each_part
def test_the_table_matches_the_diagram(part: Part) -> None:
    arrows = {arrow for row in part.rows for arrow in product(row.before, row.after)}

    assert arrows == {arrow for arrow in part.drawn if arrow[0] != "[*]"}
    assert [after for before, after in part.drawn if before == "[*]"] == [part.model().status]


@pytest.mark.parametrize(
    ("part", "row"), [pytest.param(part, row, id=row.statement) for part in PARTS for row in part.rows]
)
def test_statements_write_the_states_of_their_rows(part: Part, row: Row) -> None:
    # The diagram has no arrows from a state to itself, although some statements can keep the state.
    assert part.writes(row.statement) - row.before == row.after


@each_part
def test_no_other_statement_changes_a_status(part: Part) -> None:
    assert {name for name in STATEMENTS if part.writes(name)} == {row.statement for row in part.rows}


def test_only_user_actions_change_an_ended_job() -> None:
    jobs = PARTS[1]

    assert {row.who for row in jobs.rows if row.before & JOB_ENDED} == {"a person"}


def sets_status(node: ast.AST) -> bool:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "update":
        return any(keyword.arg == "status" for keyword in node.keywords)
    targets = node.targets if isinstance(node, ast.Assign) else []
    return any(isinstance(target, ast.Attribute) and target.attr == "status" for target in targets)


@pytest.mark.slow
def test_only_sql_sets_a_job_status() -> None:
    trees = {path.relative_to(PACKAGE): ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")}

    assert [str(path) for path, tree in trees.items() if any(sets_status(node) for node in ast.walk(tree))] == []


# ---- Tasks ----------------------------------------------------------------------------------------------------------
TASK_DRAWN, TASK_ROWS = section("Task")
ARROWS = {
    f"transitions.{name}": value
    for name, value in vars(run_state_transitions).items()
    if isinstance(value, run_state_transitions.StatusChange)
}


def test_every_task_state_is_in_the_diagram() -> None:
    assert {state for arrow in TASK_DRAWN for state in arrow} - {"[*]"} == set(Status.values)


def test_the_task_table_matches_the_diagram() -> None:
    arrows = {arrow for row in TASK_ROWS for arrow in product(row.before, row.after)}

    assert arrows == {arrow for arrow in TASK_DRAWN if arrow[0] != "[*]"}
    assert [after for before, after in TASK_DRAWN if before == "[*]"] == [Task().status]


def test_run_state_transitions_are_those_of_the_table() -> None:
    """B3, B4: the diagram has no arrows from a state to itself, although some transitions can keep the state."""
    arrows = {row.statement: (row.before, row.after) for row in TASK_ROWS if row.statement in ARROWS}

    assert arrows == {
        name: (frozenset(map(str, arrow.before)) - {arrow.after}, frozenset({str(arrow.after)}))
        for name, arrow in ARROWS.items()
    }


def test_no_transition_leaves_a_final_state_or_goes_back() -> None:
    """B3: only a user's retry does this. It sets the status in the row and increments the generation."""
    rank = re.search(r"RANK = \{(.*?)\}", (PACKAGE.parent / "etl" / "runstate" / "script.lua").read_text())
    assert rank
    order = {name: int(number) for name, number in re.findall(r"(\w+) = (\d)", rank[1])}

    assert order.keys() == set(Status.values)
    assert all(order[before] <= order[arrow.after] for arrow in ARROWS.values() for before in arrow.before)
    assert not any(ENDED & set(arrow.before) for arrow in ARROWS.values())
    assert [row.statement for row in TASK_ROWS if row.before & ENDED] == ["actions.retry"]


def sets_task_status(node: ast.AST) -> bool:
    """Return whether a node assigns `task.status`, alone or with other attributes, or updates the status of rows."""
    targets = [part for target in node.targets for part in ast.walk(target)] if isinstance(node, ast.Assign) else []
    named = [part.value for part in targets if isinstance(part, ast.Attribute) and part.attr == "status"]
    return any(isinstance(value, ast.Name) and value.id == "task" for value in named) or (
        isinstance(node, ast.Call) and sets_status(node)
    )


@pytest.mark.slow
def test_no_other_code_sets_the_status_of_a_task() -> None:
    folder = Path(etl.__file__).parent
    trees = {str(path.relative_to(folder)): ast.parse(path.read_text()) for path in folder.rglob("*.py")}

    assert {name for name, tree in trees.items() if any(sets_task_status(node) for node in ast.walk(tree))} == {
        "evaluation/queue.py",  # the status of samples
        "pipeline/actions.py",  # begin_anew, for a retry
        "pipeline/batch_ends.py",  # reopen, the status of batches
        "pipeline/completion.py",  # write
    }


def test_every_statement_and_function_on_the_page_exists() -> None:
    code: dict[str, str] = defaultdict(str)
    for app in ("config", "etl", "exports"):
        for path in (PACKAGE.parent / app).rglob("*.py"):
            code[path.stem] += path.read_text()
    named = re.findall(r"`(\w+)\.(\w+)`", PAGE)
    assert named
    assert [each for each in named if not re.search(rf"^(?:def )?{each[1]}\b", code[each[0]], re.MULTILINE)] == []
