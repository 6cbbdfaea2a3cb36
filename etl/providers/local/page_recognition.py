"""Recognition of a page: its words from the text layer or OCR, then its blocks by layout analysis."""

import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from etl.providers.local.boxes import Box, Row, bounds, group_rows, mean_confidence
from etl.providers.local.layout import Block, PageGeometry, analyze, is_plain_prose
from etl.providers.local.layout_model import LayoutModel
from etl.providers.local.ocr_engine import Engine
from etl.providers.local.onnx_models import EngineBroken
from etl.providers.local.pages import LocalPage, Part
from etl.providers.local.rulings import find_rulings

# Assumed points per pixel of image files, because their printed size is unknown.
POINTS_PER_PIXEL = 72 / 150
# The layout model is not used for strips such as receipts. A strip has at least this ratio of sides.
MAX_RATIO = 2.2
# Maximum number of images that OCR reads on a page with a text layer, and the minimum confidence of their lines.
MAX_IMAGES, MIN_IMAGE_CONFIDENCE = 4, 0.7


@dataclass(slots=True, kw_only=True)
class PageText:
    """The blocks of a page.

    `parts`: for each text direction, the clockwise rotation in degrees that makes the text upright, and its blocks.
    `method`: see `Page`. `layout_failed`: class and location of an exception. `width` and `height`: in points.
    """

    parts: list[tuple[int, list[Block]]]
    method: str
    width: float
    height: float
    confidence: float | None = None
    hidden: bool = False
    layout_failed: str | None = None
    image_not_read: bool = False
    lines: list[tuple[int, Row]] = field(default_factory=list)  # each with the rotation of its part
    legibility: float = 1.0  # see `Engine.legibility`
    ocr_seconds: float = 0.0

    def blocks(self) -> Iterator[Block]:
        for _, blocks in self.parts:
            yield from blocks

    def text(self) -> str:
        return "\n\n".join(block.text for block in self.blocks() if block.text and not block.left_out)

    def size_of(self, turn: int) -> tuple[float, float]:
        """Return the width and height of the page after a rotation."""
        return (self.height, self.width) if turn % 180 else (self.width, self.height)


class PageRecognizer:
    """Recognizer of the blocks of pages. Loads the models for the first page that needs them."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.model = LayoutModel()

    def recognize(self, page: LocalPage) -> PageText:
        """Return the blocks of a page, from its text layer or from OCR, whichever has more text."""
        layer = self.from_layer(page)
        if not page.needs_ocr:
            return layer
        recognized = self.from_image(page)
        return layer if len(recognized.text()) < len(layer.text()) else recognized

    def from_layer(self, page: LocalPage) -> PageText:
        result = PageText(parts=[], method="none", width=page.width, height=page.height, hidden=page.hidden)
        if page.images and not page.needs_ocr:
            result.image_not_read = len(page.images) > MAX_IMAGES
            page.parts = page.parts or [Part(boxes=[])]
            page.parts[0].boxes += self.read_images(page)
        total = sum(len(part.boxes) for part in page.parts)
        for part in page.parts:
            needs_picture = len(part.boxes) > total / 2 and not page.needs_ocr and not is_plain_prose(part.boxes)
            picture = page.picture() if page.picture and needs_picture else None
            if picture is not None and part.turn:
                picture = np.ascontiguousarray(np.rot90(picture, -part.turn // 90))
            self.add(result, part, partial(self.geometry, picture, *result.size_of(part.turn), page.body))
        result.method = "text" if result.text() else "none"
        return result

    def read_images(self, page: LocalPage) -> Iterator[Box]:
        """Yield the lines in the images of a page with a text layer. Noise in photos has a low confidence."""
        picture = page.render()
        scale = picture.shape[1] / page.width
        for area in page.images[:MAX_IMAGES]:
            x0, y0, x1, y1 = (round(each * scale) for each in area)
            for boxes in self.engine.read(np.ascontiguousarray(picture[y0:y1, x0:x1])):
                if self.engine.quarter_turns % 4:
                    continue  # sideways text in an image has no place among the lines of the page
                scale_boxes(boxes, 1 / scale, area[0], area[1])
                yield from (box for box in boxes if (box.confidence or 0) >= MIN_IMAGE_CONFIDENCE)

    def from_image(self, page: LocalPage) -> PageText:
        image = page.render()
        scale = page.width / image.shape[1] if page.width else POINTS_PER_PIXEL
        result = PageText(parts=[], method="none", width=scale * image.shape[1], height=scale * image.shape[0])
        # Most pages are upright. The others are analyzed again.
        parts = self.engine.read(image, background=partial(self.geometry, image, result.width, result.height))
        turns = self.engine.quarter_turns
        turn = -90 * turns % 360

        def geometry() -> PageGeometry:
            with self.engine.timed():
                if self.engine.background and not turns and len(parts) == 1:
                    found: PageGeometry = self.engine.background.result()
                    return found
                picture = np.ascontiguousarray(np.rot90(image, turns)) if len(parts) == 1 else None
                return self.geometry(picture, *result.size_of(turn))

        for boxes in parts:
            scale_boxes(boxes, scale)
            self.add(result, Part(turn=turn, boxes=boxes), geometry)
        result.method = "ocr" if result.text() else "none"
        result.legibility = self.engine.legibility()
        result.confidence = mean_confidence(box for boxes in parts for box in boxes)
        return result

    def add(self, result: PageText, part: Part, geometry: Callable[[], PageGeometry]) -> None:
        """Add the blocks of a part. If layout analysis fails, add the part as one block, and set `layout_failed`."""
        result.lines += [(part.turn, row) for row in group_rows(part.boxes)]
        try:
            blocks = analyze(part.boxes, geometry()) if part.boxes else []
        except (MemoryError, EngineBroken):
            raise
        except Exception as error:  # noqa: BLE001 - a layout error must not lose the text; the worker logs it
            result.layout_failed = describe_location(error)
            blocks = [plain_block(part.boxes)]
        result.parts.append((part.turn, blocks))

    def geometry(self, picture: Any, width: float, height: float, body: float = 0.0) -> PageGeometry:
        geometry = PageGeometry(width=width, height=height, body=body)
        if picture is not None and max(width, height) < MAX_RATIO * min(width, height):
            scale = picture.shape[1] / width
            geometry.regions = self.model.find(picture, scale)
            geometry.rulings = find_rulings(picture, scale)
        return geometry


def scale_boxes(boxes: list[Box], scale: float, left: float = 0.0, top: float = 0.0) -> None:
    """Convert pixels to points. `left` and `top`: the position of the image on the page, in points."""
    for box in boxes:
        box.x0, box.x1 = left + box.x0 * scale, left + box.x1 * scale
        box.y0, box.y1 = top + box.y0 * scale, top + box.y1 * scale
        box.size *= scale


def plain_block(boxes: list[Box]) -> Block:
    """Return a block with the lines of a part in order, without structure."""
    text = "\n".join(" ".join(cell.text for cell in row) for row in group_rows(boxes))
    x0, y0, x1, y1 = bounds(boxes)
    return Block(kind="other", text=text, x0=x0, y0=y0, x1=x1, y1=y1)


def describe_location(error: BaseException) -> str:
    """Return the class and location of an exception, without its message, which may quote the document."""
    frame = traceback.extract_tb(error.__traceback__)[-1:]
    return " ".join([type(error).__name__, *(f"at {each.filename.rpartition('/')[2]}:{each.lineno}" for each in frame)])
