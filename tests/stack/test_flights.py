import psycopg
import pytest

from config.dev.stack import flights
from config.dev.stack.servers import Servers


@pytest.mark.slow
def test_loading_flights_twice_keeps_one_copy(stack_servers: Servers) -> None:
    url = stack_servers.postgres.url("source")
    assert flights.load(url) is True
    assert flights.load(url) is False
    with psycopg.connect(url) as connection:
        row = connection.execute(
            """
            SELECT count(*), count(DISTINCT (origin, flight_date)), count(*) FILTER (WHERE dep_time IS NULL),
                   count(*) FILTER (WHERE tailnum = 'NA')
            FROM demo.flights
            """
        ).fetchone()
        assert row == (336_776, 1_095, 8_255, 0)
        slices = "SELECT * FROM demo.flights_for('JFK', '2013-02-15')"
        plain = connection.execute(slices).fetchall()
        assert len(plain) == 314
        assert connection.execute("SELECT * FROM demo.flights_for('JFK', '2014-02-15')").fetchall() == []
        # Without a total order, the order of rows depends on the plan.
        connection.execute("SET enable_indexscan = off; SET enable_bitmapscan = off")
        assert connection.execute(slices).fetchall() == plain
