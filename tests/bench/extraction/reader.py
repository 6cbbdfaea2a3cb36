"""A scripted language model, over real HTTP. It answers from the request alone, as well as its mode allows.

`perfect` reads everything that is shown. `sloppy-2` and `sloppy-10` do so with a defect in 2 or 10 % of the items: a
required member is missing or null, a number is a string or has two digits swapped, or the quote is mangled. When asked
again, they correct the named values, and may fail again. `forgetful` is `sloppy-2` until it is asked to repair
something: then it returns only the first items.
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

from tests.bench.extraction import asked, reading
from tests.bench.extraction.asked import Asked
from tests.bench.extraction.documents import ROWS, Schema
from tests.bench.extraction.reading import Found, Item, Reading
from tests.integration import openai_server
from tests.integration.openai_server import ModelServer, Reply, Request, problem, says

RATES = {"perfect": 0.0, "sloppy-2": 0.02, "sloppy-10": 0.1, "forgetful": 0.02}
REMEMBERED = 10  # items of a forgetful repair


@dataclass(slots=True)
class Account:
    """The cost of the requests for one document."""

    prompt_tokens: int = 0
    calls: int = 0
    repairs: int = 0


@dataclass
class Ledger:
    """Accounts by document, and requests that the reader did not understand."""

    accounts: defaultdict[str, Account] = field(default_factory=lambda: defaultdict(Account))
    unknown: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, wanted: Asked, tokens: int) -> None:
        with self.lock:
            account = self.accounts[wanted.run]
            account.prompt_tokens += tokens
            account.calls += 1
            account.repairs += wanted.is_repair


@contextmanager
def serving() -> Iterator[tuple[ModelServer, Ledger]]:
    ledger = Ledger()
    with openai_server.running() as server:
        server.always(lambda request: reply(request, ledger, server))
        yield server, ledger


def reply(request: Request, ledger: Ledger, server: ModelServer) -> Reply:
    server.requests.clear()  # hundreds of long documents
    tokens = sum(len(message["content"].encode()) for message in request.messages) // 4
    try:
        wanted = asked.read(request)
    except LookupError as error:
        ledger.unknown.append(str(error))
        return problem(400, f"The reader does not understand the request: {error}.")
    ledger.count(wanted, tokens)
    try:
        text = ANSWERS[wanted.kind](wanted)
    except Exception as error:
        ledger.unknown.append(f"{type(error).__name__} in {wanted.run}")
        raise
    return says(text, usage=(tokens, len(text.encode()) // 4))


# ---- Answers --------------------------------------------------------------------------------------------------------
def extract(wanted: Asked) -> str:
    found = reading.read(wanted.data, wanted.schema)
    rate = RATES[wanted.mode]
    if wanted.is_part:
        return correct_part(found, wanted, rate)
    rows = [spoiled(row, index, wanted, rate) for index, row in enumerate(found.rows)]
    rows = rows[: limit(wanted, len(rows))]
    return written(Reading(rows=rows, scalars=spoiled_scalars(found, wanted, rate)), wanted.schema)


def correct_part(found: Reading, wanted: Asked, rate: float) -> str:
    """Return only the items and values that are shown again, as the document has them."""
    shown = json.loads(wanted.previous)["data"]
    rows, position = [], 0
    for item in shown.get(ROWS, []):
        position = nearest(item, found.rows, position)
        rows.append(spoiled(found.rows[position], position, wanted, rate))
        position += 1
    if wanted.mode == "forgetful":
        rows = rows[: len(rows) // 2]
    whole = json.loads(written(Reading(rows=rows, scalars=spoiled_scalars(found, wanted, rate)), wanted.schema))
    whole["data"] = {name: value for name, value in whole["data"].items() if name in shown}
    return json.dumps(whole, ensure_ascii=False)


def nearest(item: dict[str, Any], rows: list[Item], position: int) -> int:
    """Return the index of the row most similar to an item, at or after a position."""
    nearby = range(min(position, len(rows) - 1), len(rows))
    return max(nearby, key=lambda at: sum(item.get(name) == value.value for name, value in rows[at].items()))


def choose(wanted: Asked) -> str:
    """Return the value of the last page, as the schemas of the benchmark require."""
    data: dict[str, Any] = {}
    for pointer, candidates in asked.candidates(wanted.data):
        *above, name = pointer.strip("/").split("/")
        inside = data
        for each in above:
            inside = inside.setdefault(each, {})
        inside[name] = max(candidates, key=lambda candidate: candidate[1])[0]
    return json.dumps({"data": data}, ensure_ascii=False)


def notes(wanted: Asked) -> str:
    """Return the lines with content, each page after its number."""
    lines = [
        f"[page {marker[1]}]" if (marker := reading.MARKER.search(line)) else line
        for line in wanted.data.splitlines()
        if line.startswith(("|", "<", " ")) or ":" in line or reading.ITEM.match(line) or reading.GAP.search(line)
    ]
    return "\n".join(lines) or "nothing"


def combine(wanted: Asked) -> str:
    so_far: dict[str, Any] = {}
    text = wanted.data
    if text.startswith("So far:"):
        so_far, end = json.JSONDecoder().raw_decode(text, text.index("{"))
        text = text[end:]
    made = json.loads(extract(replace(wanted, data=text)))
    kept = {name: value for name, value in made["data"].items() if value is not None and name != ROWS}
    earlier = so_far.get(ROWS) or []
    shift = {
        (f"/{ROWS}/{int(parts[2]) + len(earlier)}/{parts[3]}" if len(parts := key.split("/")) == 4 else key): value
        for key, value in made["evidence"].items()
    }
    data = {**so_far, **kept, ROWS: [*earlier, *made["data"][ROWS]]}
    return json.dumps({"data": data, "evidence": shift}, ensure_ascii=False)


def repair(wanted: Asked) -> str:
    """Correct values without their document: missing ones cannot be added."""
    values, end = json.JSONDecoder().raw_decode(wanted.data, wanted.data.index("{"))
    for pointer in asked.POINTERS.findall(wanted.data[end:]):
        correct(values, pointer.strip("/").split("/"))
    if wanted.mode == "forgetful":
        values[ROWS] = values.get(ROWS, [])[:REMEMBERED]
    return json.dumps({"data": values}, ensure_ascii=False)


def correct(values: Any, path: list[str]) -> None:
    """Turn a number in a string into a number."""
    for token in path[:-1]:
        values = values[int(token)] if isinstance(values, list) else values.get(token, {})
    if isinstance(values, dict) and isinstance(text := values.get(path[-1]), str) and text.endswith(" EUR"):
        values[path[-1]] = json.loads(text.removesuffix(" EUR"))


ANSWERS: dict[str, Callable[[Asked], str]] = {
    "extract": extract,
    "notes": notes,
    "combine": combine,
    "repair": repair,
    "choose": choose,
}


def limit(wanted: Asked, count: int) -> int:
    """Return how many of the items the reader returns."""
    if not wanted.is_repair:
        return count
    if wanted.mode == "forgetful":
        return min(REMEMBERED, count // 2)
    return min(count, rows_shown(wanted.previous)) if wanted.previous else count


def rows_shown(previous: str) -> int:
    """Count the items in an answer that is shown again: the request says "change nothing else", and the answer may be
    cut off.
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


def written(found: Reading, schema: Schema) -> str:
    """Return the answer in the requested form. Values that were not found are null where null is allowed."""
    data: dict[str, Any] = {}
    evidence: dict[str, Any] = {}
    for pointer, _ in reading.scalars_of(schema):
        *above, name = pointer.strip("/").split("/")
        inside = data
        for each in above:
            inside = inside.setdefault(each, {})
        value = found.scalars.get(pointer)
        inside[name] = value.value if value else None
        if value and value.quote:
            evidence[pointer] = {"page": value.page, "quote": value.quote}
    nullable = [name for name, each in reading.members_of(schema).items() if takes_null(each)]
    data[ROWS] = []
    for index, row in enumerate(found.rows):
        data[ROWS].append(dict.fromkeys(nullable) | {name: value.value for name, value in row.items()})
        for name, value in row.items():
            if value.value is not None and value.quote:
                evidence[f"/{ROWS}/{index}/{name}"] = {"page": value.page, "quote": value.quote}
    return json.dumps({"data": data, "evidence": evidence}, ensure_ascii=False)


def takes_null(schema: Schema) -> bool:
    return "null" in (schema.get("type") or [])


# ---- Defects --------------------------------------------------------------------------------------------------------
def spoiled(row: Item, index: int, wanted: Asked, rate: float) -> Item:
    pointer = f"/{ROWS}/{index}"
    dice = dice_of(wanted, pointer)
    if dice.random() >= rate:
        return row
    members = reading.members_of(wanted.schema)
    # A schema for a piece may allow null everywhere. Then nothing shows which members are required.
    required = [name for name in row if not takes_null(members[name])] or list(row)
    numbers = [name for name in required if isinstance(row[name].value, int | float)]
    if not numbers:
        return row
    return DEFECTS[dice.choice(tuple(DEFECTS))](dict(row), dice.choice(required), dice.choice(numbers), dice)


def spoiled_scalars(found: Reading, wanted: Asked, rate: float) -> dict[str, Found]:
    made = {}
    for pointer, value in found.scalars.items():
        dice = dice_of(wanted, pointer)
        item: Item = {"it": value}
        if dice.random() < rate:
            is_number = isinstance(value.value, int | float) and not isinstance(value.value, bool)
            names = [name for name in DEFECTS if is_number or name in ("drop", "null", "quote")]
            item = DEFECTS[dice.choice(names)](item, "it", "it", dice)
        if "it" in item:
            made[pointer] = item["it"]
    return made


def dice_of(wanted: Asked, pointer: str) -> Random:
    """Return the random generator of a value: the same for each request, until a complaint names the value."""
    named = [any(f"{each}/".startswith(f"{pointer}/") for each in complaint) for complaint in wanted.complaints]
    times = len(named) if wanted.is_part else sum(named)
    return Random(f"{wanted.key} {pointer} {times}")


def drop(row: Item, name: str, _number: str, _dice: Random) -> Item:
    del row[name]
    return row


def null(row: Item, name: str, _number: str, _dice: Random) -> Item:
    return row | {name: changed(row[name], value=None)}


def mistype(row: Item, _name: str, number: str, _dice: Random) -> Item:
    return row | {number: changed(row[number], value=f"{row[number].value} EUR")}


def misread(row: Item, _name: str, number: str, _dice: Random) -> Item:
    """Swap two digits, or, if that changes nothing, add one."""
    value = row[number].value
    digits = list(f"{abs(value)}")
    for first, pair in enumerate(pairwise(digits)):
        if all(map(str.isdecimal, pair)) and pair[0] != pair[1] and (first > 0 or pair[1] != "0"):
            digits[first : first + 2] = reversed(pair)
            made = json.loads("".join(digits))
            return row | {number: changed(row[number], value=-made if value < 0 else made)}
    return row | {number: changed(row[number], value=value + 1)}


def mangle(row: Item, _name: str, _number: str, dice: Random) -> Item:
    """Cut off, shorten, or misplace the quotes of an item."""
    manner = dice.choice(("cut", "shorten", "page", "none"))
    return {name: mangled(value, manner) for name, value in row.items()}


def mangled(value: Found, manner: str) -> Found:
    match manner:
        case "cut":
            return changed(value, quote=value.quote[2:-1])
        case "shorten":
            return changed(value, quote=f"{value.quote[:8]} … {value.quote[-4:]}")
        case "page":
            return Found(value=value.value, page=value.page + 1, quote=value.quote)
    return changed(value, quote="")


def changed(found: Found, **changes: Any) -> Found:
    return Found(**({"value": found.value, "page": found.page, "quote": found.quote} | changes))


DEFECTS: dict[str, Callable[[Item, str, str, Random], Item]] = {
    "drop": drop,
    "null": null,
    "type": mistype,
    "misread": misread,
    "quote": mangle,
}
