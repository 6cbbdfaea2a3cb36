"""The syntaxes of e-invoices, and access to their terms. Runs only in the reader process."""

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from lxml import etree

from etl.providers.local.einvoices import terms
from etl.providers.local.einvoices.terms import Term

CII = "urn:un:unece:uncefact:data:standard"
UBL = "urn:oasis:names:specification:ubl:schema:xsd"
UBL_PARTS = {"cac": f"{UBL}:CommonAggregateComponents-2", "cbc": f"{UBL}:CommonBasicComponents-2"}

# A decimal as XML Schema allows it.
DECIMAL = re.compile(r"(?P<sign>[+-]?)0*(?P<whole>[0-9]*)(?:\.(?P<fraction>[0-9]*))?")
MAX_DIGITS = 40
DATE = re.compile(r"([0-9]{4})-?([0-9]{2})-?([0-9]{2})(?:[T ].*|Z|[+-][0-9]{2}:[0-9]{2})?", re.DOTALL)
MAX_TEXT = 100_000  # characters of a term


@dataclass(frozen=True, slots=True, eq=False)
class Syntax:
    """A syntax with its root element. `schema`: a name in `schemas`, for profiles without their own schema."""

    name: str  # cii or ubl
    root: str
    namespaces: dict[str, str]
    schema: str
    is_zugferd_1: bool = False

    def path(self, term: Term) -> str:
        if self.name == "ubl":
            return term.ubl
        return terms.zugferd_1_path(term.cii) if self.is_zugferd_1 else term.cii

    def elements(self, term: Term, parent: Any) -> list[Any]:
        found: list[Any] = compile_paths(self, self.path(term))[0](parent)
        return found

    def value(self, term: Term, parent: Any) -> str | None:
        """Return the value of a term: text, an exact amount, or a date. None if it is missing or an invalid amount."""
        for path in compile_paths(self, self.path(term)):
            if found := next(filter(None, map(text_of, path(parent))), None):
                return convert(found, term.kind)
        return None

    def values(self, term: Term, parent: Any) -> list[str]:
        """Return the values of a term that may be repeated."""
        texts = (text_of(each) for path in compile_paths(self, self.path(term)) for each in path(parent))
        return [value for text in texts if text and (value := convert(text, term.kind)) is not None]


SYNTAXES = (
    Syntax(
        "cii",
        f"{{{CII}:CrossIndustryInvoice:100}}CrossIndustryInvoice",
        {
            "rsm": f"{CII}:CrossIndustryInvoice:100",
            "ram": f"{CII}:ReusableAggregateBusinessInformationEntity:100",
            "udt": f"{CII}:UnqualifiedDataType:100",
        },
        "cii",
    ),
    Syntax(
        "cii",
        "{urn:ferd:CrossIndustryDocument:invoice:1p0}CrossIndustryDocument",
        {
            "rsm": "urn:ferd:CrossIndustryDocument:invoice:1p0",
            "ram": f"{CII}:ReusableAggregateBusinessInformationEntity:12",
            "udt": f"{CII}:UnqualifiedDataType:15",
        },
        "zugferd-1",
        is_zugferd_1=True,
    ),
    Syntax("ubl", f"{{{UBL}:Invoice-2}}Invoice", UBL_PARTS, "ubl-invoice"),
    Syntax("ubl", f"{{{UBL}:CreditNote-2}}CreditNote", UBL_PARTS, "ubl-credit-note"),
)
BY_ROOT = {syntax.root: syntax for syntax in SYNTAXES}
# Names near the beginning of an invoice. They identify it even if the file cannot be parsed.
INVOICE_NAME = re.compile(rb"CrossIndustry(?:Invoice|Document)|ubl:schema:xsd:(?:Invoice|CreditNote)-2")
INVOICE_NAME_WITHIN = 8_192  # bytes


def looks_like_invoice(content: bytes) -> bool:
    return INVOICE_NAME.search(content[:INVOICE_NAME_WITHIN].replace(b"\0", b"")) is not None


@cache
def compile_paths(syntax: Syntax, paths: str) -> list[Any]:
    return [etree.XPath(path, namespaces=syntax.namespaces) for path in paths.split(", ")]


def compile_all() -> None:
    """Compile the paths of all terms once, so that forked processes do not have to."""
    all_terms = (
        terms.PROFILE, terms.NOTES, terms.LINES, terms.TAXES, terms.ALLOWANCES, terms.CHARGES, terms.LINE_STATUS,
        *terms.HEAD, *terms.TOTALS, *terms.LINE, *terms.TAX, *terms.OTHER_SUMS,
    )  # fmt: skip
    for syntax in SYNTAXES:
        for term in all_terms:
            compile_paths(syntax, syntax.path(term))


# ---- Values ---------------------------------------------------------------------------------------------------------
def text_of(found: Any) -> str:
    """Return the text of an element or attribute."""
    return str(found if isinstance(found, str) else "".join(found.itertext())).strip()[:MAX_TEXT]


def convert(text: str, kind: terms.Kind) -> str | None:
    if kind == "amount":
        return parse_amount(text)
    return parse_date(text) if kind == "date" else text


def parse_amount(text: str) -> str | None:
    """Return a decimal in JSON notation, with all its digits, or None if the text is not a decimal."""
    match = DECIMAL.fullmatch(text) if len(text) <= MAX_DIGITS else None  # the time is quadratic in the length
    if match is None or not (match["whole"] or match["fraction"] or "0" in text):
        return None
    fraction = f".{match['fraction']}" if match["fraction"] else ""
    return f"{match['sign'].replace('+', '')}{match['whole'] or '0'}{fraction}"


def parse_date(text: str) -> str:
    """Return a date as YYYY-MM-DD. Return other texts unchanged."""
    match = DATE.fullmatch(text)
    return "-".join(match.groups()) if match else text
