"""Sluice as its clients see it: HTTP and a token, and nothing of its own code."""

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx2

from config.dev.demo.promises import DidNotHold, must

# A link is bound to the client that made the job, so what downloads must look like what submitted.
HEADERS = {"User-Agent": "sluice-demo"}
TIMEOUT_SECONDS = 30
POLL_SECONDS = 0.25
# A chunk takes milliseconds. Its lease and the reaper's interval are 75 s: this long without any chunk means never.
PATIENCE_SECONDS = 120
ENDED = {"success", "failed", "cancelled"}

Job = dict[str, Any]  # as `GET /exports/{jobId}` shows it


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """A job that was accepted. `began` is when the POST was sent, on `time.monotonic`'s clock; `latency` in seconds."""

    job_id: str
    began: float
    latency: float


@contextmanager
def connected(base_url: str, **headers: str) -> Iterator[httpx2.Client]:
    """Give a client of the local stack. It asks no proxy of the environment: none can reach it."""
    with httpx2.Client(
        base_url=base_url, headers={**HEADERS, **headers}, timeout=TIMEOUT_SECONDS, trust_env=False
    ) as client:
        yield client


def submit(api: httpx2.Client, request: dict[str, Any], *, chunks: int) -> Submitted:
    began = time.monotonic()
    answer = api.post("/exports", json=request)
    latency = time.monotonic() - began
    accepted = expect(answer, HTTPStatus.ACCEPTED).json()
    must(accepted["totalChunks"] == chunks, f"the job has {accepted['totalChunks']} chunks instead of {chunks}")
    return Submitted(job_id=accepted["jobId"], began=began, latency=latency)


def follow(api: httpx2.Client, job_id: str, *, check: Callable[[], None]) -> Iterator[Job]:
    """Yield the job again and again until it has ended, that state included. `check` raises when it cannot go on."""
    last, since = None, time.monotonic()
    while True:
        job = expect(api.get(f"/exports/{job_id}"), HTTPStatus.OK).json()
        yield job
        if job["status"] in ENDED:
            return
        check()
        state = (job["status"], job["progress"]["done"])
        if state != last:
            last, since = state, time.monotonic()
        must(time.monotonic() - since < PATIENCE_SECONDS, f"nothing has moved for {PATIENCE_SECONDS} s: {state}")
        time.sleep(POLL_SECONDS)


def unfinished(api: httpx2.Client) -> list[Job]:
    """Return the user's newest jobs as far as they have not ended."""
    newest = expect(api.get("/exports?limit=50"), HTTPStatus.OK).json()["results"]
    return [job for job in newest if job["status"] not in ENDED]


def why_not(api: httpx2.Client, job: Job) -> str:
    """Return why a job did not succeed, with the first of its chunks that failed."""
    lines = [f"the job ended as {job['status']}{reason(job['error'])}"]
    failed = expect(api.get(f"/exports/{job['jobId']}/chunks?status=failed&limit=3"), HTTPStatus.OK).json()
    lines += [f"{each['key']} {each['effectiveDate']} failed{reason(each['error'])}" for each in failed["results"]]
    return "\n".join(lines)


def reason(error: dict[str, Any] | None) -> str:
    return f": {error['code']}: {error['title']}. {error['detail']}" if error else ""


def redeem(link: str) -> str:
    """Use the one-time link up, without a token, and return where it redirects to."""
    with connected("") as anyone:
        answer = expect(anyone.get(link), HTTPStatus.FOUND)
    must(answer.headers.get("Cache-Control") == "no-store", "the redirect of a one-time link may be cached")
    return str(answer.headers["Location"])


def download(url: str, target: Path) -> tuple[str, int]:
    """Stream an object into a file. Returns its SHA-256, in hex, and its size."""
    digest, size = hashlib.sha256(), 0
    with connected("") as anyone, anyone.stream("GET", url) as answer, target.open("wb") as file:
        must(answer.status_code == HTTPStatus.OK, f"the object store answered {answer.status_code} to the redirect")
        for block in answer.iter_raw():
            digest.update(block)
            size += len(block)
            file.write(block)
    return digest.hexdigest(), size


def refusal(link: str) -> tuple[int, str]:
    """Return the status and the error code that a link is answered with."""
    with connected("") as anyone:
        answer = anyone.get(link)
    return answer.status_code, answer.json().get("code", "") if answer.is_error else ""


def expect(answer: httpx2.Response, status: HTTPStatus) -> httpx2.Response:
    if answer.status_code != status:
        # Only the path: the query of a link is its secret.
        asked = f"{answer.request.method} {answer.request.url.path}"
        raise DidNotHold(f"{asked} answered {answer.status_code} instead of {status.value}: {answer.text[:500]}")
    return answer
