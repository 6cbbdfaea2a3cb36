"""Status changes of jobs, chunks, and document tasks, recorded by database triggers, not by the product's code."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from django.db import connection

from config.platform.db import sql

CHANGE_TRIGGERS = """
CREATE SCHEMA chaos;
CREATE TABLE chaos.move (
    nr bigserial PRIMARY KEY, what text NOT NULL, id text NOT NULL, was text NOT NULL, became text NOT NULL,
    owner bigint, token bigint, old_token bigint, at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE FUNCTION chaos.note() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    new_row jsonb := to_jsonb(NEW);
    old_row jsonb := to_jsonb(OLD);
BEGIN
    INSERT INTO chaos.move (what, id, was, became, owner, token, old_token) VALUES (
        TG_ARGV[0], new_row ->> TG_ARGV[1], OLD.status, NEW.status, (new_row ->> 'user_id')::bigint,
        (new_row ->> TG_ARGV[2])::bigint, (old_row ->> TG_ARGV[2])::bigint);
    RETURN NULL;
END $$;
"""
WATCHED = {
    "job": ("exports_jobs", "job_id", "completion_token"),
    "chunk": ("exports_chunk", "id", "token"),
    "task": ("etl_task", "task_id", "fence"),
}


def record_changes() -> None:
    """Record every status change in the test database."""
    with connection.cursor() as cursor:
        cursor.execute(CHANGE_TRIGGERS)
        for what, (table, key, token) in WATCHED.items():
            cursor.execute(
                f"CREATE TRIGGER chaos_note AFTER UPDATE ON {table} FOR EACH ROW"
                f" WHEN (OLD.status IS DISTINCT FROM NEW.status)"
                f" EXECUTE FUNCTION chaos.note('{what}', '{key}', '{token}')"
            )


@dataclass(frozen=True)
class Move:
    """A status change. `owner`: the user of a job or task."""

    nr: int
    id: str
    was: str
    became: str
    owner: int | None
    token: int | None
    old_token: int | None
    at: datetime


def moves(what: str) -> dict[str, list[Move]]:
    """Return the changes of each job, chunk, or task, in order."""
    found: dict[str, list[Move]] = defaultdict(list)
    for row in sql.rows("SELECT * FROM chaos.move WHERE what = %(what)s ORDER BY nr", what=what):
        found[row["id"]].append(Move(**{name: value for name, value in row.items() if name != "what"}))
    return found


def check_recorded(what: str, ids: Iterable[object]) -> None:
    """Check that all these rows have changes, since rules about changes accept a row without any."""
    missing = set(map(str, ids)) - moves(what).keys()
    assert not missing, f"no status change was recorded of {what} {missing}"
