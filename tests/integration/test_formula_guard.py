"""The formula guard of CSV files, in source databases of every kind of encoding, and for every kind of type."""

import csv
import io
import sys
import unicodedata
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from django.conf import LazySettings
from pydantic import SecretStr

from config.dev.stack.postgres import SUPERUSER
from config.platform import formulas
from exports.core.planning import Dialect, Shape
from tests import servers
from tests.conftest import change_settings
from tests.integration.test_encoding import encoded

ESCAPE = Shape(dialect=Dialect(formula_policy="escape"))
SIGNS = "=+-@\ufe62\ufe63\ufe66\ufe6b\uff0b\uff0d\uff1d\uff20"
# Format characters that are visible: signs above numbers and words, and controls of hieroglyphs.
VISIBLE = {*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD, *range(0x13430, 0x13440)}
# Characters of other categories that have no glyph.
FILLERS = "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2065\u2800\u3164\ufe00\ufe0f\uffa0\ufff0\U000e0100"
INVISIBLE = [
    *FILLERS,
    *(
        chr(code)
        for code in range(1, sys.maxunicode)
        if unicodedata.category(chr(code)) in {"Cc", "Cf", "Zs", "Zl", "Zp"} and code not in VISIBLE
    ),
]
CELLS = [
    *(f"{sign}1+1" for sign in SIGNS),
    *(f"{each}=1+1" for each in INVISIBLE),
    *("\u3000\xa0\u200b\uff1d1", "\xad\n\U0001bca0@x", "\x85\ttext", " \r"),
]
SAFE = [
    "x=1",
    "é=1",
    "日本",
    "Ｘ＝1",
    "\x1fx",
    "\xa0é",
    "\u3000字",
    "",
    "-5",
    "+.5e-10",
    "-5 ",
    "½",
    "'=1",
    "a\n=1",
    "7=1",
]
ENCODINGS = ["UTF8", "SQL_ASCII", "LATIN1", "WIN1252", "WIN1256", "KOI8R", "EUC_JP", "EUC_JIS_2004", "EUC_KR", "EUC_TW"]
# Returns the cells that the encoding of the database can represent. Conversions to EUC_JIS_2004 accept a few more.
CELLS_FUNCTION = """
CREATE SCHEMA data;
CREATE FUNCTION data.cells(key text, effective_date date) RETURNS TABLE (cell text) LANGUAGE plpgsql AS $$
DECLARE
    each text;
BEGIN
    FOREACH each IN ARRAY string_to_array('{cells}', ' ') LOOP
        BEGIN
            cell := convert_from(decode(each, 'hex'), 'UTF8');
            IF convert_to(cell, 'UTF8') = decode(each, 'hex') THEN
                RETURN NEXT;
            END IF;
        EXCEPTION WHEN untranslatable_character OR character_not_in_repertoire THEN NULL;
        END;
    END LOOP;
END $$
"""


@pytest.fixture
def source_of(settings: LazySettings) -> Iterator[Callable[[str], psycopg.Connection]]:
    """A function that creates a source database with an encoding, and returns a connection to it."""
    server, name = servers.started[0].postgres, "encoded"
    opened: list[psycopg.Connection] = []
    with psycopg.connect(server.url(SUPERUSER), autocommit=True) as admin:

        def source_of(encoding: str) -> psycopg.Connection:
            admin.execute(
                f"CREATE DATABASE {name} OWNER source ENCODING '{encoding}' TEMPLATE template0"
                " LOCALE_PROVIDER libc LC_COLLATE 'C' LC_CTYPE 'C'"
            )
            url = f"{settings.SLUICE.source_url.rpartition('/')[0]}/{name}"
            change_settings(settings, source_database_url=SecretStr(url))
            opened.append(psycopg.connect(url, autocommit=True, client_encoding="UTF8"))
            return opened[0]

        yield source_of
        for connection in opened:
            connection.close()
        admin.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


def cells_of(data: bytes) -> list[str]:
    return [row[0] if row else "" for row in csv.reader(io.StringIO(data.decode(), newline=""))][1:]


def create(connection: psycopg.Connection, cells: list[str]) -> None:
    connection.execute(CELLS_FUNCTION.format(cells=" ".join(each.encode().hex() for each in cells)))


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_formulas_are_escaped_in_every_encoding(source_of: Callable[[str], Any], encoding: str) -> None:
    """A20."""
    create(source_of(encoding), CELLS)
    plain = cells_of(encoded(Shape(), ("data", "cells"))[0])
    assert len(plain) > 35  # the ASCII characters at least
    assert len(plain) == len(CELLS) or encoding not in {"UTF8", "SQL_ASCII"}
    assert cells_of(encoded(ESCAPE, ("data", "cells"))[0]) == [f"'{each}" for each in plain]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_other_text_is_unchanged_in_every_encoding(source_of: Callable[[str], Any], encoding: str) -> None:
    create(source_of(encoding), SAFE)
    assert encoded(ESCAPE, ("data", "cells"))[0] == encoded(Shape(), ("data", "cells"))[0]


def test_built_in_datasets_escape_the_same_cells() -> None:
    assert [formulas.escaped(each) for each in CELLS] == [f"'{each}" for each in CELLS]
    assert [formulas.escaped(each) for each in SAFE] == SAFE


def test_headers_are_escaped_and_long_ones_fit_in_every_encoding(source_of: Callable[[str], Any]) -> None:
    """63 characters are 126 bytes in UTF-8."""
    long = "é" * 63
    source_of("LATIN1").execute(f"""
        CREATE SCHEMA data;
        CREATE FUNCTION data.cells(key text, effective_date date) RETURNS TABLE ("\xa0=1" text, "{long}" text)
        LANGUAGE sql AS $$ SELECT 'a', 'b' $$
    """)
    assert encoded(ESCAPE, ("data", "cells"))[0].decode() == f"'\xa0=1,{long}\na,b\n"


def test_every_type_whose_text_can_be_a_formula_is_escaped(source_db: psycopg.Connection) -> None:
    source_db.execute(r"""
        CREATE DOMAIN data.code AS varchar(9);
        CREATE DOMAIN data.label AS data.code;
        CREATE TYPE data.sign AS ENUM ('=1+1', 'plain');
        CREATE DOMAIN data.signs AS data.sign;
        CREATE FUNCTION data.texts(key text, effective_date date) RETURNS TABLE (
            a text, b varchar, c char(9), d name, e data.label, f data.sign, g data.signs, h "char", i regoperator,
            j regoper, k aclitem)
        LANGUAGE plpgsql AS $$ BEGIN
            RETURN QUERY SELECT '=1'::text, '=1'::varchar, '=1'::char(9), '=1'::name, '=1'::data.label,
                '=1+1'::data.sign, '=1+1'::data.signs, '='::"char", '=(integer,integer)'::regoperator, '@?'::regoper,
                '=r/source'::aclitem;
        END $$
    """)
    data, _ = encoded(ESCAPE, ("data", "texts"))
    rows = list(csv.reader(io.StringIO(data.decode())))
    assert {name: cell for name, cell in zip(*rows, strict=True) if not cell.startswith("'")} == {}


def test_types_whose_text_is_no_formula_are_unchanged(source_db: psycopg.Connection) -> None:
    """In JSON, only numbers can start with a sign. Other types start with a bracket, or cannot contain formulas."""
    source_db.execute(r"""
        CREATE TYPE data.pair AS (a text, b text);
        CREATE DOMAIN data.list AS text[];
        CREATE FUNCTION data.others(key text, effective_date date) RETURNS TABLE (
            a text[], b data.list, c data.pair, d data.pair, e json, f jsonb, g interval, h numeric, i money, j char(9),
            k timestamp, l numrange, m data.list[], n inet, o bit(3))
        LANGUAGE sql AS $$ SELECT ARRAY['=1'], ARRAY['=1'], ('=1', '=2')::data.pair, (NULL, NULL)::data.pair,
            E'\t-5'::json, '"=1"'::jsonb, interval '-1 day', -1.50, '-2'::money, '-5', '-infinity'::timestamp,
            '[-1,2]'::numrange, '{"{=1}"}'::data.list[], '::1'::inet, '101'::bit(3) $$
    """)
    assert encoded(ESCAPE, ("data", "others"))[0] == encoded(Shape(), ("data", "others"))[0]
