"""Misses of urgent classes and of the three common skin cancers."""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skindx.evaluation.answers import Answers
from skindx.evaluation.headline import LEVEL
from skindx.metrics import Interval, share_interval
from skindx.taxonomy import SkinClass, normalise

# N = images, C = classes

CANCERS = {
    "Melanoma": (r"C43|D03", "melanoma"),
    "Squamous cell carcinoma": (r"C44\.\d2|D04", "squamouscellcarcinoma"),
    "Basal cell carcinoma": (r"C44\.\d1", "basalcellcarcinoma"),
}
"""Name -> how its classes are recognised: by the start of their ICD-10-CM code (in situ too), where
they have none by what their name holds."""


@dataclass(frozen=True, slots=True)
class UrgentMisses:
    """Images of urgent classes for which no urgent class was named."""

    n: int
    missed: int
    rate: Interval


@dataclass(frozen=True, slots=True)
class FalseAlarms:
    """Images of other classes for which an urgent class was named: what safety costs."""

    n: int
    raised: int
    rate: Interval


@dataclass(frozen=True, slots=True)
class CancerMisses:
    """One of the three cancers; a class of the other two still warns the reader.

    `missed` images have a likeliest class that is not this cancer, `unwarned` of them one that
    is none of the three.
    """

    name: str
    classes: tuple[str, ...]
    """The keys that mean this cancer; () when the predictor has no such class."""
    n: int
    missed: int
    rate: Interval
    unwarned: int
    unwarned_rate: Interval


def urgent_misses(answers: Answers) -> UrgentMisses | None:
    """Count the missed images of urgent classes; None when there is none to miss."""
    urgent_C = np.array([skin_class.urgency == "urgent" for skin_class in answers.classes])
    own_N, called_N = urgent_C[answers.truth_N], urgent_C[answers.predicted_N]
    if not own_N.any():
        return None
    missed_N = own_N & ~called_N
    return UrgentMisses(int(own_N.sum()), int(missed_N.sum()), share(missed_N, own_N, answers))


def cancer_misses(answers: Answers) -> tuple[CancerMisses, ...]:
    """Count the missed images of each of the three cancers, also of one without images."""
    kind_C = np.array([cancer_of(skin_class) for skin_class in answers.classes])
    own_N, called_N = kind_C[answers.truth_N], kind_C[answers.predicted_N]

    def one(name: str) -> CancerMisses:
        this_N = own_N == name
        missed_N, unwarned_N = this_N & (called_N != name), this_N & (called_N == "")
        keys = [answers.classes[i].key for i in np.flatnonzero(kind_C == name)]
        return CancerMisses(
            name,
            tuple(keys),
            int(this_N.sum()),
            int(missed_N.sum()),
            share(missed_N, this_N, answers),
            int(unwarned_N.sum()),
            share(unwarned_N, this_N, answers),
        )

    return tuple(map(one, CANCERS))


def cancer_of(skin_class: SkinClass) -> str:
    """Return which of the three cancers a class means, "" for none."""
    for name, (code, words) in CANCERS.items():
        icd10 = skin_class.icd10
        if re.match(code, icd10) if icd10 else words in normalise(skin_class.name):
            return name
    return ""


def share(hits_N: NDArray[Any], among_N: NDArray[Any], answers: Answers) -> Interval:
    """Return the share of hits among some of the images, with its exact interval over groups."""
    return share_interval(hits_N[among_N], answers.groups_N[among_N], level=LEVEL)
