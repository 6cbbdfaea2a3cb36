"""Versioned datasets, and the expected files of the clean one.

The functions of the dataset `rude` change the state of their session; those of `clean` do not. Each call reads the
version of the source once, so all rows of a file have the same version. A row of a clean function also shows session
state that an earlier call may have left. Each schema version has a separate function with different columns.
"""

import time
from datetime import date, datetime, timedelta
from threading import Event, Thread

import psycopg

from tests.chaos.history.record import Record
from tests.chaos.source import Source

KEYS = ["ATL", "JFK", "LHR", "SIN", "SLOW", "BIG", "ODD"]
ROWS = {"BIG": 20_000, "SIN": 500}
FEW = 20  # rows of all other keys
TICK_SECONDS = 0.2  # between two versions

TABLES = f"""
CREATE TABLE data.clock (version bigint NOT NULL);
INSERT INTO data.clock VALUES (1);
CREATE FUNCTION data.rows_of(key text) RETURNS int LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE key {" ".join(f"WHEN '{key}' THEN {rows}" for key, rows in ROWS.items())} ELSE {FEW} END
$$;
"""
CLEAN = """
CREATE FUNCTION data.clean_{schema}(key text, effective_date date)
RETURNS TABLE (k text, day date, version bigint, n int, at timestamptz, ratio float8, tenant text, untouched boolean,
               schema_{schema} int)
LANGUAGE sql STABLE AS $$
    WITH seen AS MATERIALIZED (
        SELECT c.version, coalesce(nullif(current_setting('app.tenant', true), ''), 'none') AS tenant,
               current_user = session_user AND to_regclass('pg_temp.leftover') IS NULL AND NOT EXISTS (
                   SELECT 1 FROM pg_locks l WHERE l.locktype = 'advisory' AND l.pid = pg_backend_pid()
                   AND l.mode = 'ExclusiveLock'  -- the call itself holds a shared one
               ) AS untouched
        FROM data.clock c, pg_sleep(CASE key WHEN 'SLOW' THEN 1 ELSE 0 END)
    )
    SELECT key, effective_date, s.version, n, (effective_date + n * interval '1 second') AT TIME ZONE 'UTC',
           (n + 0.1::float8) / 3, s.tenant, s.untouched, {schema}
    FROM seen s, generate_series(1, data.rows_of(key)) n ORDER BY n
$$
"""
RUDE = """
CREATE FUNCTION data.rude_{schema}(key text, effective_date date)
RETURNS TABLE (k text, day text, version bigint, n int, schema_{schema} int)
LANGUAGE plpgsql AS $$ #variable_conflict use_column
DECLARE
    seen bigint := (SELECT c.version FROM data.clock c);
    many int := data.rows_of($1);
BEGIN
    IF random() < (CASE $1 WHEN 'ODD' THEN 0.8 ELSE 0.1 END) THEN RAISE 'no such slice' USING ERRCODE = 'P0001'; END IF;
    CASE floor(random() * 7)
        WHEN 0 THEN PERFORM set_config('TimeZone', 'Asia/Tokyo', false);
        WHEN 1 THEN PERFORM set_config('DateStyle', 'German', false);
        WHEN 2 THEN PERFORM set_config('extra_float_digits', '-10', false);
        WHEN 3 THEN PERFORM set_config('app.tenant', 'rude', false);
        WHEN 4 THEN CREATE TEMP TABLE leftover AS SELECT 1 AS one;
        WHEN 5 THEN PERFORM pg_try_advisory_lock(4711);
        ELSE SET ROLE pg_monitor; PERFORM set_config('search_path', 'pg_catalog', false);
    END CASE;
    RETURN QUERY SELECT $1, to_char($2::timestamp, 'YYYY-MM-DD'), seen, g, {schema} FROM generate_series(1, many) g;
END $$
"""
FUNCTIONS = {"clean": CLEAN, "rude": RUDE}


def function_of(dataset: str, schema: int) -> str:
    return f"data.{dataset}_{schema}"


def create_function(source: Source, dataset: str, schema: int) -> str:
    """Create the function of a dataset for a schema version, and return its name."""
    name = function_of(dataset, schema)
    source.run(f"DROP FUNCTION IF EXISTS {name}")
    source.run(FUNCTIONS[dataset].format(schema=schema))
    return name


class Clock:
    """A thread that increments the version of the source five times a second, and records every fifth version."""

    def __init__(self, source: Source, record: Record) -> None:
        self.source, self.record = source, record
        self.stopped = Event()
        self.thread = Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        while not self.stopped.is_set():
            try:
                with psycopg.connect(self.source.url, autocommit=True) as connection:
                    self.tick(connection)
            except psycopg.Error:
                time.sleep(TICK_SECONDS)  # a fault stopped the server

    def tick(self, connection: psycopg.Connection) -> None:
        while not self.stopped.wait(TICK_SECONDS):
            began = time.monotonic()
            row = connection.execute("UPDATE data.clock SET version = version + 1 RETURNING version").fetchone()
            if row and row[0] % 5 == 0:
                self.record.add("tick", began, version=row[0])

    def stop(self) -> None:
        self.stopped.set()
        self.thread.join(10)


# ---- Expected files of the clean dataset -----------------------------------------------------------------------------


def clean_file(slices: list[tuple[str, str, int]], *, schema: int, form: str) -> bytes:
    """Return the expected file of these slices (key, date, version), in UTC, with all digits and the default tenant."""
    head = f"k,day,version,n,at,ratio,tenant,untouched,schema_{schema}\n" if form == "csv" else ""
    return (head + "".join(clean_rows(*each, schema=schema, form=form) for each in slices)).encode()


def clean_rows(key: str, day: str, version: int, *, schema: int, form: str) -> str:
    start = datetime.combine(date.fromisoformat(day), datetime.min.time())
    lines = []
    for n in range(1, ROWS.get(key, FEW) + 1):
        at, ratio = start + timedelta(seconds=n), (n + 0.1) / 3
        if form == "csv":
            lines.append(f"{key},{day},{version},{n},{at}+00,{ratio!r},none,t,{schema}\n")
        else:
            lines.append(
                f'{{"k":"{key}","day":"{day}","version":"{version}","n":{n},"at":"{at.isoformat()}+00:00",'
                f'"ratio":{ratio!r},"tenant":"none","untouched":true,"schema_{schema}":{schema}}}\n'
            )
    return "".join(lines)
