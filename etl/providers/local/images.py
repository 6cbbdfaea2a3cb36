"""PNG, JPEG, WebP, and multi-page TIFF images. Runs only in the reader process."""

from typing import Any, BinaryIO

import numpy as np
from PIL import Image, ImageFile

from etl.core.errors import FileCorrupt, TooManyPages, TooManyPixels
from etl.core.formats import DocumentFormat
from etl.providers.local.page_images import ImageSize
from etl.providers.local.pages import DocumentLimits, LocalPage, scale_for_ocr

# The EXIF orientation tag, and the transposition that corrects each value.
ORIENTATION = 0x0112
TRANSPOSITIONS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# The exceptions that Pillow raises for damaged images. They differ between formats.
DECODE_ERRORS = (OSError, SyntaxError, ValueError, KeyError, IndexError, TypeError, EOFError, OverflowError)

# Sluice's own pixel limit is checked before decoding. Truncated images are rejected.
Image.MAX_IMAGE_PIXELS = None
ImageFile.LOAD_TRUNCATED_IMAGES = False


class ImagePages:
    """The page of an image, or the pages of a TIFF."""

    is_truncated = False  # a truncated page is an error

    def __init__(self, file: BinaryIO, kind: DocumentFormat, limits: DocumentLimits) -> None:
        self.limits = limits
        try:
            # Only the decoder of the detected format is enabled; DocumentFormat uses Pillow's names. Pillow gets an
            # open file: it would memory-map a path, and then ignore the orientation of an uncompressed TIFF.
            self.image = Image.open(file, formats=[kind.name])
        except DECODE_ERRORS:
            raise FileCorrupt from None
        self.page_count = count_frames(self.image, limits.pages) if kind == DocumentFormat.TIFF else 1

    def __len__(self) -> int:
        return self.page_count

    def page(self, index: int) -> LocalPage:
        return LocalPage(needs_ocr=True, render=lambda: self.render(index))

    def render(self, index: int) -> Any:
        try:
            self.seek(index)
            return to_pixels(self.image)
        except DECODE_ERRORS:
            raise FileCorrupt from None

    def draw(self, index: int, _size: ImageSize) -> Any:
        """Return the pixels of a page as BGR, for previews and language models."""
        return self.render(index)

    def check_sizes(self) -> None:
        """Raise TooManyPixels if the declared size of a page is above the limit, or FileCorrupt."""
        try:
            for index in range(self.page_count):
                self.seek(index)
        except DECODE_ERRORS:
            raise FileCorrupt from None

    def seek(self, index: int) -> None:
        self.image.seek(index)
        width, height = self.image.size
        if width * height > self.limits.pixels:
            raise TooManyPixels.of(width * height, self.limits.pixels)

    def close(self) -> None:
        self.image.close()


def count_frames(image: Image.Image, max_pages: int) -> int:
    """Count the pages up to a limit, because the list of pages may be cyclic. Stop after a damaged page. Raises
    TooManyPages."""
    count = 1
    try:
        while count <= max_pages:
            image.seek(count)
            count += 1
    except EOFError:
        pass
    except DECODE_ERRORS:
        count += 1
    if count > max_pages:
        raise TooManyPages
    return count


def to_pixels(image: Image.Image) -> Any:
    """Return the pixels of an image as BGR, upright and scaled down for OCR."""
    width, height = image.size
    scale = scale_for_ocr(width, height, width * height)
    if scale < 1:
        image.draft("RGB", (round(width * scale), round(height * scale)))  # a JPEG can be decoded at a lower resolution
    image.load()
    width, height = image.size  # changed if a JPEG was decoded at a lower resolution, or Pillow rotated a TIFF
    transposition = TRANSPOSITIONS.get(image.getexif().get(ORIENTATION) or 1)
    image = to_8_bit(image)
    scale = scale_for_ocr(width, height, width * height)
    if scale < 1:
        # Scaled first, because each of the following steps copies the image.
        size = (max(1, round(width * scale)), max(1, round(height * scale)))
        image = image.resize(size, Image.Resampling.BOX, reducing_gap=2.0)
    upright = on_white(image if transposition is None else image.transpose(transposition))
    return np.ascontiguousarray(np.asarray(upright)[:, :, ::-1])


def to_8_bit(image: Image.Image) -> Image.Image:
    """Convert an image to 8 bits per channel: RGB or grayscale, with or without alpha."""
    if image.mode in {"RGB", "L", "LA", "RGBA"}:
        return image
    if image.mode.startswith(("I", "F")):
        values = np.asarray(image, dtype=np.float32)
        low, high = float(values.min()), float(values.max())
        return Image.fromarray(((values - low) * (255 / max(1e-6, high - low))).astype(np.uint8))
    has_alpha = "transparency" in image.info or image.mode in {"PA", "La", "RGBa"}
    return image.convert("RGBA" if has_alpha else "RGB")


def on_white(image: Image.Image) -> Image.Image:
    """Convert an image to RGB. Transparent pixels become white."""
    if image.mode not in {"RGBA", "LA"}:
        return image.convert("RGB")
    background = Image.new("RGBA", image.size, "white")
    return Image.alpha_composite(background, image.convert("RGBA")).convert("RGB")
