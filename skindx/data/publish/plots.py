"""The card's plots: images by class, by size, by skin type and by licence."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from skindx.data.manifest import SPLITS
from skindx.data.publish.row import Row
from skindx.taxonomy import Taxonomy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

PLOTS = "plots"
_COLOURS = ("#1b4965", "#5fa8d3", "#cae9ff", "#e07a5f")
_WITHHELD = "#c9c9c9"


def write_plots(folder: Path, rows: Sequence[Row], taxonomy: Taxonomy) -> list[str]:
    """Write plots/*.png; return their names without suffix. Raises UserError without matplotlib."""
    (folder / PLOTS).mkdir()
    published = [row for row in rows if not row.withheld]
    figures: dict[str, Figure] = {}
    if published:
        figures |= {"classes": _classes(published, taxonomy), "sizes": _sizes(published)}
    if any(row.skin_type for row in published):
        figures["skin_types"] = _skin_types(published)
    if rows:
        figures["licences"] = _licences(rows)
    for name, figure in figures.items():
        # Without the program's name in it, so that equal plots are equal bytes.
        figure.savefig(folder / PLOTS / f"{name}.png", dpi=110, metadata={"Software": None})
    return list(figures)


def _figure(height: float) -> "tuple[Figure, Axes]":
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _count_along(axis: "Axis") -> None:
    """Let an axis show whole numbers only: there is no half image."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=8, integer=True))


def _classes(rows: Sequence[Row], taxonomy: Taxonomy) -> "Figure":
    counts = Counter((row.label, row.split) for row in rows)
    series: dict[str, list[int]] = {
        split: [counts[key, split] for key in taxonomy.keys] for split in SPLITS
    }
    colours = dict(zip(series, _COLOURS, strict=True))
    return _bars([disease.name for disease in taxonomy.classes], series, colours)


def _licences(rows: Sequence[Row]) -> "Figure":
    names = sorted({row.licence for row in rows})
    counts = Counter((row.licence, bool(row.withheld)) for row in rows)
    series = {
        "published": [counts[name, False] for name in names],
        "withheld": [counts[name, True] for name in names],
    }
    return _bars(names, series, {"published": _COLOURS[0], "withheld": _WITHHELD})


def _bars(
    names: Sequence[str], series: Mapping[str, Sequence[int]], colours: Mapping[str, str]
) -> "Figure":
    """Draw one stacked horizontal bar a name, the first name on top, its total at the end."""
    figure, axes = _figure(0.32 * len(names) + 1.2)
    places, ends = range(len(names)), [0] * len(names)
    for title, values in series.items():
        if any(values):
            axes.barh(places, values, left=ends, color=colours[title], label=title, height=0.7)
            ends = [end + value for end, value in zip(ends, values, strict=True)]
    for place, end in enumerate(ends):
        axes.annotate(
            str(end), (end, place), xytext=(4, 0), textcoords="offset points", va="center"
        )
    axes.set_yticks(places, names, parse_math=False)
    axes.set_xlabel("images")
    _count_along(axes.xaxis)
    axes.set_xlim(0, 1.1 * max(ends))
    axes.set_ylim(len(names) - 0.4, -0.6)
    figure.legend(frameon=False, loc="outside upper right", ncols=len(series))
    return figure


def _sizes(rows: Sequence[Row]) -> "Figure":
    figure, axes = _figure(2.8)
    sides = [min(row.width, row.height) for row in rows]
    axes.hist(sides, bins=40, range=(0, 1.05 * max(sides)), color=_COLOURS[0])
    _count_along(axes.yaxis)
    axes.set_xlabel("shorter side, pixels")
    axes.set_ylabel("images")
    return figure


def _skin_types(rows: Sequence[Row]) -> "Figure":
    figure, axes = _figure(2.8)
    counts = Counter(row.skin_type for row in rows)
    kinds = (*range(1, 7), None)
    values = [counts[kind] for kind in kinds]
    names = ["I", "II", "III", "IV", "V", "VI", "not known"]
    bars = axes.bar(names, values, color=[_COLOURS[0]] * 6 + [_WITHHELD])
    axes.bar_label(bars)
    axes.set_xlabel("Fitzpatrick skin type, where a person said so")
    axes.set_ylabel("images")
    axes.margins(y=0.12)
    _count_along(axes.yaxis)
    return figure
