"""A reader of the documentation: one shell in a folder like the project's, beside a stack as `make up` starts it."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from config.dev.stack import ports
from config.dev.stack.environment import FILE
from tests.docs.blocks import PROJECT, Block
from tests.integration.openai_server import Reply, Request, gives

SECONDS = 120
CLIENT = PROJECT / "docs" / "clients" / "sluice" / "src"
PROLOGUE = "set -eu\n"
TOTAL = re.compile(r"Total(?: due)?: ([\d.,]+) ([A-Z]{3})")


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What came of the blocks of a page: what each printed, and how the shell ended."""

    printed: dict[Block, str]
    at: str
    status: int
    complaints: str


def read(blocks: list[Block], *, stack: Path, folder: Path) -> Reading:
    """Run the blocks of a page one after the other in one shell, in `folder`; `stack` is where the stack lives.

    The shell stops at the first command that fails. Each block's output is kept by itself.
    """
    settle(folder, stack)
    outputs = folder / ".outputs"
    outputs.mkdir()
    for block in blocks:
        if block.title:
            (folder / block.title).write_text(block.text)
    run = {outputs / f"{number}": block for number, block in enumerate(blocks) if block.is_run}
    script = PROLOGUE + "".join(f"echo {path} > .outputs/at\n{commands(block, path)}" for path, block in run.items())
    done = subprocess.run(
        ["bash", "-c", script],
        check=False, cwd=folder, env=environment(folder), timeout=SECONDS, capture_output=True, text=True,
    )  # fmt: skip
    return Reading(
        printed={block: path.read_text() for path, block in run.items() if path.exists()},
        at=run[Path((outputs / "at").read_text().strip())].place,
        status=done.returncode,
        complaints=done.stderr,
    )


def commands(block: Block, output: Path) -> str:
    text = block.text if block.language == "sh" else f"python - <<'END_OF_PYTHON'\n{block.text}END_OF_PYTHON\n"
    return f"{{\n{text}}} > {output}\n"


def settle(folder: Path, stack: Path) -> None:
    """Make the folder look like the project's while `make up` runs in it."""
    folder.mkdir()
    for each in PROJECT.iterdir():
        if each.name != ".local":
            (folder / each.name).symlink_to(each)
    (folder / ".local").mkdir()
    (folder / ".bin").mkdir()
    sluice = folder / ".bin" / "sluice"
    sluice.write_text(f'#!/bin/sh\nPYTHONPATH={CLIENT} exec {sys.executable} -m sluice "$@"\n')
    sluice.chmod(0o755)
    (folder / ".local" / FILE).symlink_to(stack / FILE)


def environment(folder: Path) -> dict[str, str]:
    """A new shell, with the virtual environment active, `sluice` installed, and a free port for webhooks."""
    return {
        "PATH": f"{folder / '.bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "LANG": "C.UTF-8",
        "HOOK_PORT": str(ports.free(1)[0]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def model(request: Request) -> Reply:
    """A language model that knows two kinds of papers: those with a total, and parking tickets."""
    asked = "".join(str(message["content"]) for message in request.messages)
    if '"plate"' in asked:
        return gives({"plate": "B-XY 123", "amount": 4.5}, {"/amount": {"page": 1, "quote": "Paid: 4.50 EUR"}})
    *_, found = TOTAL.finditer(asked)
    amount, currency = found.groups()
    total = amount if '"total":{"type":["string"' in re.sub(r"\s", "", asked) else float(amount.replace(",", ""))
    quote = {"page": 1, "quote": found[0]}
    return gives({"total": total, "currency": currency}, {"/total": quote, "/currency": quote})
