"""Parameters of an ensemble that are fitted on validation: temperatures, combiner, weights."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from skindx.models.ensemble.combination import Combination
from skindx.training.config.ensemble import Auto, Combine
from skindx.training.ensembles.combiners import (
    AS_SET,
    COMBINERS,
    Evidence,
    Fitted,
    Score,
    choose,
    cross_fit,
    fit,
)
from skindx.training.ensembles.member_refs import Mask, out_of_fold_P

if TYPE_CHECKING:
    from rich.console import Console

# U = units, P = images of train and val, N = images to fit on, C = classes

Floats = NDArray[np.float64]


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
