"""Plots of the curves of benchmark reports."""

from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from matplotlib.figure import Figure

from tests.bench.report import Curve

WIDE = 20  # an axis with a larger ratio between its ends is logarithmic


def draw(curves: Iterable[Curve], folder: Path) -> list[Path]:
    """Draw one PNG with all plots side by side. Return its path, or an empty list without curves."""
    plots = [
        list(group) for _, group in groupby(sorted(curves, key=lambda each: each.plot), key=lambda each: each.plot)
    ]
    if not plots:
        return []
    picture = Figure(figsize=(6 * len(plots), 4), layout="constrained")
    for axes, group in zip(picture.subplots(1, len(plots), squeeze=False)[0], plots, strict=True):
        for curve in group:
            axes.plot(curve.x, curve.y, marker="o", label=curve.name)
        axes.set(title=group[0].plot, xlabel=group[0].x_label, ylabel=group[0].y_label)
        if max(group[0].x) > WIDE * min(group[0].x):
            axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend()
    file = folder / "curves.png"
    picture.savefig(file, dpi=120)
    return [file]
