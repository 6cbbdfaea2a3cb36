"""The dataset of these tests, and its oracle: the output of `psql` for the same function."""

import hashlib
import subprocess
from collections.abc import Iterable
from datetime import date
from pathlib import Path

import psycopg

from config.dev.stack.postgres import program

# A table defines each key's behavior, so that the oracle can read the same rows without the delays.
FUNCTION = """
CREATE TABLE data.behavior (key text PRIMARY KEY, rows int NOT NULL, pause float NOT NULL, error boolean NOT NULL);
CREATE SEQUENCE data.calls;
CREATE FUNCTION data.rows_for(key text, effective_date date)
RETURNS TABLE (k text, n int, word text, amount numeric, at timestamptz)
LANGUAGE plpgsql AS $$ #variable_conflict use_variable
DECLARE
    how data.behavior;
    many int := 3;
BEGIN
    PERFORM nextval('data.calls');
    SELECT * INTO how FROM data.behavior b WHERE b.key = rows_for.key;
    IF how.error THEN RAISE 'no such slice' USING ERRCODE = 'P0001'; END IF;
    many := coalesce(how.rows, many);
    RETURN QUERY SELECT * FROM data.some(key, effective_date, 1, many / 2);
    PERFORM pg_sleep(coalesce(how.pause, 0));
    RETURN QUERY SELECT * FROM data.some(key, effective_date, many / 2 + 1, many);
END $$;
CREATE FUNCTION data.some(key text, day date, first int, last int)
RETURNS TABLE (k text, n int, word text, amount numeric, at timestamptz)
LANGUAGE sql STABLE AS $$
    SELECT key, n, CASE n % 4 WHEN 0 THEN NULL WHEN 1 THEN 'a "quoted", word' WHEN 2 THEN E'two\\nlines' ELSE '' END,
           n * 1.10, day + n * interval '1 second'
    FROM generate_series(first, last) n ORDER BY n
$$;
"""
# The pattern does not match this statement, which other connections may run at the same time.
LIVE_CALLS = """
SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query ~ 'COPY [(].*"data"[.]'
"""
Slice = tuple[str, date]


class Source:
    """The source database, controlled by the test."""

    def __init__(self, url: str) -> None:
        self.url = url

    def run(self, statement: str, *parameters: object) -> int:
        """Run a statement on a new connection, because open ones may be broken.

        Return the first column of the first row.
        """
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement, parameters or None)
            row = cursor.fetchone() if cursor.description else None
        return int(row[0]) if row else 0

    def behave(self, key: str, *, rows: int = 3, pause: float = 0, error: bool = False) -> None:
        """Make calls for a key return a number of rows with a pause in the middle, or an error."""
        self.run(
            "INSERT INTO data.behavior VALUES (%s, %s, %s, %s) ON CONFLICT (key) DO UPDATE"
            " SET rows = excluded.rows, pause = excluded.pause, error = excluded.error",
            key, rows, pause, error,
        )  # fmt: skip

    def calls(self) -> int:
        """Return the number of started calls. A sequence counts them, so a rollback does not decrease it."""
        return self.run("SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM data.calls")

    def live_calls(self) -> int:
        return self.run(LIVE_CALLS)


def oracle(source: Source, slices: Iterable[Slice], folder: Path) -> dict[Slice, str]:
    """Return the SHA-256, in hex, of psql's output for each slice. Remove the pauses of all keys first."""
    source.run("UPDATE data.behavior SET pause = 0")
    folder.mkdir(exist_ok=True)
    files = {slice_: folder / f"{number}.csv" for number, slice_ in enumerate(slices)}
    script = "".join(
        f"\\copy (SELECT * FROM data.rows_for('{key}', '{day}')) TO '{file}' (FORMAT csv, HEADER)\n"
        for (key, day), file in files.items()
    )
    subprocess.run(
        [program("psql"), "--no-psqlrc", "--quiet", "--set", "ON_ERROR_STOP=1", source.url],
        input=script, text=True, check=True, env={"PGTZ": "UTC"}, capture_output=True,
    )  # fmt: skip
    found = {}
    for slice_, file in files.items():
        with file.open("rb") as content:
            found[slice_] = hashlib.file_digest(content, "sha256").hexdigest()
        file.unlink()
    return found
