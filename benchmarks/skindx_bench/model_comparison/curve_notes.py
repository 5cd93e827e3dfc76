"""What is said beside the figures of the curve: how they are made, and what was chosen."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from skindx.metrics import Statistic
from skindx_bench.model_comparison.choice import affordable, best_single, single_losses
from skindx_bench.model_comparison.curve import Point
from skindx_bench.model_comparison.curve_figures import Pooled, choices, limit_over_mean_N
from skindx_bench.model_comparison.passes import FoldPasses


def curve_notes(folds: Sequence[FoldPasses], points: Sequence[Point]) -> tuple[str, ...]:
    """Return notes on how the curve was made, its fit, and the choices of each fold."""
    subsets = ", ".join(f"{len(point.subsets)} of {point.members}" for point in points[1:])
    return (
        "Curve: every figure is of the test images of all folds, one view of each, members "
        "combined by their mean probability; in brackets the paired 95 % bootstrap interval over "
        f"groups. Mean over the subsets of members ({subsets}). Every choice is made in each fold "
        "by the log loss of its validation images, where all classes count alike; test images "
        "choose nothing. Cost: operations of a pass times views.",
        "error_correlation is the mean product of two members' errors (probabilities minus the "
        "one-hot truth) over their mean square: averaging k members takes (1 - rho) (1 - 1/k) of "
        "the mean member's Brier score away, exactly. Balanced accuracy has no such law; its limit "
        "is the least-squares fit a (1 - 1/k) to the gains over the mean member, from which the "
        f"curve departs by at most {_misfit(folds, points):.2f} points. ambiguity is exact for the "
        "geometric mean of the probabilities; bundles take the arithmetic one, whose gain of log "
        "loss over the mean member is averaging_gain.",
        _chosen(folds),
        *_same_cost(folds),
    )


def _misfit(folds: Sequence[FoldPasses], points: Sequence[Point]) -> float:
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
            best_single(losses, [(member, seen) for member, seen in losses if seen == views])
            for losses in (single_losses(fold.validation) for fold in folds)
        ]
        parts.append(
            f"in {views} view{'s' * (views > 1)}: better member "
            f"{_counted([names[member] for member, _ in better])}; "
            f"ensembles {_counted(chosen)}"
        )
    return f"Chosen by validation, {'; '.join(parts)}."


def _same_cost(folds: Sequence[FoldPasses]) -> tuple[str, ...]:
    if max(folds[0].test.members) == 1:
        return ()
    singles = []
    for fold in folds:
        losses = single_losses(fold.validation)
        member, views = best_single(
            losses, affordable(losses, fold.flops_M, range(len(fold.names)))
        )
        singles.append(f"{fold.names[member]} in {views} view{'s' * (views > 1)}")
    return (f"Best single network at the cost of all members in one view: {_counted(singles)}.",)


def _counted(texts: Sequence[str]) -> str:
    """Return texts, most frequent first, with the number of folds that chose each."""
    return ", ".join(
        f"{text} ({count} fold{'s' * (count > 1)})" for text, count in Counter(texts).most_common()
    )
