"""Documents during worker crashes, and outages of the broker and Valkey. Row 18 of docs/reliability.md.

Provider and processor are scripted: they follow instructions in the document (`tests/scripted_stages.py`). Chunked
extraction is real, with a scripted model.
"""

import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from etl.models import Task
from etl.pipeline import artifacts
from rules.models import Rule
from tests import scripted_stages
from tests.broker import valkey
from tests.chaos.documents import (
    ALL,
    BOTH_QUEUES,
    REAL,
    attempts,
    code_of,
    ocr_calls,
    post_calls,
    runstate_of,
    scripted_rule,
    send,
    settle,
    status,
    submit,
)
from tests.chaos.proxy import Proxy
from tests.chaos.site import LEASE_SECONDS, REAPER_SECONDS, Site, proxy_of, through
from tests.integration import openai_server
from tests.integration.etl_factories import make_rule
from tests.integration.openai_server import ModelServer, Reply, Request, data_reply
from tests.waiting import let_pass, wait_until

# Seconds after which another worker continues a document, and a tolerance for a busy machine.
RECOVERY_SECONDS, TOLERANCE = LEASE_SECONDS + REAPER_SECONDS, 10


# ---- Worker crashes -------------------------------------------------------------------------------------------------
STEPS = {
    # The number of calls of the provider and the processor, and the counted attempts of both stages.
    "document fetched": (1, 1, (2, 1)),
    "document read": (2, 1, (2, 1)),
    "Markdown stored": (2, 1, (2, 1)),
    "OCR kept": (1, 1, (2, 1)),
    "OCR handed over": (1, 1, (1, 1)),
    "post-processing begun": (1, 1, (1, 2)),
    "output stored": (1, 1, (1, 2)),
    "end decided": (1, 1, (1, 1)),
    "end written": (1, 1, (1, 1)),
}


@pytest.mark.timeout(180)
def test_a_document_survives_a_worker_crash_at_any_step(site: Site) -> None:
    """18: in OCR, in post-processing, and in between. Finished work is not repeated."""
    site.start_web()
    site.start_worker(ALL)
    site.start_beat()
    results = {}
    for step in STEPS:
        rule = scripted_rule(site)
        site.points.arm(step, "die")
        task = submit(site, f"Dies when {step}.", rule=rule)
        wait_until(lambda step=step: not site.points.armed(step))  # type: ignore[misc]
        died = time.monotonic()
        settle(task)
        recovery = time.monotonic() - died
        site.record_duration("18: a document continues after its worker crashed", recovery, step=step)
        assert recovery < RECOVERY_SECONDS + TOLERANCE
        results[step] = (ocr_calls(task), post_calls(rule), attempts(task))
        assert code_of(task) == ("completed", "postprocess")

    assert results == STEPS


def test_killed_workers_lose_no_document(site: Site, rule: Rule) -> None:
    """18: SIGKILL of complete workers, including the parent, while documents are in OCR and in post-processing."""
    site.start_web()
    site.start_worker("maintenance", children=1)
    site.start_beat()
    tasks = [submit(site, "once:until never\npost:once:until never", rule=rule)]
    tasks += [submit(site, "wait 0.2\npost:wait 0.2", rule=rule) for _ in range(6)]
    for calls in (lambda: ocr_calls(tasks[0]), lambda: post_calls(rule) > 0 and site.random.random() < 0.1):
        victim = site.start_worker(BOTH_QUEUES)
        wait_until(calls)
        victim.kill()
    killed = time.monotonic()
    site.start_worker(BOTH_QUEUES)
    settle(*tasks)
    site.record_duration("18: seven documents end after two workers were killed", time.monotonic() - killed)

    assert {code_of(task)[0] for task in tasks} == {"completed"}


# ---- The broker -----------------------------------------------------------------------------------------------------
@pytest.fixture
def run_states(site: Site) -> Iterator[Proxy]:
    """A separate proxy to Valkey for run-states, so that only the broker can fail."""
    proxy = proxy_of(site.servers.valkey.url())
    yield proxy
    for process in (*site.workers, *site.beats):
        process.kill()
    proxy.close()


@pytest.mark.parametrize("trouble", ["stall", "refuse"])
@pytest.mark.parametrize("which", ["the broker", "broker and run-states"])
def test_a_broker_outage_at_the_end_of_ocr_loses_no_document(
    site: Site, rule: Rule, run_states: Proxy, trouble: str, which: str
) -> None:
    """18: the next stage cannot be enqueued.

    If the run-states are also unavailable for longer than a lease, the stored OCR result is used later.
    """
    separate = {"ETL_REDIS_URL": through(run_states, site.servers.valkey.url())}
    variables: dict[str, Any] = separate if which == "the broker" else {}
    site.start_web(**variables)
    site.start_worker(ALL, **variables)
    site.start_beat(**variables)
    gate = f"gate-{os.urandom(4).hex()}"
    task = submit(site, f"until {gate}", rule=rule)
    wait_until(lambda: ocr_calls(task))

    getattr(site.broker, trouble)()
    scripted_stages.allow(gate)
    wait_until(lambda: has_ocr_result(task))
    let_pass(LEASE_SECONDS + 1)
    assert status(task) == "pending"
    site.broker.remove_faults()
    recovered_at = time.monotonic()
    settle(task)
    site.record_duration(
        "18: a document continues after the broker outage", time.monotonic() - recovered_at, trouble=trouble, of=which
    )

    assert code_of(task) == ("completed", "postprocess")
    assert (ocr_calls(task), post_calls(rule)) == (1, 1)


def has_ocr_result(task: Task) -> bool:
    return artifacts.find_ocr(task) is not None


# ---- Valkey ---------------------------------------------------------------------------------------------------------
def flush(_site: Site) -> None:
    valkey().flushall()


@pytest.mark.parametrize("loss", [flush, Site.restart_broker_empty])
def test_losing_all_valkey_data_mid_run_loses_no_document(site: Site, loss: Callable[[Site], None]) -> None:
    """18: the run-states, messages, and locks of documents in all stages, and of waiting ones."""
    site.start_web()
    site.start_worker("etl-ocr,maintenance")
    site.start_beat()
    rules = {name: scripted_rule(site) for name in ("a", "b")}
    gate = f"gate-{os.urandom(4).hex()}"
    in_post = submit(site, f"post:once:until {gate}", rule=rules["a"])
    site.start_worker("etl-postprocess", children=1)
    wait_until(lambda: post_calls(rules["a"]))
    between = submit(site, "Hello.", rule=rules["b"])  # the only process for its next stage is busy
    wait_until(lambda: has_ocr_result(between) and runstate_of(between) == "llm_processing")
    in_ocr = [submit(site, f"once:until {gate}", rule=rules["b"]) for _ in range(2)]
    wait_until(lambda: all(map(ocr_calls, in_ocr)))
    waiting = submit(site, "Hello.", rule=rules["b"])  # both processes for OCR are busy

    loss(site)
    lost = time.monotonic()
    submitted = send(site, "Submitted right after.", rule=rules["b"])
    assert submitted.status_code == 202
    tasks = [in_post, between, *in_ocr, waiting, Task.objects.get(pk=submitted.json()["task_id"])]
    settle(*tasks)
    site.record_duration(
        "18: documents end after the loss of all Valkey data", time.monotonic() - lost, how=loss.__name__
    )

    assert {code_of(task)[0] for task in tasks} == {"completed"}
    # Interrupted OCR is repeated. Finished OCR is not.
    assert [ocr_calls(task) for task in tasks] == [1, 1, 2, 2, 1, 1]
    assert post_calls(rules["a"]) == 2


# ---- Paid calls -----------------------------------------------------------------------------------------------------
LINES = {
    "type": "object",
    "properties": {"lines": {"type": "array", "items": {"type": "string"}}},
    "required": ["lines"],
    "additionalProperties": False,
}
PIECES = 8
LONG = "\f".join(f"SKU-{page} costs {page}.50 EUR\n\n" + f"Words of page {page}. " * 9 for page in range(1, PIECES + 1))


def extraction(models: ModelServer) -> dict[str, object]:
    return {
        **REAL,
        "ETL_LLM_BASE_URL": models.url,
        "ETL_LLM_MODEL": openai_server.MODEL,
        "ETL_POSTPROCESS_CHUNK_THRESHOLD_CHARS": 300,
        "ETL_POSTPROCESS_CHUNK_SIZE_CHARS": 250,
        "ETL_POSTPROCESS_PARALLEL": 1,  # otherwise, several pieces in progress may be requested again
    }


# By time of the crash, in the fourth piece: the number of pieces that are requested again, and the counted attempts.
CRASHES = {
    "while the model responds": (1, (1, 2)),
    "model answered": (1, (1, 2)),  # the response is not stored
    "answer kept": (0, (1, 2)),
    "with the loss of Valkey": (1, (1, 1)),  # the counts are lost, but not the stored OCR result
}


@pytest.mark.timeout(180)
def test_finished_pieces_are_not_sent_to_a_model_again(site: Site, models: ModelServer) -> None:
    """18: the worker crashes during a long extraction. At most the piece in progress is requested again."""
    rule = make_rule(site.owner, mode="llm", name="lines", json_schema=LINES, postprocess_strategy="chunked-extract")
    site.start_web(**extraction(models))
    site.start_worker(ALL, children=1, **extraction(models))
    site.start_beat()
    results = {}
    for how in CRASHES:
        requested: Counter[str] = Counter()
        models.set_default(partial(answer, site, requested, how))
        task = submit(site, LONG, rule=rule)
        settle(task)
        assert code_of(task) == ("completed", "postprocess")
        row = Task.objects.get(pk=task.pk)
        assert row.result
        assert row.result["data"] == {"lines": [f"SKU-{page}" for page in range(1, PIECES + 1)]}
        assert len(requested) == PIECES
        results[how] = (requested.total() - PIECES, attempts(task))

    assert results == CRASHES


def test_a_killed_worker_loses_no_sample_of_an_evaluation(site: Site, models: ModelServer) -> None:
    """18, B38: SIGKILL of a complete worker while the model responds. Each sample is scored once."""
    rule = make_rule(site.owner, mode="llm", name="lines", json_schema=LINES, postprocess_strategy="direct-json")
    site.start_web(**extraction(models))
    site.start_worker("maintenance", children=1, **extraction(models))
    site.start_beat()
    models.set_default(data_reply({"lines": ["SKU-1"]}))
    victim = site.start_worker(BOTH_QUEUES, children=1, **extraction(models))
    tasks = [submit(site, f"Line SKU-1 of document {number}.", rule=rule) for number in range(3)]
    settle(*tasks)
    path = f"/api/v1/etl/rules/{rule.pk}"
    for task in tasks:
        sample = {"task_id": task.pk, "expected": {"lines": ["SKU-1"]}}
        assert site.client.post(f"{path}/samples/task", json=sample).status_code == 201

    is_requested = threading.Event()

    def hang(_request: Request) -> Reply:
        is_requested.set()
        time.sleep(LEASE_SECONDS)
        return data_reply({"lines": ["SKU-1"]})

    models.set_default(hang)
    evaluation = site.client.post(f"{path}/evaluations", json={}).headers["Location"]
    assert is_requested.wait(30)
    victim.kill()
    models.set_default(data_reply({"lines": ["SKU-1"]}))
    killed = time.monotonic()
    site.start_worker(BOTH_QUEUES, children=1, **extraction(models))
    wait_until(lambda: site.client.get(evaluation).json()["status"] == "completed", limit=60, every=0.2)
    site.record_duration("18: an evaluation ends after its worker was killed", time.monotonic() - killed)
    results = site.client.get(evaluation).json()
    assert (results["samples"], results["accuracy"], results["failed"]) == (3, 1, 0)


def answer(site: Site, requested: Counter[str], how: str, request: Request) -> Reply:
    """Return the value of a piece's only line. Inject a fault once, in the middle of the document."""
    line = re.search(r"SKU-\d+", request.message("user"))
    assert line
    requested[line[0]] += 1
    if requested.total() == PIECES // 2:
        inject_fault(site, how)
    return data_reply({"lines": [line[0]]})


def inject_fault(site: Site, how: str) -> None:
    if how in ("model answered", "answer kept"):
        site.points.arm(how, "die")
        return
    for pid in site.children():
        os.kill(pid, signal.SIGKILL)
    if how == "with the loss of Valkey":
        valkey().flushall()
