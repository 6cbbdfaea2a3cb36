"""The text of a document as it is sent to a model, and detection of prompt injection.

Invisible characters, such as zero-width characters, direction marks, and Unicode tags, can hide a prompt injection.
They are removed with the warning `text_left_out`. Visible text is never removed. HTML comments are escaped, and chat
template markers are broken up, because some model servers would interpret them. Responses and citations are checked
against the resulting text.
"""

import re
import unicodedata
from bisect import bisect_right
from dataclasses import dataclass

from etl.core.stage_context import StageContext
from etl.providers.base import OCRResult, PagedMarkdown

# Control characters, soft hyphens, Arabic letter marks, fillers (Hangul, Khmer), Mongolian vowel separators, zero-width
# characters, direction marks, blank Braille, byte order marks, interlinear marks, shorthand controls, music controls,
# tags, supplementary variation selectors, and surrogates.
INVISIBLE = re.compile(
    "[\u0000-\u0008\u000b\u000e-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f\u202a-\u202e"
    "\u2060-\u206f\u2800\u3164\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    "\ud800-\udfff]"
)
# Joiners are needed between emoji, and between letters of Persian, Hindi, and other languages. After ASCII characters
# and other joiners they have no visible effect, so they can only hide data.
JOINERS = "\u200c\u200d"
STRAY_JOINER = re.compile(rf"(?<![^\u0000-\u007f{JOINERS}])[{JOINERS}]")
# The same holds for variation selectors and the grapheme joiner, except in keycaps, which begin with ASCII characters.
SELECTORS = "\u034f\u180b-\u180d\u180f\ufe00-\ufe0f"
STRAY_SELECTOR = re.compile(rf"(?<![^\u0000-\u007f{JOINERS}{SELECTORS}])[{SELECTORS}](?!\u20e3)")
ANY_JOINER = re.compile(f"[{JOINERS}{SELECTORS}]")
# A soft hyphen is displayed only where it divides a word.
LAST_SOFT_HYPHEN = re.compile(r"\u00ad(?=[ \t]*\n)")
# Soft hyphens, byte order marks, and control characters occur in many ordinary documents, so no warning is needed.
NEVER_DISPLAYED = re.compile("[\u0000-\u0008\u000b\u000e-\u001f\u007f-\u009f\u00ad\ufeff]")
# Markers of chat templates: `<|im_start|>`, `<start_of_turn>`, `[INST]`, `<<SYS>>`. Some have full-width bars.
CHAT_MARKERS = re.compile(
    r"<[|\uff5c][^|\uff5c<>\n]{1,60}[|\uff5c]>|</?(?:start|end)_of_turn>|<</?SYS>>|</?(?:think|system|assistant)>"
    r"|\[/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT)\]",
    re.IGNORECASE,
)
# Markers of the beginning and end of a sequence. Not a sign of prompt injection, because `<s>` is also the HTML tag for
# struck-through text.
SEQUENCE_MARKERS = re.compile(r"</?s>|<[be]os>", re.IGNORECASE)

PROMPT_INJECTION = re.compile(
    r"\b(?:ignore|disregard|forget|override)\s{1,3}(?:\w{1,30}\s{1,3}){0,4}?(?:previous|prior|above|earlier|preceding|all|your)"
    r"\s{1,3}(?:\w{1,30}\s{1,3}){0,3}?(?:instruction|prompt|rule|direction|command|context)"
    r"|\byou\s{1,3}are\s{1,3}now\s{1,3}an?\b"
    r"|\b(?:reveal|print|repeat|show|output)\s{1,3}(?:\w{1,30}\s{1,3}){0,3}?(?:system|hidden|initial)\s{1,3}(?:prompt|instruction)"
    r"|\b(?:new|updated|real)\s{1,3}(?:system\s{1,3})?instructions?\s{0,3}:"
    r"|\b(?:attention|note|message)\s{1,3}(?:to|for)\s{1,3}(?:the\s{1,3})?(?:ai|llm|language\s{1,3}model|assistant)\b"
    r"|\b(?:ai|llm|language\s{1,3}model)s?\s{1,3}(?:reading|processing|parsing|that\s{1,3}reads?)\s{1,3}this\b"
    r"|\bignorier\w{0,3}\s{1,3}(?:\w{1,30}\s{1,3}){0,3}?(?:anweisung|vorgabe)"
    r"|\bignor(?:ez|a|e)\s{1,3}(?:\w{1,30}\s{1,3}){0,3}?(?:instructions|instrucciones|istruzioni)",
    re.IGNORECASE,
)
MAX_PAGES_NAMED = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSpan:
    """The text of a page: `content[start:end]`. `number` counts from 1."""

    number: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentText:
    """A document as it is sent to a model: pages with text, each after its marker."""

    content: str
    pages: tuple[PageSpan, ...]

    def page_at(self, position: int) -> int:
        """Return the page number of a character. Characters before the first page's text belong to the first page."""
        return self.span_at(position).number

    def span_at(self, position: int) -> PageSpan:
        place = bisect_right(self.pages, position, key=lambda span: span.start) - 1
        return self.pages[max(0, place)]

    def page(self, number: int) -> str:
        """Return a page's text, or "" if the page does not exist."""
        place = bisect_right(self.pages, number, key=lambda span: span.number) - 1
        span = self.pages[place] if place >= 0 else None
        return self.content[span.start : span.end] if span and span.number == number else ""


def clean(ocr: OCRResult) -> DocumentText:
    """Return the text of a document for a model."""
    content = PagedMarkdown()
    pages: list[PageSpan] = []
    for page in ocr.pages:
        text = visible(ocr.markdown[page.start : page.end]).strip()
        if text:
            start, end = content.add(page.number, text)
            pages.append(PageSpan(number=page.number, start=start, end=end))
    return DocumentText(content=str(content), pages=tuple(pages))


def visible(text: str) -> str:
    """Remove invisible characters, escape HTML comments, and break up chat template markers."""
    text = without_invisible(text).replace("<!--", "&lt;!--")
    return SEQUENCE_MARKERS.sub(break_marker, CHAT_MARKERS.sub(break_marker, text))


def without_invisible(text: str) -> str:
    text = INVISIBLE.sub("", LAST_SOFT_HYPHEN.sub("-", text))
    return STRAY_JOINER.sub("", STRAY_SELECTOR.sub("", text))


def break_marker(mark: re.Match[str]) -> str:
    """Return a marker that is still readable, but not a special token of a model: `< |im_start| >`."""
    word = mark.group()
    return f"{word[0]} {word[1:-1]} {word[-1]}"


def warn_of_removed_text(ocr: OCRResult, *, context: StageContext) -> None:
    """Warn about pages from which invisible characters are removed, except those of many ordinary documents."""
    pages = [page.number for page in ocr.pages if has_removable(ocr.markdown[page.start : page.end])]
    if pages:
        detail = f"Invisible characters were removed from these pages: {page_list(pages)}."
        context.warn("text_left_out", detail, page=pages[0])


def has_removable(text: str) -> bool:
    text = NEVER_DISPLAYED.sub("", text)
    return without_invisible(text) != text


def page_list(pages: list[int]) -> str:
    return ", ".join(map(str, pages[:MAX_PAGES_NAMED])) + (" and more" if len(pages) > MAX_PAGES_NAMED else "")


# ---- Prompt injection -----------------------------------------------------------------------------------------------
def warn_of_prompt_injection(ocr: OCRResult, *, context: StageContext) -> None:
    """Warn about pages with visible or hidden text that looks like prompt injection.

    The warning is information for users, not the defense. The defense is that a response is only used as data, and is
    validated against a schema.
    """
    pages = [page.number for page in ocr.pages if looks_like_prompt_injection(ocr.markdown[page.start : page.end])]
    if pages:
        detail = f"Text that reads like instructions to a language model is on these pages: {page_list(pages)}."
        context.warn("possible_prompt_injection", detail, page=pages[0])


def looks_like_prompt_injection(text: str) -> bool:
    if any("\U000e0020" <= letter <= "\U000e007e" for letter in set(text)):
        return True
    readable = ANY_JOINER.sub("", INVISIBLE.sub("", text))
    return bool(CHAT_MARKERS.search(readable) or PROMPT_INJECTION.search(unicodedata.normalize("NFKC", readable)))
