"""The documentation site that `make docs` builds: its links, its pages, and its requests to other hosts. C4."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from http import HTTPStatus
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, Response

from tests.docs.blocks import PROJECT
from tests.docs.viewing import in_browser, served

pytestmark = pytest.mark.slow

SOURCES = ("Makefile", "README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "requirements-dev.txt")
OTHER_PAGES = {Path(name) for name in ("index.html", "404.html", "docs/webhooks.html", "docs/metrics.html")}
PATIENCE = 30_000  # milliseconds
FETCHED = ("script", "link", "img", "iframe", "source", "object", "embed", "video", "audio")
DRAWN = "() => [...document.querySelectorAll('.mermaid')].every(each => each.matches('div') && each.clientHeight > 50)"


@dataclass
class ParsedPage(HTMLParser):
    """Parser that collects the links, the fetched files, and the IDs of a page, and the links of its navigation."""

    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)
    navigation: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids.add(given.get("id", ""))
        target = given.get("href") or given.get("src") or given.get("data")
        if target and tag == "a":
            self.links.append(target)
            if "md-nav__link" in given.get("class", ""):
                self.navigation.append(target)
        elif target and tag in FETCHED:
            self.fetched.append(target)


def copy(folder: Path) -> Path:
    """Copy the sources of the site, so that builds and broken pages do not change the project."""
    for name in SOURCES:
        shutil.copy(PROJECT / name, folder)
    shutil.copytree(PROJECT / "docs", folder / "docs")
    shutil.copytree(PROJECT / "docker", folder / "docker", ignore=shutil.ignore_patterns("secrets", ".env"))
    (folder / ".venv").symlink_to(PROJECT / ".venv")
    return folder


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    bare = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return subprocess.run(["make", "docs"], check=False, cwd=folder, env=bare, capture_output=True, text=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = copy(tmp_path_factory.mktemp("project"))
    done = build(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / ".local" / "site"


@pytest.fixture(scope="module")
def read(site: Path) -> dict[Path, ParsedPage]:
    """The pages by their path in the site."""
    found = {}
    for path in site.rglob("*.html"):
        found[path.relative_to(site)] = page = ParsedPage()
        page.feed(path.read_text())
    return found


@pytest.mark.parametrize("broken", ["[there](nowhere.md)", "[there](glossary.md#nothing)"])
def test_a_broken_link_fails_the_build(tmp_path: Path, broken: str) -> None:
    with (copy(tmp_path) / "docs" / "faq.md").open("a") as page:
        page.write(f"\n{broken}\n")
    done = build(tmp_path)
    assert done.returncode != 0
    assert "docs/faq.md" in re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)


def test_every_link_has_a_target(site: Path, read: dict[Path, ParsedPage]) -> None:
    dead = [
        f"{path}: {link}"
        for path, page in read.items()
        if path.name != "404.html"  # its links start at the root of the site
        for link in (*page.links, *page.fetched)
        if not urlsplit(link).scheme and not link_works(link, path, site=site, read=read)
    ]
    assert dead == []


def link_works(link: str, path: Path, *, site: Path, read: dict[Path, ParsedPage]) -> bool:
    parts = urlsplit(urljoin(f"/{path}", link))
    target = Path(unquote(parts.path).lstrip("/"))
    if (site / target).is_dir():
        target /= "index.html"
    has_anchor = not parts.fragment or target not in read or unquote(parts.fragment) in read[target].ids
    return (site / target).is_file() and has_anchor


def test_the_navigation_links_to_every_page(read: dict[Path, ParsedPage]) -> None:
    reached = {Path(urljoin("/", urlsplit(link).path).lstrip("/")) for link in read[Path("index.html")].navigation}
    assert {path for path in read if path.name != "404.html"} - reached - {Path("index.html"), Path()} == set()


def test_every_document_of_the_project_is_a_page(read: dict[Path, ParsedPage]) -> None:
    sources = {path.relative_to(PROJECT) for path in (PROJECT / "docs").glob("**/*.md") if "clients" not in path.parts}
    missing = {path for path in sources if path.with_suffix(".html") not in read and path.name != "README.md"}
    assert missing == set()


def test_pages_do_not_fetch_files_from_other_hosts(site: Path, read: dict[Path, ParsedPage]) -> None:
    assert {link for page in read.values() for link in page.fetched if urlsplit(link).netloc} == set()
    styles = [sheet.read_text() for sheet in site.rglob("*.css")]
    assert styles
    assert [text for sheet in styles for text in re.findall(r"(?:url\(|@import)\s*[\"']?https?:[^)]*", sheet)] == []


@dataclass
class PageErrors:
    """The requests of a page to other hosts, failed requests, and its errors on the console."""

    url: str
    seen: list[str] = field(default_factory=list)

    def watch(self, page: Page) -> Page:
        page.on("request", self.on_request)
        page.on("response", self.on_response)
        page.on("console", self.on_console)
        page.on("pageerror", lambda error: self.seen.append(str(error)))
        return page

    def on_request(self, request: Request) -> None:
        if not request.url.startswith((self.url, "data:", "blob:")):
            self.seen.append(f"requested another host: {request.url}")

    def on_response(self, response: Response) -> None:
        if response.status >= HTTPStatus.BAD_REQUEST:
            self.seen.append(f"{response.status}: {response.url}")

    def on_console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.seen.append(message.text)


@pytest.fixture(scope="module")
def url(site: Path) -> Iterator[str]:
    with served(site) as url:
        yield url


def test_pages_load_without_errors_and_draw_their_diagrams(site: Path, url: str, read: dict[Path, ParsedPage]) -> None:
    """Only a sample of the pages without diagrams is tested, because all pages have the same layout."""
    errors = PageErrors(url)
    drawn = {path for path in read if 'class="mermaid"' in (site / path).read_text()}
    assert drawn

    def act(browser: Browser) -> None:
        page = errors.watch(browser.new_page())
        for path in sorted(drawn | OTHER_PAGES):
            page.goto(f"{url}/{path}")
            page.wait_for_function(DRAWN, timeout=PATIENCE)

    in_browser(act)
    assert errors.seen == []


def test_the_search_finds_pages(url: str) -> None:
    errors = PageErrors(url)

    def act(browser: Browser) -> None:
        page = errors.watch(browser.new_page())
        page.goto(f"{url}/index.html")
        page.keyboard.press("/")
        page.get_by_role("combobox", name="Search").fill("fencing token", timeout=PATIENCE)
        hit = page.get_by_role("option").filter(has_text=re.compile("fencing", re.IGNORECASE))
        hit.first.wait_for(timeout=PATIENCE)

    in_browser(act)
    assert errors.seen == []
