"""Generators of malicious Office documents."""

from tests.samples.hostile import zipped

RELATIONS = "http://schemas.openxmlformats.org/package/2006/relationships"
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
SHEET = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
ODF = "urn:oasis:names:tc:opendocument:xmlns"
ODF_NAMES = {"office": "office", "table": "table", "text": "text", "draw": "drawing", "svg": "svg-compatible"}
ODF_TYPE = b"application/vnd.oasis.opendocument."


def relations(*entries: tuple[str, str, str], external: bool = False) -> bytes:
    """Return a relationships part. `entries`: ID, kind, and target of each relationship."""
    mode = ' TargetMode="External"' if external else ""
    rows = "".join(f'<Relationship Id="{i}" Type="{OFFICE}/{kind}" Target="{to}"{mode}/>' for i, kind, to in entries)
    return f'<Relationships xmlns="{RELATIONS}">{rows}</Relationships>'.encode()


TYPES = (
    b'<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types"><Default Extension="rels" '
    b'ContentType="application/vnd.openxmlformats-package.relationships+xml"/><Default Extension="xml" ContentType='
    b'"application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"/>%s</Types>'
)


def docx(body: bytes, *, before: bytes = b"", parts: tuple[tuple[str, bytes], ...] = ()) -> bytes:
    """Return a document with this body. `before`: the beginning of its XML."""
    document = before + f'<w:document xmlns:w="{WORD}"><w:body>'.encode() + body + b"</w:body></w:document>"
    return zipped(
        ("[Content_Types].xml", TYPES % b"".join(override(name) for name, _ in parts if name.endswith(".xml"))),
        ("_rels/.rels", relations(("r1", "officeDocument", "word/document.xml"))),
        ("word/document.xml", document),
        *parts,
    )


def override(part: str) -> bytes:
    """Return the content type entry of a part such as word/footnotes.xml."""
    kind = part.rpartition("/")[2].removesuffix(".xml")
    media_type = f"application/vnd.openxmlformats-officedocument.wordprocessingml.{kind}+xml"
    return f'<Override PartName="/{part}" ContentType="{media_type}"/>'.encode()


def paragraph(text: bytes) -> bytes:
    return b"<w:p><w:r><w:t>" + text + b"</w:t></w:r></w:p>"


def xlsx(rows: bytes, *, strings: bytes = b"", sheets: int = 1) -> bytes:
    """Return a workbook whose sheets all refer to the same part."""
    names = "".join(f'<sheet name="S{n}" sheetId="{n}" r:id="r1"/>' for n in range(1, sheets + 1))
    return zipped(
        ("[Content_Types].xml", b"<Types/>"),
        ("_rels/.rels", relations(("r1", "officeDocument", "xl/workbook.xml"))),
        (
            "xl/workbook.xml",
            f'<workbook xmlns="{SHEET}" xmlns:r="{OFFICE}"><sheets>{names}</sheets></workbook>'.encode(),
        ),
        (
            "xl/_rels/workbook.xml.rels",
            relations(("r1", "worksheet", "worksheets/sheet1.xml"), ("r2", "sharedStrings", "sharedStrings.xml")),
        ),
        (
            "xl/worksheets/sheet1.xml",
            f'<worksheet xmlns="{SHEET}"><sheetData>'.encode() + rows + b"</sheetData></worksheet>",
        ),
        ("xl/sharedStrings.xml", f'<sst xmlns="{SHEET}"><si><t>'.encode() + strings + b"</t></si></sst>"),
    )


def row(*cells: bytes, before: bytes = b"") -> bytes:
    """Return a row of a table. `before`: XML before the text of its first cell."""
    first, *others = cells
    runs = [before + b"<w:t>" + first + b"</w:t>", *(b"<w:t>" + cell + b"</w:t>" for cell in others)]
    return b"<w:tr>" + b"".join(b"<w:tc><w:p><w:r>" + run + b"</w:r></w:p></w:tc>" for run in runs) + b"</w:tr>"


def ods(row: bytes) -> bytes:
    return open_document(b"spreadsheet", b'<table:table table:name="S">' + row + b"</table:table>")


def odt(body: bytes) -> bytes:
    return open_document(b"text", body)


def open_document(kind: bytes, body: bytes) -> bytes:
    names = "".join(f' xmlns:{name}="{ODF}:{full}:1.0"' for name, full in ODF_NAMES.items()).encode()
    names += b' xmlns:xlink="http://www.w3.org/1999/xlink"'
    inner = b"<office:body><office:%s>%s</office:%s></office:body>" % (kind, body, kind)
    content = b"<office:document-content%s>%s</office:document-content>" % (names, inner)
    mimetype = ODF_TYPE + kind
    manifest = (
        b'<m:manifest xmlns:m="%s:manifest:1.0"><m:file-entry m:full-path="/" m:media-type="%s"/>'
        b'<m:file-entry m:full-path="content.xml" m:media-type="text/xml"/></m:manifest>' % (ODF.encode(), mimetype)
    )
    return zipped(("mimetype", mimetype), ("content.xml", content), ("META-INF/manifest.xml", manifest))


def notes(count: int) -> tuple[tuple[str, bytes], ...]:
    """Return parts with footnotes that refer to each other in a cycle, each twice to the next one."""

    def cite(number: int) -> str:
        return f'<w:r><w:footnoteReference w:id="{number % count}"/></w:r>' * 2

    rows = "".join(
        f'<w:footnote w:id="{n}"><w:p><w:r><w:t>Note {n}.</w:t></w:r>{cite(n + 1)}</w:p></w:footnote>'
        for n in range(count)
    )
    return (
        ("word/_rels/document.xml.rels", relations(("r2", "footnotes", "footnotes.xml"))),
        ("word/footnotes.xml", f'<w:footnotes xmlns:w="{WORD}">{rows}</w:footnotes>'.encode()),
    )


def epub(chapters: int) -> bytes:
    items = "".join(f'<item id="c{n}" href="c.xhtml" media-type="application/xhtml+xml"/>' for n in range(chapters))
    spine = "".join(f'<itemref idref="c{n}"/>' for n in range(chapters))
    return zipped(
        ("mimetype", b"application/epub+zip"),
        ("META-INF/container.xml", b'<container><rootfiles><rootfile full-path="a.opf"/></rootfiles></container>'),
        ("a.opf", f"<package><manifest>{items}</manifest><spine>{spine}</spine></package>".encode()),
        ("c.xhtml", b"<html><body><p>A chapter</p></body></html>"),
    )


def laughs() -> bytes:
    """Return a document type with nested entities (billion laughs). The last one, e12, expands to 10**12 texts."""
    entities = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 13))
    return f'<?xml version="1.0"?><!DOCTYPE d [<!ENTITY e0 "ha">{entities}]>'.encode()
