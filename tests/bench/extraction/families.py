"""Thirteen families of documents, each generated from a seed with its ground truth."""

from dataclasses import dataclass, replace
from random import Random
from typing import Any

from tests.bench.extraction import pdf
from tests.bench.extraction.documents import Document, Paper, Place, Row
from tests.bench.extraction.kinds import KINDS, Item, cells, printed
from tests.bench.extraction.languages import ENGLISH, FRENCH, GERMAN, SELLERS, Language


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A family of documents.

    - `form`: the layout of rows.
    - `heads`: whether only the first page or every page has a table head.
    - `has_carried`: whether subtotals are carried forward.
    - `duplicates`: share of rows that equal an earlier row.
    - `continued`: share of rows with a cell of two lines.
    - `is_broken`: whether items continue across page breaks.
    """

    name: str
    language: Language
    kind: str
    form: str  # pipe, aligned, html, blocks, pdf
    pages: int
    per_page: int = 30  # lines of text
    heads: str = "first"
    has_carried: bool = False
    duplicates: float = 0.0
    continued: float = 0.0
    is_broken: bool = False


FAMILIES = (
    Family(name="invoice-en-carried", language=ENGLISH, kind="invoice", form="pipe", pages=40, has_carried=True),
    Family(
        name="invoice-de-repeated",
        language=GERMAN,
        kind="invoice",
        form="pipe",
        pages=20,
        heads="every",
        duplicates=0.2,
    ),
    Family(name="invoice-fr-blocks", language=FRENCH, kind="invoice", form="blocks", pages=24, per_page=36),
    Family(name="invoice-en-pdf", language=ENGLISH, kind="invoice", form="pdf", pages=6, has_carried=True),
    Family(
        name="statement-en-aligned",
        language=ENGLISH,
        kind="statement",
        form="aligned",
        pages=30,
        heads="every",
        has_carried=True,
    ),
    Family(name="statement-de-signs", language=GERMAN, kind="statement", form="pipe", pages=30, has_carried=True),
    Family(name="statement-fr-html", language=FRENCH, kind="statement", form="html", pages=16),
    Family(name="inventory-en-long", language=ENGLISH, kind="inventory", form="pipe", pages=120, per_page=14),
    Family(
        name="inventory-de-cells",
        language=GERMAN,
        kind="inventory",
        form="pipe",
        pages=12,
        heads="every",
        continued=0.3,
    ),
    Family(name="inventory-en-groups", language=ENGLISH, kind="branches", form="pipe", pages=40),
    Family(
        name="inventory-fr-broken",
        language=FRENCH,
        kind="inventory",
        form="blocks",
        pages=10,
        per_page=31,
        is_broken=True,
    ),
    Family(name="contract-en-amended", language=ENGLISH, kind="contract", form="blocks", pages=12, duplicates=0.1),
    Family(name="contract-de-annex", language=GERMAN, kind="contract", form="aligned", pages=3),
)
QUICK = ("invoice-en-carried", "invoice-en-pdf", "invoice-fr-blocks", "contract-en-amended")
INDENT = "    "


def document(family: Family, *, seed: int, pages: int | None = None) -> Document:
    """Generate a document of a family."""
    return Writer(family, seed=seed, pages=pages or family.pages).write()


class Writer:
    """Generator of one document."""

    def __init__(self, family: Family, *, seed: int, pages: int) -> None:
        self.family, self.page_count = family, pages
        self.language, self.kind = family.language, KINDS[family.kind]
        self.rng = Random(f"{seed} {family.name} {pages}")
        self.number = f"{family.kind[:2].upper()}-{self.rng.randrange(10_000, 99_999)}"
        self.running = [SELLERS[self.language.code], f"{self.language.labels['number']} {self.number}"]
        self.paper = Paper(head=self.running[:1], foot=self.language.page, lines_per_page=family.per_page)
        suffix = {"pdf": "pdf", "aligned": "txt", "blocks": "txt"}.get(family.form, "md")
        self.document = Document(
            family=family.name, filename=f"{family.name}-{pages}.{suffix}", schema=self.kind.schema, pages=pages
        )
        self.count, self.sum, self.balance = 0, 0.0, 0.0
        self.earlier: list[Item] = []
        self.groups: dict[str, str] = {}

    def write(self) -> Document:
        self.first_page()
        self.fill()
        while self.paper.number < self.page_count:
            if not self.is_new:
                self.next_page()
            self.fill()
        self.end_table()
        self.last_page()
        result = self.document
        result.text = self.paper.text()
        result.content = pdf.printed(self.paper) if self.family.form == "pdf" else result.text.encode()
        return result

    @property
    def is_new(self) -> bool:
        """Return whether the last item continued on the current page, so that the page is already new."""
        return self.family.is_broken and self.paper.remaining_lines >= self.paper.size - 2

    # ---- Scalars ----------------------------------------------------------------------------------------------------
    def scalar(self, pointer: str, value: Any) -> None:
        """Print a value with its label. If a value is printed again, the last one is the truth."""
        name = pointer.removeprefix("/")
        place = self.paper.add(f"{self.language.labels[name]}: {printed(name, value, self.language)}")
        if self.document.scalars.get(pointer) != value:
            self.document.shown[pointer] = []
        self.document.scalars[pointer] = value
        self.document.shown[pointer].append(place)

    def first_page(self) -> None:
        self.paper.add(f"# {self.running[0]}" if self.family.form in ("pipe", "html") else self.running[0])
        for pointer, value in self.beginning().items():
            self.scalar(pointer, value)
        self.paper.add()
        if self.family.form != "blocks":
            self.head()

    def beginning(self) -> dict[str, Any]:
        rng = self.rng
        match self.family.kind:
            case "invoice":
                return {"/number": self.number, "/issue_date": "2024-03-04"}
            case "statement":
                self.balance = rng.randrange(100_00, 9_000_00) / 100
                return {"/account": f"{self.rng.randrange(10**9, 10**10)}", "/opening_balance": self.balance}
            case "inventory" | "branches":
                return {"/warehouse": f"{SELLERS[self.language.code]} 7", "/date": "2024-12-31"}
        return {
            "/number": self.number,
            "/supplier/name": f"{SELLERS[self.language.code]} Alpha",
            "/supplier/tax_id": f"{rng.randrange(10**8, 10**9)}",
            "/contract_value": 100_000.0 + rng.randrange(1000),
            "/renewal": False,
        }

    def last_page(self) -> None:
        self.paper.add()
        match self.family.kind:
            case "invoice":
                self.scalar("/total", round(self.sum, 2))
            case "statement":
                self.scalar("/closing_balance", round(self.balance, 2))
            case "inventory" | "branches":
                self.scalar("/total", round(self.sum))
            case _ if self.page_count > 1:
                self.scalar("/supplier/name", f"{SELLERS[self.language.code]} Beta")
                self.scalar("/supplier/tax_id", f"{self.rng.randrange(10**8, 10**9)}")
                self.scalar("/contract_value", 120_000.0 + self.rng.randrange(1000))

    # ---- Pages ------------------------------------------------------------------------------------------------------
    def next_page(self) -> None:
        if self.family.has_carried:
            self.print_subtotal(self.language.carried)
            if self.family.kind == "statement":
                self.end_table()
                self.paper.add()
                self.scalar("/closing_balance", round(self.balance, 2))
        self.end_table()
        self.paper.new_page()
        if self.family.form == "html":
            self.paper.add("<table>")
        if self.family.heads == "every":
            self.head()
        if self.family.has_carried:
            self.print_subtotal(self.language.brought)

    def print_subtotal(self, label: str) -> None:
        """Print a subtotal as a row of the table."""
        running = self.balance if self.family.kind == "statement" else self.sum
        texts = signed({"balance": self.language.number(running)}, self.language)
        shown = {self.kind.columns[0]: label, self.kind.columns[-1]: texts["balance"]}
        self.row({name: shown.get(name, "") for name in self.kind.columns})

    def fill(self) -> None:
        """Fill the page with items. A third of the last page stays empty."""
        page, is_last = self.paper.number, self.paper.number == self.page_count
        reserve = self.paper.size // 3 if is_last else 3 if self.family.has_carried else self.item_lines()
        while self.paper.number == page and self.paper.remaining_lines > (0 if self.breaks(page) else reserve):
            self.item()

    def breaks(self, page: int) -> bool:
        """Return whether the last item of a page continues on the next one."""
        return self.family.is_broken and page < self.page_count

    def item_lines(self) -> int:
        return 3 if self.family.form == "blocks" else 2 if self.family.continued else 1

    # ---- Items ------------------------------------------------------------------------------------------------------
    def item(self) -> None:
        item = self.next_item()
        self.group_rows(item)
        self.sum += item.values[self.kind.running]
        places = self.block(item) if self.family.form == "blocks" else self.table_row(item)
        self.document.rows.append(Row(values=item.values, places=places))
        self.count += 1

    def group_rows(self, item: Item) -> None:
        """Print the groups that begin with an item, each in a separate row."""
        for name in self.kind.groups:
            if self.groups.get(name) != item.printed[name]:
                label = f"{self.language.labels[name]}: {item.printed[name]}"
                self.row({**dict.fromkeys(self.kind.columns, ""), self.kind.columns[0]: label})
                self.groups[name] = item.printed[name]

    def next_item(self) -> Item:
        is_repeated = self.earlier and self.rng.random() < self.family.duplicates
        result = self.rng.choice(self.earlier) if is_repeated else self.kind.make(self.rng, self.language, self.count)
        if self.family.kind == "statement":
            self.balance = round(self.balance + result.values["amount"], 2)
            values = {**result.values, "balance": self.balance}
            result = replace(result, values=values, printed=signed(cells(values, self.language), self.language))
        if is_repeated and self.rng.random() < 0.2 and self.family.kind == "invoice":
            sku = result.values["sku"].lower()  # a different article, because case matters
            result = Item(values={**result.values, "sku": sku}, printed={**result.printed, "sku": sku})
        self.earlier.append(result)
        return result

    def block(self, item: Item) -> dict[str, Place]:
        """Print an item as three lines, without blank lines around it."""
        first, second, *rest = self.kind.columns
        shown = [name for name in rest if item.values[name] is not None]
        places: dict[str, Place] = {}
        label = "" if self.family.kind == "contract" else f"{self.language.item} "
        lines = [([first, second], f"{label}{item.printed[first]}  {item.printed[second]}")]
        for names in (shown[:-1], shown[-1:]):
            parts = [f"{self.language.labels[name]}: {item.printed[name]}" for name in names]
            lines.append((names, INDENT + INDENT.join(parts)))
        for names, line in lines:
            if self.paper.remaining_lines == 0:
                self.paper.new_page()
            place = self.paper.add(line)
            places |= dict.fromkeys(names, place)
        return places

    def table_row(self, item: Item) -> dict[str, Place]:
        texts = dict(item.printed)
        rest = ""
        if self.rng.random() < self.family.continued:
            rest = f"{self.rng.choice(('verzinkt', 'Sonderposten', 'Charge'))} {self.rng.randrange(100, 999)}"
            item.values["description"] = f"{texts['description']} {rest}"
        place = self.row(texts)
        places = {name: place for name in self.kind.columns if item.values[name] is not None}
        if rest:
            # The second line of the description.
            places[""] = self.row({name: rest if name == "description" else "" for name in self.kind.columns})
        return places

    # ---- Tables -----------------------------------------------------------------------------------------------------
    def head(self) -> None:
        labels = {name: self.language.labels[name] for name in self.kind.columns}
        if self.family.form == "html":
            self.paper.add("<table>")
        self.row(labels)
        if self.family.form in ("pipe", "pdf"):
            self.paper.add("| " + " | ".join(["---"] * len(labels)) + " |")

    def row(self, texts: dict[str, str]) -> Place:
        row_cells = [texts[name] for name in self.kind.columns]
        if self.family.form == "html":
            return self.paper.add("<tr>" + "".join(f"<td>{cell}</td>" for cell in row_cells) + "</tr>")
        if self.family.form == "aligned":
            widths = (20, 34, 22, 22, 16)
            return self.paper.add(
                "".join(cell.ljust(width) for cell, width in zip(row_cells, widths, strict=False)).rstrip()
            )
        return self.paper.add(f"| {' | '.join(row_cells)} |")

    def end_table(self) -> None:
        if self.family.form == "html" and not self.paper.pages[-1][-1].startswith("</table"):
            self.paper.add("</table>")


def signed(texts: dict[str, str], language: Language) -> dict[str, str]:
    """Return cells with negative amounts in the notation of banks."""
    style = {"en": "({})", "de": "{}-"}.get(language.code, "-{}")
    return {
        name: style.format(text[1:]) if name in ("amount", "balance") and text.startswith("-") else text
        for name, text in texts.items()
    }
