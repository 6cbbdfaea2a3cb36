"""Benchmark reports: bounds, tables, and curves, printed as Markdown, and saved as JSON to compare runs."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any


@dataclass(frozen=True)
class Bound:
    """A row of the summary. `number`: the benchmark's ID. `most`: the bound, or None for information only."""

    number: str
    what: str
    value: float
    most: float | None = None
    unit: str = "×"

    @property
    def verdict(self) -> str:
        if self.most is None:
            return "info"
        return "pass" if self.value <= self.most else "missed"


@dataclass(frozen=True)
class Table:
    title: str
    header: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class Curve:
    """A curve of a plot. Curves with the same `plot` are drawn together."""

    plot: str
    name: str
    x: list[float]
    y: list[float]
    x_label: str
    y_label: str


@dataclass
class Report:
    bounds: list[Bound] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
    series: dict[str, list[float]] = field(default_factory=dict)  # every single measurement
    notes: list[str] = field(default_factory=list)

    def bound(self, number: str, what: str, value: float, most: float | None = None, *, unit: str = "×") -> None:
        self.bounds.append(Bound(number, what, value, most, unit))

    def table(self, title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        self.tables.append(Table(title, list(header), [[str(cell) for cell in row] for row in rows]))

    def times(
        self,
        number: str,
        measured: Mapping[str, Sequence[float]],
        *,
        title: str = "",
        unit: str = "seconds",
        digits: int = 3,
    ) -> None:
        """Record alternating measurements, and add a table with medians, ranges, and ratios to the first entry."""
        first = median(next(iter(measured.values())))
        rows = []
        for name, values in measured.items():
            self.series[f"{number} {name}"] = list(values)
            middle = median(values)
            span = f"{min(values):.{digits}f} to {max(values):.{digits}f}"
            rows.append([name, f"{middle:.{digits}f}", span, f"{middle / first:.2f}"])
        rounds = len(next(iter(measured.values())))
        self.table(title or f"{number}, median of {rounds}, alternating", ["", unit, "range", "relative"], rows)

    def add(self, other: "Report") -> None:
        self.bounds += other.bounds
        self.tables += other.tables
        self.curves += other.curves
        self.series |= other.series
        self.notes += other.notes

    def save(self, file: Path, **more: Any) -> None:
        file.write_text(json.dumps({**more, **asdict(self)}, indent=1))

    @classmethod
    def load(cls, file: Path) -> "Report":
        read = json.loads(file.read_text())
        return cls(
            bounds=[Bound(**each) for each in read["bounds"]],
            tables=[Table(**each) for each in read["tables"]],
            curves=[Curve(**each) for each in read["curves"]],
            series=read["series"],
            notes=read["notes"],
        )

    # ---- Markdown ----------------------------------------------------------------------------------------------------
    def text(self, *, judged: bool) -> str:
        """Return the report in the Markdown of docs/benchmarks.md. `judged`: whether to add verdicts."""
        parts = [in_columns(table.title, table.header, table.rows) for table in self.tables]
        parts += self.notes
        lines = [
            [bound.number, bound.what, figure(bound.value, bound.unit), limit(bound), bound.verdict if judged else ""]
            for bound in self.bounds
        ]
        return "\n\n".join([*parts, in_columns("Summary", ["", "metric", "measured", "bound", ""], lines)])


def figure(value: float, unit: str) -> str:
    digits = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:,.{digits}f}{unit if unit == '×' else f' {unit}'}"


def limit(bound: Bound) -> str:
    return (
        "" if bound.most is None else f"at most {bound.most:.4g}{bound.unit if bound.unit == '×' else f' {bound.unit}'}"
    )


def in_columns(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    rows = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"

    return "\n".join([f"{title}\n", line(header), line(["-" * width for width in widths]), *map(line, rows)])
