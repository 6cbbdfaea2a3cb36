"""Images of pages, for previews and language models. Runs only in the sandboxed reader process."""

from dataclasses import dataclass
from io import BytesIO
from math import sqrt
from typing import Any

from PIL import Image

# Quality and effort of WebP encoding. Text stays sharp, and encoding a page takes about 30 ms.
QUALITY, EFFORT = 80, 1
JPEG_QUALITY = 88  # for models: all model servers accept JPEG
MAX_PIXELS, MAX_SIDE = 16_000_000, 16_383  # MAX_SIDE: the limit of WebP


@dataclass(frozen=True, slots=True)
class ImageSize:
    """Limits of an image's size.

    `width`: PDF pages are rendered at this width, and wider images are reduced to it. None: only the limits apply.
    """

    width: int | None = None
    max_pixels: int = MAX_PIXELS

    def scale(self, size: tuple[float, float]) -> float:
        """Return the factor from points, or pixels, to pixels of the image."""
        wide, high = (max(1.0, side) for side in size)
        of_width = self.width / wide if self.width else MAX_SIDE / wide
        return min(of_width, MAX_SIDE / high, sqrt(self.max_pixels / (wide * high)))


def encode(pixels: Any, size: ImageSize, *, jpeg: bool) -> bytes:
    """Encode pixels as WebP or JPEG, scaled down to `size`. `pixels`: rows of BGR pixels."""
    image = Image.fromarray(pixels[:, :, ::-1])
    if (scale := size.scale(image.size)) < 1:
        reduced = (max(1, int(image.width * scale)), max(1, int(image.height * scale)))
        image = image.resize(reduced, Image.Resampling.LANCZOS, reducing_gap=2.0)
    output = BytesIO()
    if jpeg:
        image.save(output, "JPEG", quality=JPEG_QUALITY, subsampling=0)
    else:
        image.save(output, "WEBP", quality=QUALITY, method=EFFORT)
    return output.getvalue()
