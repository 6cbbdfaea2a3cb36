"""Prepared statements, on a real Postgres."""

from collections.abc import Iterator
from typing import Any, cast

import pytest
from django.conf import LazySettings
from django.contrib.auth.models import User
from django.db import ProgrammingError, connection, transaction
from django.db.utils import NotSupportedError
from django.test.utils import CaptureQueriesContext
from prometheus_client import REGISTRY

from config.platform.db import sql
from config.platform.db.base import DatabaseWrapper
from exports.jobs import representation
from exports.models import Dataset
from exports.worker import leases, transitions
from tests.conftest import change_settings
from tests.integration import outcomes
from tests.integration.factories import claim_one, make_job, result_of

FIND = sql.PreparedStatement("SELECT id, word FROM scratch WHERE id = %(id)s::bigint")
PREPARED = "SELECT count(*) FROM pg_prepared_statements"


@pytest.fixture
def scratch(transactional_db: None) -> Iterator[None]:
    """A table with one row, in a new session."""
    new_session()
    sql_run("CREATE TABLE scratch (id bigint PRIMARY KEY, word text)", "INSERT INTO scratch VALUES (1, 'one')")
    yield
    sql_run("DROP TABLE scratch")


def new_session() -> None:
    """Make the next statement open a new session instead of using one from the pool."""
    cast("DatabaseWrapper", connection).pool.drain()
    connection.close()


def sql_run(*statements: str) -> None:
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def find(number: int = 1) -> Any:
    row = sql.one(FIND, id=number)
    return row and row["word"]


def test_a_statement_is_prepared_once_for_numbers_of_any_size(scratch: None) -> None:
    assert [find(number) for number in (1, 2, 40_000, 3_000_000_000)] == ["one", None, None, None]
    assert sql.scalar(f"{PREPARED} WHERE statement LIKE '%%FROM scratch%%'") == 1


def test_the_query_log_contains_the_statement(scratch: None) -> None:
    with CaptureQueriesContext(connection) as queries:
        find()
    assert [query["sql"] for query in queries.captured_queries] == [
        "SELECT id, word FROM scratch WHERE id = %(id)s::bigint"
    ]


def test_a_statement_survives_a_migration_of_its_result_types(scratch: None) -> None:
    assert find() == "one"
    sql_run("ALTER TABLE scratch ALTER word TYPE int USING 7")
    assert [find(), find()] == [7, 7]


def test_a_statement_works_in_a_session_that_has_not_prepared_it(scratch: None) -> None:
    """A pooler may switch sessions for each transaction."""
    assert find() == "one"
    sql_run("DEALLOCATE ALL")
    assert [find(), find()] == ["one", "one"]


def test_another_statement_of_the_same_name_is_never_run(scratch: None) -> None:
    """A pooler may give the session to another connection, which prepares its own statements in it."""
    assert find() == "one"
    name = sql.scalar("SELECT name FROM pg_prepared_statements WHERE statement LIKE '%%FROM scratch%%'")
    new_session()
    with connection.cursor() as cursor:
        cursor.execute(f'PREPARE "{name}" (bigint) AS SELECT $1 AS id, 7 AS word')
    assert find() == "one"


def test_statements_are_counted_in_the_metrics(scratch: None) -> None:
    before = executed()
    find()
    assert executed() - before == 1


def executed() -> float:
    return REGISTRY.get_sample_value("django_db_execute_total", {"alias": "default", "vendor": "postgresql"}) or 0


def test_a_statement_is_not_repeated_in_a_failed_transaction(scratch: None) -> None:
    assert find() == "one"
    sql_run("ALTER TABLE scratch ALTER word TYPE int USING 7")
    with pytest.raises(NotSupportedError), transaction.atomic():
        find()
    assert find() == 7


def test_errors_of_a_statement_are_raised(scratch: None) -> None:
    with pytest.raises(ProgrammingError):
        sql.one(sql.PreparedStatement("SELECT 1 FROM nowhere WHERE id = %(id)s::bigint"), id=1)


def test_preparation_can_be_disabled(scratch: None, settings: LazySettings) -> None:
    change_settings(settings, database_prepare=False)
    assert find() == "one"
    assert sql.scalar(PREPARED) == 0


def test_rejects_comments() -> None:
    with pytest.raises(ValueError, match="comment"):
        sql.PreparedStatement("SELECT 1 -- one")


@pytest.mark.parametrize("statement", [leases.PREPARED_CLAIM, transitions.PREPARED_FINISH, representation.FIND])
def test_statements_of_each_chunk_or_poll_are_short_enough_for_the_parser_cache(statement: str) -> None:
    assert len(statement) <= sql.CACHED_LENGTH


def test_batches_are_claimed_and_finished_by_statements_that_are_planned_once(dataset: Dataset, alice: User) -> None:
    make_job(dataset, alice, 60)
    prepared: list[int] = []
    while len(claims := leases.claim_batch(backend="test", sizes={"things": 3})) > 1:
        outcomes.finish([(claim, result_of(claim)) for claim in claims])
        prepared.append(sql.scalar(PREPARED))
    assert len(prepared) > 3
    assert set(prepared) == {prepared[0]}


def test_claims_and_finishes_are_two_statements_that_are_planned_once(
    dataset: Dataset, alice: User, django_assert_num_queries: Any
) -> None:
    make_job(dataset, alice, 5)
    with django_assert_num_queries(2):
        claimed = claim_one(backend="test")
        assert claimed
        transitions.finish([(claimed, result_of(claimed))])
    before = sql.scalar(PREPARED)
    while claimed := claim_one(backend="test"):
        outcomes.finish([(claimed, result_of(claimed))])
    assert sql.scalar(PREPARED) == before
