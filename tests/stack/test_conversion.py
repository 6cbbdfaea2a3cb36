"""Tests of the demo's verification of documents: it must accept correct results and reject others."""

import io

import pytest
from rich.console import Console

from config.dev.demo import conversion
from config.dev.demo.checks import CheckFailed

TEXT = "Invoice 2024-17\nWidget 12 3.50\n合计 42.00\n"


def test_markdown_syntax_does_not_lower_the_similarity() -> None:
    markdown = "<!-- page: 1 -->\n# Invoice 2024-17\n\n| Widget | 12 | 3.50 |\n| --- | --- | --- |\n\n合计 42.00"

    assert conversion.similarity(TEXT, markdown) == 1


def test_a_missing_line_lowers_the_similarity() -> None:
    assert conversion.similarity(TEXT, "Invoice 2024-17\nWidget 12 3.50") < 0.9


def test_misread_letters_lower_the_similarity() -> None:
    assert conversion.similarity(TEXT, TEXT.replace("2024", "2O2A")) < 0.95


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_an_incomplete_task_reports_why(status: str) -> None:
    error = {"code": "file_corrupt", "stage": "ocr", "detail": "The file is damaged."} if status == "failed" else None
    reason = "file_corrupt: The file is damaged." if error else ""
    with pytest.raises(CheckFailed, match=f"a.pdf ended as {status}.*{reason}"):
        conversion.require_completed({"filename": "a.pdf", "status": status, "error": error})


def test_an_excerpt_quotes_a_document_verbatim() -> None:
    console = Console(file=io.StringIO(), highlight=False)
    console.print(conversion.excerpt("[bold]not markup[/]\n" + "\n".join("abc" * 7)))

    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue().splitlines()
    assert shown[0].strip() == "│ [bold]not markup[/]"
    assert shown[-1].strip() == "│ … 10 more lines"
