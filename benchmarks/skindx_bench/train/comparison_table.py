"""The rows of a model comparison as figures, Markdown, CSV and a plot."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skindx.core.atomic_files import write_csv, write_text
from skindx.evaluation.answers import Answers
from skindx.metrics import Interval, Statistic, paired_interval
from skindx_bench.harness.pooled_folds import FoldFigure, Pooled, images_of_all
from skindx_bench.harness.result import Figure, markdown_table, new_plot, write_plot

ENSEMBLE = "ensemble"


@dataclass(frozen=True, slots=True)
class ModelRow:
    """One model over all folds; what only a single network has is None for the ensemble."""

    name: str
    scores: Pooled
    model: str = ""
    size: int | None = None
    """Side of the images, pixels."""
    parameters: int | None = None
    flops: int | None = None
    """Operations of one forward pass."""
    validation: float | None = None
    """Balanced accuracy on the validation splits, mean of the folds."""
    train_per_s: Figure | None = None
    infer_per_s: Figure | None = None
    minutes: float | None = None
    memory_gb: float | None = None
    """Peak of a rank while it trains: the GPU's memory, or the process's on a CPU."""
    joules_per_picture: float | None = None
    """While training; None where no sensor can be read."""

    @property
    def balanced(self) -> FoldFigure:
        """Balanced accuracy on the test splits."""
        return self.scores.figures["balanced_accuracy"]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        figures = {
            key: {
                "mean": figure.mean,
                "pooled": figure.pooled.value,
                "low": figure.pooled.low,
                "high": figure.pooled.high,
                "folds": list(figure.folds),
            }
            for key, figure in self.scores.figures.items()
        }
        return {
            "model": self.model,
            "size": self.size,
            **figures,
            "validation_balanced": self.validation,
            "parameters": self.parameters,
            "flops": self.flops,
            "train_pictures_per_s": self.train_per_s.value if self.train_per_s else None,
            "inference_pictures_per_s": self.infer_per_s.value if self.infer_per_s else None,
            "minutes": self.minutes,
            "peak_memory_gb": self.memory_gb,
            "joules_per_picture": self.joules_per_picture,
        }


_COLUMNS = (
    "model", "px", "parameters, M", "GFLOP", "top-1, %", "balanced accuracy, %",
    "calibration error", "training, images/s", "inference, images/s", "minutes",
    "peak memory, GB", "J/image",
)  # fmt: skip


def cells(row: ModelRow) -> list[str]:
    """Return a row's texts, in the order of the columns."""
    name = f"{row.name} ({row.model})" if row.model and row.model != row.name else row.name
    figures = row.scores.figures
    return [
        name,
        _number(row.size, "d"),
        _number(row.parameters and row.parameters / 1e6, ".2f"),
        _number(row.flops and row.flops / 1e9, ".2f"),
        _percent(figures["top1"]),
        _percent(figures["balanced_accuracy"]),
        _pooled(figures["calibration_error"].pooled),
        _number(row.train_per_s.value if row.train_per_s else None, ".0f"),
        _number(row.infer_per_s.value if row.infer_per_s else None, ".0f"),
        _number(row.minutes, ".1f"),
        _number(row.memory_gb, ".2f"),
        "" if row.name == ENSEMBLE else _number(row.joules_per_picture, ".2f") or "unavailable",
    ]


def _percent(figure: FoldFigure) -> str:
    low, high = 100 * figure.pooled.low, 100 * figure.pooled.high
    return f"{100 * figure.mean:.1f} [{low:.1f}, {high:.1f}]"


def _pooled(interval: Interval) -> str:
    return f"{interval.value:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def markdown(rows: Sequence[ModelRow]) -> str:
    """Return the table as Markdown."""
    return markdown_table(_COLUMNS, [cells(row) for row in rows])


def write_tables(out: Path, rows: Sequence[ModelRow]) -> None:
    """Write zoo.md, zoo.csv and zoo.png into `out`."""
    write_text(out / "zoo.md", markdown(rows))
    plain = [{"name": row.name, **_flat(row)} for row in rows]
    write_csv(out / "zoo.csv", plain[0], (row.values() for row in plain))
    _plot(out / "zoo.png", rows)


def _flat(row: ModelRow) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in row.to_dict().items():
        if isinstance(value, dict):
            flat |= {f"{key}_{part}": value[part] for part in ("mean", "pooled", "low", "high")}
        else:
            flat[key] = value
    return flat


def _plot(path: Path, rows: Sequence[ModelRow]) -> None:
    """Draw balanced accuracy against inference speed; the ensemble is a line, it is no network."""
    canvas = new_plot(7, 4.5)
    axes = canvas.add_subplot()
    for row in rows:
        middle = 100 * row.balanced.mean
        low, high = 100 * row.balanced.pooled.low, 100 * row.balanced.pooled.high
        if row.infer_per_s is None:
            axes.axhline(middle, color="0.4", linestyle="--", linewidth=1)
            axes.annotate(
                row.name,
                (0.99, middle),
                xycoords=("axes fraction", "data"),
                ha="right",
                va="bottom",
            )
            continue
        x = row.infer_per_s.value
        errors = [[max(0.0, middle - low)], [max(0.0, high - middle)]]
        axes.errorbar(x, middle, yerr=errors, fmt="o", capsize=3)
        axes.annotate(row.name, (x, middle), xytext=(6, 4), textcoords="offset points")
    axes.set_xscale("log")
    axes.margins(x=0.35)  # room for the names beside the points
    for which in (axes.xaxis.set_major_formatter, axes.xaxis.set_minor_formatter):
        which("{x:g}")
    axes.set_xlabel("inference, images/s (log scale)")
    axes.set_ylabel("balanced accuracy on the test folds, %")
    axes.grid(alpha=0.3)
    write_plot(path, canvas)


def figures_of(rows: Sequence[ModelRow], answers: Sequence[Answers]) -> dict[str, Figure]:
    """Return the headline figures: the member that validation would choose, and the ensemble."""
    singles = [row for row in rows if row.name != ENSEMBLE]
    chosen = max(singles, key=lambda row: row.validation or 0.0)
    best = max(singles, key=lambda row: row.balanced.mean)
    gain = difference(answers, best.name)
    n = len(answers)
    ensemble = rows[-1].scores.figures
    return {
        "best_by_validation_balanced": _figure(100 * chosen.balanced.mean, chosen.balanced.pooled),
        "ensemble_balanced": _figure(
            100 * ensemble["balanced_accuracy"].mean, ensemble["balanced_accuracy"].pooled
        ),
        "ensemble_minus_best_balanced": Figure.of(gain, "points", n, 100),
        "ensemble_calibration_error": Figure(
            ensemble["calibration_error"].pooled.value,
            "",
            n,
            (
                ensemble["calibration_error"].pooled.low,
                ensemble["calibration_error"].pooled.high,
            ),
        ),
    }


def _figure(percent: float, pooled: Interval) -> Figure:
    return Figure(percent, "%", 1, (100 * pooled.low, 100 * pooled.high))


def difference(answers: Sequence[Answers], name: str) -> Interval:
    """Return the balanced accuracy of the ensembles minus a member's, paired over all folds."""
    truth_N, groups_N, ensemble_NC = images_of_all(answers)
    *_, member_NC = images_of_all([alone_in(fold, name) for fold in answers])
    return paired_interval(
        Statistic.balanced_accuracy(ensemble_NC, truth_N),
        Statistic.balanced_accuracy(member_NC, truth_N),
        groups_N,
    )


def alone_in(answers: Answers, name: str) -> Answers:
    """Return the answers of one member as those of the whole predictor."""
    own_NC = answers.members_NMC[:, answers.members.index(name)]
    return dataclasses.replace(answers, ensemble_NC=own_NC)
