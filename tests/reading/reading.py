"""Readings of documents by reader processes."""

import json
import selectors
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tests.reading.corpus import Case

PEERS_PYTHON = Path(".venv-peers/bin/python")
TIMEOUT_SECONDS = 600.0  # of one document


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The Markdown of a document, or the error that prevented it."""

    markdown: str = ""
    seconds: float = 0.0
    warnings: list[str] = field(default_factory=list)
    error: str | None = None


class ReaderProcess:
    """A process of tests.reading.readers. It is restarted after a crash and after a timeout."""

    def __init__(self, name: str) -> None:
        python = sys.executable if name == "local" else str(PEERS_PYTHON)
        self.command = [python, "-m", "tests.reading.readers", name]
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None

    def read(self, path: Path) -> Reading:
        if self.process is None:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        if (response := ask(self.process, path)) is None:
            self.stop()
            return Reading(error="crashed or timed out", seconds=TIMEOUT_SECONDS)
        return Reading(**response)


def ask(process: subprocess.Popen[bytes], path: Path) -> dict[str, Any] | None:
    """Return the reading of a document, or None if the reader crashed or timed out."""
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(BrokenPipeError):
        process.stdin.write(f"{path}\n".encode())
        process.stdin.flush()
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        if not selector.select(TIMEOUT_SECONDS):
            return None
    line = process.stdout.readline()
    return json.loads(line) if line.endswith(b"\n") else None


def read_all(name: str, cases: Iterable[Case]) -> Iterator[tuple[Case, Reading]]:
    with ReaderProcess(name) as process:
        for case in cases:
            yield case, process.read(case.path.resolve())
