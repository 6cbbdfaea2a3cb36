"""docs/dependencies.md, compared with the packages in pyproject.toml."""

import re
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[2]


def test_every_direct_dependency_has_a_purpose() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    requirements = [project["dependencies"], *project["optional-dependencies"].values()]
    named = {re.split(r"[\[=<>]", line)[0] for lines in requirements for line in lines}

    rows = re.findall(r"^\| (`.+?) \| \w", (PROJECT / "docs" / "dependencies.md").read_text(), re.MULTILINE)

    assert {name for row in rows for name in re.findall(r"`([\w-]+)`", row)} == named
