"""A client of Sluice's API that uses no code of Sluice."""

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx2

from config.dev.demo.checks import CheckFailed, require

# A link is bound to the client that submitted the job, so all requests have the same User-Agent.
HEADERS = {"User-Agent": "sluice-demo"}
TIMEOUT_SECONDS = 30
POLL_SECONDS = 0.25
# A chunk takes milliseconds, and its lease and the reaper's interval are 75 s together: a longer pause is an error.
STALL_SECONDS = 120
ENDED = {"success", "completed", "failed", "cancelled"}  # of jobs and tasks

Job = dict[str, Any]  # the response of `GET /exports/{jobId}`


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedJob:
    """An accepted job. `started_at` is the monotonic time of the POST; `latency` is in seconds."""

    job_id: str
    started_at: float
    latency: float


@contextmanager
def connected(base_url: str, **headers: str) -> Iterator[httpx2.Client]:
    """Yield a client of the local stack that ignores proxies of the environment."""
    with httpx2.Client(
        base_url=base_url, headers={**HEADERS, **headers}, timeout=TIMEOUT_SECONDS, trust_env=False
    ) as client:
        yield client


def submit(api: httpx2.Client, request: dict[str, Any], *, chunks: int) -> SubmittedJob:
    started_at = time.monotonic()
    response = api.post("/exports", json=request)
    latency = time.monotonic() - started_at
    accepted = expect(response, HTTPStatus.ACCEPTED).json()
    require(accepted["totalChunks"] == chunks, f"the job has {accepted['totalChunks']} chunks instead of {chunks}")
    return SubmittedJob(job_id=accepted["jobId"], started_at=started_at, latency=latency)


def follow(api: httpx2.Client, job_id: str, *, check: Callable[[], None]) -> Iterator[Job]:
    """Yield the job repeatedly until it has ended. `check` raises if the stack has failed."""
    for job in poll(api, f"/exports/{job_id}", lambda job: job["progress"]["done"], check=check):
        yield job
        time.sleep(POLL_SECONDS)


def poll(
    api: httpx2.Client, path: str, progress: Callable[[dict[str, Any]], int], *, check: Callable[[], None]
) -> Iterator[dict[str, Any]]:
    """Fetch and yield a job or task repeatedly until it has ended.

    Raises CheckFailed if it makes no progress for STALL_SECONDS.
    """
    last, since = None, time.monotonic()
    while True:
        found = expect(api.get(path), HTTPStatus.OK).json()
        yield found
        if found["status"] in ENDED:
            return
        check()
        state = (found["status"], progress(found))
        if state != last:
            last, since = state, time.monotonic()
        require(time.monotonic() - since < STALL_SECONDS, f"no progress for {STALL_SECONDS} s: {state}")


def unfinished(api: httpx2.Client) -> list[Job]:
    """Return the unfinished jobs among the user's 50 newest ones."""
    newest = expect(api.get("/exports?limit=50"), HTTPStatus.OK).json()["results"]
    return [job for job in newest if job["status"] not in ENDED]


def failure_report(api: httpx2.Client, job: Job) -> str:
    """Return the error of an unsuccessful job, with its first failed chunks."""
    lines = [f"the job ended as {job['status']}{reason(job['error'])}"]
    failed = expect(api.get(f"/exports/{job['jobId']}/chunks?status=failed&limit=3"), HTTPStatus.OK).json()
    lines += [f"{each['key']} {each['effectiveDate']} failed{reason(each['error'])}" for each in failed["results"]]
    return "\n".join(lines)


def reason(error: dict[str, Any] | None) -> str:
    return f": {error['code']}: {error['title']}. {error['detail']}" if error else ""


def redeem(link: str) -> str:
    """Use the one-time link without a token, and return the target of its redirect."""
    with connected("") as anonymous:
        response = expect(anonymous.get(link), HTTPStatus.FOUND)
    require(response.headers.get("Cache-Control") == "no-store", "the redirect of a one-time link can be cached")
    return str(response.headers["Location"])


def download(url: str, target: Path) -> tuple[str, int]:
    """Stream an object to a file. Return its SHA-256, in hex, and its size."""
    digest, size = hashlib.sha256(), 0
    with connected("") as anonymous, anonymous.stream("GET", url) as response, target.open("wb") as file:
        require(response.status_code == HTTPStatus.OK, f"the object storage returned {response.status_code}")
        for block in response.iter_raw():
            digest.update(block)
            size += len(block)
            file.write(block)
    return digest.hexdigest(), size


def refusal(link: str) -> tuple[int, str]:
    """Return the status and the error code of the response to a link. The code is "" if the link works."""
    with connected("") as anonymous:
        response = anonymous.get(link)
    return response.status_code, response.json().get("code", "") if response.is_error else ""


def expect(response: httpx2.Response, status: HTTPStatus) -> httpx2.Response:
    if response.status_code != status:
        # Without the query, which is the secret part of a link.
        sent = f"{response.request.method} {response.request.url.path}"
        raise CheckFailed(f"{sent} returned {response.status_code} instead of {status.value}: {response.text[:500]}")
    return response
