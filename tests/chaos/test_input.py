"""Two thousand generated requests to a real installation. Row 22 of docs/reliability.md.

`tests/contract/test_fuzz.py` compares the responses with the schema. Here, the effects are checked: workers continue,
refused requests leave nothing behind, and all accepted work ends normally.
"""

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from config.platform.db import sql
from config.settings import BASE_DIR
from exports.models import Job, Webhook
from rules.models import Rule
from tests.chaos import invariants
from tests.chaos.documents import BOTH_QUEUES, settle, submit
from tests.chaos.site import Site
from tests.contract.conftest import HIGH_LIMITS
from tests.contract.test_fuzz import UNKNOWN_ID, configuration
from tests.integration.etl_factories import make_rule
from tests.integration.receiver import Receiver, receiver

REQUESTS = 2_000
EXAMPLES = 6  # per operation and phase, which results in more than REQUESTS
SAMPLE = 60
# Accepted work must be short.
BOUNDED: dict[str, Any] = {**HIGH_LIMITS, "EXPORT_MAX_CHUNKS_PER_JOB": "6", "EXPORT_MAX_ATTEMPTS": "2"}
PROBLEM = {"type", "title", "status", "code"}
TABLES = """
SELECT table_name AS name FROM information_schema.tables WHERE table_schema = 'public' AND table_type = 'BASE TABLE'
"""


@dataclass(frozen=True)
class Exchange:
    """A sent request and its response."""

    method: str
    url: str
    headers: list[tuple[str, str]]
    body: str | None
    status: int
    content_type: str
    response: str

    @property
    def path(self) -> str:
        return self.url.split("?")[0]

    @classmethod
    def of_entry(cls, entry: dict[str, Any]) -> "Exchange":
        """Return the exchange of a HAR entry."""
        request, response = entry["request"], entry["response"]
        return cls(
            method=request["method"],
            url=request["url"],
            headers=[(header["name"], header["value"]) for header in request["headers"]],
            body=request.get("postData", {}).get("text"),
            status=response["status"],
            content_type=response["content"].get("mimeType", ""),
            response=response["content"].get("text") or "",
        )


def request_values(site: Site, receiving: Receiver) -> dict[str, list[Any]]:
    """Return values for requests: IDs of objects in different states, and IDs that do not exist."""
    site.dataset("flights")  # as in the schema's examples
    site.source.behave("EWR", error=True)
    done, failed = site.submit("JFK"), site.submit("EWR")
    hook = str(site.subscribe(receiving.url).pk)
    delivery = site.client.post(f"/exports/webhooks/{hook}/test").json()["id"]
    mine = make_rule(site.owner, mode="llm", name="mine")
    systems = make_rule(None, name="the system's", slug="a-system-rule")
    completed, refused = submit(site, "Hello.", rule=mine), submit(site, "raise OcrRefused", rule=mine)
    site.settle(done, failed)
    settle(completed, refused)
    return {
        "jobs": [str(done.pk), str(failed.pk), UNKNOWN_ID],
        "webhooks": [hook, UNKNOWN_ID],
        "deliveries": [delivery, UNKNOWN_ID],
        "tasks": [completed.pk, refused.pk, 10**9, 2**63 - 1],
        "rules": [mine.pk, systems.pk, 10**9, 2**63 - 1],
        "keys": ["JFK", "EWR", "..", "a/b"],
        "days": ["2024-02-28", "2024-02-29", "0001-01-01"],
        "datasets": ["flights", "nothing"],
        "urls": [receiving.url, "https://127.0.0.1/", "http://10.0.0.1/", "ftp://127.0.0.1/"],
        "files": [f"etl/uploads/{site.owner.pk}/{UNKNOWN_ID}", "../../x"],
        "types": ["text/plain", "application/pdf", "application/zip"],
    }


def generate(site: Site, known: dict[str, list[Any]], folder: Path) -> list[Exchange]:
    """Send generated requests, and return the exchanges. The seed depends on the seed of the test run."""
    (folder / "schemathesis.toml").write_text(configuration(known))
    seed = site.random.randrange(2**31)
    report = folder / "requests.har"
    ran = subprocess.run(
        [
            sys.executable, "-m", "schemathesis.cli", "--config-file", folder / "schemathesis.toml", "run",
            BASE_DIR / "docs" / "openapi.yaml", "--url", str(site.client.base_url).rstrip("/"),
            "--header", f"Authorization: {site.client.headers['Authorization']}",
            "--max-examples", str(EXAMPLES), "--seed", str(seed), "--no-color",
            "--report", "har", "--report-har-path", report, "--output-sanitize", "false",
        ],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, f"--seed {seed}\n{ran.stdout}{ran.stderr}"
    return [Exchange.of_entry(entry) for entry in json.loads(report.read_text())["log"]["entries"]]


def start_workers(site: Site) -> None:
    """Start workers, with a separate one for webhooks, because many generated webhooks have no receiver."""
    site.start_worker(f"exports,bundles,maintenance,{BOTH_QUEUES}", **BOUNDED)
    site.start_worker("webhooks", children=1, **BOUNDED)


# ---- Checks --------------------------------------------------------------------------------------------------------
def is_problem(exchange: Exchange) -> bool:
    if exchange.method == "HEAD":
        return True  # responses have no body
    if not exchange.content_type.startswith("application/problem+json"):
        return False
    problem = json.loads(exchange.response)
    return bool(problem.keys() >= PROBLEM and problem["status"] == exchange.status)


def is_repeatable(exchange: Exchange) -> bool:
    """Return whether the request was refused permanently, and can be repeated without effects.

    Attempts to redeem a link cannot, because they are recorded.
    """
    is_text = exchange.body is None or exchange.body.isascii()
    is_form = any(name.lower() == "content-type" and value.startswith("multipart") for name, value in exchange.headers)
    return (
        400 <= exchange.status < 500 and exchange.status != 429 and is_text and not is_form
        and not exchange.path.endswith("/download")
    )  # fmt: skip


AUDIT, TOKENS = "platform_audit", "platform_token"


def rows() -> dict[str, tuple[int, str]]:
    """Return the number of rows of each table, and a digest of their content."""
    found = {}
    for name in sorted(row["name"] for row in sql.rows(TABLES)):
        # The time of a token's use is recorded every few minutes, also for refused requests.
        text = "(to_jsonb(t) - 'last_used_at')::text" if name == TOKENS else "t::text"
        whole = f"string_agg({text}, chr(10) ORDER BY {text})"
        row = sql.one(f"SELECT count(*) AS n, md5(coalesce({whole}, '')) AS digest FROM \"{name}\" t")
        assert row
        found[name] = (row["n"], row["digest"])
    return found


def send_again(exchange: Exchange) -> int:
    ignored = {"host", "content-length", "connection", "accept-encoding"}
    headers = [(name, value) for name, value in exchange.headers if name.lower() not in ignored]
    content = None if exchange.body is None else exchange.body.encode()
    with httpx2.Client(trust_env=False, timeout=30) as client:  # not `site.client`, which would add its token
        return client.request(exchange.method, exchange.url, headers=headers, content=content).status_code


def repeat_refused(site: Site, exchanges: list[Exchange]) -> int:
    """Repeat a sample of the refused requests, and assert that they change nothing.

    Kill the workers and beat first, so that nothing else writes. Return the number of requests that were refused again.
    """
    for process in (*site.workers, *site.beats):
        process.kill()
    refused = 0
    before = rows()
    for exchange in site.random.sample(exchanges, SAMPLE):
        status = send_again(exchange)
        after = rows()
        if status >= 400:
            refused += 1
            changed = {name for name in before if before[name] != after[name]}
            if changed == {AUDIT}:  # refused requests are recorded as well
                assert after[AUDIT][0] == before[AUDIT][0] + 1
                changed.clear()
            assert not changed, f"{exchange.method} {exchange.url} was refused with {status}, and changed {changed}"
        before = after
    return refused


@pytest.mark.timeout(1500)
def test_two_thousand_generated_requests_cause_no_fault(site: Site, tmp_path_factory: pytest.TempPathFactory) -> None:
    """22: workers keep running, and refused requests change nothing."""
    with receiver() as receiving:
        site.start_web(**BOUNDED)
        start_workers(site)
        site.start_beat(**BOUNDED)
        known = request_values(site, receiving)
        pids = sorted(site.children())

        began = time.monotonic()
        exchanges = generate(site, known, tmp_path_factory.mktemp("fuzz"))
        site.record_duration("22: generated requests", time.monotonic() - began, requests=len(exchanges))

        assert len(exchanges) >= REQUESTS
        assert [exchange for exchange in exchanges if exchange.status >= 500] == []
        assert [each for each in exchanges if each.status >= 400 and not is_problem(each)] == []
        assert sorted(site.children()) == pids, "a worker process crashed"
        again = sorted(filter(is_repeatable, exchanges), key=lambda each: (each.url, each.method, str(each.body)))
        assert repeat_refused(site, again) > SAMPLE * 0.9
        prepare_invariants(site, exchanges, receiving)
        start_workers(site)
        site.start_beat(**BOUNDED)
        invariants.settle_all(site)  # while the receiver is running


def prepare_invariants(site: Site, exchanges: list[Exchange], receiving: Receiver) -> None:
    """Delete webhooks without a receiver, and allow the retries in the invariants."""
    done = [each.path for each in exchanges if each.path.endswith("/retry") and each.status < 300]
    site.allowed.retried |= {path.split("/")[-2] for path in done if "/etl/" not in path}
    site.allowed.retried_tasks |= {path.split("/")[-2] for path in done if "/etl/" in path}
    Webhook.objects.exclude(url=receiving.url).delete()
    assert Job.objects.exists()
    assert Rule.objects.exists()
