"""PDF output of documents: rows of tables as cells, and other lines as paragraphs."""

from datetime import UTC, datetime

from fpdf import FPDF

from tests.bench.extraction.documents import Paper

WIDTHS = (34.0, 44.0, 30.0, 26.0, 32.0)  # millimeters
LINE = 6.0


def printed(paper: Paper) -> bytes:
    """Return a document as PDF. The bytes are the same each time."""
    document = FPDF(format="A4")
    document.set_creation_date(datetime(2024, 2, 29, tzinfo=UTC))
    document.set_margins(20, 15)
    document.set_auto_page_break(auto=False)
    for number, lines in enumerate(paper.pages, 1):
        document.add_page()
        document.set_font("Helvetica", size=10)
        for line in [*paper.head, "", *lines, "", paper.foot.format(number, len(paper.pages))]:
            add(document, line)
    return bytes(document.output())


def add(document: FPDF, line: str) -> None:
    if not line.startswith("|"):
        document.cell(0, LINE, line, new_x="LMARGIN", new_y="NEXT")
    elif "---" not in line:
        for index, cell in enumerate(line.strip("| ").split(" | ")):
            is_last = index == len(WIDTHS) - 1
            document.cell(
                WIDTHS[index], LINE, cell, align="L" if index < 2 else "R",
                new_x="LMARGIN" if is_last else "RIGHT", new_y="NEXT" if is_last else "TOP",
            )  # fmt: skip
