"""The paths that ARCHITECTURE.md names, and the layers that its ADR lists, checked against the tree."""

import re
import tomllib
from itertools import chain

from config.dev.stack.orphan_watchdog import PROJECT

PAGE = (PROJECT / "ARCHITECTURE.md").read_text()
LAYERS = (PROJECT / "docs/adr/0026-folders-are-layers.md").read_text()
MOST_LINES = 120
MOST_TIERS = {"exports": 8, "etl": 8, "rules": 5}


def test_every_path_exists() -> None:
    paths = re.findall(r"`((?:config|exports|etl|rules|docs)/[\w/.]*)`", PAGE + LAYERS)

    assert [path for path in paths if not (PROJECT / path).exists()] == []
    assert len(paths) > 10


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
        assert all(f"`{folder}`" in LAYERS for folder in folders - {"migrations"})


def test_it_stays_short() -> None:
    assert len(PAGE.splitlines()) <= MOST_LINES
