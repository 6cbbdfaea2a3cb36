"""Prometheus from its Debian package, with a test's own configuration."""

from pathlib import Path

from config.dev.stack.ports import LOOPBACK
from config.dev.stack.process import Process
from tests.operations import debian


def scraper(folder: Path, *, port: int) -> Process:
    """Return a Prometheus that is not started yet. It reads `prometheus.yml` in the folder, and stores data there."""
    return Process(
        name="prometheus",
        command=[
            debian.program("prometheus"), f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/data", f"--web.listen-address={LOOPBACK}:{port}",
        ],
        log=folder / "prometheus.log",
        environment=debian.environment(),
    )  # fmt: skip
