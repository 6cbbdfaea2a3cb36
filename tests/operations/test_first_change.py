"""The first-change guide of CONTRIBUTING.md, followed in a copy of the project."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.blocks import PROJECT, Block, blocks_of

PAGE = PROJECT / "CONTRIBUTING.md"
FAILS = "<!-- fails -->"
COPIED = ("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z")
# The variables that are passed on. Other variables of this run must not influence the guide's steps.
KEPT = ("PATH", "HOME", "LANG", "CHROMIUM")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The project as a fresh clone, in its own repository, with the installed packages."""
    folder = tmp_path / "sluice"
    listed = subprocess.run(COPIED, cwd=PROJECT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (PROJECT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(PROJECT / name, folder / name)
    (folder / ".venv").symlink_to(PROJECT / ".venv")
    (folder / ".git/info").mkdir(parents=True)
    (folder / ".git/info/exclude").write_text(".venv\n")
    run(folder, "git init -q && git add --all && git -c user.name=a -c user.email=a@example.org commit -qm Start")
    return folder


def run(folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    environment = {name: os.environ[name] for name in KEPT if name in os.environ}
    environment["PRE_COMMIT_HOME"] = str(folder.parent / "pre-commit")
    return subprocess.run(
        ["bash", "-euc", command], cwd=folder, env=environment, check=False, capture_output=True, text=True
    )


def steps() -> Iterator[tuple[Block, bool]]:
    """Yield the guide's blocks in order, each with a flag: whether it is expected to fail."""
    lines = PAGE.read_text().splitlines()
    for block in blocks_of(PAGE):
        yield block, FAILS in lines[block.line - 3]


@pytest.mark.timeout(600)
def test_the_first_change_guide_works_from_clone_to_passing_tests(copy: Path) -> None:
    """C6. Each step of the guide must succeed or fail as the page describes."""
    ended: list[tuple[str, bool, bool]] = []
    for block, fails in steps():
        if block.title:
            (copy / block.title).write_text(block.text)
        elif block.language == "diff":
            apply(copy, block.text)
        else:
            done = run(copy, block.text)
            ended.append((f"{block.place}: {done.stdout[-2000:]}{done.stderr[-2000:]}", done.returncode != 0, fails))

    assert [output for output, failed, fails in ended if failed != fails] == []
    assert [fails for _, _, fails in ended] == [False, True, False, True, False]
    run(copy, "git add --all")
    hooks = run(copy, ".venv/bin/pre-commit run")
    assert hooks.returncode == 0, hooks.stdout


def apply(folder: Path, text: str) -> None:
    """Apply a diff without line numbers: the old text must occur once, and is replaced."""
    (path,) = re.findall(r"^\+\+\+ b/(.+)$", text, re.MULTILINE)
    lines = text.partition("@@\n")[2].splitlines()
    before = "\n".join(line[1:] for line in lines if not line.startswith("+"))
    after = "\n".join(line[1:] for line in lines if not line.startswith("-"))
    found = (folder / path).read_text()
    assert found.count(before) == 1
    (folder / path).write_text(found.replace(before, after))


def test_the_commit_hook_rejects_untidy_code(copy: Path) -> None:
    (copy / "exports" / "untidy.py").write_text("import os \nx = {'a':1}\n")
    run(copy, "git add --all")

    hooks = run(copy, ".venv/bin/pre-commit run")

    assert hooks.returncode == 1
    failed = set(re.findall(r"^(.*?)\.{3,}.*Failed$", hooks.stdout, re.MULTILINE))
    assert {
        "ruff format",
        "ruff check",
        "imports go one way",
        "no conflict markers, nothing at the ends of lines",
    } <= failed
