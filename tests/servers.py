"""A pytest plugin that starts the servers (database, broker, object storage) before Django reads its settings.

It is loaded by `-p tests.servers`. The servers have a separate folder and do not depend on the environment. They are
stopped when the tests end.
"""

import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from config.dev.stack import servers

OPERATOR = ("S3_OPERATOR_ACCESS_KEY_ID", "S3_OPERATOR_SECRET_ACCESS_KEY")

stack = ExitStack()
started: list[servers.Servers] = []  # has one element, for tests that stop or kill servers


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    if "--collect-only" in early_config.invocation_params.args or is_xdist_controller(early_config):
        os.environ.update(UNREACHABLE)
        return
    root = Path(early_config.rootpath) / ".local" / "tests"
    root.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=root))
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    running = stack.enter_context(servers.running(folder, durable=False))
    started.append(running)
    metrics = folder / "metrics"
    metrics.mkdir()
    os.environ.update(running.environment())
    os.environ.update(
        SECRET_KEY="tests-only-0123456789-0123456789-0123456789",
        ALLOWED_HOSTS="testserver,localhost,127.0.0.1",
        LOG_FORMAT="json",
        ETL_CACHE_DIR=str(folder / "documents"),
        PROMETHEUS_MULTIPROC_DIR=str(metrics),
        # For tests that require more permissions for object storage than Sluice has.
        **dict(zip(OPERATOR, running.seaweedfs.operator, strict=True)),
    )


def is_xdist_controller(config: pytest.Config) -> bool:
    """Return whether the option `-n` runs the tests in other processes, which start their own servers."""
    return bool(getattr(config.known_args_namespace, "numprocesses", None)) and "PYTEST_XDIST_WORKER" not in os.environ


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    """Add the last log lines of exited servers to the report of a failed test.

    The folder with the logs is deleted.
    """
    report = yield
    if report.failed:
        ended = [process for running in started for process in running.processes() if not process.alive]
        report.sections.extend((process.exit_reason(), process.tail()) for process in ended)
    return report


def pytest_unconfigure() -> None:
    stack.close()


UNREACHABLE = {
    "SECRET_KEY": "tests-only-0123456789-0123456789-0123456789",
    "ALLOWED_HOSTS": "nowhere",
    "DATABASE_URL": "postgresql://sluice@127.0.0.1:1/none",
    "REDIS_URL": "redis://127.0.0.1:1/0",
    "S3_BUCKET": "nothing",
    "S3_ACCESS_KEY_ID": "nothing",
    "S3_SECRET_ACCESS_KEY": "nothing",
}
