"""Run benchmarks. Used by `make bench`. Most bounds are ratios of alternating measurements in the same run.

python -m tests.bench [--only P1 P4 fairness …] [--rounds 5] [--quick]

Each benchmark runs in a separate process with separate servers, so that benchmarks do not affect each other. Results
are in .local/bench: results.json with every measurement (part.json after a partial run), and a plot of the curves.
Exits with 1 if a benchmark fails, not if a bound is missed.
"""

import argparse
import datetime as dt
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

from config.dev.stack import servers
from config.dev.stack.process import StackError
from tests.bench import plot
from tests.bench.alternation import log_progress
from tests.bench.report import Report

# The measurements of each module.
BENCHMARKS = {
    "large_chunk": ("P1", "P2"),
    "memory": ("P3",),
    "flights": ("P4", "P5", "P9"),
    "growth": ("P6",),
    "submissions": ("P7",),
    "reads": ("P8",),
    "listeners": ("P10",),
    "documents": ("P11",),
    "fairness": ("P12",),
    "parquet_file": ("P13",),
    "large_job": ("P14",),
    "schedules": ("P15",),
    "ledger": ("ledger",),
    "scaling": ("scaling",),
}
HOME = Path(".local/bench")
ROUNDS = 5


def main() -> int:
    names = list(dict.fromkeys([*BENCHMARKS, *(number for numbers in BENCHMARKS.values() for number in numbers)]))
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=f"of {', '.join(names)}")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--quick", action="store_true", help="use little data, to check only that the benchmarks run")
    options = parser.parse_args()
    HOME.mkdir(parents=True, exist_ok=True)
    report = Report()
    failed = []
    is_whole = options.only is None and options.rounds >= ROUNDS and not options.quick
    for module, numbers in BENCHMARKS.items():
        if options.only is None or {module, *numbers} & set(options.only):
            log_progress(f"---- {module}: {', '.join(numbers)}")
            part = measured(module, rounds=options.rounds, quick=options.quick)
            if part is None:
                failed.append(module)
            else:
                report.add(part)
                log_progress(f"\n{part.text(judged=not options.quick)}\n")
    # A partial run does not overwrite the reference results.
    file = HOME / ("results.json" if is_whole else "part.json")
    report.save(file, machine=machine(), rounds=options.rounds, quick=options.quick, failed=failed, of=commit())
    for file in plot.draw(report.curves, HOME):
        log_progress(f"drawn: {file}")
    print(f"\n{machine()}\n\n{report.text(judged=not options.quick)}")
    if options.quick:
        log_progress("\nBounds are not checked with little data.")
    if failed:
        log_progress(f"\nfailed: {', '.join(failed)}")
    return 1 if failed else 0


def measured(module: str, *, rounds: int, quick: bool) -> Report | None:
    """Run a benchmark. Return None if it failed. Its process prints the reason."""
    with tempfile.TemporaryDirectory(dir=HOME.resolve()) as folder:
        file = Path(folder) / "report.json"
        with servers.running(Path(folder) / "servers", durable=True) as running:
            environment = os.environ | running.environment() | {
                "SECRET_KEY": "benchmarks-only-0123456789-0123456789-0123456789",
                "ALLOWED_HOSTS": "*",
                "LOG_LEVEL": "WARNING",
                "EXPORT_RATE": "1000000/min",
                "EXPORT_DAILY_JOBS": "1000000",
                "EXPORT_DAILY_CHUNKS": "1000000000",
                "ETL_MAX_OPEN_PER_USER": "1000000",
                "ETL_DAILY_DOCUMENTS": "1000000000",
                "ETL_DAILY_BYTES": "1000000000000",
                "DJANGO_SETTINGS_MODULE": "config.settings",
                "TMPDIR": folder,
            }  # fmt: skip
            options = [module, str(file), str(rounds), "quick" if quick else ""]
            subprocess.run([sys.executable, "-m", "tests.bench.isolated", *options], check=False, env=environment)
        return Report.load(file) if file.exists() else None


def commit() -> str:
    """Return the measured Git commit, marked as dirty if files were changed."""
    described = subprocess.run(["git", "describe", "--always", "--dirty"], check=False, capture_output=True, text=True)
    return described.stdout.strip()


def machine() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    today = dt.datetime.now(tz=dt.UTC).date()
    return (
        f"{today}: {os.cpu_count()} cores, {memory:.0f} GB, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}; every server on the same machine"
    )


if __name__ == "__main__":
    try:
        sys.exit(main())
    except StackError as error:
        sys.exit(str(error))
