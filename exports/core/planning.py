"""Expansion of a request into an ordered list of (key, date) pairs, and their object keys. Pure functions."""

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import date, timedelta
from typing import NamedTuple
from unicodedata import normalize

SUFFIXES = {"gzip": ".gz", "zstd": ".zst"}
MAX_DUPLICATES = 2**31 - 1  # the largest number that the column of jobs can store


class Pair(NamedTuple):
    key: str
    effective_date: date


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """CSV options. The default is the output of Postgres' COPY."""

    bom: bool = False
    delimiter: str = ","
    formula_policy: str = "none"

    @property
    def is_default(self) -> bool:
        return self == Dialect()

    @property
    def digest(self) -> str:
        """Eight hex digits that identify a non-default dialect in paths."""
        return hashlib.sha256(repr(sorted(asdict(self).items())).encode()).hexdigest()[:8]

    def as_json(self) -> dict[str, object]:
        """Return the dialect in the form of requests and manifests."""
        return {"bom": self.bom, "delimiter": self.delimiter, "formulaPolicy": self.formula_policy}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The properties that determine the path of a file, besides dataset, key, and date."""

    format: str = "csv"
    compression: str = "none"
    dialect: Dialect = Dialect()
    columns: tuple[str, ...] = ()  # empty: all columns of the function

    @property
    def extension(self) -> str:
        return f".{self.format}" + (SUFFIXES.get(self.compression, "") if self.format != "parquet" else "")

    @property
    def folder(self) -> str:
        """The folder below the base path for files with other than the default options; usually empty."""
        dialect = "" if self.format != "csv" or self.dialect.is_default else f"_dialect-{self.dialect.digest}/"
        uncompressed = "_compression-none/" if self.format == "parquet" and self.compression == "none" else ""
        return dialect + uncompressed + (f"_columns-{digest(self.columns)}/" if self.columns else "")


def digest(columns: tuple[str, ...]) -> str:
    """Return sixteen hex digits that identify the selected columns and their order in paths."""
    return hashlib.sha256(repr(columns).encode()).hexdigest()[:16]


def file_name(pair: Pair, shape: Shape) -> str:
    """Return the path from the year on: `2013/02/15/JFK_20130215.csv`."""
    day = pair.effective_date.isoformat()  # strftime would not pad the year 7 to four digits
    return f"{day.replace('-', '/')}/{pair.key}_{day.replace('-', '')}{shape.extension}"


def distinct_file_name(pair: Pair, shape: Shape, taken: Counter[str]) -> str:
    """Return the file name, with `_2`, `_3`, … before its extension if file systems confuse it with a name in `taken`.

    Those of Windows and macOS ignore case, and some ignore Unicode normalization. Adds the name to `taken`.
    """
    name = file_name(pair, shape)
    folded = normalize("NFC", normalize("NFC", name).casefold())
    taken[folded] += 1
    # No other name ends like this: the extension follows the eight digits of the date.
    return name if taken[folded] == 1 else f"{name.removesuffix(shape.extension)}_{taken[folded]}{shape.extension}"


def object_key(base_path: str, pair: Pair, shape: Shape) -> str:
    """Return the object key of a file. It depends only on dataset, key, date, and shape."""
    return f"{base_path}/{shape.folder}{file_name(pair, shape)}"


def days(first: date, last: date) -> Iterator[date]:
    """Yield every day from first to last, inclusive."""
    return (first + timedelta(days=n) for n in range((last - first).days + 1))


def expand(keys: Iterable[str], first: date, last: date) -> Iterator[Pair]:
    """Yield the pairs of filters: all days of each key, in the order of the keys."""
    return (Pair(key, day) for key in keys for day in days(first, last))


def count_pairs(keys: Collection[str], first: date, last: date) -> int:
    """Return the number of pairs that `expand` yields for distinct keys, without creating them."""
    return len(keys) * max(0, (last - first).days + 1)


def deduplicate(pairs: Iterable[Pair]) -> tuple[list[Pair], int]:
    """Return the pairs without duplicates, in the order of their first occurrence, and the number of duplicates."""
    listed = list(pairs)
    unique = list(dict.fromkeys(listed))
    return unique, len(listed) - len(unique)


def from_filters(keys: list[str], first: date, last: date) -> tuple[list[Pair], int]:
    """Return the pairs of filters without duplicates, and the number of duplicates that repeated keys would add.

    Duplicates are only counted, up to MAX_DUPLICATES, because a short request can specify billions of them.
    """
    unique = list(dict.fromkeys(keys))
    pairs = list(expand(unique, first, last))
    return pairs, min(count_pairs(keys, first, last) - len(pairs), MAX_DUPLICATES)
