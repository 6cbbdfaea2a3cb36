"""The keyboard focus is visible. Pixels are compared, because axe cannot check it. WCAG 2.2, 2.4.7 and 1.4.11. C1."""

from io import BytesIO
from typing import Any

import pytest
from django.contrib.auth.models import User
from PIL import Image
from playwright.sync_api import Page

pytestmark = pytest.mark.slow

MIN_CONTRAST = 3.0
MARGIN = 6  # pixels around an element
MAX_STOPS = 40  # of the Tab key
PAGES = ("/app/exports", "/app/documents", "/app/rules", "/app/webhooks", "/app/account", "/app/account/password")
ACTIVE = """() => {
    const element = document.activeElement
    if (element === document.body) return null
    element.scrollIntoView({block: "center"})
    const {x, y, width, height} = element.getBoundingClientRect()
    return {x, y, width, height, name: element.outerHTML.slice(0, 120)}
}"""


def luminance(pixel: tuple[int, ...]) -> float:
    parts = [part / 255 for part in pixel[:3]]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: tuple[int, ...], other: tuple[int, ...]) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def shot(page: Page, box: dict[str, Any]) -> Image.Image:
    clip = {
        "x": max(box["x"] - MARGIN, 0),
        "y": max(box["y"] - MARGIN, 0),
        "width": box["width"] + 2 * MARGIN,
        "height": box["height"] + 2 * MARGIN,
    }
    # To hide the caret, Playwright would set styles in the page. htmx would copy these styles, which the content
    # security policy refuses.
    image = page.screenshot(clip=clip, caret="initial")  # type: ignore[arg-type]
    return Image.open(BytesIO(image)).convert("RGB")


def visible_pixels(before: Image.Image, after: Image.Image) -> int:
    """Return the number of pixels that changed with at least the minimum contrast."""
    columns, rows = before.size
    pairs = ((before.getpixel((x, y)), after.getpixel((x, y))) for x in range(columns) for y in range(rows))
    return sum(contrast(one, other) >= MIN_CONTRAST for one, other in pairs if one != other)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "look", [{"color_scheme": "light"}, {"color_scheme": "dark"}, {"forced_colors": "active"}], ids=str
)
@pytest.mark.parametrize("path", PAGES)
def test_focus_is_visible(page: Page, alice: User, path: str, look: dict[str, Any]) -> None:
    page.emulate_media(reduced_motion="reduce", **look)
    page.goto(path)
    count = 0
    for _ in range(MAX_STOPS):
        page.keyboard.press("Tab")
        box = page.evaluate(ACTIVE)
        if box is None:
            break
        after = shot(page, box)
        handle = page.evaluate_handle("() => document.activeElement")
        page.evaluate("element => element.blur()", handle)
        before = shot(page, box)
        page.evaluate("element => element.focus({focusVisible: true, preventScroll: true})", handle)
        side = min(box["width"], box["height"])
        assert visible_pixels(before, after) >= side, box["name"]
        count += 1
    assert count >= 3
