"""Verification of a pair of described images, by the best alignment of one with the other."""

import numpy as np

from skindx.data.copies.acceptance import Acceptance, shipped
from skindx.data.copies.alignment import align
from skindx.data.copies.copy import REVIEW, Copy
from skindx.data.copies.describe import Description
from skindx.data.copies.evidence import Evidence, measure
from skindx.data.copies.geometry import models_of

VERSION = 2
"""Counts up when a pair's evidence changes, so that pairs are verified again."""


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
        (acceptance.probability(evidence.features_F), evidence)
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


def _as(copy: Copy, first: int, second: int) -> Copy:
    import dataclasses

    return dataclasses.replace(copy, first=first, second=second)
