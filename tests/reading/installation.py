"""Readings by a complete installation, through its API: submit documents, and download their Markdown."""

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from etl.providers.base import PAGE_MARKER
from tests.bench.extraction import service
from tests.bench.extraction.service import Service
from tests.reading.corpus import Case
from tests.reading.reading import Reading

API = "api"
BATCH_SIZE = 50  # documents that are submitted together


def read_by_api(cases: Sequence[Case]) -> Iterator[tuple[Case, Reading]]:
    with service.running({}) as installation:
        remaining = iter(cases)
        while batch := list(islice(remaining, BATCH_SIZE)):
            yield from read_batch(installation, batch)


def read_batch(installation: Service, cases: Sequence[Case]) -> Iterator[tuple[Case, Reading]]:
    """Submit all documents of a batch, then yield their readings in the same order."""
    for case, body in [(case, submit(installation, case)) for case in cases]:
        if "task_id" in body:
            yield case, reading_of(installation, installation.finished(int(body["task_id"])))
        else:
            yield case, Reading(error=str(body["code"]))


def submit(installation: Service, case: Case) -> dict[str, Any]:
    """Submit a document. Return the response: a task, or a problem if the document is refused."""
    response = installation.send("POST", "/submit", files={"file": (case.name, case.path.read_bytes())})
    if response.is_server_error or response.status_code in {401, 403, 429}:
        response.raise_for_status()
    body: dict[str, Any] = response.json()
    return body


def reading_of(installation: Service, task: dict[str, Any]) -> Reading:
    metadata, error = task["metadata"], task["error"]
    warnings = [f"{each['code']} {each.get('page') or ''}".strip() for each in metadata["warnings"]]
    if error:
        return Reading(error=str(error["code"]), warnings=warnings)
    markdown = installation.send("GET", f"/tasks/{task['task_id']}/markdown").raise_for_status().text
    seconds = metadata["ocr"]["duration_ms"] / 1000
    return Reading(markdown=re.sub(PAGE_MARKER, "", markdown), seconds=seconds, warnings=warnings)
