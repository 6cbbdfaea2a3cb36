"""Ground truth for e-invoices: the XML in their PDFs. It is removed from the prepared PDFs."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pypdfium2

from tests.reading.text import plain
from tests.reading.values import Haystack, as_number, numbers

SCANNED = 100  # a PDF whose text layer has fewer characters is a scan
# Ends of paths of values in CII, for the element names of ZUGFeRD 1 and 2.
VALUES = {
    "number": (r"ExchangedDocument/ID",),
    "date": (r"ExchangedDocument/IssueDateTime/DateTimeString",),
    "seller": (r"SellerTradeParty/Name",),
    "buyer": (r"BuyerTradeParty/Name",),
    "seller_city": (r"SellerTradeParty/PostalTradeAddress/CityName",),
    "buyer_city": (r"BuyerTradeParty/PostalTradeAddress/CityName",),
    "total": (r"(?:Header|Trade)Settlement\w*MonetarySummation/GrandTotalAmount",),
    "net": (r"(?:Header|Trade)Settlement\w*MonetarySummation/TaxBasisTotalAmount",),
    "tax": (r"(?:Header|Trade)Settlement\w*MonetarySummation/TaxTotalAmount",),
    "iban": (r"PayeePartyCreditorFinancialAccount/IBANID",),
}
LINE = re.compile(r"IncludedSupplyChainTradeLineItem$")
PROFILE = re.compile(
    r"^(?:zugferd_\dp\d_)?(?:XRECHNUNG|EN16931|EXTENDED|COMFORT|BASIC-WL|BASIC|MINIMUM)_|"
    r"_(?:BASICWL|BASIC|MINIMUM|EN16931)$|_XRechnung|_embedded|-?\d{6,}.*$",
    re.IGNORECASE,
)


def prepare_einvoices(sources: Path, folder: Path) -> None:
    seen = set()
    for path in sorted([*(sources / "zugferd").rglob("*.pdf"), *(sources / "facturx").rglob("*.pdf")], reverse=True):
        pdf = pypdfium2.PdfDocument(path)
        if (truth := invoice_of(pdf)) and (key := json.dumps(truth)) not in seen:
            seen.add(key)
            document = folder / f"{PROFILE.sub('', PROFILE.sub('', path.stem))}--{path.parent.name}-{path.stem}.pdf"
            for _ in range(pdf.count_attachments()):
                pdf.del_attachment(0)
            pdf.save(document)
            document.with_suffix(".invoice.json").write_text(
                json.dumps(printed(truth, pdf), ensure_ascii=False, indent=1)
            )


def invoice_of(pdf: pypdfium2.PdfDocument) -> dict[str, Any] | None:
    """Return the values and rows of the XML in a PDF, or None for a PDF without XML."""
    for index in range(pdf.count_attachments()):
        attachment = pdf.get_attachment(index)
        if attachment.get_name().lower() in {"factur-x.xml", "zugferd-invoice.xml", "xrechnung.xml"}:
            try:
                # The dataset is trusted, and expat limits the expansion of entities.
                root = ET.fromstring(bytes(attachment.get_data()))  # noqa: S314
            except ET.ParseError:
                continue  # some examples are intentionally invalid
            return truth_of(root)
    return None


def printed(truth: dict[str, Any], pdf: pypdfium2.PdfDocument) -> dict[str, Any]:
    """Remove values and rows that are not printed on the pages, from which the XML of some examples differs."""
    text = plain("\n".join(page.get_textpage().get_text_bounded() for page in pdf))
    if len(text) < SCANNED:
        return truth
    haystack, amounts = Haystack(text), numbers(text)
    return {
        "values": {name: value for name, value in truth["values"].items() if haystack.has(value)},
        "rows": [row for row in truth["rows"] if as_number(row["amount"]) in amounts],
    }


def truth_of(root: ET.Element) -> dict[str, Any]:
    elements = list(paths(root))
    values: dict[str, str] = {}
    for name, patterns in VALUES.items():
        for path, element in elements:
            if any(re.search(f"{pattern}$", path) for pattern in patterns) and (text := clean(element.text)):
                values.setdefault(name, text)
    if "date" in values:
        values["date"] = re.sub(r"^(\d{4})(\d\d)(\d\d)$", r"\1-\2-\3", values["date"])
    rows = [row for path, element in elements if LINE.search(path) and (row := row_of(element))]
    return {"values": values, "rows": rows}


def row_of(line: ET.Element) -> dict[str, str] | None:
    elements = [(path, clean(element.text)) for path, element in paths(line)]
    name = next((text for path, text in elements if path.endswith("SpecifiedTradeProduct/Name") and text), None)
    amount = next((text for path, text in elements if path.endswith("LineTotalAmount") and text), None)
    return {"name": name, "amount": amount} if name and amount else None


def paths(element: ET.Element, path: str = "") -> Iterator[tuple[str, ET.Element]]:
    path = f"{path}/{element.tag.rpartition('}')[2]}"
    yield path, element
    for child in element:
        yield from paths(child, path)


def clean(text: str | None) -> str:
    return " ".join((text or "").split())
