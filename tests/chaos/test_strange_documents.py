"""Documents that mean harm or are broken, through the real provider in a real worker. Row 21 of docs/reliability.md."""

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
from tests.chaos.watch import memory
from tests.integration.etl_factories import make_rule
from tests.integration.test_local_provider import half
from tests.samples import hostile
from tests.waiting import wait_until

MOST_MEMORY = 200  # MB of a worker
MOST_READING = 1200  # MB of the process that reads for it: ended at 1 GB, looked at five times a second
WELL = ("completed", "postprocess")


@dataclass(frozen=True)
class Strange:
    """`answer`: of the submission, 202 or a refusal; `code`: the task's error, or "completed"."""

    content: bytes
    name: str
    code: str
    answer: int = 202


def ocr_error(code: str) -> tuple[str, str]:
    return WELL if code == "completed" else (code, "ocr")


INVOICE = samples.sample("invoice.pdf").read_bytes()
SMALL = hostile.printed("A polyglot")
ARCHIVE = hostile.zipped(("word/document.xml", b"<w:document/>"))
STRANGE = {
    "a password": Strange(hostile.printed("secret", password="user"), "a.pdf", "file_encrypted"),
    "an owner's password": Strange(hostile.printed("May not be printed", owner="owner"), "a.pdf", "completed"),
    "half a PDF": Strange(half("invoice.pdf"), "a.pdf", "file_corrupt"),
    "half a scan": Strange(half("invoice-scan.pdf"), "a.pdf", "file_corrupt"),
    "half a JPEG": Strange(half("notice-zh-scan.jpg"), "a.jpg", "file_corrupt"),
    "a PDF without its end": Strange(INVOICE[:-60], "a.pdf", "completed"),
    "junk": Strange(b"%PDF-1.7\n" + b"junk " * 1000, "a.pdf", "file_corrupt"),
    "no pages": Strange(hostile.pdf(b"<< /Type /Catalog >>"), "a.pdf", "file_corrupt"),
    "10,000 pages": Strange(hostile.many_pages(10_000), "a.pdf", "too_many_pages"),
    "10,000 form feeds": Strange(b"a\f" * 10_000, "a.txt", "too_many_pages"),
    "pages of 200 inches": Strange(
        hostile.page(hostile.stream(b"BT /F 400 Tf 100 7000 Td (Two hundred inches) Tj ET"), box=b"0 0 14400 14400"),
        "a.pdf", "completed",
    ),
    "200 inches to draw": Strange(
        hostile.page(hostile.stream(b"q 10 0 0 10 0 0 cm 60 w 100 100 m 1300 1300 l S Q"), box=b"0 0 14400 14400"),
        "a.pdf", "empty_document",
    ),
    "an image of 400 megapixels": Strange(hostile.image_bomb(20_000), "a.pdf", "too_many_pixels"),
    "a PNG of 2.7 GB": Strange(
        hostile.png(30_000, 30_000, hostile.deflated(b"\0", 1000)), "a.png", "too_many_pixels"
    ),
    "a page of 1.5 GB": Strange(hostile.content_bomb(), "a.pdf", "file_too_large"),
    "a TIFF whose pages go round": Strange(b"II*\0\x08\0\0\0\0\0\x08\0\0\0", "a.tiff", "file_corrupt"),
    "a zip bomb": Strange(
        hostile.zipped(("word/document.xml", bytes(10_000_000))), "a.docx", "unsupported_format", answer=415
    ),
    "a PNG that is called a PDF": Strange(b"\x89PNG\r\n\x1a\n" + bytes(99), "a.pdf", "file_corrupt"),
    "a PDF that is called a PNG": Strange(SMALL, "a.png", "completed"),
    "a text that is called a PDF": Strange(b"Only words.", "a.pdf", "completed"),
    "a PDF that is a zip, too": Strange(SMALL + ARCHIVE, "a.pdf", "completed"),
    "a zip that is a PDF, too": Strange(ARCHIVE + SMALL, "a.pdf", "unsupported_format", answer=415),
    "a web page that is a PDF, too": Strange(b"<html>" + SMALL, "a.html", "completed"),
    "a program": Strange(b"\x7fELF\x02\x01\x01" + bytes(200), "a.pdf", "unsupported_format", answer=415),
    "text that turns out to be none": Strange(b"words " * 20_000 + b"\xff\xfe", "a.txt", "file_corrupt"),
    "a blank page": Strange(hostile.printed(""), "a.pdf", "empty_document"),
    "spaces": Strange(b" \n\n", "a.txt", "empty_document"),
    "nothing": Strange(b"", "a.pdf", "empty_document", answer=400),
}  # fmt: skip


@pytest.mark.timeout(300)
def test_whatever_a_document_is_it_has_its_documented_error_and_the_next_one_is_read(site: Site) -> None:
    """21: one process reads all of them, and after each a good one."""
    patient = {**REAL, "ETL_RECOVERY_SECONDS": "10"}  # the queue is long, and must not fill with hints sent again
    site.start_web(**patient)
    site.start_worker(ALL, children=1, **patient)
    site.start_beat(**patient)
    rule = make_rule(site.owner)
    settle(submit(site, SMALL, name="a.pdf", rule=rule))
    pids = sorted(site.children())

    began = time.monotonic()
    sent = {name: (send(site, one.content, name=one.name, rule=rule), good(site, rule)) for name, one in shuffled(site)}
    assert {name: refusal(answer) for name, (answer, _) in sent.items()} == {
        name: (one.answer, "" if one.answer == 202 else one.code) for name, one in STRANGE.items()
    }
    bad = {name: task_of(answer) for name, (answer, _) in sent.items() if answer.status_code == 202}
    nexts = [next_one for _, next_one in sent.values()]
    settle(*chain(bad.values(), nexts), limit=200)
    site.measured("21: 28 strange documents, and as many good ones", time.monotonic() - began)

    assert {name: code_of(task) for name, task in bad.items()} == {
        name: ocr_error(one.code) for name, one in STRANGE.items() if one.answer == 202
    }
    assert {code_of(task) for task in nexts} == {WELL}
    assert {markdown_of(task) for task in nexts} == {"<!-- page: 1 -->\n\nThe next document\n\n"}
    assert {attempts for task in bad.values() if (attempts := tried(task)) != 1} == set(), "tried again in vain"
    assert sorted(site.children()) == pids, "the worker's process has died of one"
    assert max(map(memory, pids)) < MOST_MEMORY
    assert max(map(memory, site.readers()), default=0) < MOST_READING


def shuffled(site: Site) -> list[tuple[str, Strange]]:
    return site.random.sample(sorted(STRANGE.items()), len(STRANGE))


def good(site: Site, rule: Rule) -> Task:
    return submit(site, hostile.printed("The next document"), name="good.pdf", rule=rule)


def refusal(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json().get("code", "")


def task_of(answer: Any) -> Task:
    return Task.objects.get(pk=answer.json()["task_id"])


def tried(task: Task) -> int:
    attempts: int = Task.objects.get(pk=task.pk).metadata["attempts"]["ocr"]
    return attempts


def test_a_document_that_kills_its_reader_does_not_harm_the_worker(site: Site) -> None:
    """21: the process that reads dies in the middle; the worker lives, and has another one for the next document."""
    once = {**REAL, "ETL_OCR_MAX_ATTEMPTS": "1"}
    site.start_web(**once)
    site.start_worker(ALL, children=1, **once)
    site.start_beat()
    rule = make_rule(site.owner)
    settle(good(site, rule))
    pids = sorted(site.children())
    (reader,) = site.readers()
    long = hostile.many_pages(400, *["words that are many " * 6] * 20)
    poison, following = submit(site, long, name="a.pdf", rule=rule), good(site, rule)
    wait_until(lambda: is_being_read(poison))
    os.kill(reader, signal.SIGKILL)
    died = time.monotonic()
    settle(poison, following)
    site.measured("21: the next document is read after one killed its reader", time.monotonic() - died)

    assert code_of(poison) == ("ocr_failed", "ocr")
    assert code_of(following) == WELL
    assert sorted(site.children()) == pids
    assert site.readers() != [reader]


def is_being_read(task: Task) -> bool:
    state = runstate.read(task.pk)
    return bool(state and state.step)
