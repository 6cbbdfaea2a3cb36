"""What can go wrong with a document, and what to remark on one, for people: a title, and what to do.

Errors carry a sentence on what happened (`etl.core.errors`); these say what comes next. Written once; a test holds
them complete.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple


class Explanation(NamedTuple):
    """`title` goes on like a headline; `advice` is one or two sentences to whoever submitted the document."""

    title: str
    advice: str


# ---- Errors, by their codes -----------------------------------------------------------------------------------------
ERRORS = {
    "unsupported_format": Explanation(
        "This kind of file cannot be read here",
        "Save it as PDF, as an image (PNG, JPEG, TIFF, WebP) or as text, and submit that.",
    ),
    "file_too_large": Explanation(
        "The file is too large, or unpacks to too much",
        "Split it, or make it smaller: fewer pages, scans with a lower resolution. Then submit the parts.",
    ),
    "file_encrypted": Explanation(
        "The file needs a password",
        "Open it with the password, save a copy without one, and submit that.",
    ),
    "file_corrupt": Explanation(
        "The file is damaged",
        "Open it on your own machine. If that works save it anew, as PDF, and submit the copy; else get it again from "
        "where it came from.",
    ),
    "too_many_pages": Explanation("The document has too many pages", "Split it, and submit the parts."),
    "too_many_pixels": Explanation(
        "A page or image is too large to be read",
        "Scan or save it with a lower resolution, 300 dpi is enough, and submit it again.",
    ),
    "empty_document": Explanation(
        "There is no text in it",
        "Look whether the pages are blank or the scan too pale. A better scan is worth a try.",
    ),
    "artifact_missing": Explanation(
        "What was stored of it is gone",
        "Read it again from the beginning. If that is refused too, submit the document again.",
    ),
    "ocr_failed": Explanation(
        "Reading it failed",
        "Read it again. If it fails again the pages may be too hard to read: try another scan, or tell your staff.",
    ),
    "ocr_timeout": Explanation(
        "Reading it took too long",
        "Read it again at a quieter time, or split it and submit the parts.",
    ),
    "provider_unavailable": Explanation(
        "The service that reads documents could not be reached",
        "Read it again in a few minutes. If it goes on, your staff have to look after that service.",
    ),
    "llm_unavailable": Explanation(
        "The language model could not be asked",
        "Extract again in a few minutes; the document is not read again for that. If it goes on, your staff have to "
        "look after the model's server or its settings.",
    ),
    "llm_refused": Explanation(
        "The language model would not answer",
        "Extract with another rule, or change the rule's prompt. The text that was read is below.",
    ),
    "llm_truncated": Explanation(
        "The language model's answer was cut off",
        "Extract with a rule that asks for less, or one that works in chunks; or have your staff allow longer answers.",
    ),
    "llm_invalid_response": Explanation(
        "The language model's server gave no answer",
        "Extract again. If it goes on, your staff have to look after the model's server.",
    ),
    "schema_validation": Explanation(
        "What was extracted does not fit the rule's schema",
        "Make the rule's schema more forgiving where the details point to, and extract again.",
    ),
    "document_too_long": Explanation(
        "The document is too long for the language model",
        "Extract with a rule that works in chunks, or split the document and submit the parts.",
    ),
    "timeout": Explanation(
        "Extracting took too long",
        "Extract again: pieces that were answered are not asked for again. Or use a rule that asks for less.",
    ),
    "queue_full": Explanation(
        "Too many documents wait already",
        "Nothing was stored. Submit it again in a few minutes.",
    ),
}
# The same codes where another attempt alone cannot help.
TO_MEND = {
    "llm_unavailable": Explanation(
        "No language model can be used here",
        "Ask whoever runs this service to set up a language model, or to mend its settings, and extract again then: "
        "the document is not read again for that. Or extract with a rule of the mode “Markdown only”: it needs none.",
    ),
}
UNKNOWN = Explanation("Unexpected error", "Try again. If it fails again, send the task's number to your staff.")


# ---- Warnings, by their codes ---------------------------------------------------------------------------------------
WARNINGS = {
    "page_failed": Explanation("Part of the document was not read", "What stands there is missing in the result."),
    "no_page_data": Explanation("Pages are not told apart", "All text is shown as one page, and citations name it."),
    "truncated": Explanation("The file ends too early", "Look whether its last pages are all there."),
    "hidden_text": Explanation("Text that people do not see", "Somebody may have put it there to mislead programs."),
    "low_confidence": Explanation("Hard to read", "Compare the page with the original."),
    "usage_incomplete": Explanation("Costs are not complete", "The result itself is whole."),
    "usage_unknown": Explanation("Costs are not known", "The result itself is whole."),
    "possible_prompt_injection": Explanation(
        "Text that gives orders to language models", "Check the values against the document before you rely on them."
    ),
    "no_values": Explanation("Nothing was found", "The rule may not fit this kind of document. Try another one."),
    "merge_conflict": Explanation("The document says different things", "Look at the page and decide which is right."),
    "merge_repeats": Explanation("Repeated items are kept once", "Look whether they were the same, or only alike."),
    "citations_incomplete": Explanation("Not every value was looked for", "Values without a source were not checked."),
    "citation_unverified": Explanation(
        "Some evidence did not hold", "What the model quoted stands nowhere in the document. Check these values."
    ),
    "value_not_in_text": Explanation(
        "Some values stand nowhere in the document", "They may be sums, or made up. Check them."
    ),
}


def of_error(error: Mapping[str, Any]) -> Explanation:
    """Return what an error of a task means: `{"code": "…", "retryable": false, …}`."""
    return to_mend(error) or ERRORS.get(error["code"], UNKNOWN)


def to_mend(error: Mapping[str, Any]) -> Explanation | None:
    """Return what has to be mended first, where others under this code may pass by themselves and this does not."""
    return None if error.get("retryable") else TO_MEND.get(error["code"])


def of_warning(code: str) -> Explanation:
    """Return what a warning means; of a code that a provider of somebody else's made up, only that it is one."""
    return WARNINGS.get(code, Explanation("Note", ""))
