"""A browser of a staff user, rows for the admin pages, and helpers for their forms. All tests may use the fixtures."""

import html
import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.utils import quote
from django.contrib.auth.models import User
from django.contrib.messages import get_messages
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from exports.delivery import links
from exports.models import Chunk, Dataset, Download, File, Job, Receipt, Tick
from tests.conftest import browser_of
from tests.integration.factories import make_job


@pytest.fixture
def staff(transactional_db: None) -> User:
    # Without a password: hashing one takes 0.3 s, and tests sign in by `force_login`.
    return User.objects.create_user("sam", is_staff=True, is_superuser=True)


@pytest.fixture
def pages(staff: User) -> Client:
    """A browser of a staff user."""
    return browser_of(staff)


@pytest.fixture
def failed(dataset: Dataset, alice: User) -> Job:
    """A job with one finished and two failed chunks."""
    job = make_job(dataset, alice)
    fail(job, chunks=2)
    return job


def fail(job: Job, *, chunks: int) -> None:
    ids = list(job.chunks.order_by("seq").values_list("pk", flat=True))
    Chunk.objects.filter(pk__in=ids[:chunks]).update(
        status="failed", attempts=4, error_code="EXPORT_SOURCE_ERROR", error_detail="SQLSTATE P0001"
    )
    Chunk.objects.filter(pk__in=ids[chunks:]).update(
        status="done", attempts=1, source="live", rows=3, bytes=60, sha256="x", etag="x"
    )
    Job.objects.filter(pk=job.pk).update(
        status="failed", failed=chunks, done=len(ids) - chunks, finished_at=timezone.now(),
        error_code="EXPORT_SOURCE_ERROR", error_detail="SQLSTATE P0001",
    )  # fmt: skip


@pytest.fixture
def delivered(dataset: Dataset, alice: User) -> Receipt:
    """The receipt of a finished job with a file, a link, and one download."""
    job = make_job(dataset, alice, chunks=1)
    fail(job, chunks=0)
    Job.objects.filter(pk=job.pk).update(status="success", error_code="", error_detail="")
    chunk = job.chunks.get()
    File.objects.create(
        path=chunk.path, dataset=dataset, schema_version=1, key=chunk.key, effective_date=chunk.effective_date,
        etag="x", sha256="x", rows=3, bytes=60, data_as_of=timezone.now(),
    )  # fmt: skip
    receipt = Receipt.objects.create(
        job=job, object_key="_receipts/x", etag="x", checksum="x", size_bytes=60, rows=3, files=1,
        content_type="text/csv", file_name="things.csv", expires_at=timezone.now() + timedelta(hours=1),
    )  # fmt: skip
    link = links.mint(receipt)
    Download.objects.create(job=job, link=link, outcome="redeemed", address="192.0.2.1", user_agent="curl")
    Tick.objects.create(name="reap", ran_at=timezone.now())
    return receipt


# ---- Pages ----------------------------------------------------------------------------------------------------------
def list_of(model: str, **query: Any) -> str:
    return reverse(f"admin:{model}_changelist", query=query) if "_" in model else list_of(f"exports_{model}", **query)


def page_of(row: Any, verb: str = "change") -> str:
    return reverse(f"admin:exports_{row._meta.model_name}_{verb}", args=[quote(row.pk)])


def text_of(response: Any) -> str:
    assert response.status_code == 200, response
    return html.unescape(response.content.decode())


def messages_of(response: Any) -> list[str]:
    return [str(message) for message in get_messages(response.wsgi_request)]


# ---- Actions --------------------------------------------------------------------------------------------------------
def select(browser: Client, verb: str, *rows: Any, **more: Any) -> Any:
    """Select rows of a list and an action. Return the confirmation page."""
    chosen = {"action": verb, "_selected_action": [str(row.pk) for row in rows], "select_across": "0", "index": "0"}
    return browser.post(list_of(rows[0]._meta.label_lower.replace(".", "_")), chosen | more)


def form_in(response: Any) -> tuple[str, dict[str, str]]:
    """Return the URL and the hidden fields of the confirmation form."""
    text = response.content.decode()
    assert response.status_code == 200, response
    form = re.search(r'<form method="post" action="([^"]+/do/[^"]+)"(.*?)</form>', text, re.DOTALL)
    assert form, text[:2000]
    hidden = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', form[2])
    return form[1], {name: html.unescape(value) for name, value in hidden}


def confirm(browser: Client, response: Any) -> Any:
    action, fields = form_in(response)
    return browser.post(action, fields)


def press(browser: Client, row: Any, verb: str) -> Any:
    """Press a button on a row's page, and confirm."""
    return confirm(browser, browser.get(page_of(row, verb)))
