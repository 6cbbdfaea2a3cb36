"""The bounds of extraction from long documents, for four families of `make extract-bench`. B16, B18, B31, B42."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from config.dev.stack.processes import Web
from tests.bench.extraction import reader, runs, service, summary
from tests.bench.extraction.families import QUICK
from tests.bench.extraction.reader import Ledger
from tests.bench.extraction.service import Service
from tests.e2e.conftest import Workers, serving_alone

# Corrections of these readers cost more than the bound allows: docs/benchmarks.md has the figures.
EXPENSIVE = tuple(f"{mode}: prompt tokens" for mode in ("sloppy-10", "forgetful"))


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    """A scripted model server for processes that are started later."""
    with reader.serving() as (server, ledger):
        for name, value in service.model(server.url).items():
            monkeypatch.setenv(name, value)
        yield ledger


@pytest.fixture
def web(ledger: Ledger, workers: Workers, tmp_path: Path) -> Iterator[Web]:
    workers.start("etl-ocr", concurrency=1)
    workers.start("etl-postprocess", concurrency=2)
    with serving_alone(tmp_path) as running:
        yield running


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_extraction_meets_its_bounds(web: Web, token: str, ledger: Ledger) -> None:
    outcomes = runs.run(Service(web.url, token), list(runs.cases(QUICK, seed=1)), ledger)

    report = summary.report(outcomes, ledger)

    missed = [
        f"{bound.what}: {bound.value:g}"
        for bound in report.bounds
        if bound.verdict == "missed" and not bound.what.startswith(EXPENSIVE)
    ]
    assert not missed, report.text(judged=True)
