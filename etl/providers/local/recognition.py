"""Recognizes text in pictures: rapidocr with the PP-OCRv6 models that come in its package, English, and Chinese.

Loaded when the first page needs it. Runs only in the process that reads documents, and never asks the network: the
models are named by path.
"""

import os
from collections.abc import Iterator
from math import atan2, cos, hypot, sin
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from etl.providers.local.boxes import Box
from etl.providers.local.pages import LONG_SIDE, STRIP

DETECTION, RECOGNITION = "PP-OCRv6_det_small.onnx", "PP-OCRv6_rec_small.onnx"
# Lines are found in a smaller picture than they are read in: it takes a third of the time and finds the same.
DETECTION_SIDE = 1280
# How much may be recognized at once, as lines of 48 pixels that are so long together. Memory grows with it.
BATCH_WIDTH = 9600
BATCH_LINES = 6
# Lines that are less sure than this are dust.
LEAST_SCORE = 0.3
# A page that recognition is less sure of is tried upside down too.
UNSURE = 0.75
TELLING = 4  # letters that a line has at least to show which way it runs
# The height of the type, as a share of what detection takes for the line's.
TYPE = 0.8


class EngineBroken(Exception):
    """The engine failed, which is no property of the document."""


class EngineNotLoaded(EngineBroken):
    """The engine cannot be loaded; `__cause__` is why."""


class Engine:
    def __init__(self) -> None:
        self.rapid: Any = None
        self.seconds = 0.0  # spent in recognition

    def read(self, picture: Any) -> list[list[Box]]:
        """Return the lines of a picture, which is an array of rows of BGR; in parts, from top to bottom."""
        self.load()
        started = perf_counter()
        try:
            parts = self.upright(picture)
        except MemoryError:
            raise
        except Exception as error:  # whatever it is, it is the engine's
            raise EngineBroken from error
        finally:
            self.seconds += perf_counter() - started
        return [straightened(part) for part in parts]

    def upright(self, picture: Any) -> list[list[Box]]:
        """Return the lines, of the picture turned if it lies on its side or stands on its head."""
        parts = self.parts(picture)
        for turns in other_turns(parts):
            turned = self.parts(np.ascontiguousarray(np.rot90(picture, turns)))
            parts = max(parts, turned, key=sureness)
        return parts

    def parts(self, picture: Any) -> list[list[Box]]:
        return [list(self.lines(piece)) for piece in pieces(picture)]

    def load(self) -> None:
        if self.rapid is not None:
            return
        try:
            self.rapid = loaded()
        except MemoryError:
            raise
        except Exception as error:  # whatever it is, it is the engine's
            raise EngineNotLoaded from error

    def lines(self, picture: Any) -> Iterator[Box]:
        found = self.rapid(picture)
        if found.boxes is None or found.txts is None:
            return
        for corners, text, score in zip(found.boxes, found.txts, found.scores, strict=True):
            if text.strip():
                yield box_of([(float(x), float(y)) for x, y in corners], " ".join(text.split()), float(score))


def loaded() -> Any:
    import cv2
    import rapidocr
    from rapidocr import main as rapid
    from rapidocr.ch_ppocr_rec.typings import TextRecInput, TextRecOutput
    from rapidocr.inference_engine.onnxruntime import main as onnx

    class Rapid(rapid.RapidOCR):
        """Recognizes few lines at once where they are long; the original takes six, and then up to 1.3 GB."""

        def recognize_txt(self, img: list[Any]) -> Any:
            texts, scores = [""] * len(img), [0.0] * len(img)
            recognize: Any = self._load_rec_model()  # type: ignore[no-untyped-call]
            for group in batches(img):
                out = recognize(TextRecInput(img=[img[index] for index in group], return_word_box=False))
                for index, text, score in zip(group, out.txts, out.scores, strict=True):
                    texts[index], scores[index] = text, score
            found: dict[str, Any] = {"txts": tuple(texts), "scores": tuple(scores), "word_results": (None,) * len(img)}
            return TextRecOutput(imgs=img, **found)

    cv2.setNumThreads(1)
    patiently(onnx.OrtInferSession)
    models = Path(rapidocr.__file__).parent / "models"
    return Rapid(
        params={
            "Global.use_cls": False,
            "Global.max_side_len": LONG_SIDE,
            "Global.text_score": LEAST_SCORE,
            "Global.log_level": "critical",
            "Det.model_path": str(models / DETECTION),
            "Det.limit_type": "max",
            "Det.limit_side_len": DETECTION_SIDE,
            "Rec.model_path": str(models / RECOGNITION),
            "Rec.rec_batch_num": BATCH_LINES,
            "EngineConfig.onnxruntime.intra_op_num_threads": threads(),
            "EngineConfig.onnxruntime.inter_op_num_threads": 1,
        }
    )


def patiently(session: Any) -> None:
    """Have threads that wait for each other sleep. By default they spin, and where several workers share the cores each
    page then takes twice as long. rapidocr has no parameter for this."""
    made = session._init_sess_opts

    def options(configuration: Any) -> Any:
        chosen = made(configuration)
        chosen.add_session_config_entry("session.intra_op.allow_spinning", "0")
        return chosen

    session._init_sess_opts = staticmethod(options)


def threads() -> int:
    """Return how many to compute with: two halve the time of a page, more gain little and take from other workers."""
    return max(1, min(2, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1))


def batches(lines: list[Any]) -> Iterator[list[int]]:
    """Yield the numbers of lines to recognize together: of like length, since short ones are padded to the longest."""
    length = [max(320.0, 48 * line.shape[1] / max(1, line.shape[0])) for line in lines]
    group: list[int] = []
    for index in sorted(range(len(lines)), key=length.__getitem__):
        if group and (len(group) == BATCH_LINES or length[index] * (len(group) + 1) > BATCH_WIDTH):
            yield group
            group = []
        group.append(index)
    if group:
        yield group


# ---- Pages that are not upright -------------------------------------------------------------------------------------
def other_turns(parts: list[list[Box]]) -> tuple[int, ...]:
    """Return the quarter turns, against the clock, that a page should be tried in."""
    lines = [box for part in parts for box in part if len(box.text) >= TELLING]
    if sum(map(stands, lines)) > len(lines) / 2:
        return 1, 3
    return (2,) if lines and sureness(parts) < UNSURE else ()


def stands(box: Box) -> bool:
    """Whether a line runs up or down."""
    return box.size / TYPE > 1.5 * box.width


def sureness(parts: list[list[Box]]) -> float:
    """Return how sure recognition is of the lines that run as lines should, 0 to 1; the others count nothing."""
    lines = [box for part in parts for box in part]
    total = sum(len(box.text) for box in lines)
    return sum((box.score or 0) * len(box.text) for box in lines if not stands(box)) / max(1, total)


# ---- Geometry -------------------------------------------------------------------------------------------------------
Point = tuple[float, float]


def box_of(corners: list[Point], text: str, score: float) -> Box:
    """Return a line's box. `corners`: top left, top right, bottom right, bottom left, along the line."""
    (ax, ay), (bx, by), (cx, cy), (dx, dy) = corners
    box = Box(
        text=text,
        x0=min(ax, dx),
        y0=(ay + by) / 2,
        x1=max(bx, cx),
        y1=(cy + dy) / 2,
        size=TYPE * (hypot(ax - dx, ay - dy) + hypot(bx - cx, by - cy)) / 2,
        score=score,
    )
    box.tilt = atan2(by - ay + cy - dy, bx - ax + cx - dx)
    return box


def straightened(boxes: list[Box]) -> list[Box]:
    """Turn the boxes of a page that lay askew in the scanner."""
    tilts = [box.tilt for box in boxes if box.width > 4 * box.size]
    tilt = median(tilts) if tilts else 0.0
    for box in boxes:
        x, y = (box.x0 + box.x1) / 2, box.middle
        x, y = x * cos(tilt) + y * sin(tilt), y * cos(tilt) - x * sin(tilt)
        half_wide, half_high = box.width / 2, box.size / TYPE / 2
        box.x0, box.x1, box.y0, box.y1 = x - half_wide, x + half_wide, y - half_high, y + half_high
    return boxes


def pieces(picture: Any) -> Iterator[Any]:
    """Yield a strip, such as a long receipt, in pieces of a page's shape, cut where there is nothing to cut."""
    high, wide = picture.shape[:2]
    step = round(1.4 * wide)
    at = 0
    while high - at > STRIP * wide:
        window = picture[at + step : at + round(1.2 * step), :, 1]
        cut = at + step + int(window.std(axis=1).argmin())
        yield picture[at:cut]
        at = cut
    yield picture[at:]
