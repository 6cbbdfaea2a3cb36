"""Execution plans of the statements that a function runs."""

from collections.abc import Callable, Iterable, Iterator
from re import findall, sub
from typing import Any

from django.db import connection, transaction

from config.platform.db import sql
from tests.integration import million

BOUND_AS = {int: "bigint", bool: "boolean"}  # types that PreparingCursor binds; the server infers the others
VALUE = r"%\((\w+)\)s"

Plan = dict[str, Any]


def plans_of(work: Callable[[Any], object], before: Callable[[], Any] = lambda: None) -> list[tuple[str, Plan]]:
    """Call `work` with the return value of `before`, and roll back. Return the statements with their plans."""
    found: list[tuple[str, Plan]] = []

    def explain(execute: Any, statement: str, values: Any, many: bool, context: Any) -> Any:  # noqa: FBT001
        if statement.split(maxsplit=1)[0] in ("SELECT", "INSERT", "UPDATE", "DELETE", "WITH"):
            found.extend((statement, plan) for plan in explained_plans(statement, values))
        return execute(statement, values, many, context)

    with transaction.atomic():
        million.run("SET LOCAL jit = off")
        million.run("SET LOCAL max_parallel_workers_per_gather = 0")
        given = before()
        with connection.execute_wrapper(explain):
            work(given)
        transaction.set_rollback(True)
    return found


def explained_plans(statement: str, values: Any) -> Iterator[Plan]:
    """Yield the plan of a statement and, if it is prepared, also its generic plan. Each run is rolled back.

    Uses a cursor of psycopg, so that Django's wrappers do not see the statements.
    """
    with connection.connection.cursor() as cursor:
        yield explained(cursor, statement, values)
        if isinstance(statement, sql.PreparedStatement):
            names = list(dict.fromkeys(findall(VALUE, statement)))
            types = enclosed(BOUND_AS.get(type(values[name]), "unknown") for name in names)
            text = sub(VALUE, lambda found: f"${names.index(found[1]) + 1}", statement).replace("%%", "%")
            cursor.execute(f"PREPARE kept {types} AS {text}")
            cursor.execute("SET LOCAL plan_cache_mode = force_generic_plan")
            yield explained(cursor, f"EXECUTE kept {enclosed(f'%({name})s' for name in names)}", values)
            cursor.execute("DEALLOCATE kept")


def enclosed(items: Iterable[str]) -> str:
    """Return a list in parentheses, which Postgres does not accept if it is empty."""
    return f"({listed})" if (listed := ", ".join(items)) else ""


def explained(cursor: Any, statement: str, values: Any) -> Plan:
    cursor.execute("SAVEPOINT unexplained")
    cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}", values)
    ((found,),) = cursor.fetchall()
    cursor.execute("ROLLBACK TO SAVEPOINT unexplained")
    cursor.execute("RELEASE SAVEPOINT unexplained")
    plan: Plan = {**found[0]["Plan"], "Execution Time": found[0]["Execution Time"]}
    return plan


def nodes(plan: Plan) -> Iterator[Plan]:
    yield plan
    for child in plan.get("Plans", []):
        yield from nodes(child)


def nodes_reading(table: str, statement: str, values: dict[str, Any]) -> list[Plan]:
    """Update a table's statistics, run a statement, and return the nodes of its plan that read the table."""
    with connection.cursor() as cursor:
        cursor.execute(f"ANALYZE {table}")
        cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", values)
        ((found,),) = cursor.fetchall()
    return [node for node in nodes(found[0]["Plan"]) if node.get("Relation Name") == table]


def rows_of(node: Plan) -> int:
    read = ("Actual Rows", "Rows Removed by Filter", "Rows Removed by Index Recheck")
    rows: float = sum(node.get(name, 0) for name in read)
    loops: float = node["Actual Loops"]
    return round(rows * loops)


def plan_lines(plan: Plan, depth: int = 0) -> Iterator[str]:
    """Yield the lines of a plan in a readable form."""
    facts = [str(plan[name]) for name in ("Node Type", "Index Name", "Relation Name", "CTE Name") if name in plan]
    yield f"{'  ' * depth}{' '.join(facts)}: {rows_of(plan):,} rows, {blocks_of(plan):,} blocks"
    for child in plan.get("Plans", []):
        yield from plan_lines(child, depth + 1)


def blocks_of(node: Plan) -> int:
    return int(node["Shared Hit Blocks"] + node["Shared Read Blocks"])
