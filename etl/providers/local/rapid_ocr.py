"""RapidOCR with the PP-OCRv6 models in its package, for English and Chinese. Runs only in the reader process.

The models are loaded by path, so nothing is downloaded.
"""

from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import rapidocr
from omegaconf import DictConfig
from rapidocr import RapidOCR
from rapidocr.ch_ppocr_det.main import TextDetector
from rapidocr.ch_ppocr_det.utils import DetPreProcess
from rapidocr.ch_ppocr_rec import TextRecInput, TextRecOutput
from rapidocr.ch_ppocr_rec.main import TextRecognizer

from etl.providers.local.onnx_models import DETECTION_MODEL, RECOGNITION_MODEL, create_session, thread_count
from etl.providers.local.pages import MAX_LONG_SIDE

# Lines are detected in a smaller image than the one for recognition. The result is the same, in a third of the time.
MAX_DETECTION_SIDE = 1280
# Each line is recognized separately, padded to a minimum width in pixels. More padding takes time and causes errors.
LINE_HEIGHT, MIN_LINE_WIDTH = 48, 160
# Lines with a lower confidence are usually noise.
MIN_CONFIDENCE = 0.3
# In a line of a supported script: maximum mean character width, as a multiple of the line's height, and maximum share
# of Greek letters.
MAX_LETTER_WIDTH, MAX_GREEK = 2.0, 0.1


class Preprocess(DetPreProcess):
    """DetPreProcess with a table of normalized values. The result is the same, in a fifth of the time."""

    def normalize(self, img: Any) -> Any:
        levels = np.arange(256, dtype=np.uint8)[None, :, None].repeat(3, axis=2)
        return cv2.LUT(img, super().normalize(levels).astype(np.float32))


class Detector(TextDetector):
    def get_preprocess(self) -> DetPreProcess:
        return Preprocess(MAX_DETECTION_SIDE, "max", self.mean, self.std)


class ParallelRapidOCR(RapidOCR):
    """RapidOCR that recognizes a line in each thread of the executor.

    `scores`: the confidence of all lines of the last image, including those that RapidOCR omits because of empty text
    or low confidence, with their width divided by their height. `on_detected` is called after detection, which takes
    the most memory.
    """

    text_det: Any
    text_rec: Any

    def __init__(self, executor: Executor) -> None:
        super().__init__(
            params={
                "Global.use_cls": False,
                "Global.max_side_len": MAX_LONG_SIDE,
                "Global.text_score": MIN_CONFIDENCE,
                "Global.log_level": "critical",
                "Rec.rec_batch_num": 1,
                "Rec.rec_img_shape": [3, LINE_HEIGHT, MIN_LINE_WIDTH],
            }
        )
        self.executor = executor
        self.scores: list[tuple[float, float]] = []
        self.on_detected: Callable[[], None] | None = None
        cv2.setNumThreads(1)
        self.text_det = Detector(with_model(self.cfg.Det, DETECTION_MODEL, threads=thread_count()))
        self.text_rec = TextRecognizer(with_model(self.cfg.Rec, RECOGNITION_MODEL, threads=1))

    def recognize_txt(self, img: list[Any]) -> TextRecOutput:
        if self.on_detected:
            self.on_detected()
        longest_first = sorted(range(len(img)), key=lambda index: aspect(img[index]), reverse=True)
        lines = [TextRecInput(img=[img[index]]) for index in longest_first]
        found = dict(zip(longest_first, self.executor.map(self.text_rec, lines), strict=True))
        in_order = [found[index] for index in range(len(img))]
        texts, scores, words = (
            [getattr(line, name)[0] for line in in_order] for name in ("txts", "scores", "word_results")
        )
        self.scores = [
            (line_confidence(text, score, ratio), ratio)
            for text, score, ratio in zip(texts, scores, map(aspect, img), strict=True)
        ]
        return TextRecOutput(imgs=img, txts=tuple(texts), scores=scores, word_results=tuple(words))


def with_model(options: Any, name: str, *, threads: int) -> Any:
    """Return the options of a part of RapidOCR with a loaded model of its package."""
    session = create_session(Path(rapidocr.__file__).parent / "models" / name, threads=threads)
    return DictConfig({**options, "session": session, "font_path": None}, flags={"allow_objects": True})


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
