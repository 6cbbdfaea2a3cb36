"""Readings by a complete installation: submits documents to its API, and downloads their Markdown."""

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
AT_ONCE = 50  # documents that are submitted together


def read_by_api(cases: Sequence[Case]) -> Iterator[tuple[Case, Reading]]:
    with service.running({}) as installation:
        remaining = iter(cases)
        while batch := list(islice(remaining, AT_ONCE)):
            yield from read_batch(installation, batch)


def read_batch(installation: Service, cases: Sequence[Case]) -> Iterator[tuple[Case, Reading]]:
    """Submit documents and yield their readings."""
    for case, task_id in [(case, submit(installation, case)) for case in cases]:
        if isinstance(task_id, str):
            yield case, Reading(error=task_id)
        else:
            yield case, result(installation, installation.finished(task_id))


def submit(installation: Service, case: Case) -> int | str:
    """Submit a document. Return the ID of the task, or the error code if the document is refused."""
    response = installation.send("POST", "/submit", files={"file": (case.name, case.path.read_bytes())})
    if response.is_server_error or response.status_code in {401, 403, 429}:
        response.raise_for_status()
    body = response.json()
    return str(body["code"]) if response.is_error else int(body["task_id"])


def result(installation: Service, task: dict[str, Any]) -> Reading:
    metadata, error = task["metadata"], task["error"]
    warnings = [f"{each['code']} {each.get('page') or ''}".strip() for each in metadata["warnings"]]
    if error:
        return Reading(error=str(error["code"]), warnings=warnings)
    markdown = installation.send("GET", f"/tasks/{task['task_id']}/markdown").raise_for_status().text
    seconds = metadata["ocr"]["duration_ms"] / 1000
    return Reading(markdown=re.sub(PAGE_MARKER, "", markdown), seconds=seconds, warnings=warnings)
