"""A Prometheus from Debian's package, with a configuration of the test's own."""

from pathlib import Path

from config.dev.stack.ports import LOOPBACK
from config.dev.stack.process import Process
from tests.operations import debian


def scraper(folder: Path, *, port: int) -> Process:
    """Return one that is not started yet. `prometheus.yml` is in the folder, and its data will be."""
    return Process(
        name="prometheus",
        command=[
            debian.program("prometheus"), f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/data", f"--web.listen-address={LOOPBACK}:{port}",
        ],
        log=folder / "prometheus.log",
        environment=debian.environment(),
    )  # fmt: skip
