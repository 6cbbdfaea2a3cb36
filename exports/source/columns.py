"""The columns of a dataset's function and their types."""

from typing import NamedTuple

import psycopg


class Column(NamedTuple):
    """A column of a dataset. Types have their Postgres names, such as `timestamp with time zone`."""

    name: str
    type: str
    element: str | None  # the type of an array's elements, or its base type if it is a domain
    scalar: str | None  # the same, or the base type of the innermost elements, if the elements are domains over arrays
    is_text: bool
    modifier: int = -1  # type modifier, such as the precision and scale of a numeric (of its elements for an array)

    @property
    def is_array(self) -> bool:
        """Whether the type is an array such as `integer[]`. Other types with elements, such as `int2vector`, aren't."""
        return self.type.endswith("[]")

    @property
    def is_nested(self) -> bool:
        """Whether the type is an array of a domain over an array."""
        return self.element != self.scalar


# Postgres reports the base type for a column whose type is a domain, but not for an array of a domain.
#
# `is_text` is true unless a spreadsheet cannot run the type's output as a formula. Arrays, composites, ranges, and
# records (A, C, R, and P) start with brackets. Postgres' own types of the other categories are numbers, dates, and the
# like, except `regoper` and `regoperator` (N), whose values are operators such as `=(integer,integer)`. In JSON, only
# numbers can start with a sign.
TYPES = """
SELECT oid, format_type(oid, NULL), CASE WHEN typcategory = 'A' THEN typelem END,
       NOT (typcategory IN ('A', 'C', 'R', 'P') OR typnamespace = 'pg_catalog'::regnamespace AND (
           typcategory IN ('B', 'D', 'G', 'I', 'N', 'T', 'V') AND typname NOT IN ('regoper', 'regoperator')
           OR typname IN ('json', 'jsonb')))
FROM pg_type WHERE oid = ANY(%s)
"""
# The first type that is not a domain is the base type. The last type is the base type of the innermost elements.
BASE_TYPES = """
WITH RECURSIVE base AS (
    SELECT oid AS element, oid, 1 AS depth FROM pg_type WHERE oid = ANY(%s)
    UNION ALL
    SELECT base.element, CASE typtype WHEN 'd' THEN typbasetype ELSE typelem END, depth + 1
    FROM base JOIN pg_type t USING (oid) WHERE typtype = 'd' OR typcategory = 'A'
)
SELECT element, (array_agg(format_type(oid, NULL) ORDER BY depth) FILTER (WHERE typtype <> 'd'))[1],
       (array_agg(format_type(oid, NULL) ORDER BY depth DESC))[1]
FROM base JOIN pg_type USING (oid) GROUP BY element
"""


def types_of(connection: psycopg.Connection, oids: list[int]) -> dict[int, tuple[str, str | None, str | None, bool]]:
    """Return for each type ID the fields `type`, `element`, `scalar`, and `is_text` of a Column."""
    types = connection.execute(TYPES, [oids]).fetchall()
    elements = [element for _, _, element, _ in types if element]
    found = connection.execute(BASE_TYPES, [elements]).fetchall() if elements else []
    bases: dict[int, tuple[str, str]] = {element: (base, scalar) for element, base, scalar in found}
    return {oid: (name, *bases.get(element, (None, None)), is_text) for oid, name, element, is_text in types}
