"""The mix of diseases that shown probabilities hold for, and the predictive values of "urgent".

Probabilities that are shown, and predictive values, follow the operator's prevalence where one is
given. Sets, risk and threshold are of the uncorrected probabilities, which they were fitted on.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from skindx.diagnosis.conclusion import Conclusion
from skindx.diagnosis.record import UrgentRisk, percent
from skindx.diagnosis.scope import urgent_known

if TYPE_CHECKING:
    from skindx.diagnosis.predictor import Predictor

_NAMED = 5
_CALIBRATION = "The probabilities hold for the mix of diseases of the calibration images"
_ELSEWHERE = "where a disease is rarer or more common than there, so is its probability."

# C = classes


def at_prevalence(conclusion: Conclusion, predictor: "Predictor") -> Conclusion:
    """Return a conclusion whose ranked probabilities are those of the operator's mix."""
    if predictor.prevalence is None:
        return conclusion
    keys = [skin_class.key for skin_class, _, _ in conclusion.ranked]
    shares_C = np.zeros(len(keys))
    places = {key: place for place, key in enumerate(predictor.taxonomy.keys)}
    for skin_class, probability, _ in conclusion.ranked:
        shares_C[places[skin_class.key]] = probability
    corrected_C = predictor.prevalence.correct(shares_C)
    ranked = [
        (skin_class, min(float(corrected_C[places[skin_class.key]]), 1.0), in_set)
        for skin_class, _, in_set in conclusion.ranked
    ]
    ranked.sort(key=lambda row: -row[1])
    return replace(conclusion, ranked=tuple(ranked))


def shown_prevalence(predictor: "Predictor") -> dict[str, float] | None:
    """Return the share of each condition that shown probabilities hold for; None: not known."""
    if predictor.prevalence:
        return dict(zip(predictor.taxonomy.keys, predictor.prevalence.shares_C, strict=True))
    counts = predictor.calibration_mix
    if counts is None:
        return None
    return {key: count / sum(counts.values()) for key, count in counts.items()}


def mix_text(predictor: "Predictor") -> str:
    """Return which mix of diseases the shown probabilities hold for, in sentences."""
    shares = shown_prevalence(predictor)
    if predictor.prevalence:
        fitted = "The set of conditions uses"
        if urgent_known(predictor.taxonomy.classes):
            fitted = "The set of conditions, the risk and the threshold of urgent use"
        return (
            f"The probabilities are corrected for the prevalence that the operator gave: "
            f"{_listed(predictor, shares or {})}. {fitted} the uncorrected ones."
        )
    if shares is None:
        return f"{_CALIBRATION}, which this bundle does not name; {_ELSEWHERE}"
    return f"{_CALIBRATION} ({_listed(predictor, shares)}); {_ELSEWHERE}"


def with_predictive_values(risk: UrgentRisk | None, predictor: "Predictor") -> UrgentRisk | None:
    """Return a risk with the predictive values of its threshold at the mix that is shown.

    They follow from both errors: those of the evaluation where there is one, and else the miss
    rate that is kept to and the calibration images of other conditions that are called urgent.
    """
    shares = shown_prevalence(predictor)
    if risk is None or shares is None:
        return risk
    if risk.measured_missed and risk.measured_sent_on:
        missed, sent_on = risk.measured_missed.value, risk.measured_sent_on.value
    elif risk.sent_on:
        missed, sent_on = risk.miss_rate, risk.sent_on.value
    else:
        return risk
    classes = predictor.taxonomy.classes
    urgent = min(sum(shares[x.key] for x in classes if x.urgency == "urgent"), 1.0)
    called, kept = urgent * (1 - missed), (1 - urgent) * (1 - sent_on)
    called_in_all, kept_in_all = called + (1 - urgent) * sent_on, kept + urgent * missed
    update = {
        "prevalence": urgent,
        "ppv": called / called_in_all if called_in_all else None,
        "npv": kept / kept_in_all if kept_in_all else None,
    }
    return risk.model_copy(update=update)


def _listed(predictor: "Predictor", shares: dict[str, float]) -> str:
    names = {skin_class.key: skin_class.name for skin_class in predictor.taxonomy.classes}
    first = sorted(shares.items(), key=lambda row: -row[1])
    listed = [f"{names[key]} {percent(share)}" for key, share in first[:_NAMED]]
    if rest := first[_NAMED:]:
        listed.append(f"{len(rest)} more {percent(sum(share for _, share in rest))}")
    return ", ".join(listed)
