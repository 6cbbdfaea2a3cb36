"""Documents whose workers die, whose broker or run-states are gone. Row 18 of docs/reliability.md.

Provider and processor are rehearsed: they do what the document says (`tests/rehearsal.py`). Chunked extraction is real,
and asks a scripted model.
"""

import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from etl.models import Task
from etl.pipeline import artifacts
from rules.models import Rule
from tests import rehearsal
from tests.broker import valkey
from tests.chaos.documents import (
    ALL,
    BOTH,
    REAL,
    attempts,
    code_of,
    ocr_calls,
    post_calls,
    rehearsed_rule,
    runstate_of,
    send,
    settle,
    status,
    submit,
)
from tests.chaos.proxy import Proxy
from tests.chaos.site import LEASE_SECONDS, REAPER_SECONDS, Site, proxy_of, through
from tests.integration import openai_server
from tests.integration.etl_factories import make_rule
from tests.integration.openai_server import ModelServer, Reply, Request, gives
from tests.waiting import let_pass, wait_until

# Seconds after which another worker takes a document up, and what a busy machine may add.
PROMISED, SPARE = LEASE_SECONDS + REAPER_SECONDS, 10


@pytest.fixture
def rule(site: Site) -> Rule:
    return rehearsed_rule(site)


# ---- Workers that die -----------------------------------------------------------------------------------------------
STEPS = {
    # How often the provider and the processor are called in all, and the attempts that are counted.
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
def test_a_worker_may_die_at_any_step_of_a_document(site: Site) -> None:
    """18: in OCR, in post-processing, between the two. What was done is not done again."""
    site.start_web()
    site.start_worker(ALL)
    site.start_beat()
    found = {}
    for step in STEPS:
        rule = rehearsed_rule(site)
        site.points.arm(step, "die")
        task = submit(site, f"Dies when {step}.", rule=rule)
        wait_until(lambda step=step: not site.points.armed(step))  # type: ignore[misc]
        died = time.monotonic()
        settle(task)
        recovery = time.monotonic() - died
        site.measured("18: a document goes on after its worker died", recovery, step=step)
        assert recovery < PROMISED + SPARE
        found[step] = (ocr_calls(task), post_calls(rule), attempts(task))
        assert code_of(task) == ("completed", "postprocess")

    assert found == STEPS


def test_workers_killed_from_outside_take_no_document_with_them(site: Site, rule: Rule) -> None:
    """18: kill -9 of whole workers, parents too, while documents are in OCR and in post-processing."""
    site.start_web()
    site.start_worker("maintenance", children=1)
    site.start_beat()
    tasks = [submit(site, "once:until never\npost:once:until never", rule=rule)]
    tasks += [submit(site, "wait 0.2\npost:wait 0.2", rule=rule) for _ in range(6)]
    for calls in (lambda: ocr_calls(tasks[0]), lambda: post_calls(rule) > 0 and site.random.random() < 0.1):
        victim = site.start_worker(BOTH)
        wait_until(calls)
        victim.kill()
    killed = time.monotonic()
    site.start_worker(BOTH)
    settle(*tasks)
    site.measured("18: seven documents end after two workers were killed", time.monotonic() - killed)

    assert {code_of(task)[0] for task in tasks} == {"completed"}


# ---- The broker -----------------------------------------------------------------------------------------------------
@pytest.fixture
def run_states(site: Site) -> Iterator[Proxy]:
    """A way to Valkey for run-states alone, so that the broker can be away without them."""
    proxy = proxy_of(site.servers.valkey.url())
    yield proxy
    for process in (*site.workers, *site.beats):
        process.kill()
    proxy.close()


@pytest.mark.parametrize("trouble", ["stall", "refuse"])
@pytest.mark.parametrize("which", ["the broker", "broker and run-states"])
def test_a_broker_that_is_away_as_ocr_ends_does_not_lose_the_document(
    site: Site, rule: Rule, run_states: Proxy, trouble: str, which: str
) -> None:
    """18: the next link of the chain cannot be sent. Where run-states are away with it, for longer than a lease, what
    OCR has stored is found again."""
    apart = {"ETL_REDIS_URL": through(run_states, site.servers.valkey.url())}
    where: dict[str, Any] = apart if which == "the broker" else {}
    site.start_web(**where)
    site.start_worker(ALL, **where)
    site.start_beat(**where)
    gate = f"gate-{os.urandom(4).hex()}"
    task = submit(site, f"until {gate}", rule=rule)
    wait_until(lambda: ocr_calls(task))

    getattr(site.broker, trouble)()
    rehearsal.allow(gate)
    wait_until(lambda: kept(task))
    let_pass(LEASE_SECONDS + 1)
    assert status(task) == "pending"
    site.broker.pass_on()
    back = time.monotonic()
    settle(task)
    site.measured("18: a document goes on once the broker is back", time.monotonic() - back, trouble=trouble, of=which)

    assert code_of(task) == ("completed", "postprocess")
    assert (ocr_calls(task), post_calls(rule)) == (1, 1)


def kept(task: Task) -> bool:
    return artifacts.find_ocr(task) is not None


# ---- Valkey ---------------------------------------------------------------------------------------------------------
def flush(_site: Site) -> None:
    valkey().flushall()


@pytest.mark.parametrize("loss", [flush, Site.restart_broker_empty])
def test_losing_all_of_valkey_mid_run_loses_no_document(site: Site, loss: Callable[[Site], None]) -> None:
    """18: run-states, messages, locks: of documents that wait, are in OCR, between the stages, or post-processed."""
    site.start_web()
    site.start_worker("etl-ocr,maintenance")
    site.start_beat()
    rules = {name: rehearsed_rule(site) for name in ("a", "b")}
    gate = f"gate-{os.urandom(4).hex()}"
    in_post = submit(site, f"post:once:until {gate}", rule=rules["a"])
    site.start_worker("etl-postprocess", children=1)
    wait_until(lambda: post_calls(rules["a"]))
    between = submit(site, "Hello.", rule=rules["b"])  # the one process for its next stage is taken
    wait_until(lambda: kept(between) and runstate_of(between) == "llm_processing")
    in_ocr = [submit(site, f"once:until {gate}", rule=rules["b"]) for _ in range(2)]
    wait_until(lambda: all(map(ocr_calls, in_ocr)))
    waiting = submit(site, "Hello.", rule=rules["b"])  # both for OCR are taken

    loss(site)
    lost = time.monotonic()
    submitted = send(site, "Submitted right after.", rule=rules["b"])
    assert submitted.status_code == 202
    tasks = [in_post, between, *in_ocr, waiting, Task.objects.get(pk=submitted.json()["task_id"])]
    settle(*tasks)
    site.measured("18: documents end after Valkey lost everything", time.monotonic() - lost, how=loss.__name__)

    assert {code_of(task)[0] for task in tasks} == {"completed"}
    # What was in OCR is read once more; what OCR was done with is not.
    assert [ocr_calls(task) for task in tasks] == [1, 1, 2, 2, 1, 1]
    assert post_calls(rules["a"]) == 2


# ---- What was paid --------------------------------------------------------------------------------------------------
LINES = {
    "type": "object",
    "properties": {"lines": {"type": "array", "items": {"type": "string"}}},
    "required": ["lines"],
    "additionalProperties": False,
}
PIECES = 8
LONG = "\f".join(f"SKU-{page} costs {page}.50 EUR\n\n" + f"Words of page {page}. " * 9 for page in range(1, PIECES + 1))


@pytest.fixture
def models() -> Iterator[ModelServer]:
    with openai_server.running() as running:
        yield running


def extraction(models: ModelServer) -> dict[str, object]:
    return {
        **REAL,
        "ETL_LLM_BASE_URL": models.url,
        "ETL_LLM_MODEL": openai_server.MODEL,
        "ETL_POSTPROCESS_CHUNK_THRESHOLD_CHARS": 300,
        "ETL_POSTPROCESS_CHUNK_SIZE_CHARS": 250,
    }


# Where the worker dies as the fourth piece is asked for; how many pieces are asked for once more; attempts that are
# counted afterwards.
DEATHS = {
    "as the model thinks": (1, (1, 2)),
    "model answered": (1, (1, 2)),  # and nobody has kept it yet
    "answer kept": (0, (1, 2)),
    "Valkey too": (1, (1, 1)),  # whose counts are gone with it, but for what OCR has stored
}


@pytest.mark.timeout(180)
def test_a_model_is_not_paid_twice_for_finished_pieces(site: Site, models: ModelServer) -> None:
    """18: the worker dies in the middle of a long extraction. At most the piece that it was at is asked for again."""
    rule = make_rule(site.owner, mode="llm", name="lines", json_schema=LINES, postprocess_strategy="chunked-extract")
    site.start_web(**extraction(models))
    site.start_worker(ALL, children=1, **extraction(models))
    site.start_beat()
    found = {}
    for how in DEATHS:
        asked: Counter[str] = Counter()
        models.always(partial(answer, site, asked, how))
        task = submit(site, LONG, rule=rule)
        settle(task)
        assert code_of(task) == ("completed", "postprocess")
        row = Task.objects.get(pk=task.pk)
        assert row.result
        assert row.result["data"] == {"lines": [f"SKU-{page}" for page in range(1, PIECES + 1)]}
        assert len(asked) == PIECES
        found[how] = (asked.total() - PIECES, attempts(task))

    assert found == DEATHS


def answer(site: Site, asked: Counter[str], how: str, request: Request) -> Reply:
    """Find the one line that is in a piece; and do harm, once, in the middle of the document."""
    found = re.search(r"SKU-\d+", request.message("user"))
    assert found
    asked[found[0]] += 1
    if asked.total() == PIECES // 2:
        disturb(site, how)
    return gives({"lines": [found[0]]})


def disturb(site: Site, how: str) -> None:
    if how in ("model answered", "answer kept"):
        site.points.arm(how, "die")
        return
    for pid in site.children():
        os.kill(pid, signal.SIGKILL)
    if how == "Valkey too":
        valkey().flushall()
