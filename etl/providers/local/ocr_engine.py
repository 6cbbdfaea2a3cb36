"""OCR with rapidocr and the PP-OCRv6 models in its package, for English and Chinese. Runs only in the reader process.

The engine is loaded for the first page that needs it. The models are loaded by path, so nothing is downloaded.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
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
        # Starts its threads after the models have been loaded, because threads inherit the treatment of denormals.
        self.threads = ThreadPoolExecutor(thread_count())
        self.beside: Future[Any] | None = None  # see `read`

    @contextmanager
    def timed(self) -> Iterator[None]:
        started = perf_counter()
        try:
            yield
        finally:
            self.seconds += perf_counter() - started

    def read(self, image: Any, *, beside: Callable[[], object] | None = None) -> list[list[Box]]:
        """Return the lines of an image of BGR pixels. A strip has several parts, from top to bottom. Raises
        EngineBroken.

        `beside`: a task that another thread performs while lines are recognized. It is not performed if the image has
        no lines. The attribute `beside` is its result.
        """
        self.scores, self.beside = [], None
        with self.timed():
            self.load()
            self.engine.start_beside = partial(self.start, beside) if beside else None
            try:
                parts = self.read_upright(image)
            except MemoryError:
                raise
            except Exception as error:  # any exception of the engine
                raise EngineBroken from error
        return [deskew(part) for part in parts]

    def start(self, task: Callable[[], object]) -> None:
        """Start a task, unless it has been started for another part or orientation of the image."""
        self.beside = self.beside or self.threads.submit(task)

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
            self.engine = load_engine(lambda: create_engine(self.threads))

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


def create_engine(threads: Executor) -> Any:
    """Return a RapidOCR object with loaded models. `threads`: recognize the lines of an image."""
    import cv2
    import rapidocr
    from omegaconf import OmegaConf
    from rapidocr.ch_ppocr_det.main import TextDetector
    from rapidocr.ch_ppocr_det.utils import DetPreProcess
    from rapidocr.ch_ppocr_rec import TextRecInput, TextRecOutput
    from rapidocr.ch_ppocr_rec.main import TextRecognizer

    class Preprocess(DetPreProcess):
        """DetPreProcess with a table of normalized values. The result is the same, in a fifth of the time."""

        def normalize(self, img: Any) -> Any:
            levels = np.arange(256, dtype=np.uint8)[None, :, None].repeat(3, axis=2)
            return cv2.LUT(img, super().normalize(levels).astype(np.float32))

    class Detector(TextDetector):
        def get_preprocess(self) -> DetPreProcess:
            return Preprocess(MAX_DETECTION_SIDE, "max", self.mean, self.std)

    class ParallelRapidOCR(rapidocr.RapidOCR):
        """RapidOCR that recognizes several lines at once.

        It also records the confidence of lines that it omits because of empty text or low confidence.
        """

        text_rec: Any
        scores: list[tuple[float, float]] = []
        start_beside: Callable[[], None] | None = None

        def recognize_txt(self, img: list[Any]) -> Any:
            if self.start_beside:
                self.start_beside()  # not during detection, which takes most memory
            longest_first = sorted(range(len(img)), key=lambda index: aspect(img[index]), reverse=True)
            lines = [TextRecInput(img=[img[index]]) for index in longest_first]
            found = dict(zip(longest_first, threads.map(self.text_rec, lines), strict=True))
            in_order = [found[index] for index in range(len(img))]
            texts, scores, words = (
                [getattr(line, name)[0] for line in in_order] for name in ("txts", "scores", "word_results")
            )
            self.scores = [
                (line_confidence(text, score, ratio), ratio)
                for text, score, ratio in zip(texts, scores, map(aspect, img), strict=True)
            ]
            return TextRecOutput(imgs=img, txts=tuple(texts), scores=scores, word_results=tuple(words))

    def with_session(options: Any, session: Any) -> Any:
        return OmegaConf.create({**options, "session": session, "font_path": None}, flags={"allow_objects": True})

    cv2.setNumThreads(1)
    models = Path(rapidocr.__file__).parent / "models"
    engine: Any = ParallelRapidOCR(
        params={
            "Global.use_cls": False,
            "Global.max_side_len": MAX_LONG_SIDE,
            "Global.text_score": MIN_CONFIDENCE,
            "Global.log_level": "critical",
            "Rec.rec_batch_num": 1,
            "Rec.rec_img_shape": [3, LINE_HEIGHT, MIN_LINE_WIDTH],
        }
    )
    detection = create_session(models / DETECTION_MODEL, threads=thread_count())
    recognition = create_session(models / RECOGNITION_MODEL, threads=1)
    engine.text_det = Detector(with_session(engine.cfg.Det, detection))
    engine.text_rec = TextRecognizer(with_session(engine.cfg.Rec, recognition))
    return engine


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


def create_session(model: Path, *, threads: int) -> Any:
    """Load a model with ONNX Runtime. The denormals option of the first session applies to all others."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    # Otherwise, the memory of a document with pages of many sizes grows with each page.
    options.enable_mem_pattern = False
    options.log_severity_level = 4  # only fatal errors
    # By default, idle threads spin, which doubles the time per page if several workers share the cores.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # Denormals slow down two layers of the detection model, which then take most of its time. The result is the same.
    options.add_session_config_entry("session.set_denormal_as_zero", "1")
    return onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


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
