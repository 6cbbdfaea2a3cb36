"""Benchmarks, by `make bench`: ratios of things measured in turn in one run, never absolute times.

python -m tests.bench [--rounds 5] [--rows 2000000] [--documents 50] [--only fairness]
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

from config.stack import servers
from config.stack.process import StackError

BENCHMARKS = ["one_chunk", "fairness", "ocr"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--documents", type=int, default=50)
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, default=BENCHMARKS)
    options = parser.parse_args()
    home = Path(".local/bench").resolve()
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home) as folder, servers.running(Path(folder), durable=True) as running:
        os.environ.update(running.environment())
        os.environ.update(
            SECRET_KEY="benchmarks-only-0123456789-0123456789-0123456789",
            ALLOWED_HOSTS="none",
            LOG_LEVEL="WARNING",
            EXPORT_DAILY_CHUNKS="100000000",
            DJANGO_SETTINGS_MODULE="config.settings",
        )
        # Only now: it reads the settings as it is imported.
        from tests.bench import fairness, ocr, one_chunk

        if "one_chunk" in options.only:
            one_chunk.run(rounds=options.rounds, rows=options.rows)
        if "fairness" in options.only:
            fairness.run(rounds=options.rounds)
        if "ocr" in options.only:
            ocr.run(documents=options.documents)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except StackError as error:
        sys.exit(str(error))
