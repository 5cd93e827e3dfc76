"""A convergence study as Markdown, CSV and training curves."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from skindx.core.atomic_files import write_csv, write_text
from skindx.evaluation.figures import FIGURES
from skindx.metrics import Interval
from skindx_bench.convergence.pairs import JUDGED, Compared
from skindx_bench.harness.writing import markdown_table, new_plot, write_plot

# R = runs, E = epochs

History = Sequence[Mapping[str, float]]

_CURVES = {"loss": "training loss", "val_balanced": "balanced accuracy on validation, %"}


@dataclass(frozen=True, slots=True)
class Run:
    """One training of an arm: its test figures by the keys of JUDGED, and its history."""

    arm: str
    fold: int
    seed: int
    figures: Mapping[str, float]
    history: History


def verdict(compared: Compared, margin: float) -> bool:
    """Whether both intervals exclude a loss of `margin` percentage points or more.

    False for a baseline that has learned less than the margin: it has nothing to lose.
    """
    return compared.lower > -margin / 100 and compared.learned > margin / 100


def write_tables(
    out: Path, runs: Mapping[str, Sequence[Run]], compared: Sequence[Compared], margin: float
) -> None:
    """Write convergence.md, convergence.csv (one row a run) and convergence.png into `out`."""
    write_text(out / "convergence.md", markdown(runs, compared, margin))
    rows = [
        (run.arm, run.fold, run.seed, *(run.figures[key] for key in JUDGED), len(run.history))
        for own in runs.values()
        for run in own
    ]
    write_csv(out / "convergence.csv", ("arm", "fold", "seed", *JUDGED, "epochs"), rows)
    histories = {arm: [run.history for run in own] for arm, own in runs.items()}
    _draw(out / "convergence.png", histories)


def markdown(runs: Mapping[str, Sequence[Run]], compared: Sequence[Compared], margin: float) -> str:
    """Return two tables: how each arm does, and each arm against its baseline."""
    titles = [FIGURES[key].title for key in JUDGED]
    headings = ("arm", "runs", *(f"{title}, %" for title in titles), "images/s")
    rows = [
        (
            arm,
            str(len(own)),
            *(_spread([run.figures[key] for run in own]) for key in JUDGED),
            f"{speed(own):.0f}",
        )
        for arm, own in runs.items()
    ]
    return f"{markdown_table(headings, rows)}\n{_comparisons(compared, margin)}"


def _comparisons(compared: Sequence[Compared], margin: float) -> str:
    headings = (
        "arm minus baseline", "figure", "points [95 %, runs and images]", "[95 %, runs]",
        f"loses less than {margin:g} points",
    )  # fmt: skip
    rows = [
        (
            f"{pair.arm} − {pair.baseline}",
            FIGURES[pair.key].title,
            f"{100 * pair.over_both.value:+.2f} {_bounds(pair.over_both)}",
            _bounds(pair.over_runs),
            "yes" if verdict(pair, margin) else "not shown",
        )
        for pair in compared
    ]
    return markdown_table(headings, rows)


def _bounds(interval: Interval) -> str:
    return f"[{100 * interval.low:+.2f}, {100 * interval.high:+.2f}]"


def _spread(values_R: Sequence[float]) -> str:
    return f"{100 * statistics.fmean(values_R):.1f} ± {100 * statistics.stdev(values_R):.1f}"


def speed(runs: Sequence[Run]) -> float:
    """Return the median speed of an arm's epochs, training images a second."""
    return statistics.median(row["pictures_per_s"] for run in runs for row in run.history)


def curve_RE(histories: Sequence[History], key: str) -> NDArray[np.float64]:  # noqa: N802
    """Return one figure of every run's epochs; runs of one arm have as many."""
    return np.array([[row.get(key, np.nan) for row in history] for history in histories])


def _draw(path: Path, arms: Mapping[str, Sequence[History]]) -> None:
    """Draw loss and validation by epoch: the mean of each arm's runs, one deviation around it."""
    figure = new_plot(10, 4.2)
    for axes, (key, title) in zip(figure.subplots(1, len(_CURVES)), _CURVES.items(), strict=True):
        for number, (arm, histories) in enumerate(arms.items()):
            values_RE = curve_RE(histories, key) * (1 if key == "loss" else 100)
            mean_E, band_E = values_RE.mean(axis=0), values_RE.std(axis=0)
            epochs_E = np.arange(1, len(mean_E) + 1)
            colour = f"C{number}"
            axes.plot(epochs_E, mean_E, color=colour, label=f"{arm} ({len(histories)} runs)")
            axes.fill_between(
                epochs_E, mean_E - band_E, mean_E + band_E, color=colour, alpha=0.18, linewidth=0
            )
        axes.set_xlabel("epoch")
        axes.set_ylabel(title)
        axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    write_plot(path, figure)
