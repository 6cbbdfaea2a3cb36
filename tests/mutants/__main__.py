"""Mutation tests with a fixed table of small changes, which are applied individually: `make mutants`.

    make mutants                      all of them
    make mutants MUTANT=quota         those with this word in their name or file
    make mutants TABLE=shared         those of tests/mutants/shared.py

All files that Git does not ignore, with uncommitted changes, are copied to `.local/mutants/`. The work tree is not
changed.
"""

import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from tests.mutants.mutant import Mutant
from tests.mutants.table import TABLES

ROOT = Path(__file__).parents[2]
COPIES = ROOT / ".local" / "mutants"
PARALLEL = int(os.environ.get("AT_ONCE", "2"))
LIMIT = 300  # seconds for the tests of a mutant; for all tests without a mutant, ten times as long
FAILED = r"^(?:FAILED \S+::|_+ ERROR at teardown of )(\w\S*)"
PYTEST = ("-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly")


@dataclass(frozen=True)
class Verdict:
    word: str  # killed | survived | stale | broken | out of time
    by: str = ""
    seconds: float = 0


class Copy:
    """A copy of the project's files with at most one mutant applied."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.rmtree(folder, ignore_errors=True)
        for name in files():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
        self.changes = int(time.time())

    def write(self, name: str, text: str) -> None:
        """Write a file with a new mtime. Python detects stale bytecode only by the mtime in seconds and the size."""
        self.changes += 2
        (self.folder / name).write_text(text, encoding="utf-8")
        os.utime(self.folder / name, (self.changes, self.changes))

    def judge(self, mutant: Mutant) -> Verdict:
        before = (self.folder / mutant.file).read_text(encoding="utf-8")
        after = mutant.applied(before)
        if after is None or mutant.missing(self.folder):
            return Verdict("stale")
        self.write(mutant.file, after)
        try:
            return self.run(mutant.tests, limit=LIMIT)
        finally:
            self.write(mutant.file, before)

    def run(self, tests: Iterable[str], *, limit: float) -> Verdict:
        """Run tests. A mutant is killed if a test or its teardown fails, but not if pytest cannot start."""
        began = time.monotonic()
        log_file = self.folder.with_suffix(".log")  # a server that outlives its tests would keep a pipe open
        try:
            with log_file.open("w") as log:
                done = subprocess.run(
                    [sys.executable, *PYTEST, *tests],
                    cwd=self.folder,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    timeout=limit,
                    check=False,
                )
        except subprocess.TimeoutExpired:
            return Verdict("out of time", seconds=limit)
        seconds, output = time.monotonic() - began, log_file.read_text(encoding="utf-8", errors="replace")
        if done.returncode == 0:
            return Verdict("survived", seconds=seconds)
        if failed := re.search(FAILED, output, re.MULTILINE):
            return Verdict("killed", by=failed[1], seconds=seconds)
        print(output)
        return Verdict("broken", seconds=seconds)


def files() -> list[str]:
    """Return the tracked files, and untracked files that are not ignored."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return [name for name in listed.stdout.split("\0") if (ROOT / name).is_file()]


def chosen() -> list[Mutant]:
    tables = [os.environ["TABLE"]] if os.environ.get("TABLE") else list(TABLES)
    word = os.environ.get("MUTANT", "")
    return [mutant for table in tables for mutant in TABLES[table] if word in f"{mutant.name} {mutant.file}"]


def judge_all(mutants: list[Mutant], copies: list[Copy]) -> list[Verdict]:
    free: SimpleQueue[Copy] = SimpleQueue()
    for copy in copies:
        free.put(copy)
    printing = threading.Lock()

    def judge(mutant: Mutant) -> Verdict:
        copy = free.get()
        try:
            verdict = copy.judge(mutant)
        finally:
            free.put(copy)
        with printing:
            print(f"{verdict.word:<12} {verdict.seconds:4.0f} s  {mutant.file:<28} {mutant.name}", flush=True)
            if verdict.by:
                print(f"{'':<20}by {verdict.by}", flush=True)
        return verdict

    with ThreadPoolExecutor(len(copies)) as pool:
        return list(pool.map(judge, mutants))


def passes(mutants: list[Mutant], copies: list[Copy]) -> bool:
    """Return whether all named tests pass without a mutant."""
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    shares = [share for n in range(len(copies)) if (share := tests[n :: len(copies)])]
    with ThreadPoolExecutor(len(copies)) as pool:
        verdicts = list(pool.map(lambda copy, share: copy.run(share, limit=10 * LIMIT), copies, shares))
    for verdict in verdicts:
        if verdict.word != "survived":
            print(f"Without a mutant: {verdict.word} {verdict.by}")
    return all(verdict.word == "survived" for verdict in verdicts)


def main() -> int:
    mutants, began = chosen(), time.monotonic()
    copies = [Copy(COPIES / str(n)) for n in range(1, PARALLEL + 1)]
    print(f"{len(mutants)} mutants. Running their tests without a mutant first …", flush=True)
    if not mutants or not passes(mutants, copies):
        return 1
    verdicts = judge_all(mutants, copies)
    shutil.rmtree(COPIES, ignore_errors=True)
    killed = sum(verdict.word == "killed" for verdict in verdicts)
    print(f"{killed} of {len(mutants)} mutants killed in {time.monotonic() - began:.0f} s.")
    return 0 if killed == len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main())
