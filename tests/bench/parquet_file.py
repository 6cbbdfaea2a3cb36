"""P13: a Parquet file of 2,000,000 rows against common alternatives.

Bounds: 1.00 times the time of the faster alternative, and 300 MB of memory. The alternatives are sling, and a script
with ADBC, pyarrow's ParquetWriter, and an upload (`parquet_peer.py`). PARQUET_VENV is their virtual environment.
Without it, only Sluice is measured. Times exclude the start of Python.
"""

import json
import os
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
from django.conf import settings
from django.contrib.auth.models import User
from psycopg.conninfo import conninfo_to_dict

from config.platform import storage
from exports.core.planning import Shape
from exports.models import Chunk, Dataset
from exports.worker import execution
from tests.bench import memory, site
from tests.bench.alternation import Measurement, alternate
from tests.bench.large_chunk import PAIR, make_table
from tests.bench.report import Report

PARQUET = Shape(format="parquet", compression="zstd")
QUERY = "SELECT * FROM bench.rows_for('ALL', '2024-01-01')"
OURS, SCRIPT, SLING = "Sluice", "ADBC, pyarrow, and boto3", "sling"
MEGABYTES = 300
SAMPLE_SECONDS = 0.02
SLING_BINARY = "lib/python3*/site-packages/sling_linux_amd64/bin/sling-linux-amd64"


def run(report: Report, *, rounds: int, quick: bool) -> None:
    rows = 100_000 if quick else 2_000_000
    make_table(rows)
    user = site.prepare(slots=1)
    dataset = site.make_dataset("bench", "bench.rows_for")
    peaks: dict[str, list[float]] = {}
    alternatives: dict[str, Measurement] = {OURS: lambda: export(dataset, user, rows), **peers(peaks)}
    for alternative in alternatives.values():
        alternative()
    compare(list(alternatives), report, rows)
    measured = alternate(alternatives, rounds=rounds)
    report.times("P13", measured)
    middle = {name: median(values) for name, values in measured.items()}
    ours = middle.pop(OURS)
    for name, seconds in middle.items():
        report.bound("P13", f"a Parquet file of {rows:,} rows, relative to {name}", ours / seconds)
    if middle:
        report.bound("P13", "the same, relative to the faster one", ours / min(middle.values()), 1.0)
    peaks[OURS] = [peak_of_child(dataset, user) for _ in range(min(rounds, 3))]
    report.table("P13, peak memory", ["", "MB"], [[name, f"{max(values):.0f}"] for name, values in peaks.items()])
    report.bound(
        "P13", "peak memory of the worker's child process that writes it", max(peaks[OURS]), MEGABYTES, unit="MB"
    )


def export(dataset: Dataset, user: User, rows: int) -> float:
    """Run an export from the submission to the finished chunk: claim, COPY, conversion, upload, finish."""
    started = time.perf_counter()
    job = site.submit(dataset, [PAIR], user, shape=PARQUET)
    execution.drain()
    spent = time.perf_counter() - started
    chunk = job.chunks.get()
    assert (chunk.status, chunk.source, chunk.attempts, chunk.rows) == ("done", "live", 1, rows), chunk.error_code
    return spent


def peak_of_child(dataset: Dataset, user: User) -> float:
    with site.running_workers({"exports": 1, "bundles": 1}) as running:
        site.wait_for(site.submit(dataset, [PAIR], user, shape=PARQUET))
        _, child = memory.peaks(running["exports"])
    return child


# ---- Peers ----------------------------------------------------------------------------------------------------------


def peers(peaks: dict[str, list[float]]) -> dict[str, Measurement]:
    """Return measurements for the installed alternatives. They append their peak memory in MB to `peaks`."""
    found: dict[str, Callable[[], tuple[float, float]]] = {}
    home = Path(os.environ.get("PARQUET_VENV", "none")).absolute()
    if (home / "bin/python").exists():
        found[SCRIPT] = partial(run_script, home / "bin/python")
        for binary in home.glob(SLING_BINARY):
            found[SLING] = partial(run_sling, binary)
    for name in found:
        peaks[name] = []

    def measured(name: str) -> float:
        seconds, megabytes = found[name]()
        peaks[name].append(megabytes)
        return seconds

    return {name: partial(measured, name) for name in found}


def run_script(python: Path) -> tuple[float, float]:
    env = settings.SLUICE
    variables = {
        "PEER_DATABASE_URL": source_url(),
        "PEER_S3_ENDPOINT": str(env.s3_endpoint_url),
        "PEER_S3_BUCKET": env.s3_bucket,
        "AWS_ACCESS_KEY_ID": env.s3_access_key_id.get_secret_value(),
        "AWS_SECRET_ACCESS_KEY": env.s3_secret_access_key.get_secret_value(),
        "AWS_DEFAULT_REGION": env.s3_region,
    }
    command = [str(python), str(Path(__file__).with_name("parquet_peer.py")), QUERY, key_of(SCRIPT)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, **variables})
    result = json.loads(done.stdout)
    return result["seconds"], result["megabytes"]


def run_sling(binary: Path) -> tuple[float, float]:
    env = settings.SLUICE
    target = {
        "type": "s3",
        "bucket": env.s3_bucket,
        "endpoint": str(env.s3_endpoint_url),
        "access_key_id": env.s3_access_key_id.get_secret_value(),
        "secret_access_key": env.s3_secret_access_key.get_secret_value(),
        "region": env.s3_region,
    }
    command = [
        str(binary), "run", "--src-conn", "SOURCE", "--src-stream", QUERY, "--tgt-conn", "TARGET",
        "--tgt-object", key_of(SLING), "--tgt-options", '{"format": "parquet", "compression": "zstd"}',
    ]  # fmt: skip
    binary.chmod(0o755)
    with TemporaryDirectory() as home:
        variables = {
            "SOURCE": source_url(),
            "TARGET": json.dumps(target),
            "SLING_HOME_DIR": home,
            "SLING_DISABLE_TELEMETRY": "true",
            "SLING_DUCKDB_COMPUTE": "false",  # use sling's own writer, because sling would download DuckDB otherwise
        }
        started = time.perf_counter()
        megabytes = peak_of(command, {**os.environ, **variables}, Path(home) / "output")
        return time.perf_counter() - started, megabytes


def peak_of(command: list[str], environment: dict[str, str], log: Path) -> float:
    """Run a program, and return its peak memory in MB.

    The memory is polled, because the `ru_maxrss` of `wait4` would include the forked copy of this process.
    """
    megabytes = 0.0
    with (
        log.open("wb") as output,
        subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment) as process,
    ):
        while process.poll() is None:
            with suppress(StopIteration, OSError):
                megabytes = memory.peak(process.pid)
            time.sleep(SAMPLE_SECONDS)
    assert process.returncode == 0, log.read_text(errors="replace")[-2000:]
    return megabytes


def source_url() -> str:
    parts = conninfo_to_dict(settings.SLUICE.source_url)
    user, password = parts.get("user", ""), parts.get("password", "")
    return f"postgresql://{user}:{password}@{parts['host']}:{parts['port']}/{parts['dbname']}?sslmode=disable"


def key_of(name: str) -> str:
    return f"bench/{name.partition(',')[0].lower()}.parquet"


# ---- Results --------------------------------------------------------------------------------------------------------


def compare(names: list[str], report: Report, rows: int) -> None:
    """Assert that all files have equal rows, before times are measured."""
    with TemporaryDirectory() as folder:
        files = {name: download(path_of(name), Path(folder) / f"{number}.parquet") for number, name in enumerate(names)}
        contents = {name: content_of(file) for name, file in files.items()}
        sizes = ", ".join(f"{name} {file.stat().st_size / 1e6:.0f} MB" for name, file in files.items())
    assert len(set(contents.values())) == 1, contents
    assert contents[OURS][0] == rows
    report.notes.append(f"P13: {rows:,} equal rows; files: {sizes}.")


def path_of(name: str) -> str:
    return Chunk.objects.latest("id").path if name == OURS else key_of(name)


def download(key: str, file: Path) -> Path:
    with file.open("wb") as target:
        for block in storage.read(key):
            target.write(block)
    return file


def content_of(file: Path) -> tuple[Any, ...]:
    """Return the number of rows, and a digest of all columns of all rows in any order.

    Decimals and times are compared by their values, because writers choose other types for them.
    """
    found = duckdb.execute(
        """
        SELECT count(*), sum(hash(id::bigint, name, note, amount::decimal(12, 2), epoch_us("at"))), any_value(columns)
        FROM read_parquet($1), (SELECT string_agg(name ORDER BY name) AS columns FROM parquet_schema($1)
                                WHERE num_children IS NULL OR num_children = 0)
        """,
        [str(file)],
    ).fetchone()
    assert found
    return found
