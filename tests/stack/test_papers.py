"""The demo's check of documents must be able to fail, too."""

import io

import pytest
from rich.console import Console

from config.dev.demo import papers
from config.dev.demo.promises import DidNotHold

TRUTH = "Invoice 2024-17\nWidget 12 3.50\n合计 42.00\n"


def test_the_signs_of_markdown_do_not_count() -> None:
    markdown = "<!-- page: 1 -->\n# Invoice 2024-17\n\n| Widget | 12 | 3.50 |\n| --- | --- | --- |\n\n合计 42.00"

    assert papers.likeness(TRUTH, markdown) == 1


def test_a_line_that_is_missing_does() -> None:
    assert papers.likeness(TRUTH, "Invoice 2024-17\nWidget 12 3.50") < 0.9


def test_letters_that_were_misread_do() -> None:
    assert papers.likeness(TRUTH, TRUTH.replace("2024", "2O2A")) < 0.95


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_a_task_that_did_not_complete_says_why(status: str) -> None:
    error = {"code": "file_corrupt", "stage": "ocr", "detail": "The file is damaged."} if status == "failed" else None
    with pytest.raises(DidNotHold, match=f"a.pdf ended as {status}"):
        papers.ended_well({"filename": "a.pdf", "status": status, "error": error})


def test_an_excerpt_shows_what_a_document_says_as_it_is() -> None:
    console = Console(file=io.StringIO(), highlight=False)
    console.print(papers.excerpt("[bold]not markup[/]\n" + "\n".join("abc" * 7)))

    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue().splitlines()
    assert shown[0].strip() == "│ [bold]not markup[/]"
    assert shown[-1].strip() == "│ … 10 more lines"
