"""The curve as a plot and as a table of every subset of members."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from skindx.core.atomic_files import write_csv
from skindx.metrics import Statistic
from skindx_bench.harness.clock import Figure
from skindx_bench.harness.writing import new_plot, write_plot
from skindx_bench.model_comparison.curve import Point
from skindx_bench.model_comparison.curve_figures import Pooled
from skindx_bench.model_comparison.passes import Floats, FoldPasses

_LINES = {
    "curve_gain_mean": "over their mean member",
    "curve_gain": "over their better member, by validation",
    "curve_gain_same_cost": "over the best single network of the cost",
}
_COLUMNS = (
    "members", "count", "disagreement", "balanced_accuracy", "gain_mean", "gain_better",
    "gain_same_cost",
)  # fmt: skip


def write_curve(
    out: Path,
    folds: Sequence[FoldPasses],
    points: Sequence[Point],
    figures: Mapping[str, Figure],
) -> None:
    """Write curve.csv, a row a subset, and curve.png into `out`."""
    rows = curve_rows(folds, points)
    write_csv(out / "curve.csv", _COLUMNS, rows)
    if len(points) > 1:
        _draw(out / "curve.png", rows, figures, len(points))


def curve_rows(
    folds: Sequence[FoldPasses], points: Sequence[Point]
) -> list[tuple[str, int, float, float, float, float, float]]:
    """Return a row for each subset of members: its names, diversity, accuracy and gains."""
    pooled, names = Pooled.of(folds), folds[0].names

    def mean(values_N: Floats) -> float:
        return Statistic.class_mean(values_N, pooled.truth_N, pooled.classes).value

    return [
        (
            " ".join(names[member] for member in subset),
            point.members,
            mean(gains.disagreement_N),
            mean(gains.hits_N),
            mean(gains.over_mean_N),
            mean(gains.over_better_N),
            mean(gains.over_same_cost_N),
        )
        for point in points
        for subset, gains in zip(point.subsets, point.each, strict=True)
    ]


def _draw(
    path: Path,
    rows: Sequence[tuple[str, int, float, float, float, float, float]],
    figures: Mapping[str, Figure],
    members: int,
) -> None:
    """Draw the gain against the number of members, and against how much they disagree."""
    canvas = new_plot(11, 4.6)
    number, diversity = canvas.subplots(1, 2)
    sizes_K = np.arange(2, members + 1)
    for place, (key, title) in enumerate(_LINES.items()):
        own = [figures[f"{key}_{k}"] for k in sizes_K]
        middle_K = np.array([figure.value for figure in own])
        bounds_K2 = np.array([figure.spread for figure in own])
        errors_2K = np.abs(bounds_K2.T - middle_K)
        # Side by side, so that one bar does not hide another.
        number.errorbar(
            sizes_K + 0.12 * (place - 1), middle_K, errors_2K, fmt="o-", capsize=3, label=title,
            color=f"C{place}",
        )  # fmt: skip
    limit = figures["gain_limit_mean"].value
    grid = np.linspace(1, members + 0.5, 100)
    number.plot(grid, limit * (1 - 1 / grid), "--", color="C0", label="fit a (1 − 1/k)")
    number.axhline(limit, color="C0", linestyle=":", label=f"its limit, a = {limit:.1f} points")
    number.axhline(0, color="0.5", linewidth=0.8)
    number.set_xticks(sizes_K)
    number.set_xlabel("members of the ensemble, k")
    number.set_ylabel("gain, points of balanced accuracy")
    handles, titles = number.get_legend_handles_labels()
    canvas.legend(handles, titles, loc="outside lower center", ncols=len(titles), fontsize=8)
    several = [row for row in rows if row[1] > 1]
    drawn = diversity.scatter(
        [100 * row[2] for row in several],
        [100 * row[4] for row in several],
        c=[row[1] for row in several],
        cmap="viridis",
        vmin=1.5,
        vmax=members + 0.5,
        s=28,
    )
    canvas.colorbar(drawn, ax=diversity, label="members", ticks=sizes_K)
    diversity.set_xlabel("disagreement of two members, % of images")
    diversity.set_ylabel("gain over their mean member, points")
    for axes in (number, diversity):
        axes.grid(alpha=0.3)
    write_plot(path, canvas)
