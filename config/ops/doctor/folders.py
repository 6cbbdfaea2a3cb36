"""Folders of this host, or container: those of other processes are looked at where these run."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from config.env import Environment
from config.ops.doctor import environment
from config.ops.doctor.findings import Finding, Level, Subject, failure, ok, warning
from config.platform.observability import counters

ROOMY = 1024**3
PER_PROCESS = 1024**2  # of counters; it needs some 50 KB


def check_temporary(env: Environment) -> Iterator[Finding]:
    """Documents lie in TMPDIR while they come in, each twice; parts of large uploads do as well."""
    yield from look(Path(tempfile.gettempdir()), "TMPDIR", needed=2 * env.etl_max_file_bytes, roomy=ROOMY)


def check_cache(env: Environment) -> Iterator[Finding]:
    """Documents lie in ETL_CACHE_DIR while they are read, where there is a worker that reads them."""
    found = list(look(env.etl_cache_dir, "ETL_CACHE_DIR", needed=2 * env.etl_max_file_bytes, roomy=ROOMY))
    for finding in found:
        if finding.level is Level.FAILURE:
            do = f"{finding.do} It matters where documents are read: in containers run doctor in that worker's."
            yield warning(finding.says, do)
        else:
            yield finding


def check_counters(_env: Environment) -> Iterator[Finding]:
    folder = os.environ.get(counters.VARIABLE)
    if folder:
        yield from look(Path(folder), counters.VARIABLE, needed=PER_PROCESS, roomy=8 * PER_PROCESS)
    else:
        yield warning(
            f"{counters.VARIABLE} is not set: /metrics tells of one process, and of no worker.",
            f"Set {counters.VARIABLE} to a folder that web and workers share: docs/runbook.md#metrics-are-missing.",
        )


def look(folder: Path, variable: str, *, needed: int, roomy: int) -> Iterator[Finding]:
    place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=place) as file:  # without a name: nothing stays
            file.write(b"x")
    except OSError:
        yield failure(
            f"{variable} leads to a folder that cannot be written to here.",
            f"Mend its permissions, or lead {variable} elsewhere; in containers to a volume.",
        )
        return
    free = shutil.disk_usage(place).free
    if free < needed:
        yield failure(
            f"{variable} has {free // 1024**2} MiB left, and {needed // 1024**2} MiB are needed.",
            "Make room: docs/runbook.md#disk-is-full.",
        )
    elif free < roomy:
        yield warning(
            f"{variable} has {free // 1024**2} MiB left.",
            "Make room before it is full: docs/runbook.md#disk-is-full.",
        )
    else:
        yield ok(f"{variable} can be written to, and has room.")


SUBJECT = Subject(
    name="folders",
    open=environment.open_environment,
    checks=(check_temporary, check_cache, check_counters),
    away=environment.AWAY,
)
