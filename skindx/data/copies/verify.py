"""Verification of a pair of described images, by the best alignment of one with the other."""

import numpy as np
from numpy.typing import NDArray

from skindx.data.copies.acceptance import Acceptance, shipped
from skindx.data.copies.alignment import align
from skindx.data.copies.copy import ACCEPT, REVIEW, Copy
from skindx.data.copies.describe import Description
from skindx.data.copies.evidence import Evidence, measure
from skindx.data.copies.geometry import models_of

VERSION = 3
"""Counts up when a pair's evidence changes, so that pairs are verified again."""

TURNED = 3.0
"""Degrees from every quarter turn from which on one image lies turned in the other."""
TURNED_INLIERS = 12
"""So many points of strangers have never agreed by chance, on a turn or on none."""

_OUTNUMBERED = 3
"""Times as many points of another model take a model out: a pattern repeats itself.

The dots of a frame agree in many places, and what denies the best of them decides for all.
"""


def evidence_of(first: Description, second: Description) -> list[Evidence]:
    """Return the evidence of every model under which the images overlap."""
    found = []
    for model in models_of(first, second):
        aligned = align(first, second, model.transform_23)
        if aligned is not None:
            found.append(measure(first, second, model, aligned))
    return found


def verify(
    first: Description, second: Description, acceptance: Acceptance | None = None
) -> Copy | None:
    """Return the evidence of first (position 0) and second (1), or None where no points agree.

    The order in which the two are given decides nothing.
    """
    if first.digest > second.digest:
        copy = verify(second, first, acceptance)
        return None if copy is None else _as(copy.turned(), 0, 1)
    acceptance = acceptance or shipped()
    found = [
        (_judged(acceptance.probability(evidence.features_F), evidence), evidence)
        for evidence in evidence_of(first, second)
    ]
    if not found:
        return None
    most = max(evidence.model.inliers for _, evidence in found)
    likely = [one for one in found if one[1].model.inliers * _OUTNUMBERED >= most]
    probability, evidence = max(likely, key=lambda one: one[0])
    if probability < REVIEW:  # what is refused is shown as most points have it: they come first
        evidence = found[0][1]
    return Copy(
        0,
        1,
        probability,
        evidence.model.inliers,
        round(evidence["ncc"], 4),
        round(evidence.aligned.covered, 4),
        evidence.model.mirrored,
        tuple(float(value) for value in np.round(evidence.aligned.transform_23, 5).ravel()),
    )


def _judged(probability: float, evidence: Evidence) -> float:
    """Accept what a person would be asked about where many points agree on a turn.

    The acceptance is as strict as it is because of overlays that different images share. Those lie
    straight; a second photo in another light, which it doubts, is held by another hand.
    """
    turned = turn_of(evidence.aligned.transform_23) >= TURNED
    if turned and probability >= REVIEW and evidence.model.inliers >= TURNED_INLIERS:
        return max(probability, ACCEPT)
    return probability


def turn_of(transform_23: NDArray[np.float64]) -> float:
    """Return how many degrees a map turns beyond the nearest quarter turn, mirrored or not."""
    left_22, _, right_22 = np.linalg.svd(transform_23[:, :2])
    (cosine, _), (sine, _) = left_22 @ right_22
    return float(abs((np.degrees(np.arctan2(sine, cosine)) + 45) % 90 - 45))


def _as(copy: Copy, first: int, second: int) -> Copy:
    import dataclasses

    return dataclasses.replace(copy, first=first, second=second)
