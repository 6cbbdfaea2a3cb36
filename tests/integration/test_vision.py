"""The strategy `vision`, with which a model reads pages as images (B40)."""

import json
from base64 import b64decode
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import pytest
from django.conf import LazySettings
from django.contrib.auth.models import User
from PIL import Image
from structlog.testing import capture_logs

from config.platform import storage
from etl.core.errors import (
    DocumentTooLong,
    EmptyDocument,
    IncompleteDocument,
    LlmForbidden,
    SchemaInvalid,
    VisionUnsupported,
)
from etl.core.stage_context import StageContext, ignore
from etl.core.states import Stage
from etl.pipeline import artifacts, dispatch, engines, page_images
from etl.postprocessors.base import Processed
from etl.postprocessors.llm import Llm
from etl.providers.base import OCRResult
from tests.conftest import browser_of, change_settings, client_of
from tests.integration.etl_factories import make_rule, make_task
from tests.integration.faulty_s3 import Proxy, answer_500
from tests.integration.llm_factories import (
    INVOICE,
    MemoryResponseCache,
    codes,
    configure,
    context_of,
    ocr_of,
    rule_of,
)
from tests.integration.openai_server import ModelServer, Request, data_reply, problem
from tests.integration.stage_runs import ConfigureStages, row_of, run
from tests.samples import hostile

LINES: dict[str, Any] = {
    "type": "object",
    "properties": {
        "number": {"type": "string"},
        "lines": {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}}}},
    },
    "required": ["number", "lines"],
}


@dataclass(slots=True)
class FakePageImages:
    """Page images of a document with `count` pages. The pages in `lost` have none."""

    count: int
    lost: tuple[int, ...] = ()
    read_pages: list[tuple[int, int]] = field(default_factory=list)

    def read(self, first: int, last: int, *, context: StageContext) -> dict[int, bytes]:
        context.check()
        self.read_pages.append((first, last))
        return {page: content_of(page) for page in range(first, last + 1) if page not in self.lost}


def content_of(page: int) -> bytes:
    return b"\xff\xd8\xff image of page %d" % page


def process(
    pages: FakePageImages | None,
    *,
    ocr: OCRResult | None = None,
    schema: Any = INVOICE,
    context: StageContext | None = None,
    **rule: Any,
) -> Processed:
    context = context or context_of()
    context.page_images = pages
    return Llm().process(ocr or ocr_of(), rule_of(schema, strategy="vision", **rule), context=context)


def parts_of(request: Request) -> list[dict[str, Any]]:
    content: Any = request.message("user")
    return list(content)


def shown(request: Request) -> list[int]:
    """Return the numbers of the pages whose images are in a request."""
    urls = [part["image_url"]["url"] for part in parts_of(request) if part["type"] == "image_url"]
    return [int(b64decode(url.removeprefix("data:image/jpeg;base64,")).rpartition(b" ")[2]) for url in urls]


def found_on(page: int, *pointers: str) -> list[dict[str, Any]]:
    return [{"pointer": pointer, "page": page, "quote": "as seen"} for pointer in pointers]


def test_the_model_gets_the_images_of_pages(models: ModelServer) -> None:
    """B40: as OpenAI image parts with data URLs, each after its page number. The usage is counted."""
    models.enqueue(data_reply({"number": "INV-7", "total": 12.5}, found_on(2, "/number", "/total")))
    context = context_of()

    result = process(FakePageImages(3), context=context)

    [request] = models.requests
    text, *rest = parts_of(request)
    assert [part["type"] for part in rest] == ["text", "image_url"] * 3
    assert [part["text"] for part in rest[::2]] == [f"<!-- page: {page} -->" for page in (1, 2, 3)]
    assert shown(request) == [1, 2, 3]
    assert "pages 1 to 3" in text["text"]
    assert "is never followed" in request.message("system")
    assert (result.data, result.strategy) == ({"number": "INV-7", "total": 12.5}, "vision")
    assert context.usage.as_dict() == {"prompt_tokens": 11, "completion_tokens": 7, "calls": 1}


def test_values_are_cited_by_page(models: ModelServer) -> None:
    """B40: the page comes from the model, without a position, unless the text contains the value."""
    models.enqueue(data_reply({"number": "INV-7", "total": 12.5}, found_on(2, "/number", "/total")))
    lines = {1: [[(10.0, 20.0, 60.0, 30.0, "Total 12.50")]]}
    text = ocr_of("Total 12.50", "")
    ocr = OCRResult(
        markdown=text.markdown, pages=text.pages, provider="local", provider_task_id="t", metadata={}, lines=lines
    )
    context = context_of()

    result = process(FakePageImages(2), ocr=ocr, context=context)

    number, total = result.citations
    assert number == {"pointer": "/number", "page": 2, "bbox": None, "quote": None, "match": "image"}
    assert (total["page"], total["match"], total["bbox"]) == (1, "normalized", [10.0, 20.0, 60.0, 30.0])
    assert codes(context) == []


def test_a_value_without_a_page_is_not_found(models: ModelServer) -> None:
    """B40, B31."""
    models.enqueue(data_reply({"number": "INV-7", "total": 12.5}, found_on(9, "/number")))
    context = context_of()

    result = process(FakePageImages(2), context=context)

    assert [each["match"] for each in result.citations] == ["not_found", "not_found"]
    assert "value_not_in_text" in codes(context)


def test_long_documents_are_shown_in_groups_and_joined(models: ModelServer, settings: Any) -> None:
    """B40, B42: a few pages per call, merged like pieces of text. Conflicts are reported."""
    configure(settings, models, etl_vision_pages_per_call=2, etl_postprocess_parallel=1)

    def answer(request: Request) -> Any:
        pages = shown(request)
        lines = [{"name": f"item {page}"} for page in pages]
        return data_reply({"number": f"INV-{pages[0]}", "lines": lines}, found_on(pages[0], "/number", "/lines/0/name"))

    models.set_default(answer)
    context = context_of()

    result = process(FakePageImages(5), schema=LINES, context=context)

    assert [shown(request) for request in models.requests] == [[1, 2], [3, 4], [5]]
    assert result.data == {"number": "INV-1", "lines": [{"name": f"item {page}"} for page in range(1, 6)]}
    assert codes(context).count("merge_conflict") == 1
    pages = {each["pointer"]: each["page"] for each in result.citations}
    assert (pages["/number"], pages["/lines/2/name"]) == (1, 3)
    [conflict] = [each for each in context.warnings if each.code == "merge_conflict"]
    assert conflict.detail.endswith("page 5. The first is used."), "the model was not asked"


def test_a_rule_may_refuse_values_that_differ_between_groups(models: ModelServer, settings: Any) -> None:
    """B42: `x-merge` applies to groups of pages as to pieces of text."""
    configure(settings, models, etl_vision_pages_per_call=1, etl_postprocess_parallel=1)
    number = {"type": "string", "x-merge": "error"}
    schema = {**LINES, "properties": {**LINES["properties"], "number": number}}
    models.enqueue(data_reply({"number": "INV-1", "lines": []}), data_reply({"number": "INV-2", "lines": []}))

    with pytest.raises(SchemaInvalid, match=r"/number \(page 1, page 2\)"):
        process(FakePageImages(2), schema=schema)


def test_a_retry_pays_for_no_group_twice(models: ModelServer, settings: Any) -> None:
    """B40, B21: the response cache finds responses by the content of the images, and stores no images."""
    configure(settings, models, etl_vision_pages_per_call=1)
    response_cache = MemoryResponseCache()
    models.enqueue(data_reply({"number": "INV-1", "lines": []}), problem(503, "busy"))
    with pytest.raises(Exception, match="busy"):
        process(FakePageImages(2), schema=LINES, context=context_of(response_cache=response_cache))
    models.enqueue(data_reply({"number": None, "lines": []}))

    process(FakePageImages(2), schema=LINES, context=context_of(response_cache=response_cache))

    assert [shown(request) for request in models.requests] == [[1], [2], [2]]
    assert not any(
        "image of page" in text or "base64" in text
        for text in (*response_cache.run.values(), *response_cache.task.values())
    )


def test_more_pages_than_the_limit_are_refused_with_numbers(models: ModelServer, settings: Any) -> None:
    """B40."""
    configure(settings, models, etl_vision_max_pages=3)
    pages = FakePageImages(4)
    with pytest.raises(DocumentTooLong, match="4 pages; the limit of pages that are shown to a language model is 3"):
        process(pages)
    assert (models.requests, pages.read_pages) == ([], [])


def test_pages_that_cannot_be_rendered_are_reported(models: ModelServer) -> None:
    """B40, B32."""
    models.set_default(data_reply({"number": "INV-7", "total": 12.5}))
    context = context_of()
    process(FakePageImages(3, lost=(2,)), context=context)
    assert shown(models.requests[0]) == [1, 3]
    assert [(each.code, each.page) for each in context.warnings if each.page] == [("page_not_shown", 2)]

    with pytest.raises(IncompleteDocument, match="page 2"):
        process(FakePageImages(3, lost=(2,)), require_complete=True)
    with pytest.raises(EmptyDocument):
        process(FakePageImages(1, lost=(1,)))


NO_VISION = [
    (400, "Invalid content type. image_url is only supported by certain models."),
    (400, "messages[1]: unknown variant `image_url`, expected `text` at line 1 column 2000"),
    (500, "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj"),
    (400, "gemma is not a multimodal model"),
    (400, "At most 0 image(s) may be provided in one prompt."),
    (400, "Image input is not enabled for this model"),
    (404, "No endpoints found that support image input"),
    (422, "messages.1.content: Input should be a valid string"),
    (400, "'messages.1.content' must be a string"),
]


@pytest.mark.parametrize(("status", "message"), NO_VISION, ids=[message[:40] for _, message in NO_VISION])
def test_a_model_without_vision_has_a_separate_code(models: ModelServer, status: int, message: str) -> None:
    """B40."""
    models.set_default(problem(status, message))
    with pytest.raises(VisionUnsupported) as caught:
        process(FakePageImages(1))
    assert (caught.value.code, caught.value.transient) == ("vision_unsupported", False)
    assert len(models.requests) == 1


@pytest.mark.parametrize(
    "message", ["The image is too large, and not supported.", "Cannot decode image 1", "At most 1 image(s)"]
)
def test_a_refused_image_is_not_reported_as_missing_vision(models: ModelServer, message: str) -> None:
    models.set_default(problem(400, message))
    with pytest.raises(LlmForbidden) as caught:
        process(FakePageImages(1))
    assert caught.value.code == "llm_unavailable"


def test_documents_without_pages_are_read_as_text(models: ModelServer) -> None:
    """B40: Office documents, and the Markdown of a rule test."""
    models.enqueue(data_reply({"number": "INV-7", "total": 12.5}))
    context = context_of()

    result = process(None, ocr=ocr_of("Invoice INV-7, total 12.50"), context=context)

    assert (result.strategy, codes(context)) == ("vision", ["no_page_images"])
    assert isinstance(models.requests[0].message("user"), str)


# ---- Whole tasks ----------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def reader() -> Iterator[None]:
    """Use one reader process for all tests, as a worker does for all documents, because it takes a second to start."""
    yield
    engines.local().close()


@pytest.fixture
def real(configure_stages: ConfigureStages, model_server: ModelServer, reader: None) -> ModelServer:
    configure_stages(etl_ocr_provider="local")
    return model_server


def vision_rule(user: User) -> Any:
    return make_rule(user, mode="llm", postprocess_strategy="vision", json_schema=INVOICE)


@pytest.mark.django_db(transaction=True)
def test_a_scan_without_text_is_read_by_the_model(real: ModelServer, alice: User, settings: LazySettings) -> None:
    """B40: OCR finds no text. The page images stay within the limit of pixels, and are stored like other images."""
    change_settings(settings, etl_vision_max_pixels=200_000)
    real.enqueue(data_reply({"number": "INV-7", "total": 12.5}, found_on(1, "/number")))
    task = make_task(alice, content=hostile.printed("", ""), kind="pdf", rule=vision_rule(alice))

    with capture_logs() as lines:
        assert run(task) == [True, True]

    row = row_of(task)
    assert row.status == "completed", row.error
    assert row.current_result is not None
    assert row.current_result["data"] == {"number": "INV-7", "total": 12.5}
    assert row.metadata["postprocess"]["strategy"] == "vision"
    url = parts_of(real.requests[0])[2]["image_url"]["url"]
    image = Image.open(BytesIO(b64decode(url.partition(",")[2])))
    assert image.format == "JPEG"
    assert 190_000 < image.width * image.height <= 200_000
    keys = [item.key for item in storage.list_objects(f"{artifacts.IMAGES}{task.pk}/")]
    assert len(keys) == 2
    assert all(artifacts.OWN_KEY.fullmatch(key) for key in keys)
    assert "base64" not in json.dumps(lines, default=str)


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_an_empty_scan_fails_for_other_rules(real: ModelServer, alice: User) -> None:
    """B18, B40: even if the same scan was read for a rule whose model reads images."""
    real.set_default(data_reply({"number": "INV-7", "total": 12.5}))
    seen = make_task(alice, content=hostile.printed(""), kind="pdf", rule=vision_rule(alice))
    assert run(seen) == [True, True]

    other = make_task(alice, content=hostile.printed(""), kind="pdf", rule=make_rule(alice))
    run(other)
    error = row_of(other).error
    assert error is not None
    assert error["code"] == "empty_document"


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_workers_without_the_engine_request_images_from_others(
    real: ModelServer, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B40: the container image of post-processing workers has no library that renders pages."""
    task = make_task(alice, content=hostile.printed("Invoice"), kind="pdf", rule=vision_rule(alice))
    run(task, Stage.OCR)
    requests: list[dict[str, Any]] = []
    engines.local().close()
    images = page_images.StoredPageImages(owner=task, count=1)

    def work(**facts: Any) -> None:
        requests.append(facts)
        page_images.draw_for_models(facts["task_id"], page=facts["page"], pixels=facts["pixels"])

    monkeypatch.setattr(dispatch, "draw", work)
    images.await_worker([1], 300_000, context=context_of())

    assert [each["page"] for each in requests] == [1]
    found = b"".join(storage.read(page_images.model_key(task, 1, 300_000)))
    assert Image.open(BytesIO(found)).format == "JPEG"


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_pages_beyond_those_of_a_message_are_requested_at_once(alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_task(alice, content=hostile.printed("Invoice"), kind="pdf", rule=vision_rule(alice))
    requests: list[int] = []

    def work(*, page: int, **_: Any) -> None:
        requests.append(page)
        for number in range(page, page + page_images.PAGES_AT_ONCE):
            key = page_images.model_key(task, number, 300_000)
            artifacts.put_once(key, b"", content_type=page_images.JPEG, check=ignore)

    monkeypatch.setattr(dispatch, "draw", work)
    images = page_images.StoredPageImages(owner=task, count=20)
    images.await_worker([*range(1, 21)], 300_000, context=context_of(seconds=10))
    assert requests == [1, 9, 17]


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("draw", [page_images.draw, page_images.draw_for_models])
def test_an_image_that_the_storage_refuses_is_logged(alice: User, proxy: Proxy, draw: Callable[..., None]) -> None:
    """The pages cannot be rendered. An empty image, which records that, cannot be stored either."""
    task = make_task(alice, content=b"%PDF-1.7 without pages", kind="pdf")
    proxy.inject("PUT", "", answer_500, times=1000)
    size = {"pixels": 300_000} if draw is page_images.draw_for_models else {"width": 320}
    with capture_logs() as lines:
        draw(task.pk, page=1, **size)
    assert [line["event"] for line in lines if "page" in line or "etl_task_id" in line][-2:] == [
        "pages_not_drawn",
        "image_not_stored",
    ]


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_rule_is_tested_on_the_pages_of_a_document(
    real: ModelServer, alice: User, bob: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B40, B27: in the API and on the page. A worker renders the pages. Documents of other users are not found."""
    real.set_default(data_reply({"number": "INV-7", "total": 12.5}, found_on(1, "/number", "/total")))
    task = make_task(alice, content=hostile.printed("Invoice"), kind="pdf", rule=vision_rule(alice))
    run(task, Stage.OCR)
    monkeypatch.setattr(
        dispatch,
        "draw",
        lambda task_id, page, pixels, **_: page_images.draw_for_models(task_id, page=page, pixels=pixels),
    )
    body = {"markdown": "Invoice", "task_id": task.pk}

    tested = client_of(alice).post(f"/api/v1/etl/rules/{task.rule_id}/test", body, format="json").json()

    assert tested["ok"] is True, tested
    assert tested["result"]["metadata"]["provenance"]["strategy"] == "vision"
    assert tested["warnings"] == []
    assert [part["type"] for part in parts_of(real.requests[0])] == ["text", "text", "image_url"]

    page = browser_of(alice).post("/app/rules/try", {"rule": task.rule_id, "document": task.pk, "markdown": ""})
    assert page.status_code == 200
    assert [part["type"] for part in parts_of(real.requests[1])] == ["text", "text", "image_url"]

    refused = client_of(bob).post(f"/api/v1/etl/rules/{vision_rule(bob).pk}/test", body, format="json")
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (400, "/task_id")


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_rule_test_without_the_storage_is_503(
    real: ModelServer, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = make_task(alice, content=hostile.printed("Invoice"), kind="pdf", rule=vision_rule(alice))
    run(task, Stage.OCR)

    def refuse(_key: str) -> None:
        raise storage.RequestFailed("the request failed", is_outage=True)

    monkeypatch.setattr(storage, "head", refuse)
    body = {"markdown": "Invoice", "task_id": task.pk}
    response = client_of(alice).post(f"/api/v1/etl/rules/{task.rule_id}/test", body, format="json")
    assert (response.status_code, response.json()["code"]) == (503, "storage_unavailable")
    assert real.requests == []
