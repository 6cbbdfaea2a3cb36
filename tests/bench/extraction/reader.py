"""Scripted language model over real HTTP. It reads only the text in the request, with one of these modes:

- `perfect` reads everything correctly.
- `sloppy-2` and `sloppy-10` have a defect in 2 or 10 % of the items: a required member is missing or null, a number is
  a string or has two swapped digits, or the quote is mangled. In a retry, they read the named values again, and may
  make another mistake.
- `forgetful` is like `sloppy-2`, but returns only the first items in repairs.
"""

import json
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random
from typing import Any

from tests.bench.extraction import model_request, reading
from tests.bench.extraction.documents import ROWS, Schema
from tests.bench.extraction.model_request import ModelRequest
from tests.bench.extraction.reading import Found, Item, Reading
from tests.integration import openai_server
from tests.integration.openai_server import ModelServer, Reply, Request, problem, text_reply

RATES = {"perfect": 0.0, "sloppy-2": 0.02, "sloppy-10": 0.1, "forgetful": 0.02}
REMEMBERED = 10  # items that the mode `forgetful` returns in a repair


@dataclass(slots=True)
class Account:
    """The cost of the requests for one document."""

    prompt_tokens: int = 0
    calls: int = 0
    repairs: int = 0


@dataclass
class Ledger:
    """Accounts by document, and errors for requests that could not be parsed."""

    accounts: defaultdict[str, Account] = field(default_factory=lambda: defaultdict(Account))
    unknown: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, parsed: ModelRequest, tokens: int) -> None:
        with self.lock:
            account = self.accounts[parsed.run]
            account.prompt_tokens += tokens
            account.calls += 1
            account.repairs += parsed.is_repair


@contextmanager
def serving() -> Iterator[tuple[ModelServer, Ledger]]:
    ledger = Ledger()
    with openai_server.running() as server:
        server.set_default(lambda request: reply(request, ledger, server))
        yield server, ledger


def reply(request: Request, ledger: Ledger, server: ModelServer) -> Reply:
    server.requests.clear()  # saves memory: there are hundreds of long documents
    tokens = sum(len(message["content"].encode()) for message in request.messages) // 4
    try:
        parsed = model_request.read(request)
    except LookupError as error:
        ledger.unknown.append(str(error))
        return problem(400, f"The reader cannot parse the request: {error}.")
    ledger.count(parsed, tokens)
    try:
        text = RESPONSES[parsed.kind](parsed)
    except Exception as error:
        ledger.unknown.append(f"{type(error).__name__} in {parsed.run}")
        raise
    return text_reply(text, usage=(tokens, len(text.encode()) // 4))


# ---- Responses ------------------------------------------------------------------------------------------------------
def extract(parsed: ModelRequest) -> str:
    found = reading.read(parsed.data, parsed.schema)
    rate = RATES[parsed.mode]
    if parsed.is_part:
        return correct_part(found, parsed, rate)
    rows = [with_defect(row, index, parsed, rate) for index, row in enumerate(found.rows)]
    rows = rows[: limit(parsed, len(rows))]
    return to_json(Reading(rows=rows, scalars=scalars_with_defects(found, parsed, rate)), parsed.schema)


def correct_part(found: Reading, parsed: ModelRequest, rate: float) -> str:
    """Return only the items and values of the previous response, read again from the document."""
    shown = json.loads(parsed.previous)["data"]
    rows, position = [], 0
    for item in shown.get(ROWS, []):
        position = nearest(item, found.rows, position)
        rows.append(with_defect(found.rows[position], position, parsed, rate))
        position += 1
    if parsed.mode == "forgetful":
        rows = rows[: len(rows) // 2]
    whole = json.loads(to_json(Reading(rows=rows, scalars=scalars_with_defects(found, parsed, rate)), parsed.schema))
    whole["data"] = {name: value for name, value in whole["data"].items() if name in shown}
    return json.dumps(whole, ensure_ascii=False)


def nearest(item: dict[str, Any], rows: list[Item], position: int) -> int:
    """Return the index of the row that is most similar to an item, at or after a position."""
    nearby = range(min(position, len(rows) - 1), len(rows))
    return max(nearby, key=lambda at: sum(item.get(name) == value.value for name, value in rows[at].items()))


def choose(parsed: ModelRequest) -> str:
    """Choose the value of the last page, as the schemas of the benchmark require."""
    data: dict[str, Any] = {}
    for pointer, candidates in model_request.candidates(parsed.data):
        set_value(data, pointer, max(candidates, key=lambda candidate: candidate[1])[0])
    return json.dumps({"data": data}, ensure_ascii=False)


def set_value(data: dict[str, Any], pointer: str, value: Any) -> None:
    *above, name = pointer.strip("/").split("/")
    for each in above:
        data = data.setdefault(each, {})
    data[name] = value


def notes(parsed: ModelRequest) -> str:
    """Return the lines with content, with a marker for each page."""
    lines = [
        f"[page {marker[1]}]" if (marker := reading.MARKER.search(line)) else line
        for line in parsed.data.splitlines()
        if line.startswith(("|", "<", " ")) or ":" in line or reading.ITEM.match(line) or reading.GAP.search(line)
    ]
    return "\n".join(lines) or "nothing"


def combine(parsed: ModelRequest) -> str:
    so_far: dict[str, Any] = {}
    text = parsed.data
    if text.startswith("So far:"):
        so_far, end = json.JSONDecoder().raw_decode(text, text.index("{"))
        text = text[end:]
    result = json.loads(extract(replace(parsed, data=text)))
    kept = {name: value for name, value in result["data"].items() if value is not None and name != ROWS}
    earlier = so_far.get(ROWS) or []
    shift = {
        (f"/{ROWS}/{int(parts[2]) + len(earlier)}/{parts[3]}" if len(parts := key.split("/")) == 4 else key): value
        for key, value in result["evidence"].items()
    }
    data = {**so_far, **kept, ROWS: [*earlier, *result["data"][ROWS]]}
    return json.dumps({"data": data, "evidence": shift}, ensure_ascii=False)


def repair(parsed: ModelRequest) -> str:
    """Correct values without their document. Missing values cannot be added."""
    values, end = json.JSONDecoder().raw_decode(parsed.data, parsed.data.index("{"))
    for pointer in model_request.POINTERS.findall(parsed.data[end:]):
        correct(values, pointer.strip("/").split("/"))
    if parsed.mode == "forgetful":
        values[ROWS] = values.get(ROWS, [])[:REMEMBERED]
    return json.dumps({"data": values}, ensure_ascii=False)


def correct(values: Any, path: list[str]) -> None:
    """Convert a number in a string to a number."""
    for token in path[:-1]:
        values = values[int(token)] if isinstance(values, list) else values.get(token, {})
    if isinstance(values, dict) and isinstance(text := values.get(path[-1]), str) and text.endswith(" EUR"):
        values[path[-1]] = json.loads(text.removesuffix(" EUR"))


RESPONSES: dict[str, Callable[[ModelRequest], str]] = {
    "extract": extract,
    "notes": notes,
    "combine": combine,
    "repair": repair,
    "choose": choose,
}


def limit(parsed: ModelRequest, count: int) -> int:
    """Return the number of items that the reader returns."""
    if not parsed.is_repair:
        return count
    if parsed.mode == "forgetful":
        return min(REMEMBERED, count // 2)
    return min(count, rows_shown(parsed.previous)) if parsed.previous else count


def rows_shown(previous: str) -> int:
    """Count the complete items in a previous response, which may be truncated.

    The request says "change nothing else", so the reader returns no more items.
    """
    decoder, position, count = json.JSONDecoder(), previous.find("[", previous.find(f'"{ROWS}"')), 0
    while position > 0 and (position := previous.find("{", position)) > 0:
        try:
            _, position = decoder.raw_decode(previous, position)
        except json.JSONDecodeError:
            break
        count += 1
        if previous[position : position + 1] == "]":
            break
    return count


def to_json(found: Reading, schema: Schema) -> str:
    """Return a response in the requested format. Values that were not found are null if null is allowed."""
    data: dict[str, Any] = {}
    evidence: dict[str, Any] = {}
    for pointer, _ in reading.scalars_of(schema):
        value = found.scalars.get(pointer)
        set_value(data, pointer, value.value if value else None)
        if value and value.quote:
            evidence[pointer] = {"page": value.page, "quote": value.quote}
    nullable = [name for name, each in reading.members_of(schema).items() if allows_null(each)]
    data[ROWS] = []
    for index, row in enumerate(found.rows):
        data[ROWS].append(dict.fromkeys(nullable) | {name: value.value for name, value in row.items()})
        for name, value in row.items():
            if value.value is not None and value.quote:
                evidence[f"/{ROWS}/{index}/{name}"] = {"page": value.page, "quote": value.quote}
    return json.dumps({"data": data, "evidence": evidence}, ensure_ascii=False)


def allows_null(schema: Schema) -> bool:
    return "null" in (schema.get("type") or [])


# ---- Defects --------------------------------------------------------------------------------------------------------
def with_defect(row: Item, index: int, parsed: ModelRequest, rate: float) -> Item:
    pointer = f"/{ROWS}/{index}"
    rng = rng_of(parsed, pointer)
    if rng.random() >= rate:
        return row
    members = reading.members_of(parsed.schema)
    # A schema for a piece may allow null for all members. Then, all members in the row count as required.
    required = [name for name in row if not allows_null(members[name])] or list(row)
    numbers = [name for name in required if isinstance(row[name].value, int | float)]
    if not numbers:
        return row
    return DEFECTS[rng.choice(tuple(DEFECTS))](dict(row), rng.choice(required), rng.choice(numbers), rng)


def scalars_with_defects(found: Reading, parsed: ModelRequest, rate: float) -> dict[str, Found]:
    result = {}
    for pointer, value in found.scalars.items():
        rng = rng_of(parsed, pointer)
        item: Item = {"it": value}
        if rng.random() < rate:
            is_number = isinstance(value.value, int | float) and not isinstance(value.value, bool)
            names = [name for name in DEFECTS if is_number or name in ("drop", "null", "quote")]
            item = DEFECTS[rng.choice(names)](item, "it", "it", rng)
        if "it" in item:
            result[pointer] = item["it"]
    return result


def rng_of(parsed: ModelRequest, pointer: str) -> Random:
    """Return the random generator of a value. It stays the same until a complaint names the value."""
    named = [any(f"{each}/".startswith(f"{pointer}/") for each in complaint) for complaint in parsed.complaints]
    times = len(named) if parsed.is_part else sum(named)
    return Random(f"{parsed.key} {pointer} {times}")


def drop(row: Item, name: str, _number: str, _rng: Random) -> Item:
    del row[name]
    return row


def null(row: Item, name: str, _number: str, _rng: Random) -> Item:
    return row | {name: replace(row[name], value=None)}


def mistype(row: Item, _name: str, number: str, _rng: Random) -> Item:
    return row | {number: replace(row[number], value=f"{row[number].value} EUR")}


def misread(row: Item, _name: str, number: str, _rng: Random) -> Item:
    """Swap two digits, or add one if swapping changes nothing."""
    value = row[number].value
    digits = list(f"{abs(value)}")
    for first, pair in enumerate(pairwise(digits)):
        if all(map(str.isdecimal, pair)) and pair[0] != pair[1] and (first > 0 or pair[1] != "0"):
            digits[first : first + 2] = reversed(pair)
            result = json.loads("".join(digits))
            return row | {number: replace(row[number], value=-result if value < 0 else result)}
    return row | {number: replace(row[number], value=value + 1)}


def mangle(row: Item, _name: str, _number: str, rng: Random) -> Item:
    """Truncate, shorten, misplace, or remove the quotes of an item."""
    defect = rng.choice(("cut", "shorten", "page", "none"))
    return {name: mangled(value, defect) for name, value in row.items()}


def mangled(value: Found, defect: str) -> Found:
    match defect:
        case "cut":
            return replace(value, quote=value.quote[2:-1])
        case "shorten":
            return replace(value, quote=f"{value.quote[:8]} … {value.quote[-4:]}")
        case "page":
            return replace(value, page=value.page + 1)
    return replace(value, quote="")


DEFECTS: dict[str, Callable[[Item, str, str, Random], Item]] = {
    "drop": drop,
    "null": null,
    "type": mistype,
    "misread": misread,
    "quote": mangle,
}
