"""Explanations of document errors and warnings for people: a title and advice.

Errors carry a sentence on what happened (`etl.core.errors`); explanations add advice. A test checks that every code
has one.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from etl.postprocessors.citations.levels import (
    AMBIGUOUS,
    COMPUTED,
    CORRECTED,
    EXACT,
    IMAGE,
    NORMALIZED,
    NOT_FOUND,
    QUOTE,
)


class Explanation(NamedTuple):
    """A title without a final period, and one or two sentences of advice to the user who submitted the document."""

    title: str
    advice: str


# ---- Errors, by their codes -----------------------------------------------------------------------------------------
ERRORS = {
    "unsupported_format": Explanation(
        "Unsupported file format",
        "Save it as PDF, or in one of the formats that the error names, and upload it again.",
    ),
    "file_too_large": Explanation(
        "The file is too large, or expands to too much data",
        "Split it, remove pages, or reduce the scan resolution. Then upload it again.",
    ),
    "file_encrypted": Explanation(
        "The file is password-protected",
        "Save a copy without a password and upload the copy.",
    ),
    "file_corrupt": Explanation(
        "The file is damaged",
        "Open it on your computer. If that works, save it as a new PDF and upload that. Otherwise, get a new copy.",
    ),
    "too_many_pages": Explanation("The document has too many pages", "Split it and upload the parts."),
    "too_many_pixels": Explanation(
        "A page or image is too large",
        "Scan or save it at a lower resolution (300 dpi is enough) and upload it again.",
    ),
    "empty_document": Explanation(
        "The document contains no text",
        "Check for blank pages and pale scans. A better scan may help.",
    ),
    "incomplete_document": Explanation(
        "Not all pages could be read, and the rule requires that",
        "Check the pages named in the error. Upload a better scan, or extract with a rule that accepts warnings.",
    ),
    "artifact_missing": Explanation(
        "A stored file of this document is missing",
        "Parse the document again. If that fails too, upload the document again.",
    ),
    "ocr_failed": Explanation(
        "Parsing failed",
        "Parse the document again. If it fails again, try a better scan or contact your administrator.",
    ),
    "ocr_timeout": Explanation(
        "Parsing timed out",
        "Parse the document again later, or split it and upload the parts.",
    ),
    "provider_unavailable": Explanation(
        "The OCR provider is unavailable",
        "Parse the document again in a few minutes. If the problem persists, contact your administrator.",
    ),
    "llm_unavailable": Explanation(
        "The language model is unavailable",
        "Extract again in a few minutes; the document is not parsed again. If the problem persists, contact your "
        "administrator.",
    ),
    "vision_unsupported": Explanation(
        "The language model does not take images",
        "Extract with a rule with another strategy, or ask your administrator to configure a model with vision.",
    ),
    "llm_refused": Explanation(
        "The language model refused to respond",
        "Extract with another rule, or change the rule's prompt. The parsed text is shown below.",
    ),
    "llm_truncated": Explanation(
        "The response of the language model was cut off",
        "Extract with a rule that requests fewer values or works in pieces, or ask your administrator to raise the "
        "response limit.",
    ),
    "llm_invalid_response": Explanation(
        "The language model returned an invalid response",
        "Extract again. If the problem persists, contact your administrator.",
    ),
    "schema_validation": Explanation(
        "The extracted data does not match the schema",
        "Relax the rule's schema at the place named in the error, and extract again.",
    ),
    "no_einvoice": Explanation(
        "The document contains no e-invoice",
        "Ask the sender for a file with an e-invoice, or your administrator to configure a language model, which reads "
        "other invoices.",
    ),
    "number_unrepresentable": Explanation(
        "A number is too large or too precise",
        "Allow a string at the place named in the error in the rule's schema, and extract again.",
    ),
    "token_budget_exceeded": Explanation(
        "Today's budget of language model tokens is used up",
        "Extract again tomorrow: completed pieces are not requested again. Or ask your administrator to raise the "
        "budget.",
    ),
    "document_too_long": Explanation(
        "The document is too long for the language model",
        "Extract with a rule that works in pieces, or split the document and upload the parts.",
    ),
    "timeout": Explanation(
        "Extraction timed out",
        "Extract again: completed pieces are not requested again. Or use a rule that requests fewer values.",
    ),
    "queue_full": Explanation(
        "The document queue is full",
        "The document was not stored. Upload it again in a few minutes.",
    ),
}
# ---- Permanent errors whose codes also cover temporary errors ------------------------------------------------------
PERMANENT_ERRORS = {
    "llm_unavailable": Explanation(
        "No language model is configured",
        "Ask an administrator to configure a language model, then extract again; the document is not parsed again. Or "
        "extract with a rule with the mode “Markdown only”, which needs no model.",
    ),
}
UNKNOWN = Explanation("Unexpected error", "Try again. If it fails again, contact your administrator with the task ID.")


# ---- Warnings, by their codes ---------------------------------------------------------------------------------------
WARNINGS = {
    "page_failed": Explanation("Part of the document could not be read", "Its text is missing from the result."),
    "layout_failed": Explanation(
        "The layout of a page could not be analyzed", "Its text is complete, but columns and tables may be mixed up."
    ),
    "unsupported_script": Explanation(
        "The text may be in a script that is not supported", "Do not use the text of this page without a check."
    ),
    "no_page_data": Explanation("No page information", "All text is shown as one page, and citations refer to it."),
    "truncated": Explanation("The file is incomplete", "Check whether the last pages are present."),
    "hidden_text": Explanation("Hidden text", "It may have been added to mislead programs."),
    "low_confidence": Explanation("Low OCR confidence", "Compare the page with the original."),
    "page_not_shown": Explanation(
        "A page could not be shown to the language model", "Its values are missing from the result."
    ),
    "no_page_images": Explanation(
        "The text was read instead of page images", "Only PDFs and images have page images. Pasted text has none."
    ),
    "image_not_read": Explanation("An image was not read", "If it shows text, that is missing from the result."),
    "formula_without_value": Explanation(
        "Values of formulas are missing", "Open the file in a spreadsheet program, save it, and upload it again."
    ),
    "unbalanced_quotes": Explanation(
        "A quotation mark is not closed", "Compare the rows of the table with the original."
    ),
    "attachment_not_read": Explanation("Attachments were not read", "Upload them as separate documents."),
    "usage_incomplete": Explanation("Usage data is incomplete", "The result itself is complete."),
    "usage_unknown": Explanation("Usage data is unavailable", "The result itself is complete."),
    "text_left_out": Explanation(
        "Characters were left out", "Language models do not see them. Compare these pages with the original."
    ),
    "repaired": Explanation("Parts of the result were requested again", "Compare them with the document."),
    "items_rejected": Explanation(
        "Items were left out because they do not fit the rule", "Add them by hand, or relax the rule's schema."
    ),
    "items_uncounted": Explanation(
        "The items could not be counted", "Check whether lists are complete, or use a rule that works in pieces."
    ),
    "sum_differs": Explanation("A total differs from the sum of its amounts", "Compare both with the document."),
    "prompt_truncated": Explanation(
        "The language model may not have read the whole document",
        "Check whether the result is complete, or use a rule that works in pieces. Ask your administrator to raise the "
        "context length of the model server.",
    ),
    "einvoice_unreadable": Explanation(
        "The e-invoice could not be read", "The text of the pages was read instead. Ask the sender for a correct file."
    ),
    "einvoice_rule": Explanation(
        "The e-invoice breaks a rule of EN 16931", "Check the amounts before you pay, and contact the sender."
    ),
    "einvoice_differs": Explanation(
        "The e-invoice differs from the pages",
        "A file with two different invoices may be fraudulent. Do not pay before you have asked the sender.",
    ),
    "number_unrepresentable": Explanation(
        "A number was stored as text", "It is too large or too precise for a number. Its digits are complete."
    ),
    "possible_prompt_injection": Explanation(
        "Possible prompt injection", "Check the values against the document before you use them."
    ),
    "no_values": Explanation("No values were found", "The rule may not fit this kind of document. Try another rule."),
    "merge_conflict": Explanation("The document contains conflicting values", "Check the page for the right value."),
    "items_repeated": Explanation("Items may be counted twice", "Compare their number with the document."),
    "merge_repeats": Explanation("Repeated items were merged", "Check whether they were identical or only similar."),
    "citation_unverified": Explanation(
        "Some quotes were not found in the document", "Check the values that cite these quotes."
    ),
    "value_not_in_text": Explanation(
        "Some values were not found in the document", "They may be calculated or made up. Check them."
    ),
}


# ---- Citations, by their match ---------------------------------------------------------------------------------------
MATCHES = {
    EXACT: Explanation("Exact", "The document contains the value exactly as shown."),
    NORMALIZED: Explanation("Same value", "The document contains the value in another, unambiguous notation."),
    AMBIGUOUS: Explanation("Unclear", "The notation is ambiguous, or several places match. Check the value."),
    QUOTE: Explanation("Quote only", "The document contains the quote. Check whether it supports the value."),
    IMAGE: Explanation("Seen", "The language model read the value in the page image. Compare it with the page."),
    COMPUTED: Explanation(
        "Computed", "The document does not contain the value, but it is a sum or count of cited values."
    ),
    NOT_FOUND: Explanation("Not found", "The document does not contain the value. Check it."),
    CORRECTED: Explanation("Corrected", "A person entered the value. The history has the previous value."),
}


def of_match(match: str) -> Explanation:
    """Return the explanation of a citation's level. Unknown levels are from earlier releases."""
    return MATCHES.get(match, Explanation("Not verified", "The citation is from an earlier release. Check the value."))


def of_error(error: Mapping[str, Any]) -> Explanation:
    """Return the explanation of a task's error: `{"code": "…", "retryable": false, …}`."""
    return of_permanent(error) or ERRORS.get(error["code"], UNKNOWN)


def of_permanent(error: Mapping[str, Any]) -> Explanation | None:
    """Return the explanation of a permanent error whose code also covers temporary ones."""
    return None if error.get("retryable") else PERMANENT_ERRORS.get(error["code"])


def of_warning(code: str) -> Explanation:
    """Return the explanation of a warning; providers may add their own codes."""
    return WARNINGS.get(code, Explanation("Note", ""))
