"""Images: PNG, JPEG, WebP, and TIFF with its pages. Runs only in the reader process."""

from typing import Any, BinaryIO

import numpy as np
from PIL import Image, ImageFile, UnidentifiedImageError

from etl.core.errors import FileCorrupt, TooManyPages, TooManyPixels
from etl.core.formats import DocumentFormat
from etl.providers.local.pages import DocumentLimits, LocalPage, clamped

FORMATS = {
    DocumentFormat.PNG: "PNG",
    DocumentFormat.JPEG: "JPEG",
    DocumentFormat.TIFF: "TIFF",
    DocumentFormat.WEBP: "WEBP",
}
# The EXIF orientation tag, and the transposition that corrects each value.
ORIENTATION = 0x0112
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# The exceptions that Pillow raises for damaged images. They differ between formats.
DAMAGED = (OSError, SyntaxError, ValueError, KeyError, IndexError, TypeError, EOFError, OverflowError)

# Sluice's own pixel limit is checked before decoding. Truncated images are rejected.
Image.MAX_IMAGE_PIXELS = None
ImageFile.LOAD_TRUNCATED_IMAGES = False


class Pictures:
    """An image, or the pages of a TIFF. Incomplete pages are not read."""

    is_cut_off = False

    def __init__(self, file: BinaryIO, kind: DocumentFormat, limits: DocumentLimits) -> None:
        self.limits = limits
        try:
            # Only the decoder of the detected format. An open file, not a path: Pillow would memory-map it, and then
            # ignores the orientation of an uncompressed TIFF.
            self.image = Image.open(file, formats=[FORMATS[kind]])
        except (UnidentifiedImageError, *DAMAGED):
            raise FileCorrupt from None
        self.pages = frames(self.image, limits.pages) if kind == DocumentFormat.TIFF else 1

    def __len__(self) -> int:
        return self.pages

    def page(self, number: int) -> LocalPage:
        return LocalPage(scan=True, draw=lambda: self.drawn(number))

    def drawn(self, number: int) -> Any:
        try:
            self.image.seek(number)
            wide, high = self.image.size
            if wide * high > self.limits.pixels:
                raise TooManyPixels
            return pixels(self.image)
        except DAMAGED:
            raise FileCorrupt from None

    def check(self) -> None:
        """Raise TooManyPixels by the declared sizes of the pages."""
        try:
            for number in range(self.pages):
                self.image.seek(number)
                wide, high = self.image.size
                if wide * high > self.limits.pixels:
                    raise TooManyPixels
        except DAMAGED:
            raise FileCorrupt from None

    def close(self) -> None:
        self.image.close()


def frames(image: Image.Image, most: int) -> int:
    """Count the pages, up to a limit, because the list may be cyclic. A damaged page is the last one."""
    count = 1
    try:
        while count <= most:
            image.seek(count)
            count += 1
    except EOFError:
        pass
    except DAMAGED:
        count += 1
    if count > most:
        raise TooManyPages
    return count


def pixels(image: Image.Image) -> Any:
    """Return the pixels of an image, upright, and scaled down to the limits of recognition."""
    wide, high = image.size
    scale = clamped(wide, high, wide * high)
    if scale < 1:
        image.draft("RGB", (round(wide * scale), round(high * scale)))  # a JPEG can be decoded smaller
    image.load()
    wide, high = image.size  # a JPEG may now be smaller, and Pillow has rotated a TIFF
    turn = TURNS.get(image.getexif().get(ORIENTATION) or 1)
    picture = eight_bits(image)
    scale = clamped(wide, high, wide * high)
    if scale < 1:
        # Scaled before other steps, because copies of the full image need memory.
        size = (max(1, round(wide * scale)), max(1, round(high * scale)))
        picture = picture.resize(size, Image.Resampling.BOX, reducing_gap=2.0)
    upright = on_white(picture if turn is None else picture.transpose(turn))
    return np.ascontiguousarray(np.asarray(upright)[:, :, ::-1])


def eight_bits(image: Image.Image) -> Image.Image:
    if image.mode in {"RGB", "L", "LA", "RGBA"}:
        return image
    if image.mode.startswith(("I", "F")):
        values = np.asarray(image, dtype=np.float32)
        low, high = float(values.min()), float(values.max())
        return Image.fromarray(((values - low) * (255 / max(1e-6, high - low))).astype(np.uint8))
    transparent = "transparency" in image.info or image.mode in {"PA", "La", "RGBa"}
    return image.convert("RGBA" if transparent else "RGB")


def on_white(image: Image.Image) -> Image.Image:
    if image.mode not in {"RGBA", "LA"}:
        return image.convert("RGB")
    paper = Image.new("RGBA", image.size, "white")
    return Image.alpha_composite(paper, image.convert("RGBA")).convert("RGB")
