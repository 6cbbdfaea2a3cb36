"""Generators of malicious and damaged documents."""

import io
import struct
import zipfile
import zlib

from fpdf import FPDF


def pdf(*objects: bytes) -> bytes:
    """Return a PDF with these objects. The first one must be the catalog."""
    content, offsets = b"%PDF-1.7\n", []
    for number, body in enumerate(objects, start=1):
        offsets.append(len(content))
        content += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % place for place in offsets)
    size = len(objects) + 1
    return content + (
        b"xref\n0 %d\n0000000000 65535 f \n%strailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n"
        % (size, table, size, len(content))
    )


def stream(content: bytes, entries: bytes = b"") -> bytes:
    return b"<< %s /Length %d >>\nstream\n%s\nendstream" % (entries, len(content), content)


def page(content: bytes, *, box: bytes = b"0 0 595 842", image: bytes = b"null") -> bytes:
    """Return a PDF with one page. `content`: its content stream. `image`: the object that it can draw as /I."""
    return pdf(
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [%s] /Contents 4 0 R /Resources "
        b"<< /Font << /F 5 0 R >> /XObject << /I 6 0 R >> >> >>" % box,
        content,
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        image,
    )


def printed(*texts: str, password: str = "", owner: str = "") -> bytes:
    """Return a PDF with a page for each text."""
    paper = FPDF()
    paper.set_font("helvetica", size=12)
    if password or owner:
        paper.set_encryption(owner_password=owner or "owner", user_password=password)
    for text in texts:
        paper.add_page()
        paper.multi_cell(0, 6, text, new_x="LMARGIN", new_y="NEXT")
    return bytes(paper.output())


def many_pages(count: int, *lines: str) -> bytes:
    """Return a PDF that contains the same page `count` times."""
    shown = b"BT /F 8 Tf 9 TL 20 800 Td " + b" ".join(b"(%s) '" % line.encode() for line in lines) + b" ET"
    return pdf(
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Count %d /Kids [%s] >>" % (count, b" ".join([b"3 0 R"] * count)),
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents 4 0 R"
        b" /Resources << /Font << /F 5 0 R >> >> >>",
        stream(shown),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    )


def form() -> bytes:
    """Return a harmless page with a filled field, a checked and an unchecked checkbox, and a note."""
    widget = b"<< /Type /Annot /Subtype /Widget /F 4 /Rect [%s] /FT /%s /T (%s) /V %s %s >>"
    field = b"/DA (/F 12 Tf 0 g)"
    return pdf(
        b"<< /Type /Catalog /Pages 2 0 R /AcroForm << /Fields [6 0 R 7 0 R 8 0 R] >> >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents 4 0 R /Annots [6 0 R 7 0 R 8 0 R 9 0 R]"
        b" /Resources << /Font << /F 5 0 R >> >> >>",
        stream(b"BT /F 12 Tf 72 700 Td (Amount due:) Tj 0 -40 Td (Paid) Tj 0 -40 Td (Sent) Tj ET"),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        widget % (b"150 695 300 715", b"Tx", b"amount", b"(2,363.58 EUR)", field),
        widget % (b"150 655 165 670", b"Btn", b"paid", b"/Yes", b"/AS /Yes /AP << /N << /Yes null /Off null >> >>"),
        widget % (b"150 615 165 630", b"Btn", b"sent", b"/Off", b"/AS /Off /AP << /N << /Yes null /Off null >> >>"),
        b"<< /Type /Annot /Subtype /FreeText /Rect [72 500 300 540] /Contents (Received on 2 March) /DA (/F 12 Tf) >>",
    )


def deflated(unit: bytes, megabytes: int) -> bytes:
    """Return a zlib stream of a repeated megabyte. It is compressed only once, which is fast."""
    block = unit * (1_000_000 // len(unit))
    compressor = zlib.compressobj(9)
    start = compressor.compress(b" ") + compressor.flush(zlib.Z_FULL_FLUSH)
    once = compressor.compress(block) + compressor.flush(zlib.Z_FULL_FLUSH)
    return start + once * megabytes + compressor.flush(zlib.Z_FINISH)


def content_bomb() -> bytes:
    """Return a page with 1.5 MB of instructions that decompress to 1.5 GB."""
    return page(stream(deflated(b" ", 1500), b"/Filter /FlateDecode"))


def image_bomb(side: int) -> bytes:
    """Return a page with an image of `side` by `side` pixels."""
    entries = b"/Type /XObject /Subtype /Image /Width %d /Height %d /BitsPerComponent 8" % (side, side)
    image = stream(deflated(b"\0", 10), entries + b" /ColorSpace /DeviceGray /Filter /FlateDecode")
    return page(stream(b"q 595 0 0 842 0 0 cm /I Do Q"), image=image)


def png(wide: int, high: int, pixels: bytes) -> bytes:
    """Return a PNG that declares this size. `pixels`: its compressed data."""
    header = struct.pack(">IIBBBBB", wide, high, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", pixels), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )


def zipped(*entries: tuple[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries:
            kind = zipfile.ZIP_STORED if name == "mimetype" else zipfile.ZIP_DEFLATED
            archive.writestr(name, content, compress_type=kind)
    return buffer.getvalue()
