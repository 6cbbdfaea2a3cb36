"""OCR with rapidocr and the PP-OCRv6 models in its package, for English and Chinese. Runs only in the reader process.

The engine is loaded for the first page that needs it. The models are loaded by path, so nothing is downloaded.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from math import atan2, cos, hypot, sin
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from etl.providers.local.boxes import Box
from etl.providers.local.pages import MAX_LONG_SIDE, STRIP_RATIO

DETECTION_MODEL, RECOGNITION_MODEL = "PP-OCRv6_det_small.onnx", "PP-OCRv6_rec_small.onnx"
# Lines are detected in a smaller image than the one for recognition. The result is the same, in a third of the time.
MAX_DETECTION_SIDE = 1280
# Each line is recognized separately, padded to a minimum width in pixels. More padding takes time and causes errors.
LINE_HEIGHT, MIN_LINE_WIDTH = 48, 160
# Lines with a lower confidence are usually noise.
MIN_CONFIDENCE = 0.3
# A page with a lower confidence is also tried upside down. Upright print has more than 0.94, and most pages that are
# upside down have 0.55 to 0.8.
ROTATION_CONFIDENCE = 0.9
MIN_ORIENTATION_LETTERS = 4  # shorter lines do not show the orientation of a page
# In a line of a supported script: maximum mean character width, as a multiple of the line's height, and maximum share
# of Greek letters.
MAX_LETTER_WIDTH, MAX_GREEK = 2.0, 0.1
# Type size as a share of the height of a detected line.
TYPE_HEIGHT_RATIO = 0.8
# A narrower strip is cut like one of this width in pixels. It cannot contain words, and would have many parts.
MIN_STRIP_WIDTH = 64


class EngineBroken(Exception):
    """The engine failed for a reason other than the document."""


class EngineNotLoaded(EngineBroken):
    """The engine could not be loaded. `__cause__` is the reason."""


class Engine:
    def __init__(self) -> None:
        self.engine: Any = None
        self.seconds = 0.0  # spent in OCR
        # Confidence of all lines of the last image, including omitted ones, with their width divided by their height.
        self.scores: list[tuple[float, float]] = []
        self.quarter_turns = 0  # counterclockwise rotation that made the last image upright

    def read(self, image: Any) -> list[list[Box]]:
        """Return the lines of an image of BGR pixels. A strip has several parts, from top to bottom. Raises
        EngineBroken."""
        self.load()
        self.scores = []
        started = perf_counter()
        try:
            parts = self.read_upright(image)
        except MemoryError:
            raise
        except Exception as error:  # any exception of the engine
            raise EngineBroken from error
        finally:
            self.seconds += perf_counter() - started
        return [deskew(part) for part in parts]

    def read_upright(self, image: Any) -> list[list[Box]]:
        """Return the lines of the image in the orientation with the highest confidence."""
        parts, scores, self.quarter_turns = self.read_parts(image), self.scores, 0
        for turns in other_orientations(parts):
            self.scores = []
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
            self.engine = load_engine(create_engine)

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


def load_engine(create: Callable[[], Any]) -> Any:
    """Return a new engine. Raises EngineNotLoaded."""
    try:
        return create()
    except MemoryError:
        raise
    except Exception as error:  # any exception of the engine
        raise EngineNotLoaded from error


def warm_up() -> None:
    """Import the engine's libraries before forks. `Engine.load` reports missing libraries."""
    with suppress(ImportError):
        import cv2  # noqa: F401
        import rapidocr.inference_engine.onnxruntime.main  # noqa: F401


def create_engine() -> Any:
    import cv2
    import rapidocr
    from rapidocr import main as rapid
    from rapidocr.inference_engine.onnxruntime import main as onnx

    class ScoringRapidOCR(rapid.RapidOCR):
        """RapidOCR that also records the confidence of lines that it omits because of empty text or low confidence."""

        scores: list[tuple[float, float]] = []

        def recognize_txt(self, img: list[Any]) -> Any:
            found: Any = super().recognize_txt(img)
            self.scores = [
                (line_confidence(text, score, ratio), ratio)
                for text, score, ratio in zip(found.txts, found.scores, map(aspect, img), strict=True)
            ]
            return found

    cv2.setNumThreads(1)
    configure_sessions(onnx.OrtInferSession)
    models = Path(rapidocr.__file__).parent / "models"
    return ScoringRapidOCR(
        params={
            "Global.use_cls": False,
            "Global.max_side_len": MAX_LONG_SIDE,
            "Global.text_score": MIN_CONFIDENCE,
            "Global.log_level": "critical",
            "Det.model_path": str(models / DETECTION_MODEL),
            "Det.limit_type": "max",
            "Det.limit_side_len": MAX_DETECTION_SIDE,
            "Rec.model_path": str(models / RECOGNITION_MODEL),
            "Rec.rec_batch_num": 1,
            "Rec.rec_img_shape": [3, LINE_HEIGHT, MIN_LINE_WIDTH],
            "EngineConfig.onnxruntime.intra_op_num_threads": thread_count(),
            "EngineConfig.onnxruntime.inter_op_num_threads": 1,
        }
    )


def aspect(line: Any) -> float:
    return float(line.shape[1] / max(1, line.shape[0]))


def line_confidence(text: str, score: float, ratio: float) -> float:
    """Return the confidence of a line, or 0 if its script seems unsupported. `ratio`: its width divided by its height.

    In such a line, the engine misses most letters, or mistakes many for Greek letters, which it knows from formulas.
    """
    letters = [letter for letter in text if letter.isalpha()]
    greek = sum("\u0370" <= letter <= "\u03ff" for letter in letters)
    is_unknown = letters and (len(text) * MAX_LETTER_WIDTH < ratio or greek > MAX_GREEK * len(letters))
    return score if text.strip() and not is_unknown else 0.0


def configure_sessions(session: Any) -> None:
    """Set options of ONNX Runtime that rapidocr has no parameter for."""
    create_options = session._init_sess_opts

    def create_configured_options(configuration: Any) -> Any:
        return set_session_options(create_options(configuration))

    session._init_sess_opts = staticmethod(create_configured_options)


def set_session_options(options: Any) -> Any:
    """Set options of an ONNX Runtime session. The denormals option of the first session applies to all others."""
    # By default, idle threads spin, which doubles the time per page if several workers share the cores.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # Denormals slow down two layers of the detection model, which then take most of its time. The result is the same.
    options.add_session_config_entry("session.set_denormal_as_zero", "1")
    return options


def thread_count() -> int:
    """Return the number of threads. Two threads halve the time per page. More threads gain little."""
    return max(1, min(2, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1))


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
