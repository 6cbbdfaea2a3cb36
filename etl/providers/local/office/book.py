"""EPUB books. Each chapter, in reading order, is a page."""

from posixpath import dirname, join, normpath
from typing import Any
from urllib.parse import unquote

from etl.core.errors import FileCorrupt, FileEncrypted
from etl.providers.local.office import web
from etl.providers.local.office.archive import Archive
from etl.providers.local.office.bounds import TextBudget
from etl.providers.local.office.pages import OfficePage
from etl.providers.local.office.xml import attribute, child, children, local_name

CONTAINER, ENCRYPTION = "META-INF/container.xml", "META-INF/encryption.xml"
CHAPTERS = frozenset({"application/xhtml+xml", "text/html", "application/x-dtbook+xml"})


class Book:
    def __init__(self, archive: Archive, budget: TextBudget) -> None:
        self.archive, self.budget = archive, budget
        package = next((each for each in archive.tree(CONTAINER).iter() if local_name(each) == "rootfile"), None)
        if package is None:
            raise FileCorrupt
        path = attribute(package, "full-path")
        self.chapters = chapters(archive.tree(path), dirname(path))
        if encrypted_parts(archive.optional(ENCRYPTION)) & set(self.chapters):
            raise FileEncrypted

    def __len__(self) -> int:
        return len(self.chapters)

    def page(self, index: int) -> OfficePage:
        # Parsed as HTML although it is XHTML, so that the entities of its document type are not expanded.
        return web.page(web.decode(self.archive.read(self.chapters[index])), self.budget)


def chapters(package: Any, folder: str) -> list[str]:
    items = {
        attribute(each, "id"): normpath(join(folder, unquote(attribute(each, "href"))))
        for each in children(child(package, "manifest"), "item")
        if attribute(each, "media-type") in CHAPTERS
    }
    spine = [attribute(each, "idref") for each in children(child(package, "spine"), "itemref")]
    return [items[each] for each in dict.fromkeys(spine) if each in items]


def encrypted_parts(root: Any) -> set[str]:
    """Return the names of encrypted parts. Books without copy protection often have encrypted fonts."""
    found = root.iter() if root is not None else ()
    return {unquote(attribute(each, "URI")) for each in found if local_name(each) == "CipherReference"}
