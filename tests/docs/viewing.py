"""A web server for a folder, and Chromium.

Playwright runs in a separate thread, because its event loop may already be running in this one, for other tests.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar

from playwright.sync_api import Browser

from config.dev.demo import screenshot
from tests.browser.conftest import NO_BACKGROUND_REQUESTS, chromium

T = TypeVar("T")


class SilentHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_args: Any) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder, and yield its URL without a trailing slash."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(SilentHandler, directory=str(folder))) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def in_browser(action: Callable[[Browser], T]) -> T:
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(run, action).result()


def run(action: Callable[[Browser], T]) -> T:
    with screenshot.launched(chromium(), NO_BACKGROUND_REQUESTS) as browser:
        return action(browser)
