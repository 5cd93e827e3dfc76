"""What an ensemble of fine-tuned networks gains out of fold, and where that claim turns.

Every image is judged by networks that did not learn from its lesion. Members are calibrated on the
other folds, their mean is calibrated there again, and the member that the ensemble is compared with
is chosen there by the very figure that is compared (nested cross-fitting: Varma and Simon 2006,
"Bias in error estimation when using cross-validation for model selection"). Beside it stands the
member that the judged images themselves put first: no rival is harder.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from skindx.evaluation.figures import FIGURES
from skindx.evaluation.member_gains import GAINED, MemberChoice
from skindx.metrics import Interval, Measure, Statistic, confidence_interval
from skindx.metrics.bootstrap import bootstrap_intervals
from skindx.models.combination import log
from skindx_bench.harness.result import Figure
from skindx_bench.train.ensemble_curve import Single, Subset
from skindx_bench.train.ensemble_gains import Floats, Fold, Judged
from skindx_bench.train.ensemble_passes import Ints
from skindx_bench.train.kept_predictions import Kept, passes_of

# N = images, C = classes, G = groups, D = bootstrap draws, M = members

HISTOLOGY = "histopathology"
ALL = "all"
_DRAWS = 2000
_CHUNKS = 8
_SERVED_VIEWS = 2
_SAME = 1e-12
_STEPS, _ROUNDS = (0.5, 0.25, 0.125), 3
TUNED = "tuned_rule_accuracy"
RULES = {key: (key, False) for key in GAINED} | {TUNED: ("balanced_accuracy", True)}
"""Name of a figure -> its key in FIGURES, and whether the rule is tuned on the other folds."""
_LARGE = 50
"""Images of a group that is large enough to decide an interval."""


class CalibratedFold(Fold):
    """A fold whose ensemble is the mean of the members' calibrated probabilities.

    Members learn with other losses and samplings: uncalibrated, each answers for a mix of diseases
    of its own.
    """

    def scores(self, members: Subset, views: int, *, by_class: bool) -> tuple[Floats, Floats]:
        """Return the logarithm of that mean; of a single member what it says itself."""
        if len(members) == 1:
            return super().scores(members, views, by_class=by_class)
        said = [self.says((member,), views, by_class=by_class) for member in members]
        first, second = (log(np.mean(parts, axis=0)) for parts in zip(*said, strict=True))
        return first, second

    def says(
        self, members: Subset, views: int = 1, *, by_class: bool = True, tuned: bool = False
    ) -> tuple[Floats, Floats]:
        """Return the probabilities of validation and of judged images.

        `tuned`: times a factor of each class by which the likeliest class has the best balanced
        accuracy on validation. The balanced rule takes the shares for it, which is right for exact
        probabilities: how often it names a common class hangs on how sure a predictor is.
        """
        said = super().says(members, views, by_class=by_class)
        if not tuned:
            return said
        key = members, views, by_class
        if key not in self._biases:
            self._biases[key] = balanced_biases(said[0], self.passes.validation.truth_N, self.mix_C)
        first, second = (softmax(log(part_NC) + self._biases[key], axis=1) for part_NC in said)
        return first, second

    @cached_property
    def _biases(self) -> dict[tuple[Subset, int, bool], Floats]:
        return {}


def balanced_biases(probabilities_NC: Floats, truth_N: Ints, mix_C: Floats) -> Floats:
    """Return log-factors of the classes, C, for the best balanced accuracy: coordinate ascent.

    It begins with the balanced rule, and moves one class at a time by ever smaller steps.
    """
    log_NC = log(probabilities_NC)
    of_class_CN = [truth_N == place for place in np.unique(truth_N)]

    def balanced(biases_C: Floats) -> float:
        right_N = (log_NC + biases_C).argmax(axis=1) == truth_N
        return float(np.mean([right_N[own_N].mean() for own_N in of_class_CN]))

    biases_C = -log(mix_C)
    best = balanced(biases_C)
    for step in _STEPS:
        for place in list(range(len(mix_C))) * _ROUNDS:
            for change in (-step, step):
                moved_C = biases_C.copy()
                moved_C[place] += change
                if (value := balanced(moved_C)) > best + _SAME:
                    best, biases_C = value, moved_C
    return biases_C


@dataclass(frozen=True)
class Way:
    """One way to judge the ensemble: views, calibration, and the images of each fold."""

    views: int = 1
    by_class: bool = True
    confirmed: bool | None = None
    """Images that histology confirmed, those that it did not, or all."""
    fold: int | None = None
    """The only fold that is judged."""
    largest: bool = True
    """Also the images of the largest group."""
    tuned: bool = False
    """Classes are named by a rule that is tuned on the other folds."""
    cautious: bool = False
    """Intervals as other tables have them; see `FoldDraws.interval`."""


class Study:
    """The folds that every member has finished, and which of their images histology confirmed."""

    def __init__(self, members: Sequence[Kept]) -> None:
        """Take members of the same images, folds and labels. Raises UserError for others."""
        passes = passes_of(members)
        self.names = passes[0].names
        self.classes = members[0].classes
        self.flops_M = passes[0].flops_M
        self.numbers = sorted(set(members[0].fold_N.tolist()))
        everyone = tuple(range(len(members)))
        self.folds = [CalibratedFold(own, everyone) for own in passes]
        first = members[0]
        confirmed_N = first.confirmed_N
        by_histology_N = (
            np.zeros(len(first.truth_N), bool) if confirmed_N is None else confirmed_N == HISTOLOGY
        )
        self.by_histology = sorted(set(by_histology_N.tolist()))
        """Whether histology confirmed images: all, none, or some."""
        groups, counts = np.unique(first.groups_N, return_counts=True)
        self.largest = str(groups[counts.argmax()]), int(counts.max())
        """The group of the most images, and how many it has."""
        self._judged = [by_histology_N[first.fold_N == fold] for fold in self.numbers]
        self._chosen: dict[tuple[Any, ...], list[MemberChoice]] = {}
        self._choosing = [by_histology_N[first.fold_N != fold] for fold in self.numbers]

    def singles(self, views: int = 1) -> dict[str, Single]:
        """Return each member in a number of views, by its name."""
        return {name: (member, views) for member, name in enumerate(self.names)}

    @cached_property
    def same_cost(self) -> dict[str, Single]:
        """Each member in as many views as the ensemble takes passes, or the next more.

        Of two members some take a little less and some a little more than the ensemble's
        operations; all are rivals, since one more to choose from is no easier.
        """
        counts = sorted(self.folds[0].passes.test.members)
        views = next((count for count in counts if count >= len(self.names)), 0)
        members = self.singles(views) if views else {}
        return {f"{name} in {views} views": single for name, single in members.items()}

    def shares_of_cost(self) -> dict[str, float]:
        """Return each such network's operations over the ensemble's."""
        whole = sum(self.flops_M)
        return {
            name: self.flops_M[m] * views / whole for name, (m, views) in self.same_cost.items()
        }

    def judged(self, way: Way, members: Sequence[Subset], views: Sequence[int]) -> "FoldAnswers":
        """Return what a predictor, with members and views of its own in each fold, says."""
        parts = [
            fold.says(own, seen, by_class=way.by_class, tuned=way.tuned)[1]
            for fold, own, seen in zip(self.folds, members, views, strict=True)
        ]
        whole = Judged.of(self.folds, parts)
        fold_N = np.repeat(self.numbers, [len(part_NC) for part_NC in parts])
        some_N = np.ones(len(fold_N), dtype=bool)
        if way.confirmed is not None:
            some_N &= np.concatenate(self._judged) == way.confirmed
        if way.fold is not None:
            some_N &= fold_N == way.fold
        if not way.largest:
            some_N &= whole.groups_N != self.largest[0]
        return FoldAnswers(whole.rows(some_N), fold_N[some_N])

    def ensemble(self, way: Way) -> "FoldAnswers":
        """Return what the ensemble of all members says."""
        own = [fold.members for fold in self.folds]
        return self.judged(way, own, [way.views] * len(own))

    def single(self, way: Way, single: Single) -> "FoldAnswers":
        """Return what one network says, the same in all folds."""
        count = len(self.folds)
        return self.judged(way, [(single[0],)] * count, [single[1]] * count)

    def chosen(
        self, way: Way, key: str, singles: Mapping[str, Single]
    ) -> tuple["FoldAnswers", dict[str, Any]]:
        """Return the network that the other folds choose for each fold by a figure, and which."""
        picks = self._picks(key, singles, way)
        members = [(singles[pick.best][0],) for pick in picks]
        views = [singles[pick.best][1] for pick in picks]
        if way.fold is not None:
            picks = [picks[self.numbers.index(way.fold)]]
        chosen = Counter(pick.best for pick in picks)
        share = min(pick.shares[pick.best] for pick in picks)
        return self.judged(way, members, views), {
            "best": dict(chosen.most_common()),
            "share": share,
        }

    def _picks(self, key: str, singles: Mapping[str, Single], way: Way) -> list[MemberChoice]:
        """Return the choice of each fold; ways that differ in what is judged alone share it."""
        told = (key, tuple(singles.items()), way.confirmed, way.by_class, way.tuned)
        if told not in self._chosen:
            self._chosen[told] = [
                fold.choose(
                    key,
                    singles,
                    None if way.confirmed is None else by_histology_N == way.confirmed,
                    by_class=way.by_class,
                    tuned=way.tuned,
                )
                for fold, by_histology_N in zip(self.folds, self._choosing, strict=True)
            ]
        return self._chosen[told]

    def strongest(
        self, way: Way, key: str, singles: Mapping[str, Single]
    ) -> tuple["FoldAnswers", str]:
        """Return the network that the judged images put first by a figure, and its name."""
        sign = 1 if FIGURES[key].better == "high" else -1
        own = {name: self.single(way, single) for name, single in singles.items()}
        merits = {name: sign * says.measure(key).value for name, says in own.items()}
        name = max(merits, key=merits.__getitem__)
        return own[name], name


@dataclass(frozen=True)
class FoldAnswers:
    """What a predictor says of the judged images, and the fold of each."""

    answers: Judged
    fold_N: NDArray[np.int64]

    def measure(self, key: str) -> Measure:
        """Return a figure of the images, by its key in FIGURES."""
        return self.answers.measure(key)

    @property
    def folds(self) -> int:
        """How many folds the images are of."""
        return len(set(self.fold_N.tolist()))

    def hits_N(self, key: str) -> Floats:  # noqa: N802
        """Return 1 for each image that is named rightly by the figure's rule, else 0."""
        answers = self.answers
        says_NC = answers.even_NC if FIGURES[key].by_balanced_rule else answers.own_NC
        hits_N: Floats = (says_NC.argmax(axis=1) == answers.truth_N).astype(float)
        return hits_N


@dataclass(frozen=True)
class FoldDraws:
    """Resampled groups, in each fold as many as it has (a bootstrap stratified by fold).

    Groups are drawn whole, since their images are no independent evidence, and folds keep their
    share, since each was judged by networks of its own.
    """

    groups_N: NDArray[np.str_]
    weights_DG: Floats

    @classmethod
    def of(cls, own: FoldAnswers, draws: int = _DRAWS, seed: int = 0) -> Self:
        """Draw for the judged images of a way; all its figures share the draws."""
        groups, index_N = np.unique(own.answers.groups_N, return_inverse=True)
        fold_G = np.zeros(len(groups), dtype=np.int64)
        fold_G[index_N] = own.fold_N
        rng = np.random.default_rng(seed)
        weights_DG = np.zeros((draws, len(groups)))
        for fold in np.unique(fold_G):
            own_G = np.flatnonzero(fold_G == fold)
            picked_DG = rng.integers(len(own_G), size=(draws, len(own_G)))
            picked_DG += np.arange(draws)[:, None] * len(own_G)
            counts = np.bincount(picked_DG.ravel(), minlength=draws * len(own_G))
            weights_DG[:, own_G] = counts.reshape(draws, -1)
        return cls(own.answers.groups_N, weights_DG)

    def interval(self, measure: Measure, *, cautious: bool = False) -> Interval:
        """Return a measure with its percentile interval of 95 %; NaN where it is not defined.

        `cautious`, and one without a width: images that the sample may lack are joined to it, at
        the measure's worst value (see `bootstrap_interval`). They are counted by the groups'
        effective size, which a single large group lowers: a loss, whose worst value is far off,
        can then hardly differ from another.
        """
        _, index_N = np.unique(self.groups_N, return_inverse=True)
        redraw = measure.redraw(index_N, self.weights_DG.shape[1])
        chunks = np.array_split(self.weights_DG, _CHUNKS)
        with np.errstate(invalid="ignore", divide="ignore"):  # a draw may lack a class: NaN
            values_D = np.concatenate([redraw(chunk_DG) for chunk_DG in chunks])
        known_D = values_D[~np.isnan(values_D)]
        if len(known_D) and not cautious:
            low, high = np.quantile(known_D, [0.025, 0.975]).tolist()
            if high - low > _SAME:
                return Interval(measure.value, low, high)
        left = iter(values_D)

        def drawn(weights_DG: Floats) -> Floats:
            return np.array([[next(left)] for _ in weights_DG])

        (interval,) = bootstrap_intervals(
            drawn,
            np.array([measure.value]),
            self.groups_N,
            low=measure.low,
            high=measure.high,
            strata_N=measure.strata,
            draws=len(values_D),
        )
        return interval

    def figure(self, own: FoldAnswers, key: str) -> Figure:
        """Return a figure of a predictor: by a closed form where there is one, else by draws."""
        measure = own.measure(key)
        closed = measure.closed_form is not None
        interval = confidence_interval(measure, self.groups_N) if closed else self.interval(measure)
        return _figure(interval, key, own.folds)

    def gain(
        self, ours: FoldAnswers, theirs: FoldAnswers, key: str, *, cautious: bool = False
    ) -> Figure:
        """Return one predictor minus another in a figure, paired on the same draws."""
        own = self.interval(ours.measure(key) - theirs.measure(key), cautious=cautious)
        return _figure(own, key, ours.folds, change=True)


def _figure(interval: Interval, key: str, folds: int, *, change: bool = False) -> Figure:
    if FIGURES[key].unit != "percent":
        return Figure.of(interval, "", folds)
    return Figure.of(interval, "points" if change else "%", folds, 100)


def gains(study: Study) -> tuple[dict[str, Figure], dict[str, Any]]:
    """Return members, ensemble, rivals and gains, histology first, and what was chosen."""
    figures: dict[str, Figure] = {}
    group, images = study.largest
    parts: dict[str, Any] = {
        "cost": study.shares_of_cost(), "images": {}, "choices": {},
        "largest_group": {"group": group, "images": images},
    }  # fmt: skip
    ways = {"histology": Way(confirmed=True)} if True in study.by_histology else {}
    for name, way in (ways | {ALL: Way()}).items():
        draws = FoldDraws.of(study.ensemble(way))
        parts["images"][name] = len(draws.groups_N)
        choices = parts["choices"][name] = {}
        for rule, (key, tuned) in RULES.items():
            way = replace(way, tuned=tuned)  # noqa: PLW2901
            ensemble = study.ensemble(way)
            figures[f"{name}_ensemble_{rule}"] = draws.figure(ensemble, key)
            for own, single in study.singles().items():
                figures[f"{name}_{own}_{rule}"] = draws.figure(study.single(way, single), key)
            chosen, choice = study.chosen(way, key, study.singles())
            strongest, best = study.strongest(way, key, study.singles())
            rivals = {"chosen": chosen, "strongest": strongest}
            choices[rule] = {"chosen": choice, "strongest": best}
            if study.same_cost:
                rivals["same_cost"], of_cost = study.chosen(way, key, study.same_cost)
                choices[rule]["same_cost"] = of_cost
            for rival, says in rivals.items():
                figures[f"{name}_{rival}_{rule}"] = draws.figure(says, key)
                figures[f"{name}_ensemble_minus_{rival}_{rule}"] = draws.gain(ensemble, says, key)
    return figures, parts


def trials(study: Study) -> tuple[dict[str, Figure], dict[str, Any]]:
    """Return the gain over both rivals in every other way to judge it, and who they were.

    A claim that holds however it is judged has each interval on its side of 0.
    """
    ways: dict[str, Way] = {"cautious": Way(cautious=True), "uncalibrated": Way(by_class=False)}
    if study.largest[1] >= _LARGE:
        ways["without_largest"] = Way(largest=False)
    if study.by_histology == [False, True]:
        ways["not_histology"] = Way(confirmed=False)
    if _SERVED_VIEWS in study.folds[0].passes.test.members:
        ways["two_views"] = Way(views=_SERVED_VIEWS)
    ways |= {f"fold{number}": Way(fold=number) for number in study.numbers}
    figures: dict[str, Figure] = {}
    rivals: dict[str, Any] = {}
    for name, way in ways.items():
        draws, singles = FoldDraws.of(study.ensemble(way)), study.singles(way.views)
        for rule, (key, tuned) in RULES.items():
            way = replace(way, tuned=tuned)  # noqa: PLW2901
            ensemble = study.ensemble(way)
            chosen, choice = study.chosen(way, key, singles)
            strongest, best = study.strongest(way, key, singles)
            for rival, says in (("chosen", chosen), ("strongest", strongest)):
                gain = draws.gain(ensemble, says, key, cautious=way.cautious)
                figures[f"try_{name}_{rival}_{rule}"] = gain
            rivals.setdefault(name, {})[rule] = {"chosen": choice, "strongest": best}
    return figures, rivals


def class_gains(study: Study, rule: str) -> dict[str, Figure]:
    """Return of each class what more the ensemble finds than the chosen member, by one rule."""
    key, tuned = RULES[rule]
    way = Way(tuned=tuned)
    ensemble, (chosen, _) = study.ensemble(way), study.chosen(way, key, study.singles())
    draws = FoldDraws.of(ensemble)
    more_N = ensemble.hits_N(key) - chosen.hits_N(key)
    truth_N = ensemble.answers.truth_N
    figures = {}
    for place, name in enumerate(study.classes):
        of_class_N = truth_N == place
        if of_class_N.any():
            features = np.column_stack([more_N * of_class_N, of_class_N])
            share = Statistic(features, lambda total_DF: total_DF[:, 0] / total_DF[:, 1], -1, 1)
            found = Figure.of(draws.interval(share), "points", len(study.folds), 100)
            figures[f"class_{name}_{rule}"] = found
    return figures
