"""Temperatures of an ensemble, fitted on validation.

A *unit* is what has one weight and one temperature: a member, or all fold members of one kind.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skindx.metrics import share_interval
from skindx.models.combination import (
    Combination,
    Rule,
    apply_temperature,
    combine,
    fit_temperature,
    log,
    pool,
)
from skindx.training.config.ensemble import Combiner, Mean
from skindx.training.ensembles.member_refs import Mask, out_of_fold_P

# U = units, N = images, C = classes

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Evidence:
    """Raw log-probabilities of validation images, by units that did not train on them."""

    log_UNC: Floats
    truth_N: Ints
    groups: tuple[str, ...]


@dataclass(frozen=True)
class Fitted:
    """Everything that is fitted on validation; weights and temperatures are of units."""

    temperatures: tuple[float, ...]
    combination: Combination
    temperature: float

    def probabilities(self, log_UNC: Floats) -> Floats:
        """Return the ensemble's probabilities N x C for raw log-probabilities."""
        return combine(soften(log_UNC, self.temperatures), self.temperature, self.combination)


def fit(combiner: Combiner, evidence: Evidence) -> Fitted:
    """Fit the units' temperatures, then the ensemble's."""
    temperatures = tuple(fit_temperature(log_NC, evidence.truth_N) for log_NC in evidence.log_UNC)
    rule = combiner.space if isinstance(combiner, Mean) else "vote"
    combination = Combination(rule=rule) if len(temperatures) > 1 else Combination()
    pooled_NC = pool(soften(evidence.log_UNC, temperatures), combination)
    temperature = fit_temperature(log(pooled_NC), evidence.truth_N)
    if len(temperatures) > 1 and temperature < 1 and not _borne_out(pooled_NC, evidence):
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


_NAMES: dict[Rule, str] = {
    "probability": "mean of probabilities",
    "logit": "mean of logits",
    "vote": "majority vote",
}

# U = units, P = images of train and val, N = images to fit on, C = classes


@dataclass(frozen=True)
class Assembly:
    """How the members of an ensemble are to be packed."""

    members: tuple[str, ...]
    temperatures: tuple[float, ...]
    combination: Combination
    temperature: float
    combiner: str
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
        }


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
    combiner: Combiner, evidence: Evidence, members_of: Mapping[str, Sequence[str]]
) -> Assembly:
    """Fit the temperatures of units and ensemble."""
    fitted = fit(combiner, evidence)
    names, weights, temperatures = _spread(fitted, members_of)
    even = np.allclose(weights, 1 / len(weights), rtol=0, atol=1e-9)
    return Assembly(
        members=names,
        temperatures=temperatures,
        combination=Combination(rule=fitted.combination.rule, weights=None if even else weights),
        temperature=fitted.temperature,
        combiner=_NAMES[fitted.combination.rule] if len(members_of) > 1 else "nothing to choose",
        images=len(evidence.truth_N),
        groups=len(set(evidence.groups)),
        members_of={unit: tuple(inside) for unit, inside in members_of.items()},
        fitted=fitted,
    )


def _spread(
    fitted: Fitted, members_of: Mapping[str, Sequence[str]]
) -> tuple[tuple[str, ...], tuple[float, ...], tuple[float, ...]]:
    """Weigh units alike, share each one's weight among its members, give them its temperature."""
    rows = [
        (name, 1 / len(members_of) / len(inside), temperature)
        for inside, temperature in zip(members_of.values(), fitted.temperatures, strict=True)
        for name in inside
    ]
    names, shares, temperatures = zip(*rows, strict=True)
    return names, shares, temperatures
