"""Check the extraction from long documents: rows, citations, losses, and cost. Used by `make extract-bench`.

python -m tests.bench.extraction [--seed 1] [--quick] [--only FAMILY …]

Synthetic documents with a known ground truth are submitted to a complete installation. Its model server is a scripted
reader with four modes. Exits with 1 if a bound is missed. .local/bench/extraction.json has all figures and failures.
"""

import argparse
import sys
import time
from pathlib import Path

from config.dev.stack.process import StackError
from tests.bench.extraction import reader, runs, service, summary
from tests.bench.extraction.families import FAMILIES, QUICK

FILE = Path(".local/bench/extraction.json")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.extraction",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="only four families")
    names = [family.name for family in FAMILIES]
    parser.add_argument("--only", nargs="+", choices=names, metavar="FAMILY", help=f"of {', '.join(names)}")
    options = parser.parse_args()
    chosen = options.only or (QUICK if options.quick else names)
    began = time.monotonic()
    cases = list(runs.cases(chosen, seed=options.seed))
    with reader.serving() as (model, ledger), service.running(service.model(model.url)) as installation:
        outcomes = runs.run(installation, cases, ledger)
    report = summary.report(outcomes, ledger)
    print(report.text(judged=True))
    print(f"\n{len(outcomes)} documents in {time.monotonic() - began:.0f} s, seed {options.seed}; details: {FILE}")
    FILE.parent.mkdir(parents=True, exist_ok=True)
    report.save(FILE, seed=options.seed, outcomes=[summary.details(outcome) for outcome in outcomes])
    return 1 if any(bound.verdict == "missed" for bound in report.bounds) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except StackError as error:
        sys.exit(str(error))
