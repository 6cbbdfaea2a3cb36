"""Parser of requests to the model server. It uses only the messages of a request."""

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.bench.extraction.documents import Schema
from tests.integration.openai_server import Request

MARKED = re.compile(r"^([0-9a-f]{16,64})$\n(.*?)\n^\1$", re.MULTILINE | re.DOTALL)
SCHEMA = re.compile(r"JSON Schema[^\n{]*:\s*(?:```json\s*)?(?=\{)")
READER = re.compile(r"\[reader: (?P<mode>[a-z0-9-]+); document: (?P<run>[^\]]+)\]")
POINTERS = re.compile(r"/[A-Za-z0-9_~/-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """A parsed request.

    - `kind`: extract, notes, combine, repair (values without their document), or choose (between values of pieces).
    - `run` and `mode`: from the instructions of the rule.
    - `is_again`: whether rows are read again because an earlier response about them was wrong.
    - `previous`: in a corrective retry, the last response, or only its wrong parts if `is_part`.
    - `complaints`: the JSON Pointers in the message of each retry.
    """

    kind: str
    mode: str
    run: str
    schema: Schema
    data: str
    is_again: bool = False
    previous: str = ""
    is_part: bool = False
    complaints: tuple[tuple[str, ...], ...] = ()

    @property
    def is_repair(self) -> bool:
        return self.kind == "repair" or self.is_again or bool(self.complaints)

    @property
    def key(self) -> str:
        """Return a digest of the request, without the random marker."""
        return hashlib.sha256(f"{self.run} {self.kind} {self.data}".encode()).hexdigest()


def instruction(*, mode: str, run: str) -> str:
    """Return the instructions of a rule: the mode of the reader, and the run to count tokens for."""
    return f"[reader: {mode}; document: {run}]"


def read(request: Request) -> ModelRequest:
    """Parse a request. Raises LookupError if it does not have the expected format."""
    whole = "\n\n".join(message["content"] for message in request.messages)
    reader, marked = READER.search(whole), MARKED.search(whole)
    if reader is None or marked is None:
        raise LookupError("no instructions, or no document between markers")
    rounds = request.messages[next(n for n, each in enumerate(request.messages) if marked[1] in each["content"]) + 1 :]
    responses = [each["content"] for each in rounds if each["role"] == "assistant"]
    complaints = [tuple(POINTERS.findall(each["content"])) for each in rounds if each["role"] == "user" and responses]
    return ModelRequest(
        kind=kind_of(request, whole[: marked.start()], marked[2]),
        mode=reader["mode"],
        run=reader["run"],
        schema=schema_of(whole),
        data=marked[2],
        is_again="that an earlier answer got wrong" in whole[: marked.start()],
        previous=responses[-1] if responses else "",
        is_part=bool(responses) and "only these parts" in rounds[-1]["content"],
        complaints=tuple(complaints),
    )


def kind_of(request: Request, before: str, data: str) -> str:
    if "notes in plain text" in before:
        return "notes"
    if "What is wrong:" in data and data.startswith("The values:"):
        return "repair"
    if data.startswith("Values of /"):
        return "choose"
    return "combine" if "Notes of page" in data or data.startswith("So far:") else "extract"


def schema_of(whole: str) -> Schema:
    found = SCHEMA.search(whole)
    if found is None:
        raise LookupError("no JSON Schema")
    schema: Any = json.JSONDecoder().raw_decode(whole, found.end())[0]
    return dict(schema)


def candidates(data: str) -> Iterator[tuple[str, list[tuple[Any, int]]]]:
    """Parse a request to choose between values. Yield each pointer, and its values with their last pages."""
    for block in data.split("\n\n"):
        first, *lines = block.splitlines()
        if pointer := re.match(r"Values of (/\S+):$", first):
            yield pointer[1], [candidate(line.removeprefix("- ")) for line in lines]


def candidate(line: str) -> tuple[Any, int]:
    value, end = json.JSONDecoder().raw_decode(line)
    return value, max(map(int, re.findall(r"\d+", line[end:])), default=0)
