"""Images of pages, for people to look at. Runs only in the reader process."""

from io import BytesIO
from math import sqrt
from typing import Any

from PIL import Image

# Quality and effort of WebP: text stays sharp, and encoding a page takes about 30 ms.
QUALITY, EFFORT = 80, 1
MAX_PIXELS, MAX_SIDE = 16_000_000, 16_383  # of an image; the format's longest side


def scale_to_width(size: tuple[float, float], width: int) -> float:
    """Return the factor from points to pixels for an image of this width, less for a page that is very high."""
    wide, high = (max(1.0, side) for side in size)
    return min(width / wide, MAX_SIDE / high, sqrt(MAX_PIXELS / (wide * high)))


def encode(pixels: Any, width: int) -> bytes:
    """Return a WebP at most `width` pixels wide. `pixels`: rows of BGR."""
    image = Image.fromarray(pixels[:, :, ::-1])
    if image.width > width:
        height = max(1, round(image.height * width / image.width))
        image = image.resize((width, height), Image.Resampling.LANCZOS, reducing_gap=2.0)
    output = BytesIO()
    image.save(output, "WEBP", quality=QUALITY, method=EFFORT)
    return output.getvalue()
