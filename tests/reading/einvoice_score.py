"""Score the reading of e-invoices against their XML, which an independent parser reads with XPath on local names.

    python -m tests.reading.einvoice_score CORPUS

Each subfolder of the corpus has the PDF or XML files of one producer. The output has a line for each producer, with the
numbers of invoices, of exact readings (number, totals, and lines equal the XML), of valid invoices, and of invoices
that differ from their pages, and the CPU time. A line for each fault follows.
"""

import argparse
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pypdfium2
from lxml import etree

from config.platform import exact_json
from etl.core.errors import BadDocument
from etl.core.formats import DocumentFormat
from etl.core.stage_context import StageContext
from etl.postprocessors.einvoices import comparison
from etl.providers.base import EInvoice, OCRResult, PagedMarkdown
from etl.providers.local.einvoices import reading
from etl.providers.local.einvoices.received import einvoice_of
from etl.providers.local.pages import DocumentLimits
from tests.samples import sample

LIMITS = DocumentLimits(pages=10_000, pixels=10**9, text=10**9)
ROOTS = ("CrossIndustryInvoice", "CrossIndustryDocument", "Invoice", "CreditNote")
TOTALS: dict[str, tuple[str, ...]] = {
    "net": ("TaxBasisTotalAmount", "TaxExclusiveAmount"),
    "gross": ("GrandTotalAmount", "TaxInclusiveAmount"),
    "prepaid": ("TotalPrepaidAmount", "PrepaidAmount"),
    "due": ("DuePayableAmount", "PayableAmount"),
}
# Amounts of a line, with the local names of their elements.
LINE: dict[str, tuple[str, ...]] = {
    "net_amount": ("LineTotalAmount", "LineExtensionAmount"),
    "quantity": ("BilledQuantity", "InvoicedQuantity", "CreditedQuantity"),
}


@dataclass(slots=True)
class Score:
    """The results for the files of one producer. `differs`: the number of invoices that differ from their pages."""

    files: int = 0
    exact: int = 0
    valid: int = 0
    differs: int = 0
    milliseconds: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def read(path: Path) -> EInvoice | None:
    """Return the e-invoice of a file, read as in the reader process and the worker, or None."""
    kind = DocumentFormat.PDF if path.suffix.lower() == ".pdf" else DocumentFormat.XML
    with path.open("rb") as file, suppress(BadDocument):
        message = next(reading.read(kind, file, LIMITS))
        if message.get("einvoice"):
            return einvoice_of(message["einvoice"])
    return None


# ---- The independent parser -----------------------------------------------------------------------------------------
def xml_of(path: Path) -> Any:
    """Return the root of the XML invoice of a file, or None."""
    for content in contents(path):
        with suppress(etree.XMLSyntaxError):
            root = etree.fromstring(content, etree.XMLParser(resolve_entities=False, no_network=True))
            if etree.QName(root).localname in ROOTS and ":rc:" not in root.tag:
                return root
    return None


def contents(path: Path) -> Iterator[bytes]:
    if path.suffix.lower() != ".pdf":
        yield path.read_bytes()
        return
    with suppress(pypdfium2.PdfiumError):
        pdf = pypdfium2.PdfDocument(path)
        for index in range(pdf.count_attachments()):
            attachment = pdf.get_attachment(index)
            if attachment.get_name().lower().endswith(".xml"):
                yield bytes(attachment.get_data())


def differences_from_xml(root: Any, data: dict[str, Any]) -> Iterator[str]:
    """Yield the differences between the XML and a result."""
    sums = root.xpath("//*[contains(local-name(), 'HeaderMonetarySummation') or local-name()='LegalMonetaryTotal']")
    old = "//*[local-name()='ApplicableSupplyChainTradeSettlement']/*[contains(name(), 'Summation')]"  # ZUGFeRD 1
    sums = sums or root.xpath(old)
    for name, tags in TOTALS.items():
        expected = first(sums[0], *tags) if sums else None
        if number(expected) != written(data.get("totals", {}).get(name)):
            yield f"totals/{name}: {expected}"
    lines = root.xpath(
        "/*/*[local-name()='InvoiceLine' or local-name()='CreditNoteLine']"
        "|/*/*/*[local-name()='IncludedSupplyChainTradeLineItem']"
    )
    if len(lines) != len(data["lines"]):
        yield f"{len(lines)} lines: {len(data['lines'])}"
        return
    for line, got in zip(lines, data["lines"], strict=True):
        for name, tags in LINE.items():
            expected = first(line, *tags)
            if number(expected) != written(got.get(name)):
                yield f"line {got.get('id')}, {name}: {expected}"
    expected = root.xpath(
        "string(/*/*[local-name()='ID'] | /*/*[contains(local-name(), 'ExchangedDocument')]/*[local-name()='ID'])"
    )
    if expected.strip() != data.get("number", ""):
        yield f"number: {expected}"


def first(element: Any, *tags: str) -> str | None:
    """Return the text of the first element with one of these local names.

    Searches the children, then the descendants of settlement and delivery elements.
    """
    for tag in tags:
        found = element.xpath(f"./*[local-name()='{tag}']") or element.xpath(
            f"./*[contains(local-name(), 'Settlement') or contains(local-name(), 'Delivery')]//*[local-name()='{tag}']"
        )
        if found:
            return str(found[0].text or "").strip()
    return None


def number(text: str | None) -> str | None:
    """Return an amount in JSON notation, or None for other text."""
    if not text:
        return None
    sign, digits = ("-", text[1:]) if text.startswith("-") else ("", text.removeprefix("+"))
    whole, _, fraction = digits.partition(".")
    if not (whole + fraction).isdecimal():
        return None
    return f"{sign}{whole.lstrip('0') or '0'}{'.' if fraction else ''}{fraction}"


def written(value: Any) -> str | None:
    return None if value is None else exact_json.dumps(value).decode()


# ---- Scores ---------------------------------------------------------------------------------------------------------
def score(folder: Path) -> Score:
    total = Score()
    for path in sorted(
        path for path in folder.rglob("*") if path.suffix.lower() in {".pdf", ".xml"} and path.is_file()
    ):
        root = xml_of(path)
        started = time.process_time()
        invoice = read(path)
        read_seconds = time.process_time() - started
        if root is None:
            if invoice is not None:
                total.faults.append(f"{path}: read as an invoice, but is not one")
            continue
        if invoice is None:
            total.faults.append(f"{path}: not read")
            continue
        total.files += 1
        found = list(differences_from_xml(root, invoice.data))
        total.exact += not found
        total.faults += [f"{path}: {each}" for each in found]
        total.valid += not invoice.errors
        pages = text_of(path) if path.suffix.lower() == ".pdf" else None
        started = time.process_time()
        total.differs += pages is not None and bool(differences(pages, invoice))
        total.milliseconds.append(1000 * (read_seconds + time.process_time() - started))
    return total


def text_of(path: Path) -> OCRResult:
    text = PagedMarkdown()
    for index, page in enumerate(pypdfium2.PdfDocument(path), start=1):
        text.add(index, page.get_textpage().get_text_bounded())
    return OCRResult(markdown=str(text), pages=tuple(text.pages), provider="", provider_task_id="")


def differences(pages: OCRResult, invoice: EInvoice) -> list[str]:
    """Return the warnings about differences between an invoice and its pages."""
    context = StageContext(seconds=60)
    comparison.warn_of_differences(invoice.data, pages, context=context)
    return [warning.detail for warning in context.warnings]


def warm_up() -> None:
    """Compile the regular expressions of the comparison, as a worker does once."""
    path = sample("einvoice.pdf")
    invoice = read(path)
    assert invoice is not None
    differences(text_of(path), invoice)


def main() -> None:
    parser = argparse.ArgumentParser(description="Score e-invoices, by producer.")
    parser.add_argument("corpus", type=Path)
    reading.load()
    warm_up()
    print("| producer | files | exact | valid | differs from the pages | CPU ms, mean | CPU ms, max |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    all_faults: list[str] = []
    for folder in sorted(each for each in parser.parse_args().corpus.iterdir() if each.is_dir()):
        result = score(folder)
        times = result.milliseconds or [0.0]
        mean = sum(times) / len(times)
        counts = f"{result.files} | {result.exact} | {result.valid} | {result.differs}"
        print(f"| {folder.name} | {counts} | {mean:.1f} | {max(times):.1f} |")
        all_faults += result.faults
    print("\n".join(all_faults))


if __name__ == "__main__":
    main()
