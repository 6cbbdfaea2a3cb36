"""The documented JavaScript code for the verification of webhooks, tested with real signatures. A25, C4.

It runs in Chromium, which has the same Web Crypto API as Node.js.
"""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser
from standardwebhooks import Webhook

from tests.docs.blocks import PROJECT, blocks_of
from tests.docs.viewing import in_browser, served

SECRET, OTHER = "whsec_c2x1aWNlIQ==", "whsec_bm90IHRoaXM="
BODY = '{"type": "export.succeeded", "data": {"fileName": "Zürich → 東京.csv"}}'
VERIFY = """async ([secret, headers, body]) => {
    const { verify } = await import("/verify.mjs");
    try { return await verify(secret, headers, body); } catch (error) { return String(error); }
}"""
# The receiver imports modules of Node.js, so it is only parsed here, not run.
READ = """async () => {
    const text = await (await fetch("/receiver.mjs")).text();
    Object.getPrototypeOf(async () => {}).constructor(text.replace(/^import .*$/gm, ""));
}"""


def headers(*secrets: str, at: datetime | None = None, body: str = BODY) -> dict[str, str]:
    at = at or datetime.now(UTC)
    return {
        "webhook-id": "one",
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": " ".join(Webhook(secret).sign("one", at, body) for secret in secrets),
    }


def good() -> dict[str, dict[str, str]]:
    return {"valid": headers(SECRET), "a secret that is being rotated": headers(OTHER, SECRET)}


def bad() -> dict[str, dict[str, str]]:
    genuine = headers(SECRET)
    return {
        "another secret": headers(OTHER),
        "another body": headers(SECRET, body=BODY.replace("succeeded", "failed")),
        "another id": {**genuine, "webhook-id": "two"},
        "yesterday": headers(SECRET, at=datetime.now(UTC) - timedelta(days=1)),
        "tomorrow": headers(SECRET, at=datetime.now(UTC) + timedelta(days=1)),
        "an invalid time": {**genuine, "webhook-timestamp": "soon"},
        "another version": {**genuine, "webhook-signature": genuine["webhook-signature"].replace("v1", "v0")},
        "no signature": {name: value for name, value in genuine.items() if name != "webhook-signature"},
        "nothing": {},
    }


@pytest.mark.slow
def test_it_accepts_valid_signatures_and_refuses_the_rest(tmp_path: Path) -> None:
    save(tmp_path)
    genuine, forged = good(), bad()

    def verify_in_browser(browser: Browser) -> dict[str, Any]:
        page = browser.new_page()
        page.goto(url)
        page.evaluate(READ)
        return {name: page.evaluate(VERIFY, [SECRET, given, BODY]) for name, given in {**genuine, **forged}.items()}

    with served(tmp_path) as url:
        results = in_browser(verify_in_browser)
    event = {"type": "export.succeeded", "data": {"fileName": "Zürich → 東京.csv"}}
    assert {name: result for name, result in results.items() if result == event}.keys() == genuine.keys()
    assert {name for name, result in results.items() if "Error" in result} == forged.keys()


def save(folder: Path) -> None:
    """Save the programs on the page as files named by their titles."""
    for block in blocks_of(PROJECT / "docs" / "webhooks.md"):
        if block.language == "js":
            (folder / block.title).write_text(block.text)
