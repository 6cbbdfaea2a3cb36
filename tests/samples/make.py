"""Generate the documents in `config/dev/demo/documents`, which the demo and the tests use. The results are committed.

python -m tests.samples.make

Requires Noto Sans CJK (Debian: fonts-noto-cjk). All names in the documents are invented. `invoice.txt` and
`notice-zh.txt` have the true text of the documents and of their scans, with form feeds between pages.
"""

import io
import random
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pypdfium2
from fpdf import FPDF, FontFace
from fpdf.enums import WrapMode
from PIL import Image, ImageDraw, ImageFilter

FOLDER = Path(__file__).resolve().parents[2] / "config/dev/demo/documents"
CJK = Path("/usr/share/fonts/opentype/noto/NotoSansCJK-Regular.ttc")
SIMPLIFIED = 2  # index of the font in the collection
DPI = 200

# ---- Contents: (style, text), or a table ----------------------------------------------------------------------------
Table = Sequence[Sequence[str]]
Block = tuple[str, str | Table]

INVOICE: list[list[Block]] = [
    [
        ("h1", "Invoice EX-2024-0117"),
        ("p", "Example Trading Ltd\n12 Sample Street, Exampleton EX1 2AB"),
        ("p", "Billed to: Placeholder Industries Inc\nInvoice date: 29 February 2024\nDue date: 30 March 2024"),
        ("h2", "Goods and services"),
        (
            "table",
            [
                ["Item", "Quantity", "Unit price", "Amount"],
                ["Steel brackets, 40 mm", "120", "3.15", "378.00"],
                ["Copper cable, per metre", "250", "1.84", "460.00"],
                ["Assembly on site, hours", "16", "62.50", "1,000.00"],
                ["Packaging and freight", "1", "148.20", "148.20"],
            ],
        ),
        ("p", "Subtotal: 1,986.20 EUR\nVAT 19 %: 377.38 EUR\nTotal: 2,363.58 EUR"),
        (
            "p",
            (
                "Please transfer the total to the account that you have on file for Example Trading Ltd, and quote the"
                " number of this invoice. Goods remain our property until they have been paid for in full."
            ),
        ),
    ],
    [
        ("h1", "Terms of delivery"),
        ("h2", "Payment"),
        (
            "p",
            (
                "Payment is due within thirty days of the date of the invoice. Where a payment is late, interest of"
                " five percent a year is added from the day after the due date. A discount of two percent may be taken"
                " when the whole amount arrives within ten days."
            ),
        ),
        ("h2", "Delivery"),
        (
            "p",
            (
                "Goods are delivered to the loading bay at Placeholder Industries, gate 7, between 08:00 and 16:30 on"
                " working days. The customer checks each delivery on arrival and reports visible damage within"
                " three days; hidden damage must be reported within fourteen days of its discovery."
            ),
        ),
        ("h2", "Warranty"),
        (
            "p",
            (
                "Brackets and cables carry a warranty of twenty-four months. It does not cover wear, misuse, or"
                " changes made by others. Repairs are carried out at our workshop; the cost of transport is shared"
                " equally between both parties."
            ),
        ),
        ("p", "Questions? Write to accounts@trading.example and name order 88-4410-B."),
    ],
]
NOTICE: list[list[Block]] = [
    [
        ("h1", "采购合同通知书"),
        ("p", "合同编号：示例-2024-0117"),
        ("p", "甲方：示例贸易有限公司\n乙方：样本工业股份有限公司"),
        (
            "p",
            (
                "根据双方友好协商，甲方同意向乙方供应下列货物，乙方应当在收到货物之后三十日以内支付全部货款。"
                "如果逾期付款，每逾期一日按照未付金额的千分之一支付违约金。"
            ),
        ),
        ("h2", "一、货物清单"),
        (
            "table",
            [
                ["货物名称", "数量", "单价", "金额"],
                ["钢制支架", "120", "3.15", "378.00"],
                ["铜芯电缆", "250", "1.84", "460.00"],
                ["现场安装", "16", "62.50", "1000.00"],
            ],
        ),
        ("h2", "二、交货方式"),
        (
            "p",
            (
                "货物由甲方负责运输至乙方指定的仓库，运输费用由甲方承担。乙方收货时应当场检查外观，"
                "发现损坏应在三日内书面通知甲方。质量保证期为二十四个月，自验收合格之日起计算。"
            ),
        ),
        ("p", "合计金额：人民币壹仟捌佰叁拾捌元整"),
        ("p", "签订日期：2024年2月29日"),
    ]
]


# ---- Pages ----------------------------------------------------------------------------------------------------------
class Paper(FPDF):
    """A4 pages in one typeface. The output is the same in each run."""

    def __init__(self, *, chinese: bool = False) -> None:
        super().__init__(format="A4")
        self.typeface = "Helvetica"
        if chinese:
            self.typeface = "Noto"
            self.add_font("Noto", fname=CJK, collection_font_number=SIMPLIFIED)
        self.bold = "" if chinese else "B"
        self.set_margins(22, 24)
        self.set_creation_date(datetime(2024, 2, 29, tzinfo=UTC))

    def add_blocks(self, blocks: list[Block]) -> None:
        self.add_page()
        for style, content in blocks:
            if isinstance(content, str):
                self.write_text(style, content)
            else:
                self.draw_table(content)
            self.ln(4)

    def write_text(self, style: str, text: str) -> None:
        size = {"h1": 20, "h2": 14, "p": 11}[style]
        self.set_font(self.typeface, self.bold if style != "p" else "", size)
        wrap = WrapMode.CHAR if self.typeface == "Noto" else WrapMode.WORD
        self.multi_cell(0, size * 0.52, text, new_x="LMARGIN", new_y="NEXT", align="L", wrapmode=wrap)

    def draw_table(self, rows: Table) -> None:
        self.set_font(self.typeface, "", 11)
        heading = FontFace(emphasis=self.bold or None)
        alignment = ("LEFT", *["RIGHT"] * 3)
        with self.table(
            col_widths=(46, 18, 18, 18), line_height=8, text_align=alignment, headings_style=heading
        ) as table:
            for cells in rows:
                table.row(list(cells))


def printed(pages: list[list[Block]], *, chinese: bool = False, attached: dict[str, bytes] | None = None) -> bytes:
    paper = Paper(chinese=chinese)
    for blocks in pages:
        paper.add_blocks(blocks)
    for name, content in (attached or {}).items():
        attach(paper, name, content)
    return bytes(paper.output())


def attach(paper: FPDF, name: str, content: bytes) -> None:
    """Embed a file, like the XML of an e-invoice."""
    paper.embed_file(
        bytes=content,
        basename=name,
        mime_type="text/xml",
        creation_date=datetime(2024, 2, 29, tzinfo=UTC),
        compress=True,
        checksum=False,
    )


def true_text(pages: list[list[Block]]) -> str:
    return "\f".join("\n".join(map(lines_of, blocks)) + "\n" for blocks in pages)


def lines_of(block: Block) -> str:
    _, content = block
    return content if isinstance(content, str) else "\n".join("\t".join(row) for row in content)


# ---- Scans ----------------------------------------------------------------------------------------------------------
def scanned(document: bytes) -> list[Image.Image]:
    """Return the pages as images from a mediocre scanner: slightly rotated, blurred, gray, and dusty."""
    generator = random.Random(17)
    with pypdfium2.PdfDocument(document) as pdf:
        sheets = [page.render(scale=DPI / 72, grayscale=True).to_pil() for page in pdf]
    return [degrade(sheet, generator) for sheet in sheets]


def degrade(sheet: Image.Image, generator: random.Random) -> Image.Image:
    turned = sheet.rotate(generator.uniform(0.3, 0.6), resample=Image.Resampling.BICUBIC, fillcolor=255)
    soft = turned.filter(ImageFilter.GaussianBlur(0.8)).point(lambda level: 20 + level * 225 // 255)
    draw = ImageDraw.Draw(soft)
    for _ in range(350):
        x, y, size = generator.randrange(soft.width), generator.randrange(soft.height), generator.choice((0, 1, 1, 2))
        draw.ellipse((x, y, x + size, y + size), fill=generator.randrange(60, 190))
    return soft


def as_jpeg(sheet: Image.Image) -> bytes:
    buffer = io.BytesIO()
    sheet.save(buffer, "JPEG", quality=40, optimize=True, dpi=(DPI, DPI))
    return buffer.getvalue()


def on_pages(sheets: list[Image.Image], *, before: list[list[Block]] | None = None) -> bytes:
    """Return a PDF with optional text pages, followed by pages that only have an image."""
    paper = Paper()
    for blocks in before or []:
        paper.add_blocks(blocks)
    for sheet in sheets:
        paper.add_page()
        paper.image(io.BytesIO(as_jpeg(sheet)), x=0, y=0, w=paper.w, h=paper.h)
    return bytes(paper.output())


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    invoice, notice = printed(INVOICE), printed(NOTICE, chinese=True)
    sheets = scanned(invoice)
    files = {
        "invoice.pdf": invoice,
        "invoice-scan.pdf": on_pages(sheets),
        "invoice-mixed.pdf": on_pages(sheets[1:], before=INVOICE[:1]),
        # `einvoice.xml` was written by hand.
        "einvoice.pdf": printed(INVOICE, attached={"factur-x.xml": (FOLDER / "einvoice.xml").read_bytes()}),
        "invoice.txt": true_text(INVOICE).encode(),
        "notice-zh.pdf": notice,
        "notice-zh-scan.jpg": as_jpeg(scanned(notice)[0]),
        "notice-zh.txt": true_text(NOTICE).encode(),
    }
    for name, content in files.items():
        (FOLDER / name).write_bytes(content)
        print(f"{name:24}{len(content):10,} bytes")  # noqa: T201 - an interactive program


if __name__ == "__main__":
    main()
