"""Prepare corpora from copies of public repositories: python -m tests.reading.prepare SOURCES CORPORA

SOURCES has the copies of the repositories. CORPORA gets a folder for each corpus in `PREPARE_FUNCTIONS`, with documents
and their ground truth in the format of tests.reading.corpus.
"""

import argparse
import json
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from tests.reading.corpus import cases
from tests.reading.einvoices import prepare_einvoices

# Keys of gold JSON whose values describe the document in words that do not occur in it.
DESCRIPTIVE = frozenset({
    "array_index", "comparison_type", "country_code", "currency", "data_period", "desc", "metric_type", "note", "scale",
    "segment_type", "unit",
})  # fmt: skip
MISSING = frozenset({"", "na", "n/a", "not_found", "none", "null"})
MAX_VALUE = 120  # characters; longer values are summaries

# A cell of a table: its first and last row, its first and last column, and its text.
Recorded = tuple[int, int, int, int, str]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.reading.prepare", description=__doc__)
    parser.add_argument("sources", type=Path)
    parser.add_argument("corpora", type=Path)
    options = parser.parse_args()
    for name, prepare in PREPARE_FUNCTIONS.items():
        shutil.rmtree(options.corpora / name, ignore_errors=True)
        (options.corpora / name).mkdir(parents=True)
        prepare(options.sources, options.corpora / name)
        halves = Counter(case.half for case in cases(options.corpora / name))
        print(f"{name}: {halves['dev']} documents for development, {halves['held']} held out")


def is_pdf(path: Path) -> bool:
    """Return whether a file is a PDF instead of a Git LFS pointer."""
    with path.open("rb") as file:
        return b"%PDF" in file.read(1024)


def copy_as(path: Path, folder: Path, name: str) -> Path:
    return Path(shutil.copy(path, folder / name.replace("/", "-")))


def write(document: Path, kind: str, content: Any) -> None:
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False, indent=1)
    document.with_name(f"{document.stem}.{kind}").write_text(text, encoding="utf-8")


# ---- Facts and values -----------------------------------------------------------------------------------------------
def prepare_olmocr(sources: Path, folder: Path) -> None:
    sample = sources / "olmocr/olmocr/bench/sample_data"
    facts = defaultdict(list)
    for line in (sample / "dataset.jsonl").read_text().splitlines():
        if line.strip():
            facts[json.loads(line)["pdf"]].append(line)
    for name, lines in facts.items():
        document = copy_as(sample / "pdfs" / name, folder, name)
        write(document, "facts.jsonl", "\n".join(lines))


def prepare_extract_bench(sources: Path, folder: Path) -> None:
    for gold in sorted((sources / "extract-bench/dataset").rglob("*.gold.json")):
        path = gold.with_name(gold.name.replace(".gold.json", ".pdf"))
        if path.exists() and is_pdf(path):
            document = copy_as(path, folder, f"{gold.parts[-3]}-{path.name}")
            write(document, "fields.json", dict(scalars(json.loads(gold.read_text()))))


def prepare_invoice2data(sources: Path, folder: Path) -> None:
    for gold in sorted((sources / "invoice2data/tests/compare").glob("*.json")):
        if not (path := gold.with_suffix(".pdf")).exists():
            continue
        document = copy_as(path, folder, path.name)
        found = json.loads(gold.read_text())[0]
        lines = [line for line in found.pop("lines", []) if "name" in line and "price_subtotal" in line]
        write(document, "fields.json", dict(scalars(found)))
        rows = [{"name": line["name"], "amount": line["price_subtotal"]} for line in lines]
        write(document, "invoice.json", {"values": {}, "rows": rows})


def scalars(value: Any, pointer: str = "") -> Iterator[tuple[str, str | float]]:
    """Yield the values of JSON that may occur literally in a document, with their JSON pointers."""
    if isinstance(value, dict | list):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            if key not in DESCRIPTIVE:
                yield from scalars(each, f"{pointer}/{key}")
    elif isinstance(value, bool) or value is None:
        return
    elif str(value).strip().lower() not in MISSING and len(str(value)) <= MAX_VALUE:
        yield pointer, value


# ---- Structure ------------------------------------------------------------------------------------------------------
def prepare_icdar(sources: Path, folder: Path) -> None:
    """Prepare tables of the ICDAR 2013 competition, whose structure was annotated by hand."""
    for path in sorted((sources / "tabula").rglob("icdar2013-dataset/*/*.pdf")):
        structure = path.with_name(f"{path.stem}-str.xml")
        if structure.exists():
            document = copy_as(path, folder, path.name)
            # The dataset is trusted, and expat limits the expansion of entities.
            tables = ET.parse(structure).getroot().iter("table")  # noqa: S314
            write(document, "tables.html", "\n".join(map(html_table, tables)))


def html_table(table: ET.Element) -> str:
    """Return a table in HTML. A region of the table continues either its rows to the right, or the table below."""
    parts: list[list[Recorded]] = []
    for region in table.iter("region"):
        right = int(region.get("col-increment") or 0)
        cells = [(*box(cell, right), escape(cell.findtext("content") or "")) for cell in region.iter("cell")]
        if parts and right:
            parts[-1] += cells
        else:
            parts.append(cells)
    return "<table>" + "".join(map(html_rows, parts)) + "</table>"


def html_rows(cells: list[Recorded]) -> str:
    """Return cells as HTML rows, with empty cells in the gaps. Some files count from 0, others from 1."""
    up, aside = min((cell[0] for cell in cells), default=0), min((cell[2] for cell in cells), default=0)
    boxes = [(top - up, bottom - up, left - aside, right - aside, text) for top, bottom, left, right, text in cells]
    taken = {(row, column) for top, bottom, left, right, _ in boxes for row, column in places(top, bottom, left, right)}
    height, width = (max((place[axis] for place in taken), default=-1) + 1 for axis in (0, 1))
    boxes += [(row, row, column, column, "") for row, column in places(0, height - 1, 0, width - 1) - taken]
    rows = [""] * height
    for top, bottom, left, right, text in sorted(boxes, key=lambda each: each[2]):
        spans = f' rowspan="{bottom - top + 1}"' * (bottom > top) + f' colspan="{right - left + 1}"' * (right > left)
        rows[top] += f"<td{spans}>{text}</td>"
    return "".join(f"<tr>{row}</tr>\n" for row in rows)


def box(cell: ET.Element, offset: int) -> tuple[int, int, int, int]:
    """Return the first and last row and column of a cell. `offset`: the number of columns in regions to the left."""
    top, left = (int(cell.get(f"start-{axis}") or 0) for axis in ("row", "col"))
    return top, int(cell.get("end-row") or top), left + offset, int(cell.get("end-col") or left) + offset


def places(top: int, bottom: int, left: int, right: int) -> set[tuple[int, int]]:
    return {(row, column) for row in range(top, bottom + 1) for column in range(left, right + 1)}


def prepare_docling(sources: Path, folder: Path) -> None:
    """Prepare PDFs and images with docling's reviewed output, and PDFs of Office files with known content."""
    data = sources / "docling/tests/data"
    for path in sorted([*(data / "pdf").rglob("*.pdf"), *(data / "odf/sources").glob("*.pdf")]):
        kind = path.relative_to(data).parts[0]
        truth = data / kind / "groundtruth" / f"{path.stem}.md"
        document = copy_as(path, folder, path.name.replace(".od", "-od"))
        if truth.exists():
            write(document, "truth.md", truth.read_text())
    text = (data / "ocr/groundtruth/easyocr/full_page/ocr_test.easyocr.full_page.md").read_text()
    for path in sorted((data / "ocr/sources").iterdir()):
        if path.suffix in {".pdf", ".png", ".jpg"}:
            document = copy_as(path, folder, path.name)
            if path.name.startswith("ocr_test"):
                write(document, "truth.md", text)


def prepare_office(sources: Path, folder: Path) -> None:
    """Prepare Office files, HTML, and other formats with docling's reviewed output."""
    data = sources / "docling/tests/data"
    for truth in sorted(data.glob("*/groundtruth/*.md")):
        path = truth.parents[1] / "sources" / truth.stem
        if path.is_file() and path.suffix in {
            ".docx",
            ".xlsx",
            ".pptx",
            ".odt",
            ".ods",
            ".odp",
            ".html",
            ".csv",
            ".eml",
        }:
            document = copy_as(path, folder, f"{path.stem}-{path.suffix[1:]}{path.suffix}")
            write(document, "truth.md", truth.read_text())


# ---- Documents without ground truth, except for one: pages, time, and warnings are scored ---------------------------
def prepare_pdfplumber(sources: Path, folder: Path) -> None:
    root = sources / "pdfplumber"
    for path in sorted([*(root / "tests/pdfs").glob("*.pdf"), *(root / "examples/pdfs").glob("*.pdf")]):
        document = copy_as(path, folder, path.name)
        if path.stem == "scotus-transcript-p1":
            write(document, "truth.txt", (root / "tests/comparisons/scotus-transcript-p1.txt").read_text())


def prepare_various(sources: Path, folder: Path) -> None:
    tabula = sources / "tabula/src/test/resources/technology/tabula"
    for path in sorted([*(sources / "olmocr/tests/gnarly_pdfs").glob("*.pdf"), *tabula.glob("*.pdf")]):
        copy_as(path, folder, path.name)


PREPARE_FUNCTIONS: dict[str, Callable[[Path, Path], None]] = {
    "olmocr": prepare_olmocr,
    "extract-bench": prepare_extract_bench,
    "invoice2data": prepare_invoice2data,
    "e-invoices": prepare_einvoices,
    "icdar2013": prepare_icdar,
    "docling": prepare_docling,
    "docling-office": prepare_office,
    "pdfplumber": prepare_pdfplumber,
    "various": prepare_various,
}

if __name__ == "__main__":
    main()
