"""Examination of a function that staff register as a dataset, with explanations of its problems."""

from typing import NamedTuple

from psycopg.rows import class_row

from exports.core.errors import ExportError, with_meaning
from exports.source.columns import Column
from exports.source.database import SourceSession
from exports.source.errors import translated

ARGUMENTS = "(key text, effective_date date)"
TABLE = "It must return a table: RETURNS TABLE (...) or RETURNS SETOF."


class Examination(NamedTuple):
    """The columns of a function. `refusal` is the reason why no dataset can use it, and `warning` a hint for staff."""

    columns: list[Column]
    refusal: str = ""
    warning: str = ""


class Function(NamedTuple):
    """A function of the source database, as described by the system catalog."""

    kind: str  # a letter of the catalog for a function, procedure, aggregate, or window function
    arguments: str
    returns: str
    is_set: bool
    is_volatile: bool


# The first row is the function that a call would use.
FUNCTIONS = """
SELECT p.prokind::text AS kind, pg_get_function_identity_arguments(p.oid) AS arguments,
       format_type(p.prorettype, NULL) AS returns, p.proretset AS is_set, p.provolatile = 'v' AS is_volatile
FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
WHERE n.nspname = %s AND p.proname = %s
ORDER BY p.proargtypes = '25 1082'::oidvector DESC,  -- (text, date)
         2 BETWEEN p.pronargs - p.pronargdefaults AND p.pronargs DESC, p.oid
"""
# Postgres converts names to lower case if they are created without quotes.
SIMILAR = """
SELECT n.nspname || '.' || p.proname FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
WHERE lower(n.nspname) = lower(%s) AND lower(p.proname) = lower(%s) ORDER BY 1 LIMIT 1
"""


def examine(function: tuple[str, str], *, allow_writes: bool) -> Examination:
    """Examine a function without calling it. `allow_writes` is the dataset's setting."""
    name, found, similar = ".".join(function), list[Function](), ""
    try:
        with SourceSession() as session:
            found, similar = look_up(session, function)
            columns = session.describe(function)
    except ExportError as error:
        return Examination([], refusal=reason(name, found, similar, error))
    if not columns or (found and not found[0].is_set):
        returned = "no columns" if not found or found[0].is_set else f"one value of type {found[0].returns}"
        return Examination([], refusal=f"{name} returns {returned}. {TABLE}")
    return Examination(columns, warning=warning(name, found) if not allow_writes else "")


def look_up(session: SourceSession, function: tuple[str, str]) -> tuple[list[Function], str]:
    """Return the functions with this name. If there are none, also return a name that differs only in case, or ""."""
    with translated(), session.connection().cursor(row_factory=class_row(Function)) as cursor:
        found = cursor.execute(FUNCTIONS, function).fetchall()
        similar = None if found else session.connection().execute(SIMILAR, function).fetchone()
    return found, similar[0] if similar else ""


def reason(name: str, found: list[Function], similar: str, error: ExportError) -> str:
    """Explain why a call of the function fails."""
    if error.code == "EXPORT_SOURCE_UNAVAILABLE":
        detail = f": {with_meaning(error.detail)}" if error.detail else ""
        return f"The source database cannot be reached{detail}."
    if error.detail == "SQLSTATE 42501":
        return (
            f"The role of SOURCE_DATABASE_URL may not call {name}: {error.message}. It needs USAGE on the schema and "
            "EXECUTE on the function."
        )
    if not found:
        meant = f" Did you mean {similar}?" if similar else ""
        return f"{name} does not exist in the source database. Names are case-sensitive.{meant}"
    if found[0].kind != "f":
        kinds = {"p": "a procedure", "a": "an aggregate", "w": "a window function"}
        return f"{name} is {kinds[found[0].kind]}. It must be a function that returns a table."
    if error.detail == "SQLSTATE 42883":
        takes = " or ".join(f"({each.arguments})" for each in found)
        return f"{name} takes {takes}. It must take {ARGUMENTS}."
    message = f": {error.message}" if error.message else ""
    return f"{name}{ARGUMENTS} cannot be called. {with_meaning(error.detail) or error.code}{message}"


def warning(name: str, found: list[Function]) -> str:
    if not found or not found[0].is_volatile:
        return ""
    return (
        f"{name} is VOLATILE, which is the default: its queries may see data of different moments. Declare it STABLE "
        "if it only reads. If it writes or creates temporary tables, allow writes: otherwise its calls fail."
    )
