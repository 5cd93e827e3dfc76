"""What validation decides about an ensemble: temperatures, the way of combining, weights."""

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
from skindx.training.ensembles.member_refs import Mask, honest_P

if TYPE_CHECKING:
    from rich.console import Console

# U = units, P = pictures of train and val, N = pictures to fit on, C = classes

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Assembly:
    """How the members of an ensemble are to be packed."""

    members: tuple[str, ...]
    temperatures: tuple[float, ...]
    combination: Combination
    temperature: float
    way: str
    scores: tuple[Score, ...]
    pictures: int
    groups: int
    members_of: dict[str, tuple[str, ...]]
    """The members of each unit."""

    def report(self) -> dict[str, Any]:
        """Return what RUN/ensemble.json says."""
        weights = self.combination.weights or [1 / len(self.members)] * len(self.members)
        return {
            "chosen": self.way,
            "rule": self.combination.rule,
            "temperature": self.temperature,
            "members": [
                {"name": name, "weight": weight, "temperature": temperature}
                for name, weight, temperature in zip(
                    self.members, weights, self.temperatures, strict=True
                )
            ],
            "fitted on": {"pictures": self.pictures, "groups": self.groups},
            "folds of one kind": [list(each) for each in self.members_of.values() if len(each) > 1],
            "ways, each scored on pictures that it was not fitted on": [
                asdict(score) for score in self.scores
            ],
        }


def gather_evidence(
    units: Mapping[str, Mapping[str, Mask]],
    judged: Mapping[str, Floats],
    truth_P: NDArray[np.int64],
    groups_P: Sequence[str],
) -> Evidence:
    """Return what each unit says of the pictures on which all have an honest word.

    `judged` holds each member's raw log-probabilities of its own honest pictures, in order. Where
    a unit has several members for a picture, their mean probability is its word.
    """
    honest = honest_P(units)
    log_UNC = np.stack([_word_of(unit, judged)[honest] for unit in units.values()])
    groups = tuple(np.array(groups_P)[honest].tolist())
    return Evidence(log_UNC, truth_P[honest], groups)


def _word_of(unit: Mapping[str, Mask], judged: Mapping[str, Floats]) -> Floats:
    if len(unit) == 1:  # to the bit what the member said
        ((name, mask_P),) = unit.items()
        log_PC = np.full((len(mask_P), judged[name].shape[1]), np.nan)
        log_PC[mask_P] = judged[name]
        return log_PC
    some = next(iter(unit))
    total_PC = np.full((len(unit[some]), judged[some].shape[1]), -np.inf)
    for name, mask_P in unit.items():
        total_PC[mask_P] = np.logaddexp(total_PC[mask_P], judged[name])
    count_P = np.sum(list(unit.values()), axis=0)
    mean_PC: Floats = total_PC - np.log(np.maximum(count_P, 1))[:, None]
    return mean_PC


def assemble(
    combine: Combine, evidence: Evidence, members_of: Mapping[str, Sequence[str]]
) -> Assembly:
    """Fit what is asked for, and score all ways; members without weight are left out."""
    several = len(members_of) > 1
    ways = COMBINERS
    if not isinstance(combine, Auto) and combine not in COMBINERS.values():
        ways = {**COMBINERS, AS_SET: combine}
    scores = cross_fit(ways, evidence) if several else []
    name, way = choose(combine, evidence, scores)
    fitted = fit(way, evidence)
    names, weights, temperatures = _spread(fitted, members_of)
    even = np.allclose(weights, 1 / len(weights), rtol=0, atol=1e-9)
    return Assembly(
        members=names,
        temperatures=temperatures,
        combination=Combination(rule=fitted.combination.rule, weights=None if even else weights),
        temperature=fitted.temperature,
        way=name if several else "nothing to choose",
        scores=tuple(scores),
        pictures=len(evidence.truth_N),
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


def print_ways(assembly: Assembly, console: "Console") -> None:
    """Print what each way of combining scores on validation, the chosen one marked."""
    from rich.table import Table

    if not assembly.scores:
        return
    title = f"ways of combining, on {assembly.pictures} validation pictures, cross-fitted"
    table = Table(title=title, box=None, pad_edge=False, padding=(0, 2, 0, 0), title_justify="left")
    table.add_column("way")
    for column in ("loss", "top-1", "balanced accuracy", "calibration error"):
        table.add_column(column, justify="right")
    for each in assembly.scores:
        figures = (each.loss, each.top1, each.balanced_accuracy, each.calibration_error)
        mark = "  <- chosen" if each.way == assembly.way else ""
        table.add_row(each.way + mark, *(f"{figure:.3f}" for figure in figures))
    console.print(table)
