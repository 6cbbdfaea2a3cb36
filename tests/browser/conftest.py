"""A real browser (Debian's Chromium, headless) with a real web process. C1, C2.

Every page must load without errors: an error on the console, an exception in a script, or a request to another host
fails the test.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from django.conf import settings
from django.contrib.auth.hashers import make_password
from django.contrib.auth.models import User
from django.test import Client
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, expect

from config.dev.demo import screenshot
from config.dev.stack.processes import Web
from config.platform.ui.sign_in import CONFIRMED
from tests.e2e.conftest import workers  # noqa: F401 - a fixture of these tests, too
from tests.serving import serving, variables

# On a busy machine, a page can take longer than Playwright's five seconds.
expect.set_options(timeout=30_000)

# By default, Chromium looks up Google hosts at each start.
NO_BACKGROUND_REQUESTS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip
ALL_IMPACTS = ("minor", "moderate", "serious", "critical")
SERIOUS_IMPACTS = ("serious", "critical")
# axe leaves out the rule on the size of targets (WCAG 2.2, 2.5.8) unless it is enabled.
AXE = {"resultTypes": ["violations"], "rules": {"target-size": {"enabled": True}}}
THEME = {"resultTypes": ["violations"]}
# While a transition runs, for example after a change of the color scheme, colors are between their old and new values.
END_OF_TRANSITIONS = """async () => {
  const transitions = document.getAnimations().filter((each) => each instanceof CSSTransition);
  await Promise.allSettled(transitions.map((each) => each.finished));
}"""
# Over plain HTTP, Chromium accepts secure cookies for this name, but not for an IP address.
HOST = "localhost"
PASSWORD = "only for tests, 1"
Accessible = Callable[[Page], None]


def chromium() -> str:
    """Return the path of Chromium."""
    found = screenshot.browser()
    assert found, "Chromium was not found. Run `make browser` as root, install the package chromium, or set CHROMIUM."
    return found


@pytest.fixture(scope="session")
def browser_type_launch_args(
    browser_type_launch_args: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    return browser_type_launch_args | {
        "executable_path": chromium(),
        "args": list(NO_BACKGROUND_REQUESTS),
        "env": screenshot.environment(tmp_path_factory.mktemp("chromium")),
    }


@pytest.fixture(scope="session")
def served(django_db_setup: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    """The web process for all tests in this process. It uses the test database."""
    root = tmp_path_factory.mktemp("web")
    plenty = {"SIGN_IN_RATE": "1000/min", "EXPORT_RATE": "1000/min"}
    with serving(root, variables(root, **plenty, EXPORT_WEBHOOK_ALLOW_CIDRS="127.0.0.0/8")) as running:
        yield running


@dataclass
class PageMonitor:
    """Collects the errors of a page and its requests to other hosts."""

    allowed: tuple[str, ...]
    seen: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)

    def monitored(self, page: Page) -> Page:
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
        """Expect an error on the console: the browser reports each 4xx or 5xx response there."""
        self.expected.append(words)

    def unexpected_errors(self) -> list[str]:
        return [each for each in self.seen if not any(words in each for words in self.expected)]


@pytest.fixture
def watch(web: Web) -> Iterator[PageMonitor]:
    """The monitor of the page. Tests that cause errors on purpose call `watch.expect("503")`."""
    storage = urlsplit(str(settings.SLUICE.s3_endpoint_url)).netloc  # downloads come from there
    watch = PageMonitor((f"{HOST}:{web.port}", storage))
    yield watch
    assert watch.unexpected_errors() == []


@pytest.fixture
def browser_context_args(browser_context_args: dict[str, Any], web: Web) -> dict[str, Any]:
    return {**browser_context_args, "base_url": f"http://{HOST}:{web.port}", "viewport": {"width": 1280, "height": 900}}


@pytest.fixture
def page(context: BrowserContext, watch: PageMonitor, alice: User) -> Page:
    """A browser page with alice signed in."""
    sign_in(context, alice)
    return watch.monitored(context.new_page())


@pytest.fixture
def carol(transactional_db: None) -> User:
    """A user with a password."""
    # The web process does not use the tests' fast password hash.
    return User.objects.create(username="carol", password=make_password(PASSWORD, hasher="pbkdf2_sha256"))


@pytest.fixture
def anonymous(browser: Browser, browser_context_args: dict[str, Any], watch: PageMonitor) -> Iterator[Page]:
    context = browser.new_context(**browser_context_args)
    yield watch.monitored(context.new_page())
    context.close()


def sign_in(context: BrowserContext, user: User) -> None:
    """Set a user's session cookie in a browser, as if the user had just entered a password."""
    client = Client()
    client.force_login(user)
    session = client.session
    session[CONFIRMED] = time.time()
    session.save()
    name = settings.SESSION_COOKIE_NAME
    context.add_cookies([{"name": name, "value": client.cookies[name].value, "domain": HOST, "path": "/"}])


@pytest.fixture
def accessible() -> Accessible:
    """A check that fails if axe reports a problem on the current page, by WCAG 2.2 AA or axe's best practices."""
    return check_accessibility


def check_accessibility(page: Page, *, is_admin: bool = False) -> None:
    """Check the page. The admin has the theme of another project, so only serious problems count there."""
    options, impacts = (THEME, SERIOUS_IMPACTS) if is_admin else (AXE, ALL_IMPACTS)
    page.wait_for_load_state()  # a click that opens a page returns before the page is complete
    page.evaluate(END_OF_TRANSITIONS)
    found = [each for each in Axe().run(page, options=options).response["violations"] if each["impact"] in impacts]
    assert found == [], "\n".join(f"{each['id']}: {[node['html'][:120] for node in each['nodes']]}" for each in found)


def fits_width(page: Page) -> bool:
    """Return whether the page has no horizontal scrollbar."""
    return bool(page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"))


def download(page: Page, start: Callable[[], object], folder: Path) -> Path:
    """Start a download, and return its file."""
    with page.expect_download() as event:
        start()
    path = folder / event.value.suggested_filename
    event.value.save_as(path)
    return path
