"""Images of a document's pages beside its text, with the boxes of its blocks."""

import json
from typing import Any
from urllib.parse import urlsplit

from django.http import HttpResponse

from config.platform import storage
from config.platform.http.audit import OPENS_DATA
from etl.core.formats import DocumentFormat
from etl.pages.base import TaskPage
from etl.pages.results import number
from etl.pipeline import artifacts, page_images, representation
from etl.runstate import RunState

PAGES = 20  # per response
MAX_TEXT = 300  # characters of a block that are searched for in the text


class ImagesFragment(TaskPage):
    """Pages for htmx, fetched when they scroll into view or a citation links to them."""

    audited = OPENS_DATA
    template_name = "etl/_images.html"

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        state = self.content_state()
        images = pane(state, first=number(self.request, "page") or 1)
        return super().get_context_data(images=images, state=state, **context)


def pane(state: RunState, *, first: int) -> dict[str, Any] | None:
    """Return the pages from `first` on, or None if the document has no page images."""
    count = state.metadata["ocr"].get("pages") or 0
    if not (count and state.markdown_key and DocumentFormat(state.kind) in page_images.FORMATS):
        return None
    first = min(max(first, 1), count)
    last = min(count, first + PAGES - 1)
    known = layouts(state)
    return {
        "pages": [{"number": each, **known.get(each, {})} for each in range(first, last + 1)],
        "numbers": range(1, count + 1),
        "before": max(1, first - PAGES) if first > 1 else None,
        "after": last + 1 if last < count else None,
        "path": f"{representation.path_of(state.task_id)}/pages/",
    }


def layouts(state: RunState) -> dict[int, dict[str, Any]]:
    """Return the size and the blocks of each page by page number. Empty if the object storage is unavailable."""
    try:
        stored = artifacts.find_ocr(state)
        key = stored.facts.get("layout_key") if stored else None
        found = json.loads(b"".join(storage.read(key))) if key else {"pages": []}
    except storage.StorageError:
        return {}
    return {page["page"]: shown(page) for page in found["pages"]}


def shown(page: dict[str, Any]) -> dict[str, Any]:
    blocks = [
        {"kind": block["kind"], "text": block["text"][:MAX_TEXT], **rectangle(block["bbox"])}
        for block in page["blocks"]
    ]
    return {"size": f"{page['width']:g} {page['height']:g}", "blocks": blocks}


def rectangle(bbox: list[float]) -> dict[str, str]:
    """Return the attributes of an SVG rectangle as strings, because templates would localize numbers."""
    x0, y0, x1, y1 = bbox
    return {"x": f"{x0:g}", "y": f"{y0:g}", "width": f"{x1 - x0:.1f}", "height": f"{y1 - y0:.1f}"}


def allow_images(response: HttpResponse) -> HttpResponse:
    """Allow images from the origin of presigned URLs in the Content-Security-Policy of a page."""
    url = urlsplit(storage.presign_download("x", seconds=1, content_type="", file_name="x"))
    response._csp_update = {"img-src": [f"{url.scheme}://{url.netloc}"]}  # type: ignore[attr-defined]
    return response
