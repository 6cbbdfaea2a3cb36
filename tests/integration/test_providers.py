"""Contract of OCR providers (B13, B18, B22). To test a new provider, add it to PROVIDERS."""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings
from django.utils.module_loading import import_string
from fpdf import FPDF
from pydantic import SecretStr

from etl.core.errors import EmptyDocument, Fenced, OutOfTime
from etl.core.formats import DocumentFormat
from etl.core.stage_context import StageContext
from etl.pipeline import engines
from etl.providers.base import Document, OCRProvider, OCRResult, page_marker
from etl.providers.local import LocalProvider
from tests.conftest import change_settings
from tests.integration.mineru_servers import CloudServer, Scripted, V3Server, V4Server, serving

# The pages of the document that all providers convert. "" is a blank page.
PAGES = ("Invoice number 17 of the year", "", "The total to be paid is 12.50")


@dataclass(frozen=True)
class Case:
    """A provider, and a context manager that sets up its environment for a document with the given pages."""

    name: str
    environment: Callable[[LazySettings, tuple[str, ...]], AbstractContextManager[None]]
    has_progress: bool = True


def no_environment(_settings: LazySettings, _pages: tuple[str, ...]) -> AbstractContextManager[None]:
    return nullcontext()


def with_server(kind: type[Scripted]) -> Callable[..., AbstractContextManager[None]]:
    @contextmanager
    def environment(settings: LazySettings, pages: tuple[str, ...]) -> Iterator[None]:
        with serving(kind(pages=[[page] if page else [] for page in pages])) as server:
            values = {"etl_mineru_url": server.base, "etl_mineru_api_key": SecretStr(CloudServer.key)}
            change_settings(settings, **values)
            yield

    return environment


PROVIDERS = {
    "local": Case("local", no_environment),
    "mineru, 3.x": Case("mineru", with_server(V3Server), has_progress=False),
    "mineru, 4.0": Case("mineru", with_server(V4Server), has_progress=False),
    "mineru, hosted": Case("mineru", with_server(CloudServer)),
}


@pytest.fixture(params=PROVIDERS)
def case(request: pytest.FixtureRequest) -> Case:
    return PROVIDERS[request.param]


@pytest.fixture(scope="module")
def reader() -> Iterator[LocalProvider]:
    """The local provider. All tests share it, as all documents of a worker do, because it takes a second to start."""
    with closing(LocalProvider()) as local:
        yield local


@contextmanager
def running(case: Case, settings: LazySettings, reader: LocalProvider, pages: tuple[str, ...]) -> Iterator[OCRProvider]:
    """Yield the provider in an environment for a document with these pages."""
    with ExitStack() as stack:
        stack.enter_context(case.environment(settings, pages))
        if case.name == "local":
            yield reader
        else:
            yield stack.enter_context(closing(import_string(settings.ETL_OCR_PROVIDERS[case.name])()))


@pytest.fixture
def provider(case: Case, settings: LazySettings, reader: LocalProvider) -> Iterator[OCRProvider]:
    with running(case, settings, reader, PAGES) as started:
        yield started


@pytest.fixture
def document(tmp_path: Path) -> Document:
    return pdf(tmp_path, PAGES)


def pdf(folder: Path, pages: tuple[str, ...]) -> Document:
    made = FPDF()
    for text in pages:
        made.add_page()
        made.set_font("helvetica", size=14)
        if text:
            made.cell(text=text)
    content = bytes(made.output())
    path = folder / "document"
    path.write_bytes(content)
    return Document(
        path=path,
        kind=DocumentFormat.PDF,
        size=len(content),
        sha256=sha256(content).hexdigest(),
        name="17.pdf",
        url=lambda: "https://storage.example/17",
    )


@pytest.fixture
def result(provider: OCRProvider, document: Document) -> OCRResult:
    return provider.convert(document, context=StageContext(seconds=60))


def test_pages_are_complete_and_ordered_with_exact_offsets(result: OCRResult) -> None:
    """B13: pages without text are included."""
    assert [page.number for page in result.pages] == [1, 2, 3]
    texts = [result.markdown[page.start : page.end].strip() for page in result.pages]
    assert [" ".join(text.split()) for text in texts] == list(PAGES)
    assert [page.method for page in result.pages] == ["text", "none", "text"]


def test_pages_start_with_a_marker(result: OCRResult) -> None:
    """B20: citations are verified with these markers."""
    at = 0
    for page in result.pages:
        marker = result.markdown.index(f"{page_marker(page.number)}\n", at)
        assert marker < page.start <= page.end
        at = page.end
    assert result.markdown.count("<!-- page:") == len(result.pages)


def test_the_result_names_its_provider(result: OCRResult, case: Case) -> None:
    """B13, B19: with the number of pages, the duration, and the version."""
    assert result.provider == case.name
    assert result.metadata["pages"] == len(result.pages)
    assert isinstance(result.metadata["duration_ms"], int)
    assert result.metadata["version"]
    assert isinstance(result.provider_task_id, str)


def test_the_result_survives_serialization(result: OCRResult) -> None:
    """B8."""
    stored = json.loads(json.dumps(result.as_dict()))
    assert OCRResult.from_dict(stored, markdown=result.markdown, lines={}) == result


@pytest.mark.slow
def test_conversion_is_deterministic(provider: OCRProvider, document: Document) -> None:
    """B2: also if the same instance converts the document again."""
    first, second = (provider.convert(document, context=StageContext(seconds=60)) for _ in range(2))
    assert (first.markdown, first.pages) == (second.markdown, second.pages)


@pytest.mark.slow
def test_no_file_but_the_document_remains(provider: OCRProvider, document: Document) -> None:
    provider.convert(document, context=StageContext(seconds=60))
    assert [file.name for file in document.path.parent.iterdir()] == ["document"]
    assert sha256(document.path.read_bytes()).hexdigest() == document.sha256


@pytest.mark.slow
def test_progress_never_decreases(provider: OCRProvider, document: Document, case: Case) -> None:
    """B3: for providers that report progress."""
    seen: list[tuple[int, int]] = []
    provider.convert(
        document, context=StageContext(seconds=60, on_progress=lambda done, total: seen.append((done, total)))
    )
    assert bool(seen) is case.has_progress
    assert seen == sorted(seen)
    assert all(0 <= done <= total for done, total in seen)


@pytest.mark.slow
def test_a_document_without_text_is_a_failure(
    case: Case, settings: LazySettings, reader: LocalProvider, tmp_path: Path
) -> None:
    """B18."""
    blank = ("", "")
    with running(case, settings, reader, blank) as provider, pytest.raises(EmptyDocument):
        provider.convert(pdf(tmp_path, blank), context=StageContext(seconds=60))


def test_it_stops_when_the_lease_is_lost(provider: OCRProvider, document: Document) -> None:
    context = StageContext(seconds=60)
    context.lease_lost.set()
    with pytest.raises(Fenced):
        provider.convert(document, context=context)


def test_it_stops_at_the_deadline(provider: OCRProvider, document: Document) -> None:
    """B9."""
    with pytest.raises(OutOfTime):
        provider.convert(document, context=StageContext(seconds=0))


def test_supported_kinds_are_known_without_a_server(case: Case, settings: LazySettings) -> None:
    """B1: submissions are checked against these."""
    provider: OCRProvider = import_string(settings.ETL_OCR_PROVIDERS[case.name])()
    assert DocumentFormat.PDF in provider.formats
    assert all(isinstance(kind, DocumentFormat) for kind in provider.formats)


def test_a_provider_is_found_by_name_and_by_dotted_path(case: Case, settings: LazySettings) -> None:
    """B22: a new provider needs only a class and a setting."""
    path = settings.ETL_OCR_PROVIDERS[case.name]
    for value in (case.name, path):
        change_settings(settings, etl_ocr_provider=value)
        found: Any = engines.provider()
        assert found.name == case.name
        assert isinstance(found, import_string(path))
