"""The layout of a document and the images of its pages: API, drawing in a worker, and storage. B30."""

import json
import threading
import urllib.request
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings
from django.contrib.auth.models import User
from django.db import connection
from PIL import Image
from rest_framework.test import APIClient

from config.platform import storage
from etl.maintenance import cleanup
from etl.models import Task
from etl.pipeline import artifacts, engines, page_images
from tests.broker import lose_messages, queued, valkey
from tests.conftest import change_settings, client_of
from tests.integration.etl_factories import make_task
from tests.integration.stage_runs import ConfigureStages, run
from tests.integration.test_etl_api import path
from tests.samples import hostile
from tests.waiting import wait_until

A4 = (595, 842)


@pytest.fixture(scope="module", autouse=True)
def _one_reader() -> Iterator[None]:
    """Share the sandboxed reader process among all tests, like a worker does, because it takes a second to start."""
    yield
    engines.local().close()


@pytest.fixture(autouse=True)
def _real_provider(configure_stages: ConfigureStages) -> None:
    valkey().flushdb()
    configure_stages(etl_ocr_provider="local")


def submit(user: User, content: bytes, kind: str = "pdf") -> Task:
    return make_task(user, content=content, kind=kind)


def replace(task: Task, content: bytes, kind: str) -> None:
    storage.delete(task.document_key)
    storage.put(task.document_key, content, content_type="application/octet-stream")
    Task.objects.filter(pk=task.pk).update(kind=kind, size=len(content))


def pages(count: int) -> bytes:
    return hostile.printed(*(f"This is page {number} of the contract." for number in range(1, count + 1)))


def image(api: APIClient, task: Task, page: int, width: str = "") -> Any:
    return api.get(path(task, "pages", str(page), f"image{width}"))


def draw_in_thread(task: Task, page: int, width: int) -> threading.Thread:
    """Process the drawing message in a thread, like a worker."""

    def work() -> None:
        try:
            wait_until(lambda: queued("etl-ocr"))
            page_images.draw(task.pk, page=page, width=width)
        finally:
            connection.close()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def picture(url: str) -> Image.Image:
    with urllib.request.urlopen(url) as response:  # noqa: S310 - our own storage
        assert response.headers["Content-Type"] == "image/webp"
        return Image.open(BytesIO(response.read()))


# ---- Layout ---------------------------------------------------------------------------------------------------------
def test_the_layout_has_the_positions_of_the_blocks(api: APIClient, alice: User) -> None:
    """B30."""
    content = hostile.page(hostile.stream(b"BT /F 12 Tf 72 700 Td (Net total 12.50) Tj ET"))
    task = submit(alice, content)
    early = api.get(path(task, "layout"))
    assert (early.status_code, early.json()["code"]) == (409, "not_ready")
    assert run(task) == [True, True]

    response: Any = api.get(path(task, "layout"))
    assert (response.status_code, response["Content-Type"]) == (200, "application/json")
    (page,) = json.loads(b"".join(response.streaming_content))["pages"]
    (block,) = page["blocks"]
    assert (page["page"], page["width"], page["height"], page["rotation"]) == (1, *A4, 0)
    assert (block["id"], block["text"]) == ("1-1", "Net total 12.50")
    x0, y0, x1, y1 = block["bbox"]
    assert 70 < x0 < 74
    assert 75 < x1 - x0 < 85
    assert A4[1] - 715 < y0 < y1 < A4[1] - 695  # 700 points above the bottom

    again: Any = api.get(path(task, "layout"), headers={"If-None-Match": response["ETag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_a_document_without_positions_has_an_empty_layout(api: APIClient, alice: User) -> None:
    task = submit(alice, b"Hello.", kind="txt")
    assert run(task) == [True, True]
    response = api.get(path(task, "layout"))
    assert (response.status_code, response.json()) == (200, {"pages": []})
    assert image(api, task, 1).status_code == 404


def test_other_users_see_neither_layout_nor_images(api: APIClient, alice: User, bob: User) -> None:
    task = submit(alice, pages(1))
    run(task)
    valkey().delete("etl-ocr")
    stranger = client_of(bob)
    assert stranger.get(path(task, "layout")).status_code == 404
    assert image(stranger, task, 1).status_code == 404
    assert queued("etl-ocr") == 0


# ---- Images ---------------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_an_image_is_drawn_once_when_it_is_first_requested(api: APIClient, alice: User) -> None:
    """B30."""
    task = submit(alice, pages(10))
    run(task)
    valkey().delete("etl-ocr")
    worker = draw_in_thread(task, 3, 1240)
    response = image(api, task, 3)
    worker.join()

    assert response.status_code == 302
    drawn = picture(response["Location"])
    assert drawn.width == 1240
    assert abs(drawn.height / drawn.width - A4[1] / A4[0]) < 0.01
    assert drawn.convert("L").getextrema() == (0, 255)  # black text on white

    valkey().delete("etl-ocr")
    assert [image(api, task, page).status_code for page in (1, 8)] == [302, 302]  # drawn together with page 3
    assert queued("etl-ocr") == 0
    before = page_images.find(task, 3, 1240)
    page_images.draw(task.pk, page=3, width=1240)  # a repeated message
    assert page_images.find(task, 3, 1240) == before


@pytest.mark.slow
@pytest.mark.parametrize(("wanted", "width"), [("?width=200", 320), ("?width=321", 1240), ("?width=2000", 2000)])
def test_images_are_stored_in_three_widths(api: APIClient, alice: User, wanted: str, width: int) -> None:
    task = submit(alice, pages(1))
    run(task)
    page_images.draw(task.pk, page=1, width=width)
    response = image(api, task, 1, wanted)
    assert picture(response["Location"]).width == width


@pytest.mark.slow
def test_an_image_document_is_not_enlarged(api: APIClient, alice: User) -> None:
    task = submit(alice, pages(1))
    run(task)
    content = BytesIO()
    Image.new("RGB", (300, 200), "red").save(content, "PNG")
    replace(task, content.getvalue(), "png")
    page_images.draw(task.pk, page=1, width=1240)
    found = page_images.find(task, 1, 1240)
    assert found is not None
    shown = Image.open(BytesIO(b"".join(storage.read(page_images.key_of(task, 1, 1240)))))
    assert shown.size == (300, 200)
    red, *others = shown.convert("RGB").getpixel((5, 5))  # type: ignore[misc]
    assert red > 250
    assert max(others) < 10


@pytest.mark.parametrize("width", ["?width=199", "?width=2001", "?width=x"])
def test_a_width_out_of_bounds_is_refused(api: APIClient, alice: User, width: str) -> None:
    task = submit(alice, pages(1))
    run(task)
    response = image(api, task, 1, width)
    assert (response.status_code, response.json()["errors"][0]["pointer"]) == (400, "/width")


@pytest.mark.slow
def test_missing_pages_are_404_and_pages_not_yet_read_409(api: APIClient, alice: User) -> None:
    task = submit(alice, pages(2))
    assert image(api, task, 1).json()["code"] == "not_ready"
    run(task)
    assert [image(api, task, page).status_code for page in (0, 3)] == [404, 404]


@pytest.mark.slow
def test_without_a_worker_the_response_has_retry_after(
    api: APIClient, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("etl.api.layout.WAIT_SECONDS", 0.5)
    task = submit(alice, pages(1))
    run(task)
    valkey().delete("etl-ocr")
    response = image(api, task, 1)
    assert (response.status_code, response.json()["code"], response["Retry-After"]) == (409, "image_not_ready", "2")
    assert queued("etl-ocr") == 1  # not one for each poll


def test_a_page_that_cannot_be_drawn_is_not_drawn_again(api: APIClient, alice: User) -> None:
    """The document is damaged. Later requests do not draw the page again."""
    task = submit(alice, pages(1))
    run(task)
    replace(task, b"not a PDF any more", "pdf")
    page_images.draw(task.pk, page=1, width=1240)
    lose_messages()
    response = image(api, task, 1)
    assert (response.status_code, response.json()["code"]) == (409, "image_unavailable")
    assert queued("etl-ocr") == 0


@pytest.mark.slow
def test_a_worker_without_the_required_sandbox_does_not_give_a_page_up(
    api: APIClient, alice: User, settings: LazySettings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The document is not the cause, so another worker may draw the page."""
    task = submit(alice, pages(1))
    run(task)
    (tmp_path / "pyseccomp.py").write_text("raise RuntimeError('Unable to find libseccomp')")
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path))
        engines.local().close()
        change_settings(settings, etl_require_sandbox=True)
        page_images.draw(task.pk, page=1, width=1240)
    engines.local().close()
    assert storage.head(page_images.key_of(task, 1, 1240)) is None
    page_images.draw(task.pk, page=1, width=1240)
    assert image(api, task, 1).status_code == 302


def test_a_slow_storage_does_not_give_a_page_up(alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    """The document is not the cause. If the page were given up, a model would never see it."""
    task = submit(alice, pages(1))
    run(task)
    with monkeypatch.context() as patch:
        patch.setattr(page_images, "DRAW_SECONDS", 0)
        page_images.draw(task.pk, page=1, width=1240)
        page_images.draw_for_models(task.pk, page=1, pixels=300_000)
    assert storage.head(page_images.key_of(task, 1, 1240)) is None
    assert storage.head(page_images.model_key(task, 1, 300_000)) is None
    page_images.draw_for_models(task.pk, page=1, pixels=300_000)
    assert storage.head(page_images.model_key(task, 1, 300_000))


def test_old_images_are_deleted_and_drawn_again(alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    task = submit(alice, pages(1))
    run(task)
    page_images.draw(task.pk, page=1, width=320)
    assert cleanup.delete_images() == 0
    monkeypatch.setattr(cleanup, "IMAGES_KEPT", cleanup.IMAGES_KEPT * -1)
    assert cleanup.delete_images() >= 1
    assert page_images.find(task, 1, 320) is None
    page_images.draw(task.pk, page=1, width=320)
    assert page_images.find(task, 1, 320)


def test_a_message_about_a_deleted_document_does_nothing(transactional_db: None) -> None:
    page_images.draw(2**40, page=1, width=320)
    assert not any(storage.list_objects(f"{artifacts.IMAGES}{2**40}/"))
