"""Checked copies of Office and OpenDocument files for docling.

A copy contains only the XML parts, with marks for content that docling omits.
"""

import zipfile
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from io import BytesIO
from typing import Any

from lxml import etree

from etl.core.errors import FileCorrupt, FileEncrypted
from etl.core.formats import DocumentFormat
from etl.providers.local.office.archive import Archive
from etl.providers.local.office.bounds import TextBudget
from etl.providers.local.office.pages import HIDDEN, IMAGE, MARKS, PAGE_BREAK, STRUCK, STRUCK_END
from etl.providers.local.office.xml import attribute, child, children, local_name, namespace, number, parse

# Character formatting. It is removed, because docling separates words where it changes, even in the middle of a word.
FORMATTING = tuple(f"{{*}}{name}" for name in (
    "b", "bCs", "i", "iCs", "u", "strike", "dstrike", "vertAlign", "highlight", "color", "rFonts", "sz", "szCs",
))  # fmt: skip
# Elements that docling omits together with their content, and elements whose content is not displayed.
WRAPPERS = tuple(f"{{*}}{name}" for name in (
    "hyperlink", "moveTo", "customXml", "bdo", "dir", "ruby", "rubyBase",
))  # fmt: skip
NOT_TEXT = ("{*}moveFrom", "{*}customXmlPr", "{*}rubyPr", "{*}rt")
OFF = frozenset({"0", "false", "off", "none"})
# Pictures of at least these areas may be scans. Logos are smaller. A centimeter is 360,000 EMU.
LARGE_PICTURE, LARGE_ON_SLIDE = 60, 120  # square centimeters
EMU = 360_000
UNITS = {"cm": 1.0, "mm": 0.1, "in": 2.54, "pt": 2.54 / 72, "px": 2.54 / 96}
HIDDEN_ROWS = frozenset({"collapse", "filter"})
FEW_COLUMNS = 1_000  # a longer run of hidden columns is the unused rest of a sheet
WRAPPERS_OF_TEXT = ("span", "a", "ruby", "ruby-base", "numbered-paragraph")
TEXT = "urn:oasis:names:tc:opendocument:xmlns:text:1.0"
DRAWING = "http://schemas.openxmlformats.org/drawingml/2006/main"
POINT = {"xVal": "x", "bubbleSize": "size"}  # coordinates of chart points besides their value
TEXT_BOX = (
    '<p:sp xmlns:p="{0}" xmlns:a="{1}"><p:nvSpPr><p:cNvPr id="0" name=""/><p:cNvSpPr txBox="1"/><p:nvPr/></p:nvSpPr>'
    "<p:spPr/><p:txBody><a:bodyPr/><a:p><a:r><a:t/></a:r></a:p></p:txBody></p:sp>"
)


def checked_copy(archive: Archive, kind: DocumentFormat, budget: TextBudget) -> bytes:
    """Return a copy of an archive with checked XML. All other parts are empty. Raises BadDocument."""
    manifest = archive.optional("META-INF/manifest.xml")
    if manifest is not None and any(local_name(each) == "encryption-data" for each in manifest.iter()):
        raise FileEncrypted
    copy = BytesIO()
    with zipfile.ZipFile(copy, "w") as target:
        for name in archive.entries:
            content = b""
            if name.endswith((".xml", ".rels")):
                # If docling needs the part, it fails later.
                with suppress(FileCorrupt):
                    content = check_and_mark(kind, name, archive.read(name), budget)
            elif name == "mimetype":
                content = archive.read(name)
            target.writestr(name, content)
    return copy.getvalue()


def check_and_mark(kind: DocumentFormat, name: str, content: bytes, budget: TextBudget) -> bytes:
    """Check a part and insert marks. Raises FileCorrupt, TooManyCells, and TooMuchText."""
    root = parse(content)
    if (mark := marker(kind, name)) is None:
        return content
    mark(root, budget)
    return bytes(etree.tostring(root, encoding="utf-8", xml_declaration=True))


def marker(kind: DocumentFormat, name: str) -> Callable[[Any, TextBudget], None] | None:
    """Return the function that inserts marks into a part, or None."""
    if name.endswith(".rels"):
        return remove_external
    if name.startswith(("ppt/charts/", "word/charts/")):
        return mark_chart
    if kind == DocumentFormat.DOCX:
        return mark_word if name.startswith("word/") and name.count("/") == 1 else None
    if kind == DocumentFormat.PPTX:
        return mark_slide if name.startswith("ppt/slides/") and name.count("/") == 2 else None  # noqa: PLR2004 - folders
    return mark_open_document if name == "content.xml" else None


def remove_external(root: Any, _budget: TextBudget) -> None:
    for each in list(root):
        if attribute(each, "TargetMode") == "External":
            root.remove(each)


# ---- Word -----------------------------------------------------------------------------------------------------------
def mark_word(root: Any, _budget: TextBudget) -> None:
    for properties in root.iter("{*}rPr"):
        if any(is_on(each) for each in children(properties, "strike", "dstrike")):
            mark_struck(properties.getparent())
    unwrap(root)
    for table in root.iter("{*}tbl"):
        add_grid(table)
    for properties in root.iter("{*}rPr"):
        if local_name(properties.getparent()) == "r":
            etree.strip_elements(properties, *FORMATTING)
    for each in list(root.iter(*MARKED)):
        MARKED[f"{{*}}{local_name(each)}"](each)


def mark_struck(run: Any) -> None:
    texts = [each for each in children(run, "t") if each.text]
    if texts:
        texts[0].text = STRUCK + texts[0].text
        texts[-1].text += STRUCK_END


def unwrap(root: Any) -> None:
    """Remove the elements that docling would omit together with their text. Check boxes stay content controls."""
    etree.strip_elements(root, *NOT_TEXT, with_tail=False)
    for base in root.iter("{*}rubyBase"):
        etree.strip_elements(base, "{*}rPr", with_tail=False)
        etree.strip_tags(base, "{*}r")
    controls = [each for each in root.iter("{*}sdt") if not is_checkbox(each)]
    for each in controls:
        content = child(each, "sdtContent")
        each[:] = list(content) if content is not None else []
        each.tag = "unwrapped"
    etree.strip_tags(root, "unwrapped", *WRAPPERS)


def is_checkbox(control: Any) -> bool:
    return child(control, "sdtPr", "checkbox") is not None and child(control, "sdtContent", "r") is not None


def add_grid(table: Any) -> None:
    """Add the elements that docling requires and Word does not."""
    for position, name in enumerate(("tblPr", "tblGrid")):
        if child(table, name) is None:
            table.insert(position, etree.Element(f"{{{namespace(table)}}}{name}"))
    grid = child(table, "tblGrid")
    widest = max((sum(1 for _ in children(row, "tc")) for row in children(table, "tr")), default=0)
    for _ in range(widest - len(grid)):
        etree.SubElement(grid, f"{{{namespace(table)}}}gridCol")


def mark_word_break(element: Any) -> None:
    if local_name(element) != "br" or attribute(element, "type") == "page":
        element.getparent().replace(element, word_text(element, PAGE_BREAK))


def mark_break_before(element: Any) -> None:
    if is_on(element) and local_name(paragraph := element.getparent().getparent()) == "p":
        add_run(paragraph, PAGE_BREAK)


def show_hidden_run(element: Any) -> None:
    properties = element.getparent()
    if is_on(element) and local_name(run := properties.getparent()) == "r":
        properties.remove(element)
        run.append(word_text(run, MARKS[HIDDEN]))


def mark_word_picture(extent: Any) -> None:
    drawing = extent.getparent()
    run = next(drawing.iterancestors("{*}r"), None)
    if emu_area(extent) >= LARGE_PICTURE and run is not None and next(drawing.iter("{*}blip"), None) is not None:
        run.append(word_text(run, MARKS[IMAGE]))


def label_reference(element: Any) -> None:
    element.getparent().replace(element, word_text(element, f"[^{note_label(element)}]"))


def label_note(element: Any) -> None:
    first = next(element.iter("{*}p"), None)
    if first is not None:
        add_run(first, f"[^{note_label(element)}]: ")


MARKED: dict[str, Callable[[Any], None]] = {
    "{*}lastRenderedPageBreak": mark_word_break,
    "{*}br": mark_word_break,
    "{*}pageBreakBefore": mark_break_before,
    "{*}vanish": show_hidden_run,
    "{*}extent": mark_word_picture,
    "{*}footnoteReference": label_reference,
    "{*}endnoteReference": label_reference,
    "{*}footnote": label_note,
    "{*}endnote": label_note,
}


def is_on(element: Any) -> bool:
    return attribute(element, "val") not in OFF


def note_label(element: Any) -> str:
    return ("e" if local_name(element).startswith("endnote") else "") + attribute(element, "id")


def word_text(near: Any, text: str) -> Any:
    element = etree.Element(f"{{{namespace(near)}}}t")
    element.text = text
    element.set("{http://www.w3.org/XML/1998/namespace}space", "preserve")
    return element


def add_run(paragraph: Any, text: str) -> None:
    """Insert text at the beginning of a paragraph."""
    run = etree.Element(f"{{{namespace(paragraph)}}}r")
    run.append(word_text(run, text))
    paragraph.insert(int(child(paragraph, "pPr") is not None), run)


def emu_area(element: Any) -> float:
    """Return the area of an element in square centimeters."""
    return number(attribute(element, "cx")) * number(attribute(element, "cy")) / EMU**2


# ---- PowerPoint -----------------------------------------------------------------------------------------------------
def mark_slide(root: Any, _budget: TextBudget) -> None:
    for each in list(root.iter("{*}rPr")):
        if local_name(each.getparent()) == "r":
            each.getparent().remove(each)
    for picture in list(root.iter("{*}pic")):
        properties = child(picture, "spPr")
        extent = child(properties, "xfrm", "ext")
        if extent is not None and emu_area(extent) >= LARGE_ON_SLIDE:
            box = etree.fromstring(TEXT_BOX.format(namespace(picture), DRAWING))
            box.replace(box[1], properties)
            next(box.iter("{*}t")).text = MARKS[IMAGE]
            picture.getparent().replace(picture, box)


# ---- Charts ---------------------------------------------------------------------------------------------------------
def mark_chart(root: Any, _budget: TextBudget) -> None:
    """Convert the coordinates of points to separate series, because docling reads only the values of a series."""
    for series in list(root.iter("{*}ser")):
        for values in list(children(series, *POINT)):
            label = POINT[local_name(values)]
            if child(values, "strRef") is not None:
                values.tag = f"{{{namespace(values)}}}cat"
                continue
            added = deepcopy(series)
            for each in list(children(added, "yVal", *POINT)):
                added.remove(each)
            for each in added.iterfind("{*}tx//{*}v"):
                each.text = f"{each.text} ({label})"
            values.tag = f"{{{namespace(values)}}}yVal"
            added.append(values)
            (series.addprevious if label == "x" else series.addnext)(added)


# ---- OpenDocument ---------------------------------------------------------------------------------------------------
def mark_open_document(root: Any, budget: TextBudget) -> None:
    etree.strip_elements(root, f"{{{TEXT}}}ruby-text", with_tail=False)
    etree.strip_tags(root, *(f"{{{TEXT}}}{name}" for name in WRAPPERS_OF_TEXT))
    breaks = {
        attribute(style, "name")
        for style in children(child(root, "automatic-styles"), "style")
        if any(attribute(each, "break-before") == "page" for each in style)
    }
    for table in root.iter("{*}table"):
        check_cells(table, budget)
    for paragraph in root.iter("{*}p", "{*}h"):
        if attribute(paragraph, "style-name") in breaks:
            paragraph.text = PAGE_BREAK + (paragraph.text or "")
    for each in list(root.iter("{*}soft-page-break")):
        mark_break(each)
    for frame in list(root.iter("{*}frame")):
        if child(frame, "image") is not None and odf_area(frame) >= LARGE_PICTURE:
            mark_picture(frame)
    for note in list(root.iter("{*}note")):
        mark_note(note)


def mark_note(note: Any) -> None:
    if next(note.iterancestors("{*}note"), None) is not None:
        note.clear(keep_tail=True)  # docling would repeat a note inside another note
        return
    citation, first = child(note, "note-citation"), next(note.iter("{*}p"), None)
    if citation is not None and first is not None:
        label = f"[^{''.join(citation.itertext())}]"
        put_before(note, label)
        first.text = f"{label}: {first.text or ''}"


def mark_break(element: Any) -> None:
    """Mark a page break within a paragraph, or between paragraphs or rows."""
    if local_name(element.getparent()) in {"p", "h", "span", "a"}:
        put_before(element, PAGE_BREAK)
        return
    following = element.getnext()
    first = next(following.iter("{*}p", "{*}h"), None) if following is not None else None
    if first is not None:
        first.text = PAGE_BREAK + (first.text or "")


def mark_picture(frame: Any) -> None:
    if local_name(frame.getparent()) in {"p", "h", "span", "a"}:
        put_before(frame, MARKS[IMAGE])
    elif local_name(frame.getparent()) == "page":
        box = etree.SubElement(frame, f"{{{namespace(frame)}}}text-box")
        etree.SubElement(box, f"{{{TEXT}}}p").text = MARKS[IMAGE]
        frame.remove(child(frame, "image"))


def put_before(element: Any, text: str) -> None:
    before = element.getprevious()
    if before is not None:
        before.tail = (before.tail or "") + text
    else:
        element.getparent().text = (element.getparent().text or "") + text


def check_cells(table: Any, budget: TextBudget) -> None:
    """Count the cells of a table that have text, including repeated ones. Keep only the displayed text, and mark hidden
    cells."""
    hidden = any(
        attribute(each, "visibility") in HIDDEN_ROWS and repeated(each, "columns") < FEW_COLUMNS
        for each in table.iter("{*}table-column")
    )
    for row in table.iter("{*}table-row"):
        for cell in children(row, "table-cell", "covered-table-cell"):
            text = next(cell.iter("{*}p", "{*}h"), None)
            if text is None:
                continue
            times = repeated(row, "rows") * repeated(cell, "columns")
            budget.count_cells(times)
            budget.spend("".join(cell.itertext()), times - 1)
            if len(list(cell.iter("{*}p", "{*}h"))) == 1:
                etree.strip_tags(cell, f"{{{TEXT}}}list", f"{{{TEXT}}}list-item")
            for name in [name for name in cell.attrib if "value" in name.rpartition("}")[2]]:
                del cell.attrib[name]
            if hidden or attribute(row, "visibility") in HIDDEN_ROWS:
                text.text = MARKS[HIDDEN] + (text.text or "")
                hidden = False


def repeated(element: Any, unit: str) -> int:
    return max(1, number(attribute(element, f"number-{unit}-repeated"), 1))


def odf_area(frame: Any) -> float:
    """Return the area of a frame in square centimeters."""
    return length(attribute(frame, "width")) * length(attribute(frame, "height"))


def length(text: str) -> float:
    value, unit = text[:-2], text[-2:]
    return float(value) * UNITS.get(unit, 0.0) if value.replace(".", "", 1).isdecimal() else 0.0
