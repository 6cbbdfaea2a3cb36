"""ARCHITECTURE.md and the ADRs, compared with the files, functions, and layers in the code."""

import re
import tomllib
from itertools import chain

from config.dev.stack.orphan_watchdog import PROJECT

PAGE = (PROJECT / "ARCHITECTURE.md").read_text()
DECISIONS = "".join(path.read_text() for path in sorted((PROJECT / "docs/adr").glob("*.md")))
LAYERS = (PROJECT / "docs/adr/0026-folders-are-layers.md").read_text()
FOLDERS = "config|exports|etl|rules"
MOST_LINES = 120
MOST_TIERS = {"exports": 8, "etl": 8, "rules": 5}


def test_every_path_exists() -> None:
    paths = re.findall(rf"`((?:{FOLDERS}|tests|docs|docker)/[\w/.]*)`", PAGE + DECISIONS)

    assert [path for path in paths if not (PROJECT / path).exists()] == []
    assert len(paths) > 30


def test_every_file_and_function_exists() -> None:
    """This includes file names without a folder, such as `page.js`, and calls, such as `errors()`."""
    files = [path for folder in FOLDERS.split("|") for path in (PROJECT / folder).rglob("*.*")]
    code = "".join(path.read_text() for path in files if path.suffix in {".py", ".lua"})
    names = re.findall(r"`(\w+\.(?:py|js|lua|css|html))`", PAGE + DECISIONS)
    calls = re.findall(r"`(\w+\()\)`", PAGE + DECISIONS)

    assert set(names) <= {path.name for path in files}
    assert [call for call in calls if not re.search(rf"\b{re.escape(call)}", code)] == []
    assert names
    assert calls


def test_every_folder_is_a_layer_of_the_import_contract() -> None:
    """C6."""
    contracts = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    for app, most in MOST_TIERS.items():
        (contract,) = [each for each in contracts if each.get("containers") == [app]]
        assert contract["exhaustive"]
        assert len(contract["layers"]) <= most
        layers = set(chain.from_iterable(tier.split(" | ") for tier in contract["layers"]))
        folders = {path.parent.name for path in (PROJECT / app).glob("*/__init__.py")} - {"migrations"}
        assert folders <= layers
        assert all(f"`{folder}`" in LAYERS for folder in folders)


def test_the_architecture_page_is_short() -> None:
    assert len(PAGE.splitlines()) <= MOST_LINES
