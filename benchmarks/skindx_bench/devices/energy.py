"""Leaves one network out after the other, and models its joules from its clocks and times."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from skindx.core.errors import UserError
from skindx.core.settings_base import Settings
from skindx_bench.devices.power_model import (
    Floats,
    PowerModel,
    Readings,
    fit,
    half_width,
    is_network,
    log_errors,
    read_traces,
    readings_of,
)
from skindx_bench.harness.result import Figure, Result

SMALLEST = ("resamples=20", "synthetic=true")


class Config(Settings):
    """Where the measured joules are."""

    traces: Path | None = None
    """The folder dlbench_dvfs."""
    synthetic: bool = False
    """Use made readings instead: only to see that the bench runs."""
    resamples: int = Field(2000, ge=20)
    """Of the bootstrap over series, for the intervals of the figures."""
    seed: int = 0


@dataclass
class Scored:
    """Errors of the readings of networks that were left out, and whether intervals hold them."""

    series: list[str] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    held: list[bool] = field(default_factory=list)
    widths: list[float] = field(default_factory=list)

    def add(self, left_out: Readings, errors_n: Floats, width: float) -> None:
        """Add the readings of one network."""
        self.series += left_out.series_N.tolist()
        self.errors += np.abs(np.expm1(-errors_n)).tolist()
        self.held += (np.abs(errors_n) <= width).tolist()
        self.widths.append(width)


def run(settings: Config) -> Result:
    """Fit, leave out, score. Raises UserError without traces or with fewer than three networks."""
    readings = _made(settings.seed) if settings.synthetic else _read(settings.traces)
    networks = sorted({str(name) for name in readings.network_N if is_network(str(name))})
    if len(networks) < 3:
        raise UserError(
            f"the traces hold {len(networks)} networks; to leave one out and calibrate intervals "
            "on the others takes three. Name the whole folder of dlbench_dvfs."
        )
    figures: dict[str, Figure] = {}
    rng = np.random.default_rng(settings.seed)
    for prefix, anchored in (("energy_model", False), ("energy_one_reading", True)):
        scored = _leave_out(readings, networks, anchored=anchored)
        coverage = "energy_interval_coverage" if not anchored else f"{prefix}_coverage"
        figures |= {
            f"{prefix}_error_median": _figure(scored, scored.errors, np.median, settings, rng),
            coverage: _figure(scored, scored.held, np.mean, settings, rng),
        }
    model = _whole(readings, networks)
    return Result(
        "energy",
        figures,
        notes=_notes(readings, networks),
        models={"power": model.as_dict()},
        headings=("value", "95 % interval"),
    )


def _leave_out(readings: Readings, networks: Sequence[str], *, anchored: bool) -> Scored:
    """Score each network by a model and an interval that were made without it."""
    scored = Scored()
    for name in networks:
        others = readings.take(readings.network_N != name)
        left_out = readings.take(readings.network_N == name)
        width = half_width(_inner_errors(others, networks, anchored=anchored))
        errors_n = log_errors(fit(others), left_out)
        if anchored:
            errors_n, keep_n = _anchor(errors_n, left_out)
            left_out, errors_n = left_out.take(keep_n), errors_n[keep_n]
        scored.add(left_out, errors_n, width)
    return scored


def _inner_errors(
    readings: Readings, networks: Sequence[str], *, anchored: bool = False
) -> list[Floats]:
    """Return the errors of each network of `readings` under a model without it.

    Single convolutions are fitted to, but calibrate no interval: it is made for networks.
    """
    found = []
    for name in sorted({str(name) for name in readings.network_N} & set(networks)):
        inner = readings.take(readings.network_N == name)
        errors_n = log_errors(fit(readings.take(readings.network_N != name)), inner)
        if anchored:
            errors_n, keep_n = _anchor(errors_n, inner)
            errors_n = errors_n[keep_n]
        found.append(errors_n)
    return found


def _anchor(errors_n: Floats, readings: Readings) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Return errors after each series' model is scaled to one reading, and the other readings.

    The reading is the one with the greatest modelled power.
    """
    shifted = errors_n.copy()
    keep = np.ones(len(errors_n), dtype=bool)
    for series in np.unique(readings.series_N):
        (index_n,) = np.nonzero(readings.series_N == series)
        modelled_n = np.log(readings.power_N[index_n]) - errors_n[index_n]
        anchor = index_n[np.argmax(modelled_n)]
        shifted[index_n] -= errors_n[anchor]
        keep[anchor] = False
    return shifted, keep


def _figure(
    scored: Scored,
    values: Sequence[float],
    of: Callable[[Floats], Any],
    settings: Config,
    rng: np.random.Generator,
) -> Figure:
    """Return a statistic with its 95 % bootstrap interval over series."""
    array, series = np.asarray(values, dtype=float), np.asarray(scored.series)
    groups = [array[series == name] for name in np.unique(series)]
    drawn = [
        of(np.concatenate([groups[i] for i in rng.integers(0, len(groups), len(groups))]))
        for _ in range(settings.resamples)
    ]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Figure(float(of(array)), "share", len(array), (float(low), float(high)))


def _whole(readings: Readings, networks: Sequence[str]) -> PowerModel:
    b0, b1, b2 = fit(readings).tolist()
    width = half_width(_inner_errors(readings, networks))
    arithmetic_N = readings.features_NF[:, 1]
    return PowerModel(
        (b0, b1, b2),
        width,
        "Caffe on NVIDIA's GTX 980, GTX 1080 Ti and Titan X",
        (float(arithmetic_N.min()), float(arithmetic_N.max())),
    )


def _read(folder: Path | None) -> Readings:
    if folder is None:
        raise UserError(
            "bench energy needs measured joules; name the folder of dlbench_dvfs with "
            "--set traces=FOLDER (github.com/blackjack2015/dlbench_dvfs)."
        )
    return readings_of(read_traces(folder))


def _made(seed: int) -> Readings:
    """Return readings that follow a model with an error of their own for each network."""
    rng = np.random.default_rng(seed)
    names = np.repeat(["googlenet", "resnet", "vgg", "fc", "conv"], 8)
    features_NF = np.concatenate([np.ones((40, 1)), rng.uniform(0.1, 1, (40, 2))], axis=1)
    error_N = np.repeat(rng.normal(0, 0.1, 5), 8) + rng.normal(0, 0.01, 40)
    return Readings(names, names, features_NF, features_NF @ [0.2, 0.5, 0.3] * np.exp(error_N))


def _notes(readings: Readings, networks: Sequence[str]) -> tuple[str, ...]:
    points = sum(str(name) in networks for name in readings.network_N)
    return (
        f"{points} readings of {', '.join(networks)}, and {len(readings.power_N) - points} of "
        "single convolutions, which are fitted to and not scored. Joules are watts times measured "
        "seconds, so that their relative error is that of the watts.",
        "Leave one network out: neither the coefficients nor the width of the interval have seen "
        "any watt of it, on any board; within the rest, each network is left out once more to make "
        "the width. What is known of it are its times at several clocks, and the board's limit.",
        "energy_one_reading: a single reading of a meter at one clock scales the model of that "
        "network on that board, and the other clocks are scored. This network is then not unseen.",
        "The form of the model was chosen with these networks in sight, among forms with and "
        "without clock terms, roots and logarithms; a form chosen inside each fold does worse. "
        "The decision to leave single convolutions out of the intervals' calibration was also "
        "made after seeing these networks. The "
        "error of other networks is probably no smaller.",
        "Intervals: 95 % bootstrap over series (a network by one program on one board).",
    )
