"""Recognition and reading of e-invoices. Runs only in the reader process.

The message about a document is one of these:

- `{"einvoice": {"syntax", "profile", "errors", "data"}}`, with amounts as strings
- `{"einvoice": None}` if the document has no e-invoice
- `{"unreadable": …}` with a key of `unreadable.REASONS`
"""

from collections.abc import Iterator
from functools import cache
from typing import Any, BinaryIO

from etl.core.errors import FileCorrupt
from etl.core.formats import DocumentFormat
from etl.providers.local.einvoices import attachments, rules, schemas, syntaxes, terms
from etl.providers.local.einvoices.profiles import profile_of
from etl.providers.local.einvoices.syntaxes import BY_ROOT, Syntax
from etl.providers.local.einvoices.unreadable import MAX_BYTES, MAX_LINES, Unreadable
from etl.providers.local.office import xml
from etl.providers.local.pages import DocumentLimits
from etl.providers.local.pdf import Pdf

Message = dict[str, Any]


@cache
def load() -> None:
    """Compile schemas and XPath expressions before the first fork."""
    schemas.load_all()
    syntaxes.compile_all()


def read(kind: DocumentFormat, document: BinaryIO, limits: DocumentLimits) -> Iterator[Message]:
    """Yield the message about a document, then `{"done": True}`. Raises BadDocument if a PDF cannot be opened."""
    try:
        root = (
            root_in_pdf(document, limits) if kind == DocumentFormat.PDF else root_in_xml(document.read(MAX_BYTES + 1))
        )
        yield {"einvoice": None if root is None else invoice_message(root)}
    except Unreadable as error:
        yield {"unreadable": error.reason}
    yield {"done": True}


# ---- Recognition ----------------------------------------------------------------------------------------------------
def root_in_pdf(document: BinaryIO, limits: DocumentLimits) -> Any:
    """Return the root element of the invoice in a PDF, or None. Raises Unreadable."""
    files = attachments.find(Pdf(document, limits).document)
    roots = [(content, parse(content)) for content in files.named]
    if any(root.tag not in BY_ROOT for _, root in roots):
        raise Unreadable("no_invoice")
    roots = roots or [(content, parse(content)) for content in filter(syntaxes.looks_like_invoice, files.others)]
    by_content = {content: root for content, root in roots if root.tag in BY_ROOT}
    if len(by_content) > 1:
        raise Unreadable("several")
    return next(iter(by_content.values()), None)


def root_in_xml(content: bytes) -> Any:
    """Return the root element of an XML invoice, or None for other XML."""
    if not syntaxes.looks_like_invoice(content):
        return None
    root = parse(content)
    return root if root.tag in BY_ROOT else None


def parse(content: bytes) -> Any:
    if len(content) > MAX_BYTES:
        raise Unreadable("too_large")
    if any(each in content for each in xml.DOCTYPES):
        raise Unreadable("document_type")
    try:
        return xml.parse(content)
    except FileCorrupt:
        raise Unreadable("invalid_xml") from None


# ---- Reading --------------------------------------------------------------------------------------------------------
def invoice_message(root: Any) -> Message:
    syntax = BY_ROOT[root.tag]
    identifier = syntax.value(terms.PROFILE, root) or ""
    profile = profile_of(identifier)
    lines = syntax.elements(terms.LINES, root)
    if len(lines) > MAX_LINES:
        raise Unreadable("too_large")
    invoice = rules.Invoice(
        data=data_of(syntax, root, lines),
        profile=profile,
        sums=members(syntax, terms.OTHER_SUMS, root),
        allowances=syntax.values(terms.ALLOWANCES, root),
        charges=syntax.values(terms.CHARGES, root),
        line_states=[syntax.value(terms.LINE_STATUS, line) or "" for line in lines],
    )
    errors = [{"code": "schema", "detail": detail} for detail in schemas.errors(root, profile.schema_of(syntax.schema))]
    if identifier and not profile.is_known:
        errors.append({"code": "profile", "detail": f"The profile is unknown: {profile.name}"})
    errors += [{"code": broken.rule, "detail": broken.detail} for broken in rules.check(invoice)]
    return {"syntax": syntax.name, "profile": profile.name, "errors": errors, "data": invoice.data}


def data_of(syntax: Syntax, root: Any, lines: list[Any]) -> dict[str, Any]:
    """Return the data of an invoice, in the order of the system rule's schema. Missing terms are omitted."""
    return {
        **members(syntax, terms.HEAD, root),
        "lines": [members(syntax, terms.LINE, line) for line in lines],
        "taxes": [members(syntax, terms.TAX, tax) for tax in syntax.elements(terms.TAXES, root)],
        **members(syntax, terms.TOTALS, root),
        "notes": syntax.values(terms.NOTES, root),
    }


def members(syntax: Syntax, table: tuple[terms.Term, ...], parent: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for term in table:
        if (value := syntax.value(term, parent)) is not None:
            *outer, name = term.member.split(".")
            place = found
            for each in outer:
                place = place.setdefault(each, {})
            place[name] = value
    return found
