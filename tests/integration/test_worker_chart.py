"""The chart of an export's chunks by worker and time, on the page of the export. C1."""

from datetime import UTC, datetime, timedelta
from typing import Any

from django.contrib.auth.models import User

from exports.core.errors import SourceTimeout
from exports.models import Dataset
from exports.pages import workers
from exports.source import database
from exports.worker import execution
from tests.conftest import browser_of
from tests.integration import outcomes
from tests.integration.factories import claim_one, make_job, result_of
from tests.integration.plans import nodes, plans_of, rows_of

START = datetime(2024, 2, 29, tzinfo=UTC)


def backend(worker: str) -> str:
    return f"sluice-export-{worker}-0123456789ab"


def row(begin: int, end: int | None, *, worker: str = "web1-7", **changes: Any) -> dict[str, Any]:
    """Return a row like those of the chart's query. `begin` and `end`: seconds after START."""
    return {
        "key": "JFK", "effective_date": START.date(), "status": "done" if end else "running", "source": "",
        "backend": backend(worker), "started_at": START + timedelta(seconds=begin),
        "finished_at": START + timedelta(seconds=end) if end else None, **changes,
    }  # fmt: skip


def lanes(*rows: dict[str, Any], seconds: int = 100) -> dict[str, list[tuple[int, int]]]:
    end = START + timedelta(seconds=seconds)
    found = workers.lanes_of(rows, START, end, now=end)
    return {lane.name: [(bar.x, bar.width) for bar in lane.bars] for lane in found}


def test_the_page_shows_calls_by_worker(dataset: Dataset, alice: User) -> None:
    job = make_job(dataset, alice, 4)
    client = browser_of(alice)
    path = f"/app/exports/{job.pk}"
    assert '<h2 id="workers-title"' not in client.get(path).content.decode()
    for worker in ("web1-7", "web2-8", "web1-7"):
        claim = claim_one(backend=backend(worker))
        assert claim
        outcomes.finish([(claim, result_of(claim))])
    claim = claim_one(backend=backend("web3-9"))
    assert claim
    page = client.get(path).content.decode()
    assert 'aria-label="web1-7: 2 chunks, ' in page
    assert 'aria-label="web2-8: 1 chunk, ' in page
    assert f"<title>{claim.pair.key} {claim.pair.effective_date}: running, " in page


def test_the_pause_before_another_attempt_is_not_shown_as_a_call(dataset: Dataset, alice: User) -> None:
    job = make_job(dataset, alice, 2)
    done, failed = (claim_one(backend=backend(worker)) for worker in ("web1-7", "web2-8"))
    assert done
    assert failed
    outcomes.finish([(done, result_of(done))])
    outcomes.fail(failed, SourceTimeout(), delay=60)
    chart = workers.chart_of(job)
    assert chart
    assert [lane.name for lane in chart.lanes] == ["web1-7"]


def test_workers_record_their_names(dataset: Dataset, alice: User) -> None:
    job = make_job(dataset, alice, 3)
    execution.drain()
    chart = workers.chart_of(job)
    assert chart
    (lane,) = chart.lanes
    assert database.BACKEND.fullmatch(job.chunks.first().backend)  # type: ignore[union-attr]
    assert len(lane.bars) == 3


def test_bars_are_in_proportion_and_chunks_of_a_batch_follow_each_other() -> None:
    """Chunks of a batch are claimed at the same time, but run one after the other."""
    found = lanes(row(0, 10), row(0, 30), row(50, None), row(20, 40, worker="web2-8"))
    assert found == {"web1-7": [(0, 100), (100, 200), (500, 500)], "web2-8": [(200, 200)]}


def test_short_calls_are_visible_and_stay_inside() -> None:
    found = lanes(row(0, 1), row(1000, 1000), seconds=1000)
    assert found == {"web1-7": [(0, 2), (998, 2)]}


def test_chunks_without_a_worker_have_lanes_too() -> None:
    found = lanes(row(0, 10, source="reused"), row(0, 10, backend=""), row(0, 10, backend="other"))
    assert list(found) == ["Not recorded", "Reused files", "other"]


def test_reads_a_sample_of_the_chunks_of_a_large_export(dataset: Dataset, alice: User) -> None:
    job = make_job(dataset, alice, 1_000)
    job.chunks.update(started_at=START, finished_at=START + timedelta(seconds=1))
    plans = [plan for statement, plan in plans_of(lambda _: workers.chart_of(job)) if "generate_series" in statement]
    scans = [node for node in nodes(plans[0]) if node.get("Relation Name") == "exports_chunk"]
    assert [node["Index Name"] for node in scans] == ["exports_chunk_seq"]
    assert sum(map(rows_of, scans)) <= workers.MAX_CHUNKS
    chart = workers.chart_of(job)
    assert chart
    assert (chart.step, sum(len(lane.bars) for lane in chart.lanes)) == (3, 334)
