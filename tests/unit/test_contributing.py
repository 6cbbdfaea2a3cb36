"""CONTRIBUTING.md, compared with the files and make targets that it names."""

import re
from pathlib import Path

import pytest
from django.conf import settings

PROJECT = Path(__file__).parents[2]
PAGE = (PROJECT / "CONTRIBUTING.md").read_text()
# Files that do not exist in the repository: the example of a first change adds them, or `make setup` creates them.
CREATED = {
    "tests/integration/test_outline.py",
    "etl/postprocessors/outline.py",
    ".venv/",
    ".local/",
    ".venv/bin/pre-commit",
}
PROSE = re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)


def paths_in_page() -> set[str]:
    return {path for path in re.findall(r"`([\w./-]+/[\w./*-]*)`", PROSE) if "…" not in path} - CREATED


def test_every_path_in_contributing_exists() -> None:
    assert {path for path in paths_in_page() if not list(PROJECT.glob(path.rstrip("/")))} == set()
    assert len(paths_in_page()) > 20


def test_every_make_target_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (PROJECT / "Makefile").read_text(), re.MULTILINE))

    named = set(re.findall(r"`make ([\w-]+)", PROSE))
    assert len(named) > 5
    assert named <= targets


@pytest.mark.parametrize(
    "name", ["a dataset", "a setting", "an ocr provider", "a post-processor, or a strategy", "an event", "a state"]
)
def test_it_has_a_checklist_for_each_extension(name: str) -> None:
    """C6."""
    section = re.search(rf"^### {name}\b.*?(?=^#|\Z)", PAGE, re.MULTILINE | re.DOTALL | re.IGNORECASE)

    assert section
    assert section[0].count("- [ ] ") >= 3


def test_every_extension_point_is_a_setting() -> None:
    named = set(re.findall(r"`(ETL_[A-Z_]+S)`", PROSE))
    assert len(named) >= 3
    assert all(hasattr(settings, name) for name in named)
