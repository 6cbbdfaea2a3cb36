"""The comparison of Parquet files in the benchmark P13."""

from pathlib import Path

import duckdb
import pytest

from tests.bench.parquet_file import content_of

ROWS = """
SELECT n::int AS id, n || '' AS name, 'note ' || n AS note, (n * 1.37)::decimal(12, 2) AS amount,
       '2024-01-01 00:00:00+00'::timestamptz + n * interval '1 second' AS at
FROM range(1, 1001) each(n)
"""
DIFFERENT = {
    "another time": """* REPLACE ("at" + (id = 7)::int * interval '1 microsecond' AS "at")""",
    "amounts of other rows": "* REPLACE (CASE id WHEN 1 THEN 2.74 WHEN 2 THEN 1.37 ELSE amount END AS amount)",
    "another note": "* REPLACE (note || (CASE id WHEN 7 THEN ' ' ELSE '' END) AS note)",
    "another column": "*, 1 AS more",
}
OTHER_TYPES = """* REPLACE (id::bigint AS id, amount::decimal(38, 9) AS amount, "at"::timestamp AS "at")"""


def parquet_of(file: Path, columns: str) -> Path:
    duckdb.execute(f"COPY (SELECT {columns} FROM ({ROWS}) ORDER BY name) TO '{file}' (FORMAT parquet)")
    return file


@pytest.mark.parametrize("columns", DIFFERENT.values(), ids=DIFFERENT)
def test_files_that_differ_in_any_column_are_not_equal(tmp_path: Path, columns: str) -> None:
    """A regression test: times were not compared, and amounts were compared only by their sum."""
    other = parquet_of(tmp_path / "other.parquet", columns)
    assert content_of(parquet_of(tmp_path / "ours.parquet", "*")) != content_of(other)


def test_files_with_other_types_are_equal(tmp_path: Path) -> None:
    other = parquet_of(tmp_path / "other.parquet", OTHER_TYPES)
    assert content_of(parquet_of(tmp_path / "ours.parquet", "*")) == content_of(other)
