"""Malicious and broken documents with the real provider and a real worker. Row 21 of docs/reliability.md."""

import os
import signal
import time
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pytest

from etl import runstate
from etl.models import Task
from rules.models import Rule
from tests import samples
from tests.chaos.documents import ALL, REAL, code_of, markdown_of, send, settle, submit
from tests.chaos.site import Site
from tests.chaos.watch import Monitor, memory
from tests.integration.etl_factories import make_rule
from tests.integration.test_local_provider import half
from tests.samples import hostile
from tests.waiting import wait_until

MAX_MEMORY = 200  # MB of a worker
MAX_READER_MEMORY = 1200  # MB of a process that reads a document; checked five times a second, and killed above 1 GB
COMPLETED = ("completed", "postprocess")


@dataclass(frozen=True)
class BadDocument:
    """A document with its expected outcome.

    `response`: the status of the submission, 202 or a refusal. `code`: the error code of the task, or "completed".
    """

    content: bytes
    name: str
    code: str
    response: int = 202


def ocr_error(code: str) -> tuple[str, str]:
    return COMPLETED if code == "completed" else (code, "ocr")


INVOICE = samples.sample("invoice.pdf").read_bytes()
SMALL = hostile.printed("A polyglot")
ARCHIVE = hostile.zipped(("word/document.xml", b"<w:document/>"))
BAD_DOCUMENTS = {
    "a password": BadDocument(hostile.printed("secret", password="user"), "a.pdf", "file_encrypted"),
    "an owner's password": BadDocument(hostile.printed("May not be printed", owner="owner"), "a.pdf", "completed"),
    "half a PDF": BadDocument(half("invoice.pdf"), "a.pdf", "file_corrupt"),
    "half a scan": BadDocument(half("invoice-scan.pdf"), "a.pdf", "file_corrupt"),
    "half a JPEG": BadDocument(half("notice-zh-scan.jpg"), "a.jpg", "file_corrupt"),
    "a PDF without its end": BadDocument(INVOICE[:-60], "a.pdf", "completed"),
    "junk": BadDocument(b"%PDF-1.7\n" + b"junk " * 1000, "a.pdf", "file_corrupt"),
    "no pages": BadDocument(hostile.pdf(b"<< /Type /Catalog >>"), "a.pdf", "file_corrupt"),
    "10,000 pages": BadDocument(hostile.many_pages(10_000), "a.pdf", "too_many_pages"),
    "10,000 form feeds": BadDocument(b"a\f" * 10_000, "a.txt", "too_many_pages"),
    "pages of 200 inches": BadDocument(
        hostile.page(hostile.stream(b"BT /F 400 Tf 100 7000 Td (Two hundred inches) Tj ET"), box=b"0 0 14400 14400"),
        "a.pdf", "completed",
    ),
    "200 inches to draw": BadDocument(
        hostile.page(hostile.stream(b"q 10 0 0 10 0 0 cm 60 w 100 100 m 1300 1300 l S Q"), box=b"0 0 14400 14400"),
        "a.pdf", "empty_document",
    ),
    "an image of 400 megapixels": BadDocument(hostile.image_bomb(20_000), "a.pdf", "too_many_pixels"),
    "a PNG of 2.7 GB": BadDocument(
        hostile.png(30_000, 30_000, hostile.deflated(b"\0", 1000)), "a.png", "too_many_pixels"
    ),
    "a page of 1.5 GB": BadDocument(hostile.content_bomb(), "a.pdf", "file_too_large"),
    "a TIFF with a cycle of pages": BadDocument(b"II*\0\x08\0\0\0\0\0\x08\0\0\0", "a.tiff", "file_corrupt"),
    "a zip bomb": BadDocument(
        hostile.zipped(("word/document.xml", bytes(10_000_000))), "a.docx", "file_corrupt"
    ),
    "a PNG named as a PDF": BadDocument(b"\x89PNG\r\n\x1a\n" + bytes(99), "a.pdf", "file_corrupt"),
    "a PDF named as a PNG": BadDocument(SMALL, "a.png", "completed"),
    "a text named as a PDF": BadDocument(b"Only words.", "a.pdf", "completed"),
    "a PDF that is also a zip": BadDocument(SMALL + ARCHIVE, "a.pdf", "completed"),
    "a zip that is also a PDF": BadDocument(ARCHIVE + SMALL, "a.pdf", "file_corrupt"),
    "a web page that is also a PDF": BadDocument(b"<html>" + SMALL, "a.html", "completed"),
    "a program": BadDocument(b"\x7fELF\x02\x01\x01" + bytes(200), "a.pdf", "unsupported_format", response=415),
    "text that ends in two bytes of Latin letters": BadDocument(b"words " * 20_000 + b"\xff\xfe", "a.txt", "completed"),
    "a blank page": BadDocument(hostile.printed(""), "a.pdf", "empty_document"),
    "spaces": BadDocument(b" \n\n", "a.txt", "empty_document"),
    "nothing": BadDocument(b"", "a.pdf", "empty_document", response=400),
}  # fmt: skip


@pytest.mark.timeout(300)
def test_every_malformed_document_gets_its_documented_error_and_the_next_is_read(site: Site) -> None:
    """21: one worker process handles all of them, and a valid document after each."""
    # The queue is long, and must not be filled with repeated wake-up messages.
    variables = {**REAL, "ETL_RECOVERY_SECONDS": "10"}
    site.start_web(**variables)
    site.start_worker(ALL, children=1, **variables)
    site.start_beat(**variables)
    rule = make_rule(site.owner)
    settle(submit(site, SMALL, name="a.pdf", rule=rule))
    pids = sorted(site.children())

    readers = Monitor(site.source.url, site.readers)  # the process that reads a document exits afterward
    began = time.monotonic()
    sent = {
        name: (send(site, one.content, name=one.name, rule=rule), submit_valid(site, rule))
        for name, one in shuffled(site)
    }
    assert {name: refusal(response) for name, (response, _) in sent.items()} == {
        name: (one.response, "" if one.response == 202 else one.code) for name, one in BAD_DOCUMENTS.items()
    }
    bad = {name: task_of(response) for name, (response, _) in sent.items() if response.status_code == 202}
    nexts = [next_one for _, next_one in sent.values()]
    settle(*chain(bad.values(), nexts), limit=200)
    readers.stop()
    count = len(BAD_DOCUMENTS)
    site.record_duration(f"21: {count} malformed documents, and as many valid ones", time.monotonic() - began)

    assert {name: code_of(task) for name, task in bad.items()} == {
        name: ocr_error(one.code) for name, one in BAD_DOCUMENTS.items() if one.response == 202
    }
    assert {code_of(task) for task in nexts} == {COMPLETED}
    assert {markdown_of(task) for task in nexts} == {"<!-- page: 1 -->\n\nThe next document\n\n"}
    assert {attempts for task in bad.values() if (attempts := ocr_attempts(task)) != 1} == set(), (
        "a permanent error was retried"
    )
    assert sorted(site.children()) == pids, "the worker process crashed"
    assert max(map(memory, pids)) < MAX_MEMORY
    assert 0 < max(readers.most_memory.values()) < MAX_READER_MEMORY, readers.whose


def shuffled(site: Site) -> list[tuple[str, BadDocument]]:
    return site.random.sample(sorted(BAD_DOCUMENTS.items()), len(BAD_DOCUMENTS))


def submit_valid(site: Site, rule: Rule) -> Task:
    return submit(site, hostile.printed("The next document"), name="valid.pdf", rule=rule)


def refusal(response: Any) -> tuple[int, str]:
    return response.status_code, response.json().get("code", "")


def task_of(response: Any) -> Task:
    return Task.objects.get(pk=response.json()["task_id"])


def ocr_attempts(task: Task) -> int:
    attempts: int = Task.objects.get(pk=task.pk).metadata["attempts"]["ocr"]
    return attempts


def test_a_document_that_crashes_its_reader_leaves_the_worker_running(site: Site) -> None:
    """21: the reader process is killed while it reads. The worker starts another one for the next document."""
    variables = {**REAL, "ETL_OCR_MAX_ATTEMPTS": "1"}
    site.start_web(**variables)
    site.start_worker(ALL, children=1, **variables)
    site.start_beat()
    rule = make_rule(site.owner)
    settle(submit_valid(site, rule))
    pids = sorted(site.children())
    (reader,) = site.readers()
    long = hostile.many_pages(400, *["words that are many " * 6] * 20)
    poison, following = submit(site, long, name="a.pdf", rule=rule), submit_valid(site, rule)
    wait_until(lambda: is_being_read(poison))
    os.kill(reader, signal.SIGKILL)
    died = time.monotonic()
    settle(poison, following)
    site.record_duration("21: the next document is read after a parser crash", time.monotonic() - died)

    assert code_of(poison) == ("ocr_failed", "ocr")
    assert code_of(following) == COMPLETED
    assert sorted(site.children()) == pids
    assert site.readers() != [reader]


def is_being_read(task: Task) -> bool:
    state = runstate.read(task.pk)
    return bool(state and state.step)
