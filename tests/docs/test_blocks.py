"""The commands and programs in the documentation, run on a real stack and compared with the output on the pages. C4."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from config.dev.stack.__main__ import announcement
from config.dev.stack.local import Stack
from config.dev.stack.local import running as stack_running
from tests.docs import reader
from tests.docs.blocks import Block, blocks_of, differences, expected_output, pages
from tests.integration import openai_server

# tests/operations/test_runbook.py runs the blocks of the runbook, because they require faults.
RUNBOOK = "runbook.md"
PAGES = [page for page in pages() if page.name != RUNBOOK and any(block.is_run for block in blocks_of(page))]
# Languages of blocks that are not run. Other tests check them: as output, diagrams, or transcripts of the command line.
SHOWN = ("json", "text", "mermaid", "sql", "console")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack like that of `make up`, in a temporary folder and with a language model. Webhooks to this host are
    allowed."""
    with openai_server.running() as models:
        models.set_default(reader.model)
        given = {
            "PATH": os.environ["PATH"],
            "EXPORT_WEBHOOK_ALLOW_CIDRS": "127.0.0.0/8",
            "ETL_LLM_BASE_URL": models.url,
            "ETL_LLM_MODEL": openai_server.MODEL,
            "ETL_LLM_API_KEY": "sk-test",
        }
        with stack_running(tmp_path_factory.mktemp("stack"), given=given) as running:
            yield running


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_code_blocks_run_and_print_the_output_on_the_pages(stack: Stack, tmp_path: Path) -> None:
    """This is a single test, because each test process would start a stack."""
    wrong: dict[str, object] = {}
    for source in PAGES:
        blocks, folder = blocks_of(source), tmp_path / source.stem
        reading = reader.read(blocks, stack=stack.servers.root, folder=folder)
        if reading.status != 0:
            wrong[reading.last_place] = reading.stderr
        wrong |= wrong_outputs(blocks, reading.printed | startup_output(blocks, stack))
    assert not wrong


def startup_output(blocks: list[Block], stack: Stack) -> dict[Block, str]:
    """Return the output of `make up` for the blocks that run it."""
    return {block: announcement(stack) for block in blocks if block.text.endswith("make up\n")}


def wrong_outputs(blocks: list[Block], printed: dict[Block, str]) -> dict[str, object]:
    """Return the differences between the output on the pages and the actual output, by location."""
    pairs = ((block, expected_output(blocks, index)) for index, block in enumerate(blocks) if block in printed)
    found = {shown.place: differences(shown, printed[block]) for block, shown in pairs if shown}
    return {place: each for place, each in found.items() if each}


def test_languages_are_known_and_only_runnable_blocks_have_reasons(record_property: Any) -> None:
    """The option `-rP` of pytest lists these blocks."""
    skipped = [block for block in every_block() if block.reason]
    for block in skipped:
        print(f"{block.place}: {block.reason}")  # noqa: T201 - for `-rP`
        record_property(block.place, block.reason)
    assert {block.language for block in every_block()} <= {*SHOWN, "sh", "python", "js"}
    assert [block.place for block in skipped if block.language in SHOWN] == []


def test_json_blocks_are_valid_json() -> None:
    for block in every_block():
        if block.language == "json":
            json.loads(block.text)


def every_block() -> list[Block]:
    return [block for page in pages() for block in blocks_of(page)]
