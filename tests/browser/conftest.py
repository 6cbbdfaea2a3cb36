"""A real browser on a real web process: Debian's Chromium, headless. C1, C2.

Whatever a test does, its pages must be silent: an error on the console, an exception of a script, or a request to
another host than ours fails it.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, expect

from config.dev.stack.processes import Web
from tests.e2e.conftest import workers  # noqa: F401 - a fixture of these tests, too
from tests.serving import serving, variables

# A busy machine takes longer over a page than Playwright's five seconds, which says nothing about our code.
expect.set_options(timeout=30_000)

CHROMIUMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Chromium itself would look up hosts of its makers at every start.
QUIET = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip
GRAVE = ("serious", "critical")
# Chromium keeps cookies that want https for plain http to this name, and for no address.
HOST = "localhost"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have these tests run last: from the first of them on, Playwright's loop has the thread, and no other can run."""
    here = Path(__file__).parent
    items.sort(key=lambda item: here in item.path.parents)


@pytest.fixture(scope="session", autouse=True)
def beside_a_loop() -> Iterator[None]:
    """Playwright's own event loop runs in this thread, and Django takes it for one that its queries would hold up."""
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"
    yield
    del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]


@pytest.fixture(scope="session")
def browser_type_launch_args(browser_type_launch_args: dict[str, Any]) -> dict[str, Any]:
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, CHROMIUMS)), None)
    assert found, "No Chromium: `make browser` installs it as root; else install the package chromium, or set CHROMIUM."
    return {**browser_type_launch_args, "executable_path": found, "args": list(QUIET)}


@pytest.fixture(scope="session")
def served(django_db_setup: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    """The web process of all tests in this process, on their database."""
    root = tmp_path_factory.mktemp("web")
    plenty = {"SIGN_IN_RATE": "1000/min", "EXPORT_RATE": "1000/min"}
    with serving(root, variables(root, **plenty, EXPORT_WEBHOOK_ALLOW_CIDRS="127.0.0.0/8")) as running:
        yield running


@dataclass
class Watch:
    """What a page did that none of ours may do."""

    allowed: tuple[str, ...]
    seen: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)

    def over(self, page: Page) -> Page:
        page.on("console", self.on_console)
        page.on("pageerror", lambda error: self.seen.append(f"exception: {error}"))
        page.on("request", self.on_request)
        return page

    def on_console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.seen.append(f"console: {message.text}")

    def on_request(self, request: Request) -> None:
        url = urlsplit(request.url)
        if url.scheme in ("http", "https") and url.netloc not in self.allowed:
            self.seen.append(f"another host: {url.netloc}")

    def expect(self, words: str) -> None:
        """Have an error on the console be part of the test: the browser reports each answer of 4xx or 5xx there."""
        self.expected.append(words)

    def complaints(self) -> list[str]:
        return [each for each in self.seen if not any(words in each for words in self.expected)]


@pytest.fixture
def watch(web: Web) -> Iterator[Watch]:
    """`watch.expect("503")` in tests that make errors on purpose."""
    storage = urlsplit(str(settings.SLUICE.s3_endpoint_url)).netloc  # downloads come from there
    watch = Watch((f"{HOST}:{web.port}", storage))
    yield watch
    assert watch.complaints() == []


@pytest.fixture
def browser_context_args(browser_context_args: dict[str, Any], web: Web) -> dict[str, Any]:
    return {**browser_context_args, "base_url": f"http://{HOST}:{web.port}", "viewport": {"width": 1280, "height": 900}}


@pytest.fixture
def page(context: BrowserContext, watch: Watch, alice: User) -> Page:
    """A page of a browser in which alice is signed in."""
    sign_in(context, alice)
    return watch.over(context.new_page())


@pytest.fixture
def anonymous(browser: Browser, browser_context_args: dict[str, Any], watch: Watch) -> Iterator[Page]:
    context = browser.new_context(**browser_context_args)
    yield watch.over(context.new_page())
    context.close()


def sign_in(context: BrowserContext, user: User) -> None:
    """Give a browser the session of a user."""
    client = Client()
    client.force_login(user)
    name = settings.SESSION_COOKIE_NAME
    context.add_cookies([{"name": name, "value": client.cookies[name].value, "domain": HOST, "path": "/"}])


@pytest.fixture
def accessible() -> Callable[[Page], None]:
    """Fail when axe finds something serious or critical on the page as it is now."""

    def check(page: Page) -> None:
        found = Axe().run(page).response["violations"]
        grave = [each for each in found if each["impact"] in GRAVE]
        assert grave == [], "\n".join(
            f"{each['id']}: {[node['html'][:120] for node in each['nodes']]}" for each in grave
        )

    return check


def fits(page: Page) -> bool:
    """Whether the page as a whole does not scroll sideways."""
    return bool(page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"))


def download(page: Page, act: Callable[[], object], folder: Path) -> Path:
    """Do what starts a download, and return the file that came."""
    with page.expect_download() as coming:
        act()
    path = folder / coming.value.suggested_filename
    coming.value.save_as(path)
    return path
