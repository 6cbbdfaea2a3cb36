"""The codemap of ARCHITECTURE.md, held against the files."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from config.dev.stack.orphan_watchdog import PROJECT

PAGE = (PROJECT / "ARCHITECTURE.md").read_text()
ROW = re.compile(r"^\| (`.+?) \|", re.MULTILINE)
OF_NO_STORY = {"apps.py", "__init__.py"}


def named() -> Iterator[Path]:
    """Yield the paths that rows begin with. `views.py` after `exports/urls.py` is in the same folder."""
    for cell in ROW.findall(PAGE):
        folder = Path()
        for name in re.findall(r"`(.+?)`", cell):
            path = folder / name if (PROJECT / folder / name).exists() else Path(name)
            folder = path.parent
            yield path


def test_what_it_names_is_there() -> None:
    paths = list(named())

    assert [path for path in paths if not (PROJECT / path).exists()] == []
    assert len(paths) > 140


@pytest.mark.parametrize("app", ["config", "exports", "etl", "rules"])
def test_every_module_has_a_row_or_is_in_a_folder_that_has_one(app: str) -> None:
    """C6."""
    known = set(named())
    modules = {path.relative_to(PROJECT) for path in (PROJECT / app).rglob("*.py") if path.name not in OF_NO_STORY}

    lost = {str(path) for path in modules if "migrations" not in path.parts and not known & {path, *path.parents}}
    assert lost == set()
