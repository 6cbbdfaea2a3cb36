"""The client as a separate package, which declares its requirements and does not depend on the service. C3."""

import ast
import subprocess
import sys
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

from tests.client.conftest import PROJECT, SOURCE

PACKAGE = PROJECT / "docs" / "clients" / "sluice"
EXTRA = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["client"]
BUILD = "import sys; from flit_core.buildapi import build_wheel; print(build_wheel(sys.argv[1]))"


def test_the_wheel_requires_what_the_extra_lists(tmp_path: Path) -> None:
    """C3: the wheel is built by the build backend that the package declares."""
    pytest.importorskip("flit_core")
    built = subprocess.run([sys.executable, "-c", BUILD, tmp_path], cwd=PACKAGE, capture_output=True, check=True)
    with zipfile.ZipFile(tmp_path / built.stdout.decode().split()[-1]) as wheel:
        names = wheel.namelist()
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        (scripts,) = (name for name in names if name.endswith(".dist-info/entry_points.txt"))
        declared = message_from_bytes(wheel.read(metadata))
        assert "sluice=sluice.cli.app:main" in wheel.read(scripts).decode()
    requirements = [
        requirement.replace(" (", "").replace(")", "") for requirement in declared.get_all("Requires-Dist") or []
    ]
    assert sorted(map(bounds, requirements)) == sorted(map(bounds, EXTRA))
    modules = {str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py")}
    assert modules <= set(names)
    assert {name.split("/")[0] for name in names} == {"sluice", metadata.split("/")[0]}


def bounds(requirement: str) -> tuple[str, ...]:
    """Return a requirement's name and version bounds in a fixed order: `httpx2<3,>=2.16` equals `httpx2>=2.16,<3`."""
    from packaging.requirements import Requirement

    parsed = Requirement(requirement)
    return (parsed.name, *sorted(map(str, parsed.specifier)))


def test_it_declares_the_same_requirements_as_the_extra() -> None:
    own = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    assert sorted(own["dependencies"]) == sorted(EXTRA)


def test_it_imports_only_its_requirements() -> None:
    """C3: it does not import modules of the service."""
    allowed = {"sluice", "httpx2", "typer", "rich"} | sys.stdlib_module_names
    imported = {
        name.split(".")[0]
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        for name in names_of(node)
    }
    assert imported <= allowed


def names_of(node: ast.AST) -> list[str]:
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
