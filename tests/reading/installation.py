"""Our reader as used by a client: documents submitted to a whole installation, and their Markdown from its API."""

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
AT_ONCE = 50  # documents of one user


def read_by_api(cases: Sequence[Case]) -> Iterator[tuple[Case, Reading]]:
    with service.running({}) as installation:
        waiting = iter(cases)
        while some := list(islice(waiting, AT_ONCE)):
            yield from read_some(installation, some)


def read_some(installation: Service, cases: Sequence[Case]) -> Iterator[tuple[Case, Reading]]:
    """Submit documents, and yield their readings."""
    for case, task_id in [(case, submit(installation, case)) for case in cases]:
        if isinstance(task_id, str):
            yield case, Reading(error=task_id)
        else:
            yield case, result(installation, installation.finished(task_id))


def submit(installation: Service, case: Case) -> int | str:
    """Return the ID of the new task, or the error code of a refusal."""
    answer = installation.send("POST", "/submit", files={"file": (case.name, case.path.read_bytes())})
    if answer.is_server_error or answer.status_code in {401, 403, 429}:
        answer.raise_for_status()
    body = answer.json()
    return str(body["code"]) if answer.is_error else int(body["task_id"])


def result(installation: Service, task: dict[str, Any]) -> Reading:
    metadata, error = task["metadata"], task["error"]
    warnings = [f"{each['code']} {each.get('page') or ''}".strip() for each in metadata["warnings"]]
    if error:
        return Reading(error=str(error["code"]), warnings=warnings)
    markdown = installation.send("GET", f"/tasks/{task['task_id']}/markdown").raise_for_status().text
    seconds = metadata["ocr"]["duration_ms"] / 1000
    return Reading(markdown=re.sub(PAGE_MARKER, "", markdown), seconds=seconds, warnings=warnings)
