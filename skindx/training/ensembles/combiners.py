"""Combiners and temperatures of an ensemble, fitted on validation.

A *unit* is what has one weight and one temperature: a member, or all fold members of one kind. Each
combiner is scored on images that it was not fitted on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from skindx.data.splits.split import fold_groups
from skindx.metrics import (
    balanced_accuracy,
    expected_calibration_error,
    share_interval,
    top_k_accuracy,
)
from skindx.models.combination import Combination, combine, fit_weights, log, pool, select_greedily
from skindx.models.probability_correction import apply_temperature, fit_temperature
from skindx.training.config.ensemble import (
    Auto,
    Combine,
    Combiner,
    Greedy,
    MajorityVote,
    Mean,
    Weighted,
)
from skindx.training.ensembles.member_refs import Mask, out_of_fold_P

if TYPE_CHECKING:
    from rich.console import Console


# U = units, N = images, C = classes

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

COMBINERS: dict[str, Combiner] = {
    "mean of probabilities": Mean(),
    "mean of logits": Mean(space="logit"),
    "weighted probabilities": Weighted(),
    "weighted logits": Weighted(space="logit"),
    "greedy, probabilities": Greedy(),
    "greedy, logits": Greedy(space="logit"),
    "majority vote": MajorityVote(),
}
"""What is scored in every run, and what `auto` chooses among."""

AS_SET = "as set"
"""The name of a combiner with numbers of the user's own."""

_CROSS_FOLDS = 5


@dataclass(frozen=True)
class Evidence:
    """Raw log-probabilities of validation images, by units that did not train on them."""

    log_UNC: Floats
    truth_N: Ints
    groups: tuple[str, ...]

    def rows(self, chosen_N: NDArray[np.bool_]) -> "Evidence":
        """Return the evidence of some of the images."""
        groups = tuple(np.array(self.groups)[chosen_N])
        return Evidence(self.log_UNC[:, chosen_N], self.truth_N[chosen_N], groups)


@dataclass(frozen=True)
class Fitted:
    """Everything that is fitted on validation; weights and temperatures are of units."""

    temperatures: tuple[float, ...]
    combination: Combination
    temperature: float

    def probabilities(self, log_UNC: Floats) -> Floats:
        """Return the ensemble's probabilities N x C for raw log-probabilities."""
        return combine(soften(log_UNC, self.temperatures), self.temperature, self.combination)


@dataclass(frozen=True)
class Score:
    """Figures of a combiner on images it was not fitted on; loss: negative log-likelihood."""

    combiner: str
    loss: float
    gain: float
    """How much less the loss is than that of the first combiner, and that difference's error."""
    gain_error: float
    top1: float
    balanced_accuracy: float
    calibration_error: float


def fit(combiner: Combiner, evidence: Evidence) -> Fitted:
    """Fit the units' temperatures, then the combination, then the ensemble's temperature."""
    temperatures = tuple(fit_temperature(log_NC, evidence.truth_N) for log_NC in evidence.log_UNC)
    return _fit_softened(combiner, evidence, temperatures, soften(evidence.log_UNC, temperatures))


def _fit_softened(
    combiner: Combiner, evidence: Evidence, temperatures: tuple[float, ...], soft_UNC: Floats
) -> Fitted:
    combination = _combination(combiner, soft_UNC, evidence.truth_N)
    pooled_NC = pool(soft_UNC, combination)
    temperature = fit_temperature(log(pooled_NC), evidence.truth_N)
    if len(soft_UNC) > 1 and temperature < 1 and not _borne_out(pooled_NC, evidence):
        temperature = 1.0
    return Fitted(temperatures, combination, temperature)


def _borne_out(pooled_NC: Floats, evidence: Evidence) -> bool:
    """Return whether the images bear out that the members' mean is to be sharpened.

    Sharpened, an answer can be surer than the surest member. So the mean must be right more often
    than it says, also at the lower end of the exact 95 % interval over groups: few images that are
    all answered rightly are no evidence.
    """
    right_N = pooled_NC.argmax(axis=1) == evidence.truth_N
    least = share_interval(right_N, np.array(evidence.groups)).low
    return bool(least > pooled_NC.max(axis=1).mean())


def soften(log_UNC: Floats, temperatures: Sequence[float]) -> Floats:
    """Return calibrated probabilities U x N x C."""
    return np.stack(
        [apply_temperature(log_NC, t) for log_NC, t in zip(log_UNC, temperatures, strict=True)]
    )


def _combination(combiner: Combiner, soft_UNC: Floats, truth_N: Ints) -> Combination:
    if len(soft_UNC) == 1:
        return Combination()
    if isinstance(combiner, Mean):
        return Combination(rule=combiner.space)
    if isinstance(combiner, MajorityVote):
        return Combination(rule="vote")
    if isinstance(combiner, Weighted):
        weights_U = fit_weights(soft_UNC, truth_N, combiner.space, combiner.prior)
    else:
        weights_U = select_greedily(soft_UNC, truth_N, combiner.space, combiner.rounds)
    return Combination(rule=combiner.space, weights=tuple(weights_U.tolist()))


def cross_fit(combiners: dict[str, Combiner], evidence: Evidence) -> list[Score]:
    """Score each combiner on every image, fitted on the folds without it; folds keep groups whole.

    So a combiner is never scored on images that it was fitted on. Gains are counted from the first
    combiner. Returns no scores where there are not two groups to set apart.
    """
    pairs = [
        (group, str(label)) for group, label in zip(evidence.groups, evidence.truth_N, strict=True)
    ]
    folds = min(_CROSS_FOLDS, len(set(evidence.groups)))
    if folds < 2:
        return []
    fold_of = fold_groups(pairs, folds, 0)
    fold_N = np.array([fold_of[group] for group in evidence.groups])
    result = {name: np.empty(evidence.log_UNC.shape[1:]) for name in combiners}
    for fold in sorted(set(fold_N.tolist())):
        held_N = fold_N == fold
        learned = evidence.rows(~held_N)
        temperatures = fit(next(iter(combiners.values())), learned).temperatures
        soft_UNC = soften(learned.log_UNC, temperatures)
        for name, combiner in combiners.items():
            fitted = _fit_softened(combiner, learned, temperatures, soft_UNC)
            result[name][held_N] = fitted.probabilities(evidence.log_UNC[:, held_N])
    first_NC = next(iter(result.values()))
    return [_score(name, each_NC, first_NC, evidence) for name, each_NC in result.items()]


def _score(name: str, each_NC: Floats, first_NC: Floats, evidence: Evidence) -> Score:
    rows_N, truth_N = np.arange(len(evidence.truth_N)), evidence.truth_N
    log_N = log(each_NC)[rows_N, truth_N]
    gain_N = log_N - log(first_NC)[rows_N, truth_N]
    return Score(
        combiner=name,
        loss=float(-log_N.mean()),
        gain=float(gain_N.mean()),
        gain_error=_grouped_error(gain_N, evidence.groups),
        top1=top_k_accuracy(each_NC, truth_N),
        balanced_accuracy=balanced_accuracy(each_NC, truth_N),
        calibration_error=expected_calibration_error(each_NC, truth_N),
    )


def _grouped_error(value_N: Floats, groups: Sequence[str]) -> float:
    """Return the standard error of a mean whose images come in groups."""
    _, group_N = np.unique(np.array(groups), return_inverse=True)
    total_G = np.bincount(group_N, weights=value_N - value_N.mean())
    count = len(total_G)
    return float(np.sqrt(count / (count - 1) * (total_G**2).sum()) / len(value_N))


def choose(combine: Combine, evidence: Evidence, scores: Sequence[Score]) -> tuple[str, Combiner]:
    """Return the name and the combiner to combine by.

    `auto` takes the combiner with the largest gain, but only of those whose gain is above its own
    standard error: else the first, the plain mean, since every other rests on more choices.
    """
    if not isinstance(combine, Auto):
        named = (name for name, combiner in COMBINERS.items() if combiner == combine)
        return next(named, AS_SET), combine
    sure = [score for score in scores if score.gain > score.gain_error]
    best = max(sure, key=lambda score: score.gain, default=None)
    name = best.combiner if best and len(evidence.log_UNC) > 1 else next(iter(COMBINERS))
    return name, COMBINERS[name]


# U = units, P = images of train and val, N = images to fit on, C = classes


@dataclass(frozen=True)
class Assembly:
    """How the members of an ensemble are to be packed."""

    members: tuple[str, ...]
    temperatures: tuple[float, ...]
    combination: Combination
    temperature: float
    combiner: str
    scores: tuple[Score, ...]
    images: int
    groups: int
    members_of: dict[str, tuple[str, ...]]
    """The members of each unit."""
    fitted: Fitted

    def report(self) -> dict[str, Any]:
        """Return what RUN/ensemble.json holds; its keys are an interface."""
        weights = self.combination.weights or [1 / len(self.members)] * len(self.members)
        return {
            "chosen": self.combiner,
            "rule": self.combination.rule,
            "temperature": self.temperature,
            "members": [
                {"name": name, "weight": weight, "temperature": temperature}
                for name, weight, temperature in zip(
                    self.members, weights, self.temperatures, strict=True
                )
            ],
            "fitted on": {"pictures": self.images, "groups": self.groups},
            "folds of one kind": [
                list(names) for names in self.members_of.values() if len(names) > 1
            ],
            "ways, each scored on images that it was not fitted on": [
                {"way": score.combiner, **_figures(score)} for score in self.scores
            ],
        }


def _figures(score: Score) -> dict[str, Any]:
    figures = asdict(score)
    del figures["combiner"]
    return figures


def gather_evidence(
    units: Mapping[str, Mapping[str, Mask]],
    predicted: Mapping[str, Floats],
    truth_P: NDArray[np.int64],
    groups_P: Sequence[str],
) -> Evidence:
    """Return each unit's out-of-fold predictions of the images for which all units have some.

    `predicted` holds each member's raw log-probabilities of the images that it did not train on,
    in order. Where a unit has several members for an image, it predicts their mean probability.
    """
    chosen_P = out_of_fold_P(units)
    log_UNC = np.stack([_predictions(unit, predicted)[chosen_P] for unit in units.values()])
    groups = tuple(np.array(groups_P)[chosen_P].tolist())
    return Evidence(log_UNC, truth_P[chosen_P], groups)


def _predictions(unit: Mapping[str, Mask], predicted: Mapping[str, Floats]) -> Floats:
    if len(unit) == 1:  # to the bit what the member predicted
        ((name, mask_P),) = unit.items()
        log_PC = np.full((len(mask_P), predicted[name].shape[1]), np.nan)
        log_PC[mask_P] = predicted[name]
        return log_PC
    some = next(iter(unit))
    total_PC = np.full((len(unit[some]), predicted[some].shape[1]), -np.inf)
    for name, mask_P in unit.items():
        total_PC[mask_P] = np.logaddexp(total_PC[mask_P], predicted[name])
    count_P = np.sum(list(unit.values()), axis=0)
    mean_PC: Floats = total_PC - np.log(np.maximum(count_P, 1))[:, None]
    return mean_PC


def assemble(
    combine: Combine, evidence: Evidence, members_of: Mapping[str, Sequence[str]]
) -> Assembly:
    """Fit the chosen combiner, and score all of them; members without weight are left out."""
    several = len(members_of) > 1
    combiners = COMBINERS
    if not isinstance(combine, Auto) and combine not in COMBINERS.values():
        combiners = {**COMBINERS, AS_SET: combine}
    scores = cross_fit(combiners, evidence) if several else []
    name, combiner = choose(combine, evidence, scores)
    fitted = fit(combiner, evidence)
    names, weights, temperatures = _spread(fitted, members_of)
    even = np.allclose(weights, 1 / len(weights), rtol=0, atol=1e-9)
    return Assembly(
        members=names,
        temperatures=temperatures,
        combination=Combination(rule=fitted.combination.rule, weights=None if even else weights),
        temperature=fitted.temperature,
        combiner=name if several else "nothing to choose",
        scores=tuple(scores),
        images=len(evidence.truth_N),
        groups=len(set(evidence.groups)),
        members_of={unit: tuple(inside) for unit, inside in members_of.items()},
        fitted=fitted,
    )


def _spread(
    fitted: Fitted, members_of: Mapping[str, Sequence[str]]
) -> tuple[tuple[str, ...], tuple[float, ...], tuple[float, ...]]:
    """Share each unit's weight among its members, and give them its temperature."""
    weights = fitted.combination.weights or [1 / len(members_of)] * len(members_of)
    rows = [
        (name, weight / len(inside), temperature)
        for inside, weight, temperature in zip(
            members_of.values(), weights, fitted.temperatures, strict=True
        )
        for name in inside
        if weight > 0
    ]
    names, shares, temperatures = zip(*rows, strict=True)
    return names, shares, temperatures


def print_combiners(assembly: Assembly, console: "Console") -> None:
    """Print what each combiner scores on validation, the chosen one marked."""
    from rich.table import Table

    if not assembly.scores:
        return
    title = f"combiners, on {assembly.images} validation images, cross-fitted"
    table = Table(title=title, box=None, pad_edge=False, padding=(0, 2, 0, 0), title_justify="left")
    table.add_column("combiner")
    for column in ("loss", "top-1", "balanced accuracy", "calibration error"):
        table.add_column(column, justify="right")
    for score in assembly.scores:
        figures = (score.loss, score.top1, score.balanced_accuracy, score.calibration_error)
        mark = "  <- chosen" if score.combiner == assembly.combiner else ""
        table.add_row(score.combiner + mark, *(f"{figure:.3f}" for figure in figures))
    console.print(table)
