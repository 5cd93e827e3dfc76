"""How often an interval holds the true figure: coverage by simulation, per method and size.

A population is drawn from known distributions, the true figure is that of a very large sample,
and each small sample asks whether its 95 % interval holds it. Images stand alone, or in groups of
one to four that share their class and most of their answer, as photos of one lesion do.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from skindx.core.atomic_files import write_text
from skindx.core.settings_base import Settings
from skindx.metrics import (
    Interval,
    Measure,
    Ranked,
    Statistic,
    confidence_interval,
    paired_interval,
    proportion_interval,
)
from skindx.metrics.share_intervals import Floats, Ints
from skindx_bench.harness.result import Figure, Result, markdown_table

# N = images, C = classes

_CLASSES = 4
_SHARES_C = np.array([0.5, 0.25, 0.15, 0.1])
_ALIKE = 0.7
"""Share of a group's noise that its images have in common."""


@dataclass(frozen=True)
class Sample:
    """A simulated test split: two predictors of the same images."""

    probabilities_NC: Floats
    other_NC: Floats
    truth_N: Ints
    groups_N: Ints


def _logits(random: np.random.Generator, truth_N: Ints, index_N: Ints, signal: float) -> Floats:
    groups = int(index_N.max()) + 1
    common_NC = random.standard_normal((groups, _CLASSES))[index_N]
    own_NC = random.standard_normal((len(truth_N), _CLASSES))
    noise_NC = np.sqrt(_ALIKE) * common_NC + np.sqrt(1 - _ALIKE) * own_NC
    logits_NC: Floats = signal * np.eye(_CLASSES)[truth_N] + noise_NC
    return logits_NC


def _posterior(logits_NC: Floats, signal: float, scale: float) -> Floats:
    """Return P(class | logits) for Gaussian noise of variance 1, sharpened by `scale`."""
    scores_NC = scale * (signal * logits_NC + np.log(_SHARES_C))
    scores_NC -= scores_NC.max(axis=1, keepdims=True)
    shares_NC = np.exp(scores_NC)
    probabilities_NC: Floats = shares_NC / shares_NC.sum(axis=1, keepdims=True)
    return probabilities_NC


POPULATIONS: dict[str, tuple[tuple[float, float], str]] = {
    "calibrated": ((2.0, 1.0), "calibrated, about 80 % right"),
    "overconfident": ((2.0, 2.0), "the same, twice as sure as it should be"),
    "excellent": ((3.8, 1.0), "calibrated, about 99 % right"),
}
"""Name -> (signal, sharpening), and what it is."""


def draw(population: str, size: int, *, grouped: bool, seed: int) -> Sample:
    """Draw `size` images, alone or in groups of one to four that share class and noise."""
    (signal, scale), _ = POPULATIONS[population]
    random = np.random.default_rng(seed)
    index_N = np.arange(size)
    if grouped:
        index_N = np.repeat(np.arange(size), random.choice([1, 1, 1, 2, 3, 4], size))[:size]
    truth_N = random.choice(_CLASSES, size=int(index_N.max()) + 1, p=_SHARES_C)[index_N]
    logits_NC = _logits(random, truth_N, index_N, signal)
    other_NC = np.sqrt(0.7) * logits_NC + np.sqrt(0.3) * _logits(random, truth_N, index_N, signal)
    return Sample(
        _posterior(logits_NC, signal, scale),
        _posterior(other_NC / (np.sqrt(0.7) + np.sqrt(0.3)), signal, scale),
        truth_N,
        index_N,
    )


LEVEL = 0.95
ENOUGH = 0.93
"""Coverage below this labels an interval approximate."""
SMALLEST = ("sizes=[40]", "samples=20", "draws=50", "truth=2000")

# N = images, C = classes


class Config(Settings):
    """Sizes of the simulated test splits, and how many of each are drawn."""

    sizes: tuple[int, ...] = Field((11, 40, 120, 409, 2000), min_length=1)
    samples: int = Field(1000, ge=10)
    """Samples of each size, population and grouping; the largest sizes take a share of them."""
    draws: int = Field(400, ge=50)
    """Bootstrap draws of an interval."""
    truth: int = Field(400_000, ge=1000)
    """Images that stand for the population."""
    seed: int = 0
    out: Path | None = None
    """Write intervals.md here."""


Make = Callable[[Sample], Measure | tuple[Measure, Measure]]
"""Makes a measure of a sample, or two whose difference is asked for."""

METHODS: dict[str, tuple[str, Make]] = {
    "top1": (
        "share (Korn and Graubard)",
        lambda s: Statistic.top_k(s.probabilities_NC, s.truth_N, 1),
    ),
    "balanced_accuracy": (
        "mean over classes (square and add)",
        lambda s: Statistic.balanced_accuracy(s.probabilities_NC, s.truth_N),
    ),
    "calibration_error": (
        "sum of absolute gaps",
        lambda s: Statistic.calibration_error(s.probabilities_NC, s.truth_N),
    ),
    "macro_f1": ("bootstrap", lambda s: Statistic.macro_f1(s.probabilities_NC, s.truth_N)),
    "auroc": ("bootstrap", lambda s: Ranked.auroc(s.probabilities_NC, s.truth_N)),
    "brier": ("bootstrap", lambda s: Statistic.brier(s.probabilities_NC, s.truth_N)),
    "selective_risk_area": (
        "bootstrap",
        lambda s: Ranked.selective_risk_area(s.probabilities_NC, s.truth_N),
    ),
    "top1_difference": (
        "paired bootstrap",
        lambda s: (
            Statistic.top_k(s.other_NC, s.truth_N, 1),
            Statistic.top_k(s.probabilities_NC, s.truth_N, 1),
        ),
    ),
    "balanced_accuracy_difference": (
        "paired bootstrap",
        lambda s: (
            Statistic.balanced_accuracy(s.other_NC, s.truth_N),
            Statistic.balanced_accuracy(s.probabilities_NC, s.truth_N),
        ),
    ),
    "calibration_error_difference": (
        "difference of the bounds",
        lambda s: (
            Statistic.calibration_error(s.other_NC, s.truth_N),
            Statistic.calibration_error(s.probabilities_NC, s.truth_N),
        ),
    ),
}
"""Figure -> the method of its interval, and how it is made of a sample."""


@dataclass(frozen=True)
class Cell:
    """Coverage of one figure at one size."""

    figure: str
    population: str
    size: int
    grouped: bool
    samples: int
    covered: int
    width: float
    """Mean width of the intervals."""

    @property
    def coverage(self) -> Interval:
        """Share of the samples whose interval holds the true figure."""
        return proportion_interval(self.covered / self.samples, self.samples)


def run(settings: Config) -> Result:
    """Simulate every figure, population, size and grouping; the figures are the least coverages."""
    cells = [
        cell
        for population in POPULATIONS
        for grouped in (False, True)
        for cell in _cells(settings, population, grouped)
    ]
    if settings.out:
        write_text(settings.out / "intervals.md", table(cells))
    figures = {
        f"{name}_least_coverage_{size}": _least(cells, name, size)
        for name in METHODS
        for size in settings.sizes
    }
    return Result(
        "intervals",
        figures,
        notes=_notes(settings),
        models={f"cell {number}": asdict(cell) for number, cell in enumerate(cells)},
        headings=("least coverage", "95 % interval"),
    )


def cells_of(written: Mapping[str, Any]) -> list[Cell]:
    """Return the cells of a JSON that `skindx bench intervals --json FILE` wrote."""
    return [Cell(**values) for values in written["models"].values()]


def _cells(settings: Config, population: str, grouped: bool) -> list[Cell]:
    truth = draw(population, settings.truth, grouped=False, seed=settings.seed)
    true = {name: _value(make(truth)) for name, (_, make) in METHODS.items()}
    cells = []
    for size in settings.sizes:
        samples = max(
            min(settings.samples, 200), min(settings.samples, settings.samples * 200 // size)
        )
        covered, width = dict.fromkeys(METHODS, 0), dict.fromkeys(METHODS, 0.0)
        for number in range(samples):
            seed = hash((settings.seed, size, number)) % (1 << 32)
            sample = draw(population, size, grouped=grouped, seed=seed)
            for name, (_, make) in METHODS.items():
                found = _interval(make(sample), sample, settings.draws)
                covered[name] += found.low <= true[name] <= found.high
                width[name] += (found.high - found.low) / samples
        cells += [
            Cell(name, population, size, grouped, samples, covered[name], width[name])
            for name in METHODS
        ]
    return cells


def _value(made: Measure | tuple[Measure, Measure]) -> float:
    return made[0].value - made[1].value if isinstance(made, tuple) else made.value


def _interval(made: Measure | tuple[Measure, Measure], sample: Sample, draws: int) -> Interval:
    if isinstance(made, tuple):
        return paired_interval(*made, sample.groups_N, draws=draws, level=LEVEL)
    return confidence_interval(made, sample.groups_N, draws=draws, level=LEVEL)


def _least(cells: Sequence[Cell], figure: str, size: int) -> Figure:
    """Return the least coverage over populations and groupings, with its interval."""
    worst = min(
        (cell for cell in cells if (cell.figure, cell.size) == (figure, size)),
        key=lambda cell: cell.coverage.value,
    )
    found = worst.coverage
    return Figure.of(found, "%", worst.samples, 100)


def is_approximate(cell: Cell) -> bool:
    """Whether the coverage is below what is asked, beyond what the simulation may miss it by."""
    return cell.coverage.high < ENOUGH


def table(cells: Sequence[Cell]) -> str:
    """Return a Markdown table: least coverage over populations, by figure, size and grouping."""
    sizes = sorted({cell.size for cell in cells})
    shown = {(cell.figure, cell.grouped) for cell in cells}
    rows = [
        (
            name,
            method,
            "1 to 4 images" if grouped else "none",
            *(_worst(cells, name, size, grouped) for size in sizes),
        )
        for name, (method, _) in METHODS.items()
        for grouped in (False, True)
        if (name, grouped) in shown
    ]
    return markdown_table(("figure", "method", "groups", *(f"n = {n:,}" for n in sizes)), rows)


def _worst(cells: Sequence[Cell], name: str, size: int, grouped: bool) -> str:
    some = [c for c in cells if (c.figure, c.size, c.grouped) == (name, size, grouped)]
    if not some:
        return ""
    worst = min(some, key=lambda cell: cell.coverage.value)
    mark = " (approximate)" if is_approximate(worst) else ""
    return f"{100 * worst.coverage.value:.1f} %{mark}"


def _notes(settings: Config) -> tuple[str, ...]:
    names = "; ".join(f"{name}: {text}" for name, (_, text) in POPULATIONS.items())
    return (
        f"Share of samples whose {LEVEL:.0%} interval holds the true figure, the least over "
        f"populations ({names}) and over images alone and in groups; its own exact interval in "
        "brackets.",
        f"The true figure is that of {settings.truth:,} images; {settings.draws} bootstrap draws.",
        f"Below {ENOUGH:.0%} an interval is labelled approximate.",
    )
