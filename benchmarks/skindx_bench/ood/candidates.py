"""The detectors and combinations that `skindx bench ood` compares, and how the default is chosen.

The choice uses only classes left out of a training and painted images: photos of another
camera, the final test of a check, must not choose it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from skindx.metrics import Interval, share_interval
from skindx.models.ood.check import AnyDetector, combine, p_values, rate_of
from skindx.models.ood.detectors import DETECTORS, detector_class

OWN, LEFT_OUT = "own", "left out"
"""Kinds of images: test images of the classes trained on, images of the others."""

CANDIDATES: tuple[tuple[str, ...], ...] = (
    *((kind,) for kind in DETECTORS),
    ("mahalanobis", "image"),
    ("energy", "image_mixture"),
    ("knn", "image_mixture"),
    ("mahalanobis", "image_mixture"),
    ("relative_mahalanobis", "image_mixture"),
    ("vim", "image_mixture"),
    ("gram", "image_mixture"),
    ("energy", "knn", "relative_mahalanobis", "vim", "image_mixture"),
)

# N = images, K = detectors

Scores = Mapping[tuple[str, str], NDArray[np.float64]]
"""Scores N by (kind of detector, kind of images); `calibration` is one of the latter."""

_ADAPTER: TypeAdapter[AnyDetector] = TypeAdapter(AnyDetector)


def settings_of(kind: str) -> AnyDetector:
    """Return the default settings of a kind of detector."""
    return _ADAPTER.validate_python({"kind": kind})


def is_served(candidate: Sequence[str]) -> bool:
    """Tell whether a bundle can carry these detectors: exports give no layer but the last."""
    return not any("layers" in detector_class(kind).needs for kind in candidate)


@dataclass(frozen=True)
class Refusals:
    """Refusals of one candidate for one kind of images, over all trainings."""

    out_N: NDArray[np.bool_]
    groups_N: NDArray[np.str_]
    areas: tuple[float, ...]
    """Of each training: AUROC against the images of its own classes."""

    @property
    def share(self) -> Interval:
        """The share refused; images of one group count as one."""
        return share_interval(self.out_N, self.groups_N)

    @property
    def area(self) -> float:
        """The mean AUROC of the trainings."""
        return float(np.mean(self.areas))


def refusals(
    candidate: Sequence[str], trainings: Sequence[tuple[Scores, Mapping[str, Sequence[str]]]]
) -> dict[str, Refusals]:
    """Return what a candidate refuses of each kind of images.

    A training is its scores and the groups of its images by their kind.
    """
    from sklearn.metrics import roc_auc_score

    found: dict[str, list[tuple[NDArray[np.bool_], Sequence[str], float]]] = {}
    for scores, groups in trainings:
        known_NK = _columns(scores, candidate, "calibration")
        own_N = combine(_columns(scores, candidate, OWN), known_NK)
        for kind, of in groups.items():
            asked_NK = _columns(scores, candidate, kind)
            out_N = p_values(known_NK, asked_NK) <= rate_of(len(known_NK))
            asked_N = combine(asked_NK, known_NK)
            truth_N = np.repeat([0, 1], [len(own_N), len(asked_N)])
            area = float(roc_auc_score(truth_N, np.concatenate([own_N, asked_N])))
            found.setdefault(kind, []).append((out_N, of, area))
    return {
        kind: Refusals(
            np.concatenate([out_N for out_N, _, _ in parts]),
            np.concatenate([np.array(of) for _, of, _ in parts]),
            tuple(area for _, _, area in parts),
        )
        for kind, parts in found.items()
    }


def _columns(scores: Scores, candidate: Sequence[str], kind: str) -> NDArray[np.float64]:
    return np.stack([scores[detector, kind] for detector in candidate], axis=1)


def merit(found: Mapping[str, Refusals]) -> float:
    """Return what a candidate is chosen by: the mean of two shares refused.

    The one is that of images of left-out classes, the other the mean over painted kinds.
    """
    painted = [part.share.value for kind, part in found.items() if kind not in (OWN, LEFT_OUT)]
    return (found[LEFT_OUT].share.value + float(np.mean(painted))) / 2


def choose(
    found: Mapping[tuple[str, ...], Mapping[str, Refusals]], promised: float
) -> tuple[str, ...] | None:
    """Return the candidate of the highest merit that a bundle can carry; of equals the smaller.

    One whose share of its own images lies above the promise, interval and all, is no candidate.
    """
    fit = {
        candidate: merit(kinds)
        for candidate, kinds in found.items()
        if is_served(candidate) and kinds[OWN].share.low <= promised
    }
    best = sorted(fit, key=lambda candidate: (-round(fit[candidate], 4), len(candidate)))
    return best[0] if best else None
