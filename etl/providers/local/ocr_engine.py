"""OCR of a page: its lines, in the orientation in which it can be read. Runs only in the reader process.

The engine is loaded for the first page that needs it.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import partial
from math import atan2, cos, hypot, sin
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from etl.providers.local.boxes import Box
from etl.providers.local.onnx_models import EngineBroken, load_engine, thread_count
from etl.providers.local.pages import STRIP_RATIO

# A page with a lower confidence is also tried upside down. Upright print has more than 0.94, and most pages that are
# upside down have 0.55 to 0.8.
ROTATION_CONFIDENCE = 0.9
MIN_ORIENTATION_LETTERS = 4  # shorter lines do not show the orientation of a page
# Type size as a share of the height of a detected line.
TYPE_HEIGHT_RATIO = 0.8
# A narrower strip is cut like one of this width in pixels. It cannot contain words, and would have many parts.
MIN_STRIP_WIDTH = 64


class Engine:
    def __init__(self) -> None:
        self.engine: Any = None
        self.seconds = 0.0  # spent in OCR
        # Confidence of all lines of the last image, including omitted ones, with their width divided by their height.
        self.scores: list[tuple[float, float]] = []
        self.quarter_turns = 0  # counterclockwise rotation that made the last image upright
        # Starts a thread only for a task, so after the models have been loaded: threads inherit the treatment of
        # denormals.
        self.executor = ThreadPoolExecutor(thread_count())
        self.background: Future[Any] | None = None  # see `read`

    @contextmanager
    def timed(self) -> Iterator[None]:
        started = perf_counter()
        try:
            yield
        finally:
            self.seconds += perf_counter() - started

    def read(self, image: Any, *, background: Callable[[], object] | None = None) -> list[list[Box]]:
        """Return the lines of an image of BGR pixels. A strip has several parts, from top to bottom. Raises
        EngineBroken.

        `background`: a task that another thread performs while lines are recognized, unless the image has no lines. It
        has ended when this method returns. The attribute `background` is its future, or None.
        """
        self.scores, self.background = [], None
        with self.timed():
            self.load()
            self.engine.on_detected = partial(self.start, background) if background else None
            try:
                parts = self.read_upright(image)
            except MemoryError:
                raise
            except Exception as error:  # any exception of the engine
                raise EngineBroken from error
            finally:
                self.engine.on_detected = None
                self.wait()
        return [deskew(part) for part in parts]

    def start(self, task: Callable[[], object]) -> None:
        """Start the task, unless it has been started for another part or orientation of the image."""
        self.background = self.background or self.executor.submit(task)

    def wait(self) -> None:
        """Wait for the task, so that it does not take memory together with a detection."""
        if self.background:
            wait([self.background])

    def read_upright(self, image: Any) -> list[list[Box]]:
        """Return the lines of the image in the orientation with the highest confidence."""
        parts, scores, self.quarter_turns = self.read_parts(image), self.scores, 0
        for turns in other_orientations(parts):
            self.scores = []
            self.wait()
            rotated = self.read_parts(np.ascontiguousarray(np.rot90(image, turns)))
            if confidence(rotated) > confidence(parts):
                parts, scores, self.quarter_turns = rotated, self.scores, turns
        self.scores = scores
        return parts

    def legibility(self) -> float:
        """Return the mean confidence of all lines of the last image, weighted by their ratio of width to height.

        It is 1 without lines.
        """
        total = sum(ratio for _, ratio in self.scores)
        return sum(score * ratio for score, ratio in self.scores) / total if total else 1.0

    def read_parts(self, image: Any) -> list[list[Box]]:
        return [list(self.lines(part, top)) for top, part in split_strip(image)]

    def load(self) -> None:
        if self.engine is None:
            self.engine = load_engine(self.create_engine)

    def create_engine(self) -> Any:
        from etl.providers.local.rapid_ocr import ParallelRapidOCR

        return ParallelRapidOCR(self.executor)

    def lines(self, image: Any, top: int) -> Iterator[Box]:
        """Yield the lines of a part of an image. `top`: the first pixel row of the part."""
        result = self.engine(image)
        self.scores += self.engine.scores
        self.engine.scores = []
        if result.boxes is None or result.txts is None:
            return
        for corners, text, score in zip(result.boxes, result.txts, result.scores, strict=True):
            if text.strip():
                yield to_box([(float(x), float(y) + top) for x, y in corners], " ".join(text.split()), float(score))


def warm_up() -> None:
    """Import the engine's libraries before forks. `Engine.load` reports missing libraries."""
    with suppress(ImportError):
        import onnxruntime  # noqa: F401

        import etl.providers.local.rapid_ocr  # noqa: F401


# ---- Orientation ----------------------------------------------------------------------------------------------------
def other_orientations(parts: list[list[Box]]) -> tuple[int, ...]:
    """Return further orientations to try, in counterclockwise quarter turns."""
    lines = [box for part in parts for box in part if len(box.text) >= MIN_ORIENTATION_LETTERS]
    if sum(map(is_vertical, lines)) > len(lines) / 2:
        return 1, 3
    return (2,) if lines and confidence(parts) < ROTATION_CONFIDENCE else ()


def is_vertical(line: Box) -> bool:
    return line.size / TYPE_HEIGHT_RATIO > 1.5 * line.width


def confidence(parts: list[list[Box]]) -> float:
    """Return the mean confidence weighted by characters, 0 to 1. Vertical lines count as 0."""
    lines = [box for part in parts for box in part]
    total = sum(len(line.text) for line in lines)
    return sum((line.confidence or 0) * len(line.text) for line in lines if not is_vertical(line)) / max(1, total)


# ---- Geometry -------------------------------------------------------------------------------------------------------
def to_box(corners: list[tuple[float, float]], text: str, score: float) -> Box:
    """Return the box of a line. `corners`: in pixels, clockwise from the top left."""
    (ax, ay), (bx, by), (cx, cy), (dx, dy) = corners
    return Box(
        text=text,
        x0=min(ax, dx),
        y0=(ay + by) / 2,
        x1=max(bx, cx),
        y1=(cy + dy) / 2,
        size=TYPE_HEIGHT_RATIO * (hypot(ax - dx, ay - dy) + hypot(bx - cx, by - cy)) / 2,
        confidence=score,
        skew=atan2(by - ay + cy - dy, bx - ax + cx - dx),
    )


def deskew(boxes: list[Box]) -> list[Box]:
    """Rotate the boxes of a skewed scan until its lines are horizontal."""
    skews = [box.skew for box in boxes if box.width > 4 * box.size]
    skew = median(skews) if skews else 0.0
    for box in boxes:
        x, y = (box.x0 + box.x1) / 2, box.middle
        x, y = x * cos(skew) + y * sin(skew), y * cos(skew) - x * sin(skew)
        half_width, half_height = box.width / 2, box.size / TYPE_HEIGHT_RATIO / 2
        box.x0, box.x1, box.y0, box.y1 = x - half_width, x + half_width, y - half_height, y + half_height
    return boxes


def split_strip(image: Any) -> Iterator[tuple[int, Any]]:
    """Yield the parts of a strip, such as a long receipt, each with the index of its first pixel row.

    A strip is cut between lines into parts with the proportions of a page. Other images are yielded whole.
    """
    height, width = image.shape[0], max(image.shape[1], MIN_STRIP_WIDTH)
    step = round(1.4 * width)
    top = 0
    while height - top > STRIP_RATIO * width:
        window = image[top + step : top + round(1.2 * step), :, 1]
        cut = top + step + int(window.std(axis=1).argmin())  # the most uniform row of pixels
        yield top, image[top:cut]
        top = cut
    yield top, image[top:]
