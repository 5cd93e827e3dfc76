"""What an ensemble gains over single networks, all calibrated alike, and whether a gain holds.

A rival is chosen by the figure that is compared, on images that do not judge it; where chance
decides which one that is, the gain over each stands instead. Each gain is tried again on a subset,
without calibration and in more views, over the member that is strongest there.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from skindx.core.errors import UserError
from skindx.evaluation.figures import FIGURES
from skindx.evaluation.member_gains import GAINED, MemberChoice, choose_network
from skindx.metrics import (
    Interval,
    Measure,
    Statistic,
    balanced_rule,
    confidence_interval,
    paired_interval,
)
from skindx.models.class_calibration import fit_class_calibration
from skindx.models.combination import EQUAL, apply_temperature, fit_temperature, log, pool
from skindx_bench.harness.result import Figure
from skindx_bench.train.ensemble_curve import Single, Subset, choose_members, of_its_cost
from skindx_bench.train.ensemble_passes import FoldPasses

# N = images, C = classes, M = members

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

_SERVED_VIEWS = 2
"""Views in which bundles of these networks answer, and calibration is measured."""
CALIBRATION = (
    "log_loss", "classwise_calibration_error", "top1", "balanced_rule_top1", "balanced_accuracy",
    "balanced_rule_accuracy",
)  # fmt: skip


class Fold:
    """The predictors of a fold, all calibrated alike on the images that choose."""

    def __init__(self, passes: FoldPasses, members: Subset | None = None) -> None:
        """Read what each member says; pools and calibrations are made when they are asked for.

        `members` of the ensemble; none: forward selection on the images that choose takes them.
        """
        self.passes = passes
        counts_C = np.bincount(passes.validation.truth_N, minlength=passes.test.members[1].shape[2])
        self.mix_C: Floats = counts_C / counts_C.sum()
        self.names = passes.names
        self.members = choose_members(passes.validation) if members is None else members
        self._made: dict[tuple[Subset, int, bool], tuple[Floats, Floats]] = {}

    def says(
        self, members: Subset, views: int = 1, *, by_class: bool = True
    ) -> tuple[Floats, Floats]:
        """Return the probabilities of validation and of judged images, N x C each.

        Without a calibration by class that gains, as bundles do, by a temperature alone. That of
        validation images is the one that was fitted on them, for every predictor.
        """
        key = (members, views, by_class)
        if key not in self._made:
            scores = self.scores(members, views, by_class=by_class)
            seen = self.passes.validation
            truth_N, groups = seen.truth_N, seen.groups_N.tolist()
            kept = fit_class_calibration(scores[0], truth_N, groups).kept if by_class else None
            if kept:
                parts = [kept.apply(score_NC) for score_NC in scores]
            else:
                temperature = fit_temperature(scores[0], truth_N)
                parts = [apply_temperature(score_NC, temperature) for score_NC in scores]
            self._made[key] = parts[0], parts[1]
        return self._made[key]

    def scores(self, members: Subset, views: int, *, by_class: bool) -> tuple[Floats, Floats]:
        """Return log-probabilities of validation and of judged images, not calibrated as one."""
        validation, test = (
            log(pool(seen.members[views][list(members)], EQUAL))
            for seen in (self.passes.validation, self.passes.test)
        )
        return validation, test

    def choose(
        self,
        key: str,
        singles: Mapping[str, Single],
        some_N: Bools | None = None,
        **how: bool,
    ) -> MemberChoice:
        """Choose one of several single networks by a figure of the validation images, or of some.

        `how` they say it is told to `says`.
        Raises UserError where the figure is not defined of them.
        """
        seen = self.passes.validation
        own_N = np.ones(len(seen.truth_N), dtype=bool) if some_N is None else some_N
        said = {
            name: self.says((m,), views, **how)[0][own_N] for name, (m, views) in singles.items()
        }
        truth_N, groups_N = seen.truth_N[own_N], seen.groups_N[own_N]
        choice = choose_network(key, said, truth_N, groups_N, mix_C=self.mix_C)
        if choice is None:
            raise UserError(
                f"{key} is not defined of the {len(truth_N)} images that choose a network; give "
                "more images, or leave the subset out."
            )
        return choice


@dataclass(frozen=True)
class Judged:
    """What a predictor says of the judged images of all folds."""

    truth_N: NDArray[np.intp]
    groups_N: NDArray[np.str_]
    own_NC: Floats
    even_NC: Floats
    """By the balanced rule, with the class shares of the images that choose."""

    @classmethod
    def of(cls, folds: Sequence[Fold], parts: Sequence[Floats]) -> Self:
        """Join one predictor's answers to each fold."""
        even = [
            balanced_rule(own_NC, fold.mix_C) for fold, own_NC in zip(folds, parts, strict=True)
        ]
        return cls(
            np.concatenate([fold.passes.test.truth_N for fold in folds]),
            np.concatenate([fold.passes.test.groups_N for fold in folds]),
            np.concatenate(parts),
            np.concatenate(even),
        )

    def rows(self, some_N: Bools | None) -> Self:
        """Return some of the images; None: all."""
        if some_N is None:
            return self
        return replace(
            self,
            truth_N=self.truth_N[some_N],
            groups_N=self.groups_N[some_N],
            own_NC=self.own_NC[some_N],
            even_NC=self.even_NC[some_N],
        )

    def measure(self, key: str) -> Measure:
        """Return a figure of the images, by its key in FIGURES."""
        figure = FIGURES[key]
        says_NC = self.even_NC if figure.by_balanced_rule else self.own_NC
        return figure.make(says_NC, self.truth_N)

    def over(self, other: Self, key: str) -> Interval:
        """Return this one minus the other in a figure, paired over groups."""
        return paired_interval(self.measure(key), other.measure(key), self.groups_N)


def _figure(interval: Interval, key: str, folds: int, *, change: bool = False) -> Figure:
    if FIGURES[key].unit != "percent":
        return Figure.of(interval, "", folds)
    return Figure.of(interval, "points" if change else "%", folds, 100)


def ensemble_figures(
    folds: Sequence[Fold], subset_N: Bools | None = None
) -> tuple[dict[str, Figure], dict[str, Any]]:
    """Return an ensemble's figures and gains, and what was chosen.

    `subset_N`: judged images on which the gains are tried alone.
    """
    figures: dict[str, Figure] = {}
    ensemble = ensemble_of(folds)
    chosen = Counter(" + ".join(fold.names[m] for m in fold.members) for fold in folds)
    rivals = {"better": members_of(folds, 1), "same_cost": _same_cost(folds)}
    choices: dict[str, dict[str, Any]] = {}
    for key in GAINED:
        own = confidence_interval(ensemble.measure(key), ensemble.groups_N)
        figures[f"ensemble_{key}"] = _figure(own, key, len(folds))
        for rival, singles in rivals.items():
            if singles:
                made, choice = _over(folds, ensemble, rival, singles, key)
                figures |= made
                choices.setdefault(rival, {})[key] = choice
    gains, least = _tried(folds, subset_N)
    costs = _shares_of_cost(folds[0], rivals["same_cost"])
    return figures | gains, {
        "ensembles": dict(chosen.most_common()),
        "choices": choices,
        "cost": costs,
        "least": least,
        "subset": int(subset_N.sum()) if subset_N is not None else None,
    }


def ensemble_of(folds: Sequence[Fold], views: int = 1, *, by_class: bool = True) -> Judged:
    parts = [fold.says(fold.members, views, by_class=by_class)[1] for fold in folds]
    return Judged.of(folds, parts)


def members_of(folds: Sequence[Fold], views: int) -> dict[str, Single]:
    """Return every member that an ensemble of some fold has, in a number of views."""
    numbers = sorted({member for fold in folds for member in fold.members})
    return {folds[0].names[member]: (member, views) for member in numbers}


def _same_cost(folds: Sequence[Fold]) -> dict[str, Single]:
    """Return the single networks that cost at least 0.9 of every fold's ensemble."""
    found = [
        of_its_cost(fold.passes.flops_M, sorted(fold.passes.test.members), fold.members)
        for fold in folds
    ]
    common = set(found[0]).intersection(*found)
    return {
        f"{folds[0].names[member]} in {views} view{'s' * (views > 1)}": (member, views)
        for member, views in sorted(common)
    }


def _shares_of_cost(fold: Fold, singles: Mapping[str, Single]) -> dict[str, float]:
    flops_M = fold.passes.flops_M
    whole = sum(flops_M[member] for member in fold.members)
    return {name: flops_M[member] * views / whole for name, (member, views) in singles.items()}


def _over(
    folds: Sequence[Fold], ensemble: Judged, rival: str, singles: Mapping[str, Single], key: str
) -> tuple[dict[str, Figure], dict[str, Any]]:
    """Return the gain over the one that every fold surely chooses, else over each of them."""
    picks = [fold.choose(key, singles) for fold in folds]
    share = min(pick.shares[pick.best] for pick in picks)
    sure = all(pick.sure for pick in picks)
    figures = {}
    if sure:
        best = [
            fold.says((singles[pick.best][0],), singles[pick.best][1])[1]
            for fold, pick in zip(folds, picks, strict=True)
        ]
        judged = Judged.of(folds, best)
        own = confidence_interval(judged.measure(key), judged.groups_N)
        figures[f"{rival}_{key}"] = _figure(own, key, len(folds))
        gain = ensemble.over(judged, key)
        figures[f"ensemble_minus_{rival}_{key}"] = _figure(gain, key, len(folds), change=True)
    else:
        for name, (member, views) in singles.items():
            judged = Judged.of(folds, [fold.says((member,), views)[1] for fold in folds])
            gain = ensemble.over(judged, key)
            figures[f"ensemble_minus_{name}_{key}"] = _figure(gain, key, len(folds), change=True)
    chosen = Counter(pick.best for pick in picks)
    return figures, {"best": dict(chosen.most_common()), "share": share, "sure": sure}


def _tried(
    folds: Sequence[Fold], subset_N: Bools | None
) -> tuple[dict[str, Figure], dict[str, dict[str, str]]]:
    """Return each gain over the member that is strongest on the judged images, and its name.

    No rival is harder, since the judged images choose it. The same on a subset, with probabilities
    that are not calibrated by class, and in two views.
    """
    most = max(folds[0].passes.test.members)
    trials: dict[str, tuple[int, bool, Bools | None]] = {"all": (1, True, None)}
    if subset_N is not None:
        trials["subset"] = (1, True, subset_N)
    trials["uncalibrated"] = (1, False, None)
    if most >= _SERVED_VIEWS:
        trials["views"] = (_SERVED_VIEWS, True, None)
    figures: dict[str, Figure] = {}
    strongest: dict[str, dict[str, str]] = {}
    for trial, (views, by_class, some_N) in trials.items():
        ensemble = ensemble_of(folds, views, by_class=by_class).rows(some_N)
        singles = {
            name: Judged.of(
                folds, [fold.says((member,), views, by_class=by_class)[1] for fold in folds]
            ).rows(some_N)
            for name, (member, _) in members_of(folds, views).items()
        }
        for key in GAINED:
            sign = 1 if FIGURES[key].better == "high" else -1
            merits = {one: sign * own.measure(key).value for one, own in singles.items()}
            name = max(merits, key=merits.__getitem__)
            gain = ensemble.over(singles[name], key)
            figures[f"least_{trial}_{key}"] = _figure(gain, key, len(folds), change=True)
            strongest.setdefault(trial, {})[key] = name
    return figures, strongest


def calibration_figures(folds: Sequence[Fold], melanoma: int | None) -> dict[str, Figure]:
    """Return figures of the ensemble of all members before and after calibration by class."""
    views = min(_SERVED_VIEWS, max(folds[0].passes.test.members))
    everyone = tuple(range(len(folds[0].names)))
    figures: dict[str, Figure] = {}
    for when, by_class in (("before", False), ("after", True)):
        parts = [fold.says(everyone, views, by_class=by_class)[1] for fold in folds]
        judged = Judged.of(folds, parts)
        measures = {key: judged.measure(key) for key in CALIBRATION}
        if melanoma is not None:
            measures["melanoma"] = Statistic.observed_over_expected(
                judged.own_NC, judged.truth_N, [melanoma]
            )
        for key, measure in measures.items():
            own = confidence_interval(measure, judged.groups_N)
            percent = key in FIGURES and FIGURES[key].unit == "percent"
            unit, scale = ("%", 100) if percent else ("", 1)
            figures[f"calibration_{when}_{key}"] = Figure.of(own, unit, len(folds), scale)
    return figures
