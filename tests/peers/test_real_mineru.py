"""Tests of the client and of the scripted MinerU server against a real MinerU 4.0 server without models (B14).

Run by `make mineru`.
"""

import time
from collections.abc import Callable
from contextlib import closing
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import httpx2
import orjson
import pytest
from django.conf import LazySettings
from fpdf import FPDF
from PIL import Image, ImageDraw
from pydantic import SecretStr

from etl.core import errors
from etl.core.formats import DocumentFormat
from etl.core.stage_context import StageContext
from etl.providers.base import Document, OCRResult
from etl.providers.mineru import MinerUProvider
from tests.integration.mineru_servers import Job, V4Server, error_4, pack, structured
from tests.peers.conftest import StartServer

SENTENCE = "The quick brown fox jumps over the lazy dog and goes on to the next page. "
OPTIONS = {"tier": "flash", "output_formats": ["markdown", "structured_content", "zip"]}
FINISHED = {"completed", "partial", "failed", "canceled"}


@pytest.fixture
def configure(settings: LazySettings) -> Callable[..., None]:
    def set_address(address: str, **more: Any) -> None:
        values = {"etl_mineru_url": address, "etl_mineru_protocol": "auto", "etl_mineru_tier": ""}
        settings.SLUICE = settings.SLUICE.model_copy(update=values | more)

    return set_address


@pytest.fixture(autouse=True)
def configured(mineru: str, configure: Callable[..., None]) -> None:
    configure(mineru)


# ---- Documents ------------------------------------------------------------------------------------------------------
def pdf(pages: int = 3, **encryption: Any) -> bytes:
    document = FPDF()
    if encryption:
        document.set_encryption(**encryption)
    for number in range(1, pages + 1):
        document.add_page()
        document.set_font("helvetica", size=11)
        for part in range(1, 5):
            document.multi_cell(0, 6, f"Page {number}, part {part}: {SENTENCE * 4}")
            document.ln(6)
        with document.table() as table:
            table.row(("Item", "Price"))
            table.row(("Apple", f"{number}.50"))
    return bytes(document.output())


def scan() -> bytes:
    image = Image.new("RGB", (800, 1000), "white")
    ImageDraw.Draw(image).text((80, 80), "A SCANNED PAGE", fill="black", font_size=60)
    document = FPDF()
    document.add_page()
    document.image(image, w=180)
    return bytes(document.output())


def docx() -> bytes:
    """Return a minimal Word document:
    https://learn.microsoft.com/office/open-xml/word/structure-of-a-wordprocessingml-document.
    """
    schemas = "http://schemas.openxmlformats.org"
    kind = "application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"
    cells = "".join(f"<w:tc><w:p><w:r><w:t>{text}</w:t></w:r></w:p></w:tc>" for text in ("Item", "Price"))
    return pack(
        {
            "[Content_Types].xml": f'<Types xmlns="{schemas}/package/2006/content-types">'
            '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
            f'<Override PartName="/word/document.xml" ContentType="{kind}"/></Types>',
            "_rels/.rels": f'<Relationships xmlns="{schemas}/package/2006/relationships"><Relationship Id="rId1" '
            f'Type="{schemas}/officeDocument/2006/relationships/officeDocument" Target="word/document.xml"/>'
            "</Relationships>",
            "word/document.xml": f'<w:document xmlns:w="{schemas}/wordprocessingml/2006/main"><w:body>'
            f"<w:p><w:r><w:t>Hello from Word</w:t></w:r></w:p><w:tbl><w:tr>{cells}</w:tr></w:tbl>"
            "</w:body></w:document>",
        }
    )


def document_of(folder: Path, kind: DocumentFormat, content: bytes) -> Document:
    path = folder / "document"
    path.write_bytes(content)
    return Document(
        path=path,
        kind=kind,
        size=len(content),
        sha256=sha256(content).hexdigest(),
        name=f"17.{kind}",
        url=lambda: "https://storage.example/17",
    )


def convert(folder: Path, kind: DocumentFormat, content: bytes, context: StageContext | None = None) -> OCRResult:
    with closing(MinerUProvider()) as provider:
        return provider.convert(document_of(folder, kind, content), context=context or StageContext(seconds=120))


# ---- Our client -----------------------------------------------------------------------------------------------------
def test_it_reads_a_pdf_with_its_pages(tmp_path: Path) -> None:
    """B14: the server is detected as 4.0, and its best tier is used."""
    result = convert(tmp_path, DocumentFormat.PDF, pdf())
    texts = [result.markdown[page.start : page.end] for page in result.pages]
    assert len(texts) == 3
    for number, text in enumerate(texts, start=1):
        assert f"Page {number}, part 2: The quick brown fox" in text
        assert f"| Apple | {number}.50 |" in text
    assert result.provider_task_id.startswith("job_")
    assert result.metadata["version"].startswith("4.0.")
    assert (result.metadata["protocol"], result.metadata["tier"]) == ("v4", "flash")


def test_it_keeps_every_line_of_a_pdf(tmp_path: Path) -> None:
    """B18: this includes text that MinerU classifies as a header and omits from its Markdown."""
    result = convert(tmp_path, DocumentFormat.PDF, pdf())
    assert [result.markdown.count(f"Page {number}, part {part}:") for number in (1, 2, 3) for part in range(1, 5)] == [
        1
    ] * 12


def test_it_reads_an_office_file(tmp_path: Path) -> None:
    context = StageContext(seconds=120)
    result = convert(tmp_path, DocumentFormat.DOCX, docx(), context)
    assert "Hello from Word" in result.markdown
    assert "| Item | Price |" in result.markdown
    assert context.warnings == []


def test_it_reads_html(tmp_path: Path) -> None:
    result = convert(tmp_path, DocumentFormat.HTML, b"<html><body><h1>Title</h1><p>Some text.</p></body></html>")
    assert "# Title\n\nSome text." in result.markdown


def test_it_reports_a_failed_scan(tmp_path: Path) -> None:
    """B14: without models, the server fails, which is a transient error."""
    with pytest.raises(errors.OcrFailed) as caught:
        convert(tmp_path, DocumentFormat.PDF, scan())
    assert (caught.value.code, caught.value.transient) == ("ocr_failed", True)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (pdf(1, owner_password="o", user_password="u"), "file_encrypted"),
        (b"%PDF-1.4\n" + b"garbage " * 500, "file_corrupt"),
    ],
    ids=["encrypted", "corrupt"],
)
def test_it_reports_the_problem_of_a_document(tmp_path: Path, content: bytes, code: str) -> None:
    """B12."""
    with pytest.raises(errors.BadDocument) as caught:
        convert(tmp_path, DocumentFormat.PDF, content)
    assert caught.value.code == code


def test_it_resumes_jobs_and_restarts_lost_ones(tmp_path: Path) -> None:
    """B2."""
    first = convert(tmp_path, DocumentFormat.PDF, pdf())
    again = convert(
        tmp_path, DocumentFormat.PDF, pdf(), StageContext(seconds=120, provider_task_id=first.provider_task_id)
    )
    assert again.provider_task_id == first.provider_task_id
    lost = convert(
        tmp_path, DocumentFormat.PDF, pdf(), StageContext(seconds=120, provider_task_id="job_0123456789abcdef01234567")
    )
    assert (lost.markdown, lost.provider_task_id == first.provider_task_id) == (first.markdown, False)


def test_it_cancels_jobs_that_exceed_the_deadline(tmp_path: Path, mineru: str) -> None:
    """B9. The time limit passes just after the server has accepted the job, however slow the machine is."""
    remembered: list[str] = []

    def on_accepted(task: str) -> None:
        remembered.append(task)
        context.seconds = time.monotonic() - context.started_at + 0.2

    context = StageContext(seconds=120, on_provider_task=on_accepted)
    with pytest.raises(errors.OutOfTime):
        convert(tmp_path, DocumentFormat.PDF, pdf(40), context)
    assert ask(mineru, "GET", f"/v1/tasks/{remembered[0]}").json()["status"] == "canceled"


def test_it_sends_its_key(tmp_path: Path, start_server: StartServer, configure: Callable[..., None]) -> None:
    address = start_server("--api-key", "right")
    configure(address, etl_mineru_api_key=SecretStr("wrong"))
    with pytest.raises(errors.ProviderForbidden):
        convert(tmp_path, DocumentFormat.DOCX, docx())
    configure(address, etl_mineru_api_key=SecretStr("right"))
    assert "Hello" in convert(tmp_path, DocumentFormat.DOCX, docx()).markdown


# ---- The scripted server --------------------------------------------------------------------------------------------
def ask(address: str, method: str, path: str, **content: Any) -> httpx2.Response:
    return httpx2.request(method, f"{address}{path}", timeout=60, trust_env=False, **content)


def submit(address: str, content: bytes, name: str = "17.pdf") -> dict[str, Any]:
    response = ask(address, "POST", "/v1/tasks", params=OPTIONS, files={"files": (name, content)})
    assert response.status_code == 202
    return dict(response.json())


def finished(address: str, task_id: str) -> dict[str, Any]:
    until = time.monotonic() + 120
    while (body := ask(address, "GET", f"/v1/tasks/{task_id}").json())["status"] not in FINISHED:
        assert time.monotonic() < until
        time.sleep(0.1)
    return dict(body)


def shape(value: Any) -> Any:
    """Return the keys and types of a value. The first item of a list represents all."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shape(item) for item in value[:1]]
    return type(value).__name__


@pytest.fixture
def scripted() -> V4Server:
    return V4Server(fails={"type": "engine_error", "code": "parse_failed", "message": "no", "param": None})


def test_the_scripted_server_matches_health_and_tiers(mineru: str, scripted: V4Server) -> None:
    assert shape(scripted.health()) == shape(ask(mineru, "GET", "/v1/health").json())
    assert shape(scripted.list_tiers()) == shape(ask(mineru, "GET", "/v1/tiers").json())


def test_the_scripted_server_matches_jobs(mineru: str, scripted: V4Server) -> None:
    job = Job(id="job_1", name="17.pdf", error=scripted.fails)
    begun = submit(mineru, pdf())
    assert shape(scripted.status(job, "queued")) == shape(begun)
    real = finished(mineru, begun["task_id"])
    outputs = real["files"][0]["output_files"]
    assert set(outputs) == set(scripted.status(job, "completed")["files"][0]["output_files"])
    ours = scripted.status(job, "completed")
    ours["files"][0]["output_files"] = outputs
    assert shape(ours) == shape(real)
    failed = finished(mineru, submit(mineru, b"%PDF-1.4\n" + b"garbage " * 500)["task_id"])
    assert shape(scripted.status(job, "failed")) == shape(failed) | {"started_at": "str"}
    assert ask(mineru, "GET", f"/v1/tasks/{failed['task_id']}/result").status_code == 409


def test_the_scripted_server_matches_results(mineru: str, scripted: V4Server) -> None:
    begun = submit(mineru, pdf())
    finished(mineru, begun["task_id"])
    result = f"/v1/tasks/{begun['task_id']}/result"
    with ZipFile(BytesIO(ask(mineru, "GET", result, params={"response_format": "zip"}).content)) as archive:
        names = {name for name in archive.namelist() if not name.startswith("images/")}
        real = orjson.loads(archive.read("structured_content.json"))
    with ZipFile(BytesIO(scripted.archive())) as ours:
        assert {name for name in ours.namelist() if not name.startswith("images/")} == names
    assert shape(structured([["a"]])["pages"]) == shape([with_text(page) for page in real["pages"]])
    assert set(structured([["a"]])) == set(real)
    for path in (("metadata", "document", "page_count"), ("metadata", "producer", "version")):
        assert type(within(structured([["a"]]), *path)) is type(within(real, *path))
    assert within(real, "extensions", "mineru", "parse_mode") in {"txt", "ocr"}
    body = ask(mineru, "GET", result, params={"response_format": "json"}).json()
    assert set(body["files"][0]["content"]) == {"markdown", "structured_content"}
    assert set(scripted.result_json(Job(id="job_1"))["files"][0]) == set(body["files"][0])


def with_text(page: dict[str, Any]) -> dict[str, Any]:
    return page | {"blocks": [block for block in page["blocks"] if block["type"] == "text"]}


def within(body: Any, *path: str) -> Any:
    for step in path:
        body = body[step]
    return body


def test_the_scripted_server_matches_refusals(mineru: str) -> None:
    lost = ask(mineru, "GET", "/v1/tasks/job_0123456789abcdef01234567")
    assert (lost.status_code, lost.json()["error"]["code"]) == (404, "job_not_found")
    assert shape(lost.json()) == shape(error_4("a", "b", "c"))
    tier = ask(mineru, "POST", "/v1/tasks", params={"tier": "basic"}, files={"files": ("17.pdf", pdf(1))})
    assert (tier.status_code, tier.json()["error"]["message"]) == (400, "Tier 'basic' not available in this server")
    assert ask(mineru, "GET", "/health").json() == {"detail": "Not Found"}
