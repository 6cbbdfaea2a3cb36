"""The quotes of citations. A quote is on one page, starts and ends at word boundaries, and does not cut a number."""

from etl.postprocessors.citations.characters import cut_kind
from etl.postprocessors.citations.index import Index, Place, Span

MAX_QUOTE = 200
MAX_TAG = 300
MARGIN = 40  # characters of a long row to include on each side of a value


def quote_around(index: Index, place: Place | None, quote: Span | None) -> str | None:
    """Return the text of the model's quote, or of the row of a value, or None if there is neither."""
    if place is None:
        return None if quote is None else shown(index, quote[0], quote[1], (quote[0], quote[0]))
    row: Span = index.row_span(index.row_of(place.start))
    if quote is None and row[1] - row[0] > MAX_QUOTE:
        row = (max(row[0], place.start - MARGIN), min(max(row[1], place.end), place.end + MARGIN))
    low, high = quote or (row[0], max(row[1], place.end))
    return shown(index, low, high, (place.start, place.end))


def shown(index: Index, low: int, high: int, kept: Span) -> str:
    """Return the text of a span, limited to the page of `kept` and to the maximum length around `kept`."""
    span = index.text.span_at(kept[0])
    low, high = max(low, span.start), min(high, span.end)
    room = max(0, MAX_QUOTE - (kept[1] - kept[0]))
    if high - low > MAX_QUOTE:
        low = max(low, kept[0] - room // 2)
        high = min(high, low + MAX_QUOTE)
    low = next((start for start in range(low, kept[0]) if is_bound(index, start)), kept[0])
    lowest = kept[1] if kept[1] <= high else kept[0]  # a value that is longer than a quote is cut
    high = next((end for end in range(high, lowest, -1) if is_bound(index, end)), min(kept[1], high))
    return index.content[low:high].strip()


def is_bound(index: Index, position: int) -> bool:
    """Return whether a text can be cut here, which is not the case in a word, a compound, a number, or a tag."""
    content = index.content
    number = index.number_at(position)
    if number and number.start < position < number.end:
        return False
    near = max(0, position - MAX_TAG)
    opened, closed = content.rfind("<", near, position), content.rfind(">", near, position)
    if opened > closed and content[opened + 1 : opened + 2].isalpha():
        return False
    return not cut_kind(content, position, position, -1)
