"""Two thousand requests of generated input against a real installation. Row 22 of docs/reliability.md.

`tests/contract/test_fuzz.py` holds the answers against the document; here it is what stands behind them: workers go on,
refused requests leave nothing, and all that was accepted meanwhile ends like anything else.
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
from tests.chaos.documents import BOTH, settle, submit
from tests.chaos.site import Site
from tests.contract.conftest import PLENTY
from tests.contract.test_fuzz import NOBODYS, configuration
from tests.integration.etl_factories import make_rule
from tests.integration.receiver import Receiver, receiver

REQUESTS = 2_000
EXAMPLES = 6  # of each operation and phase, which are more requests than that in all
SAMPLE = 60
# What is accepted shall be done soon, too.
BOUNDED: dict[str, Any] = {**PLENTY, "EXPORT_MAX_CHUNKS_PER_JOB": "6", "EXPORT_MAX_ATTEMPTS": "2"}
PROBLEM = {"type", "title", "status", "code"}
TABLES = """
SELECT table_name AS name FROM information_schema.tables WHERE table_schema = 'public' AND table_type = 'BASE TABLE'
"""


@dataclass(frozen=True)
class Exchange:
    """A request as it was sent, and how it was answered."""

    method: str
    url: str
    headers: list[tuple[str, str]]
    body: str | None
    status: int
    content_type: str
    answer: str

    @property
    def path(self) -> str:
        return self.url.split("?")[0]

    @classmethod
    def of_entry(cls, entry: dict[str, Any]) -> "Exchange":
        """Read an entry of a HAR file."""
        asked, answered = entry["request"], entry["response"]
        return cls(
            method=asked["method"],
            url=asked["url"],
            headers=[(header["name"], header["value"]) for header in asked["headers"]],
            body=asked.get("postData", {}).get("text"),
            status=answered["status"],
            content_type=answered["content"].get("mimeType", ""),
            answer=answered["content"].get("text") or "",
        )


def known_to(site: Site, there: Receiver) -> dict[str, list[Any]]:
    """Return what requests can be about: things in each state, and some that there are not."""
    site.dataset("flights")  # as in the document's examples
    site.source.behave("EWR", error=True)
    done, failed = site.submit("JFK"), site.submit("EWR")
    hook = site.client.post("/exports/webhooks", json={"url": there.url, "events": ["export.succeeded"]}).json()["id"]
    delivery = site.client.post(f"/exports/webhooks/{hook}/test").json()["id"]
    mine = make_rule(site.owner, mode="llm", name="mine")
    systems = make_rule(None, name="the system's", slug="a-system-rule")
    completed, refused = submit(site, "Hello.", rule=mine), submit(site, "raise OcrRefused", rule=mine)
    site.settle(done, failed)
    settle(completed, refused)
    return {
        "jobs": [str(done.pk), str(failed.pk), NOBODYS],
        "webhooks": [hook, NOBODYS],
        "deliveries": [delivery, NOBODYS],
        "tasks": [completed.pk, refused.pk, 10**9, 2**63 - 1],
        "rules": [mine.pk, systems.pk, 10**9, 2**63 - 1],
        "keys": ["JFK", "EWR", "..", "a/b"],
        "days": ["2024-02-28", "2024-02-29", "0001-01-01"],
        "datasets": ["flights", "nothing"],
        "urls": [there.url, "https://127.0.0.1/", "http://10.0.0.1/", "ftp://127.0.0.1/"],
        "files": [f"etl/uploads/{site.owner.pk}/{NOBODYS}", "../../x"],
        "types": ["text/plain", "application/pdf", "application/zip"],
    }


def generate(site: Site, known: dict[str, list[Any]], folder: Path) -> list[Exchange]:
    """Send the requests, and return all of them. The seed is the run's."""
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
    """One of its own for webhooks, as they are run: many of those that are made here lead nowhere."""
    site.start_worker(f"exports,bundles,maintenance,{BOTH}", **BOUNDED)
    site.start_worker("webhooks", children=1, **BOUNDED)


# ---- What is held against them --------------------------------------------------------------------------------------
def is_problem(exchange: Exchange) -> bool:
    if exchange.method == "HEAD":
        return True  # answers have no body
    if not exchange.content_type.startswith("application/problem+json"):
        return False
    told = json.loads(exchange.answer)
    return bool(told.keys() >= PROBLEM and told["status"] == exchange.status)


def can_be_sent_again(exchange: Exchange) -> bool:
    """Whether it was refused for good, and can be sent as it was. Attempts to use a link are written down: no."""
    is_text = exchange.body is None or exchange.body.isascii()
    is_form = any(name.lower() == "content-type" and value.startswith("multipart") for name, value in exchange.headers)
    return (
        400 <= exchange.status < 500 and exchange.status != 429 and is_text and not is_form
        and not exchange.path.endswith("/download")
    )  # fmt: skip


def rows() -> dict[str, tuple[int, str]]:
    """Return how many rows each table has, and a digest of all that stands in them."""
    found = {}
    for name in sorted(row["name"] for row in sql.rows(TABLES)):
        whole = "string_agg(t::text, chr(10) ORDER BY t::text)"
        row = sql.one(f"SELECT count(*) AS n, md5(coalesce({whole}, '')) AS digest FROM \"{name}\" t")
        assert row
        found[name] = (row["n"], row["digest"])
    return found


def send_again(exchange: Exchange) -> int:
    ignored = {"host", "content-length", "connection", "accept-encoding"}
    headers = [(name, value) for name, value in exchange.headers if name.lower() not in ignored]
    content = None if exchange.body is None else exchange.body.encode()
    with httpx2.Client(trust_env=False, timeout=30) as client:  # the site's own would add its token
        return client.request(exchange.method, exchange.url, headers=headers, content=content).status_code


def leave_nothing(site: Site, exchanges: list[Exchange]) -> int:
    """Send a sample of what was refused again, with no worker alive that could write; return how much of it was refused
    once more."""
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
            assert not changed, f"{exchange.method} {exchange.url} was refused with {status}, and changed {changed}"
        before = after
    return refused


@pytest.mark.timeout(1500)
def test_two_thousand_generated_requests_break_nothing(site: Site, tmp_path_factory: pytest.TempPathFactory) -> None:
    """22."""
    with receiver() as there:
        site.start_web(**BOUNDED)
        start_workers(site)
        site.start_beat(**BOUNDED)
        known = known_to(site, there)
        pids = sorted(site.children())

        began = time.monotonic()
        exchanges = generate(site, known, tmp_path_factory.mktemp("fuzz"))
        site.measured("22: generated requests", time.monotonic() - began, requests=len(exchanges))

        assert len(exchanges) >= REQUESTS
        assert [exchange for exchange in exchanges if exchange.status >= 500] == []
        assert [each for each in exchanges if each.status >= 400 and not is_problem(each)] == []
        assert sorted(site.children()) == pids, "a worker's process has died of it"
        again = sorted(filter(can_be_sent_again, exchanges), key=lambda each: (each.url, each.method, str(each.body)))
        assert leave_nothing(site, again) > SAMPLE * 0.9
        be_done(site, exchanges, there)
        start_workers(site)
        site.start_beat(**BOUNDED)
        invariants.calm_down(site)  # as long as somebody is there to be told


def be_done(site: Site, exchanges: list[Exchange], there: Receiver) -> None:
    """What people did: retries are no fault, and webhooks that lead nowhere are not waited for."""
    done = [each.path for each in exchanges if each.path.endswith("/retry") and each.status < 300]
    site.allowed.retried |= {path.split("/")[-2] for path in done if "/etl/" not in path}
    site.allowed.retried_tasks |= {path.split("/")[-2] for path in done if "/etl/" in path}
    Webhook.objects.exclude(url=there.url).delete()
    assert Job.objects.exists()
    assert Rule.objects.exists()
