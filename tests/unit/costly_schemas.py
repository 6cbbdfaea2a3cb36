"""Random search for JSON Schemas that are expensive to check: `python -m tests.unit.costly_schemas SEED SECONDS`.

Each schema is checked in a separate process, so that its memory can be measured. The program prints the CPU seconds and
the MiB of the most expensive schemas.
"""

import json
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from django.conf import settings

SIZE = 64 * 1024
DEFINITIONS = 6
LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
MAPS = ("properties", "properties", "patternProperties", "dependentSchemas", "definitions", "x-more")
SINGLE = ("not", "if", "items", "contains", "additionalProperties", "unevaluatedProperties", "propertyNames")
PATTERNS = ("a", r"\w{20}", r"\p{L}{9}", ".{400}", "(?i)[a-z]{900}", "x" * 900, "(a|b|c|d){300}", r"(\w{9}){999}")


def quadratic_schema(**schema: Any) -> dict[str, Any]:
    return {"$defs": {"big": {"properties": {str(n): {} for n in range(2500)}}}, **schema}


# Each of these schemas once took seconds or hundreds of megabytes.
KNOWN: dict[str, Any] = {
    "one anchor many times": {"allOf": [{"$anchor": "a", "$ref": "#a"}] * 2300},
    "one dynamic anchor many times": {"allOf": [{"$dynamicAnchor": "a", "$dynamicRef": "#a"}] * 1500},
    "a long name around many parts": {"properties": {"x" * 32_000: {"allOf": [{}] * 10_000}}},
    "a long name around many errors": {"properties": {"x" * 50_000: {"allOf": [5] * 1990}}},
    "many pointers to one part": {
        "x": [{"allOf": [{}] * 9000}],
        "allOf": [{"$ref": f"#/x/{'0' * n}"} for n in range(1, 220)],
    },
    "many references beside unevaluated": quadratic_schema(
        unevaluatedProperties=False, allOf=[{"$ref": "#/$defs/big"}] * 1000
    ),
    "unevaluated beside many references": quadratic_schema(
        allOf=[{"$ref": "#/$defs/big", "unevaluatedProperties": False}] * 600,
    ),
    "a long path through many parts": quadratic_schema(
        properties={str(n): {} for n in range(1500)} | {"a": {"$ref": "#"}, "s": {"x-sum-of": "/a" * 4000}}
    ),
}


class Generator:
    """Generator of random schemas with a few features each. A part is repeated many times, or contains other parts."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.containers: Features = ()
        self.leaves: Features = ()
        self.definition = 0

    def schema(self, features: "tuple[Features, Features] | None" = None) -> dict[str, Any]:
        """Return a schema of at most `SIZE` bytes."""
        some = self.random.choices
        chosen = some(CONTAINERS, k=self.random.randint(1, 2)), some(LEAVES, k=self.random.randint(1, 3))
        self.containers, self.leaves = features if features and features[0] else (tuple(chosen[0]), tuple(chosen[1]))
        share = self.random.choice((0.3, 0.6, 0.9))
        definitions = {}
        for number in range(DEFINITIONS):
            self.definition = number
            definitions[f"d{number}"] = self.part(2, int(SIZE * (1 - share)) // DEFINITIONS)
        self.definition = self.random.choice((-1, DEFINITIONS))
        root = {**self.part(3, int(SIZE * share * 0.9)), "$defs": definitions}
        while size(root) > SIZE and definitions:
            definitions.popitem()
        return root

    def part(self, depth: int, room: int) -> dict[str, Any]:
        chosen = self.random.choices(self.leaves, k=self.random.choice((0, 1, 1, 2) if depth else (1, 2)))
        if depth:
            chosen.append(self.random.choice(self.containers))
        found: dict[str, Any] = {}
        for feature in chosen:
            found |= feature(self, depth, int(room * 0.9))
        return found

    def list_of_parts(self, depth: int, room: int) -> dict[str, Any]:
        return {self.random.choice(LISTS): self.repeated(depth, room, 1) or [{}]}

    def map_of_parts(self, depth: int, room: int) -> dict[str, Any]:
        parts = self.repeated(depth, room, 8)
        return {self.random.choice(MAPS): {str(n): part for n, part in enumerate(parts)}}

    def long_name(self, depth: int, room: int) -> dict[str, Any]:
        name = "n" * min(self.random.choice((200, 5000, SIZE)), room // 2)
        return {"properties": {name: self.inner(depth, room // 2)}}

    def single_part(self, depth: int, room: int) -> dict[str, Any]:
        return {self.random.choice(SINGLE): self.inner(depth, room)}

    def unevaluated(self, depth: int, room: int) -> dict[str, Any]:
        return {self.random.choice(("unevaluatedProperties", "unevaluatedItems")): False}

    def reference(self, depth: int, room: int) -> dict[str, Any]:
        """Return a reference to an earlier definition, so that most schemas are not recursive."""
        number = self.random.randrange(self.definition) if self.definition > 0 else 0
        tail = self.random.choice(("", "", "", "/allOf/0", "/allOf/" + "0" * self.random.randint(1, 300)))
        return {"$ref": f"#/$defs/d{number}{tail}" if self.definition else "#/$defs/d5"}

    def anchor(self, depth: int, room: int) -> dict[str, Any]:
        name = self.random.choice(("a", "a", str(self.random.random())))
        return {self.random.choice(("$anchor", "$dynamicAnchor")): name, "$ref": f"#{name}"}

    def pattern(self, depth: int, room: int) -> dict[str, Any]:
        return {"pattern": self.random.choice(PATTERNS)}

    def data(self, depth: int, room: int) -> dict[str, Any]:
        numbers = range(min(room // 8, 3000))
        names, lists = [str(n) for n in numbers], [[n] for n in numbers] or [[1]]
        objects: list[dict[str, Any]] = [{}] * len(numbers)
        return self.random.choice(({"required": names}, {"enum": lists}, {"const": objects}))

    def invalid(self, depth: int, room: int) -> dict[str, Any]:
        wrong: tuple[dict[str, Any], ...] = (
            {"type": 5},
            {"minLength": "a"},
            {"allOf": []},
            {"$id": "a"},
            {"$ref": "#b"},
            {"items": 5},
        )
        return self.random.choice(wrong)

    def extension(self, depth: int, room: int) -> dict[str, Any]:
        path = "/1" * self.random.choice((1, 9, min(room // 5, 9000)))
        return self.random.choice(({"x-sum-of": path}, {"x-merge": "first"}, {"x-merge-key": "1"}))

    def nothing(self, depth: int, room: int) -> dict[str, Any]:
        return {}

    def inner(self, depth: int, room: int) -> dict[str, Any]:
        return self.part(self.random.choice((0, depth - 1)), room) if room > 20 else {}

    def repeated(self, depth: int, room: int, extra: int) -> list[Any]:
        """Return a part many times, or a few different parts."""
        if self.random.random() < 0.2:
            return [self.inner(depth, room // 3) for _ in range(3)]
        part = self.inner(depth, self.random.choice((0, 60, 300, room // 20)))
        most = room // (size(part) + extra + 1)
        return [part] * self.random.choice((most, most, min(most, 40)))


Feature = Callable[[Generator, int, int], dict[str, Any]]
Features = tuple[Feature, ...]
G = Generator
CONTAINERS: Features = (G.list_of_parts, G.list_of_parts, G.map_of_parts, G.map_of_parts, G.long_name, G.single_part)
LEAVES: Features = (
    *(G.nothing, G.nothing, G.unevaluated, G.reference, G.reference, G.anchor, G.anchor),
    *(G.pattern, G.data, G.extension, G.invalid),
)


Found = tuple[float, str, tuple[Features, Features] | None]


def size(value: Any) -> int:
    return len(json.dumps(value, separators=(",", ":")))


def cost(text: str) -> tuple[float, float]:
    """Check a schema in a separate process, and return its CPU seconds and additional MiB."""
    from rules.schema import json_schema

    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        schema = json.loads(text)
        Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM, the peak of memory
        before, began = memory("VmHWM"), time.process_time()
        json_schema.check(schema)
        os.write(writing, f"{time.process_time() - began} {memory('VmHWM') - before}".encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        seconds, kilobytes = map(float, answer.read().split())
    os.waitpid(child, 0)
    return seconds, kilobytes / 1024


def memory(name: str) -> int:
    """Return a memory value of this process, such as `VmHWM`, in KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def main(seed: int, seconds: float) -> None:
    from rules.schema import json_schema

    for draft in json_schema.DRAFTS:
        json_schema.check({"$schema": draft, "type": 5})  # compiles the meta-schemas, which are cached
    generator, until = Generator(seed), time.monotonic() + seconds
    slowest: Found = (0.0, "", None)
    largest: Found = (0.0, "", None)
    number, known = 0, list(KNOWN.values())
    while known or time.monotonic() < until:
        # Two thirds of the schemas have the features of the most expensive ones so far.
        again = generator.random.choice((slowest[2], largest[2], None))
        text = json.dumps(known.pop() if known else generator.schema(again))
        used, taken = cost(text)
        slowest = max(slowest, (used, text, (generator.containers, generator.leaves)), key=lambda found: found[0])
        largest = max(largest, (taken, text, (generator.containers, generator.leaves)), key=lambda found: found[0])
        number += 1
    report = {"schemas": number, "seconds": slowest[0], "slowest": slowest[1][:2000]}
    sys.stdout.write(json.dumps({**report, "mebibytes": largest[0], "largest": largest[1][:2000]}))


if __name__ == "__main__":
    settings.configure()
    main(int(sys.argv[1]), float(sys.argv[2]))
