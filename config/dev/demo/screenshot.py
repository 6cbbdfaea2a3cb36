"""Screenshot of a document's page with a highlighted place on the image, if a browser is installed."""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from config.dev.demo.checks import require
from config.dev.stack import local

CHROMIUMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WAIT_MS = 60_000  # for the first image, which a worker draws
POLL_MS = 250


def browser() -> str | None:
    """Return the path of a browser, or None."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, CHROMIUMS)), None)


def environment(folder: str | Path) -> dict[str, str | float | bool]:
    """Return environment variables for Chromium, so that it writes into this folder and not into the home directory."""
    return {**os.environ, "XDG_CONFIG_HOME": str(folder), "XDG_CACHE_HOME": str(folder)}


@contextmanager
def launched(executable: str, arguments: Sequence[str]) -> Iterator[Browser]:
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=executable, args=arguments, env=environment(folder))
        try:
            yield chromium
        finally:
            chromium.close()


def take(stack: local.Stack, task_id: int, *, executable: str, file: Path) -> str:
    """Save the screenshot, and return the highlighted element: a citation, or a block of text if there is none.

    Raises CheckFailed and Playwright's errors.
    """
    arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with launched(executable, arguments) as chromium:
        page = chromium.new_page(base_url=stack.url, viewport={"width": 1280, "height": 900})
        page.set_default_timeout(WAIT_MS)
        sign_in(page, stack)
        page.goto(f"/app/documents/{task_id}")
        wait_for_images(page)
        page.locator("#image-1").scroll_into_view_if_needed()
        highlighted = highlight(page)
        page.screenshot(path=file)
    return highlighted


def sign_in(page: Page, stack: local.Stack) -> None:
    page.goto("/app/documents")
    page.locator("[name=username]").fill(local.ADMIN)
    page.locator("[name=password]").fill(stack.variables["ADMIN_PASSWORD"])
    page.locator("main [type=submit]").click()
    page.wait_for_url("**/app/documents")


def wait_for_images(page: Page) -> None:
    """Wait until the first page and the thumbnails are shown. Raises CheckFailed."""
    images, until = page.locator("#image-1 > img, .thumbnails img"), time.monotonic() + WAIT_MS / 1000
    while not images.evaluate_all("images => images.every(image => image.complete && image.naturalWidth)"):
        require(time.monotonic() < until, "the images of the pages were not drawn in time")
        page.wait_for_timeout(POLL_MS)


def highlight(page: Page) -> str:
    cited = page.locator("#json a.cite[data-bbox]")
    if cited.count():
        cited.last.click()
        page.locator("#image-1 rect.cited").wait_for()
        return "a citation"
    page.locator("#image-1 rect.block").first.hover()
    return "a block of text, because citations need a language model"
