"""Runner of a page's blocks in one shell, in a copy of the project's folder and with a running stack."""

import os
import random
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from config.dev.stack import ports
from config.dev.stack.environment import FILE
from tests.docs.blocks import PROJECT, Block
from tests.integration.openai_server import Reply, Request, data_reply

SECONDS = 120
CLIENT = PROJECT / "docs" / "clients" / "sluice" / "src"
PROLOGUE = "set -eu\n"
TOTAL = re.compile(r"Total(?: due)?: ([\d.,]+) ([A-Z]{3})")


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The results of running the blocks of a page. `printed`: the output of each block. `last_place`: the location of
    the last block that was started. `status`: the exit status of the shell."""

    printed: dict[Block, str]
    last_place: str
    status: int
    stderr: str


def read(blocks: list[Block], *, stack: Path, folder: Path) -> Reading:
    """Run the blocks of a page in order, in one shell in `folder`. `stack`: the folder of the running stack.

    The shell stops at the first command that fails. The output of each block is recorded separately.
    """
    prepare_folder(folder, stack)
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
        last_place=run[Path((outputs / "at").read_text().strip())].place,
        status=done.returncode,
        stderr=done.stderr,
    )


def commands(block: Block, output: Path) -> str:
    text = block.text if block.language == "sh" else f"python - <<'END_OF_PYTHON'\n{block.text}END_OF_PYTHON\n"
    return f"{{\n{text}}} > {output}\n"


def prepare_folder(folder: Path, stack: Path) -> None:
    """Create a folder like that of the project while `make up` is running."""
    folder.mkdir()
    for each in PROJECT.iterdir():
        if each.name != ".local":
            (folder / each.name).symlink_to(each)
    (folder / ".local").mkdir()
    (folder / ".bin").mkdir()
    sluice = folder / ".bin" / "sluice"
    sluice.write_text(f'#!/bin/sh\nexec {sys.executable} -m sluice "$@"\n')
    sluice.chmod(0o755)
    (folder / ".local" / FILE).symlink_to(stack / FILE)


def environment(folder: Path) -> dict[str, str]:
    """Return the variables of a new shell, with an active virtual environment, the command `sluice`, and a free port
    for webhooks."""
    return {
        "PATH": f"{folder / '.bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(folder),
        "PYTHONPATH": str(CLIENT),
        "TMPDIR": str(folder),
        "LANG": "C.UTF-8",
        # Below the ports that `ports.free` returns, so that no server of another test takes it in the meantime.
        "HOOK_PORT": str(next(filter(ports.is_free, random.sample(range(5000, ports.LOWEST), 200)))),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def model(request: Request) -> Reply:
    """Respond like a language model to documents with a total and to parking tickets."""
    prompt = "".join(str(message["content"]) for message in request.messages)
    if '"plate"' in prompt:
        return data_reply({"plate": "B-XY 123", "amount": 4.5}, {"/amount": {"page": 1, "quote": "Paid: 4.50 EUR"}})
    *_, found = TOTAL.finditer(prompt)
    amount, currency = found.groups()
    total = amount if '"total":{"type":["string"' in re.sub(r"\s", "", prompt) else float(amount.replace(",", ""))
    quote = {"page": 1, "quote": found[0]}
    return data_reply({"total": total, "currency": currency}, {"/total": quote, "/currency": quote})
