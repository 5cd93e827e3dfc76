"""Measures of a ranked list in which some entries are hits: CleanPatrick's and SelfClean's.

Gröger et al. 2025 ("CleanPatrick: A Benchmark for Image Data Cleaning", arXiv 2505.11034) rank all
candidates and report average precision, AUROC, and precision and recall among the first k. Here a
method may rank a part of them; hits that it leaves out are never found.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skindx.metrics import Ranked

# R = ranked entries, U = units that are resampled, D = bootstrap draws


@dataclass(frozen=True)
class Ranking:
    """Entries sorted by falling score.

    Entry r is evidence of the units `units_R2`: of two that it joins, or of one, twice the same.
    `hits_U` is how many hits a perfect list has of each unit.
    """

    score_R: NDArray[np.float64]
    hit_R: NDArray[np.bool_]
    units_R2: NDArray[np.int64]
    hits_U: NDArray[np.int64]

    def average_precision(self) -> Ranked:
        """Mean over all hits of the precision at their score; equal scores stand together.

        A draw of units weights an entry by its unit, or by the product of the two that it joins.
        """
        return Ranked(
            lambda weights_DU: np.array([self._precision(weights_U) for weights_U in weights_DU]),
            len(self.hits_U),
        )

    def _precision(self, weights_U: NDArray[np.float64]) -> float:
        total = float((weights_U * self.hits_U).sum())
        if total == 0:
            return float("nan")
        first_R, second_R = self.units_R2.T
        weight_R = np.where(
            first_R == second_R, weights_U[first_R], weights_U[first_R] * weights_U[second_R]
        )
        ends = _last_of_equals(self.score_R)
        hits_R = np.cumsum(np.where(self.hit_R, weight_R, 0))[ends]
        all_R = np.cumsum(weight_R)[ends]
        gained_R = np.diff(hits_R, prepend=0.0)
        precision_R = np.divide(hits_R, all_R, out=np.zeros_like(hits_R), where=all_R > 0)
        return float((gained_R * precision_R).sum() / total)

    def auroc(self, candidates: int) -> float:
        """Return the chance that a hit stands before another candidate; `candidates` are all.

        What is not ranked stands last, all at the same place. NaN without a hit or another.
        """
        hits, others = int(self.hits_U.sum()), candidates - int(self.hits_U.sum())
        if hits == 0 or others == 0:
            return float("nan")
        ends = _last_of_equals(self.score_R)
        found_R, false_R = np.cumsum(self.hit_R)[ends], np.cumsum(~self.hit_R)[ends]
        found_R, false_R = np.append(found_R, hits), np.append(false_R, others)
        before_R = np.append(0, false_R[:-1])
        beaten_R = others - (before_R + false_R) / 2
        return float((np.diff(found_R, prepend=0) * beaten_R).sum() / hits / others)

    def among_first(self, k: int) -> tuple[float, float]:
        """Return precision and recall of the first k entries; NaN without an entry or a hit."""
        found, hits = int(self.hit_R[:k].sum()), int(self.hits_U.sum())
        precision = found / min(k, len(self.hit_R)) if len(self.hit_R) else float("nan")
        return precision, found / hits if hits else float("nan")

    def before_false(self) -> NDArray[np.bool_]:
        """Return for each entry whether it is a hit that stands before every false one."""
        false = self.score_R[~self.hit_R]
        first = false.max() if len(false) else -np.inf
        before_R: NDArray[np.bool_] = self.hit_R & (self.score_R > first)
        return before_R


def _last_of_equals(score_R: NDArray[np.float64]) -> NDArray[np.intp]:
    """Return the positions of the last entry of each score, in order."""
    return np.flatnonzero(np.append(score_R[1:] != score_R[:-1], True)[: len(score_R)])
