"""The headings of the runbook, to which alerts, dashboards, and the doctor link."""

import re
from pathlib import Path

from config.dev.stack.orphan_watchdog import PROJECT

PAGE = (PROJECT / "docs" / "runbook.md").read_text()
REQUIRED_HEADINGS = {
    "first-look", "jobs-are-stuck", "nothing-runs", "disk-is-full", "redis-is-lost", "source-is-slow",
    "object-storage-is-unreachable", "a-chunk-fails-repeatedly", "documents-are-stuck", "webhooks-do-not-arrive",
    "metrics-are-missing", "a-link-leaked", "keys-are-rotated", "a-deployment-loses-nothing", "restoring-a-backup",
}  # fmt: skip
ANCHOR = re.compile(r"runbook\.md#([\w-]+)")


def anchors() -> set[str]:
    headings: list[str] = re.findall(r"^#{2,} (.+)$", PAGE, flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


def linked_anchors() -> dict[str, Path]:
    files = [path for name in ("config", "docker", "docs", "exports", "etl") for path in (PROJECT / name).rglob("*")]
    texts = {path: path.read_text(errors="ignore") for path in files if path.is_file() and path.suffix in SUFFIXES}
    return {anchor: path for path, text in texts.items() for anchor in ANCHOR.findall(text)}


SUFFIXES = {".py", ".md", ".yml", ".yaml", ".json"}


def test_the_runbook_has_the_required_headings() -> None:
    assert anchors() >= REQUIRED_HEADINGS


def test_links_to_the_runbook_have_a_target() -> None:
    links = linked_anchors()
    assert len(links) >= 6
    assert {anchor: path for anchor, path in links.items() if anchor not in anchors()} == {}


def test_links_of_the_runbook_have_a_target() -> None:
    assert set(re.findall(r"\]\(#([\w-]+)\)", PAGE)) <= anchors()
