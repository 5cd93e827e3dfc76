"""The ensemble curve's figures with paired intervals over groups, its notes, plot and table."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from skindx.core.atomic_files import write_csv
from skindx.metrics import Interval, Statistic, bootstrap_interval
from skindx_bench.harness.result import Figure, new_plot, write_plot
from skindx_bench.train.ensemble_curve import (
    CurvePoint,
    Single,
    Subset,
    ambiguity_N,
    averaging_gain_N,
    best_single,
    choose_members,
    disagreement_N,
    error_correlation,
    error_products_N,
    gain_of,
    hits_of_singles,
    limit_weights,
    mistake_correlation,
    of_its_cost,
    single_errors,
)
from skindx_bench.train.ensemble_passes import Floats, FoldPasses, Ints

# M = members, N = test images of all folds, K = numbers of members, P = pairs

_FEWEST_PAIRS = 4
"""Less can not be halved into pairs that are alike and pairs that differ."""


@dataclass(frozen=True)
class Pooled:
    """The test images of all folds, on which every mean and its interval are made."""

    truth_N: Ints
    groups_N: np.ndarray
    classes: int
    folds: int

    @classmethod
    def of(cls, folds: Sequence[FoldPasses]) -> Self:
        """Join the folds, whose test images are disjoint."""
        return cls(
            np.concatenate([fold.test.truth_N for fold in folds]),
            np.concatenate([fold.test.groups_N for fold in folds]),
            next(iter(folds[0].test.members.values())).shape[2],
            len(folds),
        )

    @property
    def weights_N(self) -> Floats:  # noqa: N802
        """One over the number of images of the class: every class counts alike."""
        weights_N: Floats = 1 / np.bincount(self.truth_N, minlength=self.classes)[self.truth_N]
        return weights_N

    def interval(self, measure: Statistic) -> Interval:
        """Return a measure of the images with its interval over groups."""
        return bootstrap_interval(measure, self.groups_N)

    def mean(self, values_N: Floats, low: float, high: float) -> Interval:
        """Return the mean over the classes of one number an image."""
        return self.interval(
            Statistic.class_mean(values_N, self.truth_N, self.classes, low=low, high=high)
        )

    def figure(self, interval: Interval, unit: str, scale: float = 1) -> Figure:
        """Return an interval as a figure."""
        spread = (scale * interval.low, scale * interval.high)
        return Figure(scale * interval.value, unit, self.folds, spread)

    def points(self, values_N: Floats) -> Figure:
        """Return a difference of hits as points of balanced accuracy."""
        return self.figure(self.mean(values_N, -1, 1), "points", 100)

    def percent(self, values_N: Floats) -> Figure:
        """Return hits as balanced accuracy in percent."""
        return self.figure(self.mean(values_N, 0, 1), "%", 100)

    def nats(self, values_N: Floats) -> Figure:
        """Return a loss, which has no greatest value: the interval ends at the greatest seen."""
        return self.figure(self.mean(values_N, 0, max(values_N.max(), 0)), "nats")


def curve_figures(folds: Sequence[FoldPasses], points: Sequence[CurvePoint]) -> dict[str, Figure]:
    """Return the curve, the members' diversity, and what infinitely many members would gain."""
    pooled = Pooled.of(folds)
    found: dict[str, Figure] = {}
    for point in points[1:]:
        k, gains = point.members, point.gains
        found[f"curve_gain_{k}"] = pooled.points(gains.over_better_N)
        found[f"curve_gain_mean_{k}"] = pooled.points(gains.over_mean_N)
    if len(points) == 1:
        return found
    last = points[-1].gains
    limit_N = limit_over_mean_N(points)
    found["gain_limit_mean"] = pooled.points(limit_N)
    found["better_minus_mean_member"] = pooled.points(last.over_mean_N - last.over_better_N)
    found["gain_limit"] = pooled.points(limit_N - last.over_mean_N + last.over_better_N)
    return found | _pairs(pooled, points[1]) | _diversity(pooled, folds)


def limit_over_mean_N(points: Sequence[CurvePoint]) -> Floats:  # noqa: N802
    """Return a of the fit a (1 - 1/k) to the gains over the mean member, for each image."""
    weights_K = limit_weights([point.members for point in points[1:]])
    gains_KN = np.stack([point.gains.over_mean_N for point in points[1:]])
    limit_N: Floats = weights_K @ gains_KN
    return limit_N


def _pairs(pooled: Pooled, pairs: CurvePoint) -> dict[str, Figure]:
    """Return what the half of the pairs that differ more gains over its mean member, and less."""
    if len(pairs.each) < _FEWEST_PAIRS:
        return {}
    order_P = np.argsort([gains.disagreement_N.mean() for gains in pairs.each], kind="stable")
    half = len(order_P) // 2
    alike_N, diverse_N = (
        np.mean([pairs.each[pair].over_mean_N for pair in own], axis=0)
        for own in (order_P[:half], order_P[-half:])
    )
    return {
        "pairs_alike_gain_mean": pooled.points(alike_N),
        "pairs_diverse_gain_mean": pooled.points(diverse_N),
        "pairs_diverse_minus_alike": pooled.points(diverse_N - alike_N),
    }


def _diversity(pooled: Pooled, folds: Sequence[FoldPasses]) -> dict[str, Figure]:
    """Return the diversity of all members in one view, each class of images counting alike."""
    members = [fold.test.members[1] for fold in folds]
    truths = [fold.test.truth_N for fold in folds]
    pairs = list(zip(members, truths, strict=True))
    errors = [error_products_N(own_MNC, truth_N) for own_MNC, truth_N in pairs]
    own_N, crossed_N = (np.concatenate(parts) for parts in zip(*errors, strict=True))
    right_MN = np.concatenate(
        [own_MNC.argmax(axis=2) == truth_N for own_MNC, truth_N in pairs], axis=1
    )
    differ_N = np.concatenate([disagreement_N(own_MNC) for own_MNC in members])
    geometric_N = np.concatenate([ambiguity_N(own_MNC) for own_MNC in members])
    mean_N = np.concatenate([averaging_gain_N(own_MNC, truth_N) for own_MNC, truth_N in pairs])
    weights_N = pooled.weights_N
    return {
        "disagreement": pooled.figure(pooled.mean(differ_N, 0, 1), "%", 100),
        "mistake_correlation": pooled.figure(
            pooled.interval(mistake_correlation(right_MN, weights_N)), ""
        ),
        "error_correlation": pooled.figure(
            pooled.interval(error_correlation(own_N, crossed_N, weights_N)), ""
        ),
        "brier_mean_member": pooled.figure(pooled.mean(own_N, 0, 2), ""),
        "brier_gain_all": pooled.figure(
            pooled.mean((own_N - crossed_N) * (1 - 1 / len(right_MN)), 0, 2), ""
        ),
        "brier_gain_limit": pooled.figure(pooled.mean(own_N - crossed_N, 0, 2), ""),
        "ambiguity": pooled.nats(geometric_N),
        "averaging_gain": pooled.nats(mean_N),
    }


def choices(folds: Sequence[FoldPasses], views: int) -> list[Subset]:
    """Return the members that each fold's validation images choose."""
    return [choose_members(fold.validation, views) for fold in folds]


def choice_figures(folds: Sequence[FoldPasses]) -> dict[str, Figure]:
    """Return what an ensemble chosen by validation gains, and one of all members.

    In one view, beside single networks of at least 0.9 of the cost where there are any; and in as
    many views as were predicted, beside single networks in as many.
    """
    pooled = Pooled.of(folds)
    found: dict[str, Figure] = {}
    for views in sorted({1, max(folds[0].test.members)}):
        suffix = "" if views == 1 else f"_{views}_views"
        everyone = [tuple(range(len(fold.names))) for fold in folds]
        for name, members in (("chosen", choices(folds, views)), ("all", everyone)):
            # Forward selection begins with the best member, so theirs is that of all members.
            gains = gain_of(folds, members, views)
            found[f"better_member_balanced{suffix}"] = pooled.percent(
                gains.hits_N - gains.over_better_N
            )
            found[f"{name}_balanced{suffix}"] = pooled.percent(gains.hits_N)
            found[f"{name}_minus_better_member_balanced{suffix}"] = pooled.points(
                gains.over_better_N
            )
            if views == 1 and (rivals := _same_cost(folds, members)):
                hits_N = np.concatenate(
                    [
                        hits_of_singles(fold.test)[rival]
                        for fold, rival in zip(folds, rivals, strict=True)
                    ]
                )
                found[f"same_cost_as_{name}_balanced"] = pooled.percent(hits_N)
                found[f"{name}_minus_same_cost_balanced"] = pooled.points(gains.hits_N - hits_N)
    return found


def _same_cost(folds: Sequence[FoldPasses], chosen: Sequence[Subset]) -> list[Single]:
    """Return each fold's best single network of its ensemble's cost; empty where one has none."""
    rivals = []
    for fold, members in zip(folds, chosen, strict=True):
        among = of_its_cost(fold.flops_M, sorted(fold.validation.members), members)
        if not among:
            return []
        rivals.append(best_single(single_errors(fold.validation), among))
    return rivals


def curve_notes(folds: Sequence[FoldPasses], points: Sequence[CurvePoint]) -> tuple[str, ...]:
    """Return notes on how the curve was made, its fit, and the choices of each fold."""
    subsets = ", ".join(f"{len(point.subsets)} of {point.members}" for point in points[1:])
    return (
        "Curve: every figure is of the test images of all folds, one view of each, members "
        "combined by their mean probability; in brackets the paired 95 % bootstrap interval over "
        f"groups. Mean over the subsets of members ({subsets}). In each fold validation images "
        "choose members by log loss, where all classes count alike, and single networks by "
        "balanced accuracy; test images choose nothing. Cost: operations of a pass times views.",
        "error_correlation is the mean product of two members' errors (probabilities minus the "
        "one-hot truth) over their mean square: averaging k members takes (1 - rho) (1 - 1/k) of "
        "the mean member's Brier score away, exactly. Balanced accuracy has no such law; its limit "
        "is the least-squares fit a (1 - 1/k) to the gains over the mean member, from which the "
        f"curve departs by at most {_misfit(folds, points):.2f} points. ambiguity is exact for the "
        "geometric mean of the probabilities; bundles take the arithmetic one, whose gain of log "
        "loss over the mean member is averaging_gain.",
        _chosen(folds),
        *_same_cost_note(folds),
    )


def _misfit(folds: Sequence[FoldPasses], points: Sequence[CurvePoint]) -> float:
    """Return the largest distance of the fit from the curve, in points."""
    pooled, limit_N = Pooled.of(folds), limit_over_mean_N(points)
    gaps = [
        Statistic.class_mean(
            point.gains.over_mean_N - limit_N * (1 - 1 / point.members),
            pooled.truth_N,
            pooled.classes,
        ).value
        for point in points[1:]
    ]
    return float(100 * np.abs(gaps).max())


def _chosen(folds: Sequence[FoldPasses]) -> str:
    names, parts = folds[0].names, []
    for views in sorted({1, max(folds[0].test.members)}):
        chosen = [
            " + ".join(names[member] for member in members) for members in choices(folds, views)
        ]
        better = [
            best_single(errors, [single for single in errors if single[1] == views])
            for errors in (single_errors(fold.validation) for fold in folds)
        ]
        parts.append(
            f"in {views} view{'s' * (views > 1)}: better member "
            f"{_counted([names[member] for member, _ in better])}; "
            f"ensembles {_counted(chosen)}"
        )
    return f"Chosen by validation, {'; '.join(parts)}."


def _same_cost_note(folds: Sequence[FoldPasses]) -> tuple[str, ...]:
    rivals = _same_cost(folds, [tuple(range(len(fold.names))) for fold in folds])
    singles = [
        f"{fold.names[member]} in {views} view{'s' * (views > 1)}"
        for fold, (member, views) in zip(folds, rivals, strict=False)
    ]
    if not singles:
        return ()
    return (f"Best single network at the cost of all members in one view: {_counted(singles)}.",)


def _counted(texts: Sequence[str]) -> str:
    """Return texts, most frequent first, with the number of folds that chose each."""
    return ", ".join(
        f"{text} ({count} fold{'s' * (count > 1)})" for text, count in Counter(texts).most_common()
    )


_LINES = {
    "curve_gain_mean": "over their mean member",
    "curve_gain": "over their better member, by validation",
}
_COLUMNS = (
    "members", "count", "disagreement", "balanced_accuracy", "gain_mean", "gain_better",
)  # fmt: skip


def write_curve(
    out: Path,
    folds: Sequence[FoldPasses],
    points: Sequence[CurvePoint],
    figures: Mapping[str, Figure],
) -> None:
    """Write curve.csv, a row a subset, and curve.png into `out`."""
    rows = curve_rows(folds, points)
    write_csv(out / "curve.csv", _COLUMNS, rows)
    if len(points) > 1:
        _draw(out / "curve.png", rows, figures, len(points))


def curve_rows(
    folds: Sequence[FoldPasses], points: Sequence[CurvePoint]
) -> list[tuple[str, int, float, float, float, float]]:
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
        )
        for point in points
        for subset, gains in zip(point.subsets, point.each, strict=True)
    ]


def _draw(
    path: Path,
    rows: Sequence[tuple[str, int, float, float, float, float]],
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
