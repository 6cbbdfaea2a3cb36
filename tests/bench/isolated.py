"""Run one benchmark in this process: python -m tests.bench.isolated MODULE FILE ROUNDS QUICK

`tests.bench` starts this process with separate servers.
"""

import sys
from importlib import import_module
from pathlib import Path

import django

from tests.bench.report import Report


def main(name: str, file: str, rounds: str, quick: str) -> None:
    if not __debug__:
        sys.exit("Run without -O, because results are verified with assert.")
    django.setup()  # before the benchmark imports models
    report = Report()
    import_module(f"tests.bench.{name}").run(report, rounds=int(rounds), quick=quick == "quick")
    report.save(Path(file))


if __name__ == "__main__":
    main(*sys.argv[1:])
