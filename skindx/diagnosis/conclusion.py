"""The conclusion from the probabilities: set of classes, next step, or abstention.

The urgent risk decides whether the next step is urgent; the conformal set names conditions, and
decides where the bundle has no threshold of the risk. The risk of urgent and soon conditions
together can only raise a next step. Its sentence is that of its urgency: `URGENCY_ADVICE` of
skindx/taxonomy.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from skindx.diagnosis.guarantees import shared
from skindx.diagnosis.record import NextStep, Promise, UrgentRisk, percent
from skindx.diagnosis.scope import UNSURE, urgent_known
from skindx.models.combination import mutual_information
from skindx.models.conformal import ALL, Conformal
from skindx.models.urgent_risk import QUESTION_WORDS, TIERS, Question, UrgentRiskRule
from skindx.taxonomy import URGENCY_ADVICE, SkinClass, Taxonomy, Urgency

CARRIED = 0.9
"""Without sets the next step looks at the classes that together carry this much probability."""

_BY_URGENCY: tuple[Urgency, ...] = ("routine", "unknown", "soon", "urgent")

Ranked = Sequence[tuple[SkinClass, float, bool]]
"""All classes, most probable first: class, probability, whether the conformal set holds it."""


def next_step(
    ranked: Ranked,
    risk: UrgentRisk | None = None,
    soon_risk: UrgentRisk | None = None,
    *,
    doubtful: bool = False,
    speaks_of_urgency: bool = True,
) -> NextStep:
    """Return the next step for one case; `doubtful` when its probabilities are not to be trusted.

    `speaks_of_urgency` is false where none of all classes is urgent: what is then the most urgent
    one would reassure falsely, and is not called so.

    The urgent risk decides whether it is urgent. Below the threshold the most urgent class of the
    set decides among the lower tiers, and an urgent class in the set means "soon": what is not
    ruled out does not wait for a routine visit. A doubtful answer is not lowered in this way: the
    set alone can make it urgent. Without a risk the set decides everything.

    From the threshold of `soon_risk` on it is at least soon. Below that threshold nothing is
    lowered: a set that names an urgent or a soon class has not ruled it out.
    """
    step = _by_set_and_risk(ranked, risk, doubtful=doubtful, speaks_of_urgency=speaks_of_urgency)
    raised = soon_risk is not None and soon_risk.is_reached
    if not raised or step.urgency in TIERS["soon_risk"]:
        return step
    assert soon_risk is not None
    because = _reached(ranked, soon_risk, "soon_risk")
    return step.model_copy(
        update={
            "urgency": "soon",
            "advice": URGENCY_ADVICE["soon"],
            "because": f"{because} {_below(risk)}" if risk else because,
            "decided_by": _likeliest(ranked, "soon_risk"),
        }
    )


def _by_set_and_risk(
    ranked: Ranked, risk: UrgentRisk | None, *, doubtful: bool, speaks_of_urgency: bool
) -> NextStep:
    by_set = _by_set(ranked, speaks_of_urgency=speaks_of_urgency)
    if risk is None:
        return by_set
    if risk.is_reached:
        update = {
            "urgency": "urgent",
            "advice": URGENCY_ADVICE["urgent"],
            "because": _reached(ranked, risk, "urgent_risk"),
            "decided_by": _likeliest(ranked, "urgent_risk"),
        }
        return by_set.model_copy(update=update)
    if by_set.urgency != "urgent":
        return by_set.model_copy(update={"because": f"{by_set.because} {_below(risk)}"})
    named = _deciding(_possible(ranked)[0]).name
    if doubtful:
        shown, least = risk_words(risk)
        because = (
            f"{named} (urgent) is not ruled out and the answer is not sure, so the advice stays "
            f"urgent although the estimated risk is {shown} (urgent from {least} on)."
        )
        return by_set.model_copy(update={"because": because})
    because = f"{named} (urgent) is not ruled out, so this should not wait for a routine visit. "
    update = {
        "urgency": "soon",
        "advice": URGENCY_ADVICE["soon"],
        "because": because + _below(risk),
    }
    return by_set.model_copy(update=update)


def risk_words(risk: UrgentRisk) -> tuple[str, str]:
    """Return risk and threshold for a reader, with enough digits to distinguish them."""
    return shown_risks(risk.risk, risk.threshold)


def shown_risks(risk: float, threshold: float) -> tuple[str, str]:
    """Return the same of plain shares."""
    digits = 3 if f"{100 * risk:.1f}" == f"{100 * threshold:.1f}" and risk != threshold else 1
    return f"{100 * risk:.{digits}f} %", f"{100 * threshold:.{digits}f} %"


def _likeliest(ranked: Ranked, question: Question) -> str:
    return next((one.key for one, _, _ in ranked if one.urgency in TIERS[question]), "")


def _reached(ranked: Ranked, risk: UrgentRisk, question: Question) -> str:
    shown, least = risk_words(risk)
    condition, called = QUESTION_WORDS[question]
    likeliest = next((one for one, _, _ in ranked if one.urgency in TIERS[question]), None)
    named = f" The likeliest such condition is {likeliest.name}." if likeliest else ""
    return (
        f"The estimated risk of an {condition} condition is {shown}; the advice is {called} from "
        f"{least} on.{named}"
    )


def _below(risk: UrgentRisk) -> str:
    shown, least = risk_words(risk)
    return (
        f"The estimated risk of an urgent condition is {shown}, below the {least} from which the "
        "advice is urgent."
    )


def _by_set(ranked: Ranked, *, speaks_of_urgency: bool) -> NextStep:
    """Return the next step by the most urgent class of the set, however harmless the likeliest is.

    Without sets those classes stand for it that together carry 90 %. A class of unknown urgency
    outweighs a routine one, since it may not be safe to wait.
    """
    possible, carried = _possible(ranked)
    deciding, count = _deciding(possible), len(possible)
    tier = "of unknown urgency" if deciding.urgency == "unknown" else deciding.urgency
    share = percent(carried).replace(">", "more than") + " of the probability"
    name = f"{deciding.name} ({tier})"
    if not speaks_of_urgency:
        among = f"that together carry {share}" if carried else "of the set"
        rest = "" if count == 1 else f", one of the {count} conditions {among}"
        because = f"The advice follows {deciding.name}{rest}."
    elif count == 1:
        because = (
            f"{name} alone carries {share}."
            if carried
            else f"{name} is the only condition in the set; others remain possible."
        )
    else:
        among = f"classes that together carry {share}" if carried else "conditions in the set"
        because = f"{name} is the most urgent of the {count} {among}."
    return NextStep(
        urgency=deciding.urgency,
        advice=deciding.advice,
        because=because,
        classes=count,
        decided_by=deciding.key,
    )


def _deciding(possible: Sequence[SkinClass]) -> SkinClass:
    return max(possible, key=lambda skin_class: _BY_URGENCY.index(skin_class.urgency))


def _possible(ranked: Ranked) -> tuple[list[SkinClass], float]:
    """Return the classes of the set; without sets those that carry 90 %, and what they carry."""
    in_set = [skin_class for skin_class, _, inside in ranked if inside]
    if in_set:
        return in_set, 0.0
    leading: list[SkinClass] = []
    carried = 0.0
    for skin_class, probability, _ in ranked:
        leading.append(skin_class)
        carried += probability
        if carried >= CARRIED - 1e-9:
            break
    return leading, carried


LARGEST_SET = 5
"""With more classes in the set, or more than half of all, the model abstains."""
MOST_DISAGREEMENT = 0.4
"""Of 1, at which each member is sure of another class."""
LEAST_OOD_P_VALUE = 0.05
"""Out-of-distribution score above 19 of 20 calibration images, below the rejection threshold."""

_UNSURE_ROUTINE = (
    "No urgent condition that the model knows stands out, but the answer is too unsure to advise "
    "waiting."
)

_OF_PHOTOS = "The risk is the highest of the photos; the probabilities are the mean of them."

# P = photos of the case, C = classes, M = members


class ConclusionRules(Protocol):
    """Inputs of a conclusion from a predictor."""

    @property
    def taxonomy(self) -> Taxonomy: ...
    @property
    def conformal(self) -> Conformal | None: ...
    @property
    def urgent_risk(self) -> UrgentRiskRule | None: ...
    @property
    def soon_risk(self) -> UrgentRiskRule | None: ...
    @property
    def miss_rate(self) -> float | None: ...
    @property
    def weights(self) -> tuple[float, ...] | None: ...


@dataclass(frozen=True)
class Conclusion:
    """A diagnosis beyond probabilities; `ranked` are all classes, likeliest first."""

    ranked: tuple[tuple[SkinClass, float, bool], ...]
    """Class, probability, and whether the conformal set holds it."""
    next_step: NextStep
    abstained: str
    promise: Promise | None
    disagreement: float
    urgent_risk: UrgentRisk | None = None
    soon_risk: UrgentRisk | None = None


def conclude(
    predictor: ConclusionRules,
    probabilities_PC: NDArray[np.float64],
    members_MPC: NDArray[np.float64],
    *,
    skin_type: int | None = None,
    ood_p_value: float | None = None,
) -> Conclusion:
    """Draw the conclusion from the probabilities of one case's photos, of which it takes the mean.

    The set is what any of the photos leaves possible: each photo's own set keeps its promise, so
    all of them together do, while a mean of probabilities has no guarantee. The urgent risk is the
    highest of the photos for the same reason.
    """
    classes, conformal = predictor.taxonomy.classes, predictor.conformal
    probabilities_C, members_MC = probabilities_PC.mean(axis=0), members_MPC.mean(axis=1)
    in_set_C = np.zeros(len(classes), dtype=bool)
    if conformal:
        for photo_C in conformal.sets(probabilities_PC, [skin_type] * len(probabilities_PC)):
            in_set_C |= photo_C
        in_set_C[probabilities_C.argmax()] = True
    order = np.argsort(-probabilities_C, kind="stable")
    ranked = tuple(
        (classes[i], min(float(probabilities_C[i]), 1.0), bool(in_set_C[i])) for i in order
    )
    disagreement = float(mutual_information(members_MC[:, None], predictor.weights)[0])
    # These put the probabilities themselves in doubt, and with them the risk. A set of too many
    # classes does not: the guarantee of the risk counts such photos in.
    doubtful = (
        _nearly_out_of_distribution(ood_p_value)
        or _differing(probabilities_PC)
        or _contradicting(disagreement, members_MC.argmax(axis=1) == order[0])
    )
    abstained = doubtful or _too_many(next_step(ranked).classes, len(classes))
    risk, soon_risk = (
        _risk(rule, predictor.miss_rate, probabilities_PC, skin_type)
        for rule in (predictor.urgent_risk, predictor.soon_risk)
    )
    speaks = urgent_known(classes)
    step = next_step(ranked, risk, soon_risk, doubtful=bool(doubtful), speaks_of_urgency=speaks)
    if len(probabilities_PC) > 1 and (risk or soon_risk):
        step = step.model_copy(update={"because": f"{step.because} {_OF_PHOTOS}"})
    if abstained and step.urgency == "routine":
        # An abstention must not advise waiting.
        because = _UNSURE_ROUTINE if speaks else UNSURE
        unknown = {"urgency": "unknown", "advice": URGENCY_ADVICE["unknown"], "because": because}
        step = step.model_copy(update=unknown | {"decided_by": ""})
    promise = _promise(predictor, skin_type)
    return Conclusion(ranked, step, abstained, promise, disagreement, risk, soon_risk)


def _nearly_out_of_distribution(ood_p_value: float | None) -> str:
    if ood_p_value is None or ood_p_value > LEAST_OOD_P_VALUE:
        return ""
    return (
        "The photo is unlike most of the images that the networks were trained on, so their answer "
        "may be wrong; let a clinician look at it."
    )


def _differing(probabilities_PC: NDArray[np.float64]) -> str:
    """Photos are asked here as members are: each sure of another class means no answer."""
    if float(mutual_information(probabilities_PC[:, None])[0]) <= MOST_DISAGREEMENT:
        return ""
    return (
        "The photos seem to show different conditions, so none is named with confidence; give "
        "photos of one and the same place."
    )


def _too_many(possible: int, classes: int) -> str:
    if possible <= LARGEST_SET and 2 * possible <= classes:
        return ""
    return (
        f"The conditions cannot be distinguished here: {possible} of {classes} remain possible; "
        "a sharper, closer photo may help; a clinician can tell more."
    )


def _contradicting(disagreement: float, first_M: NDArray[np.bool_]) -> str:
    if disagreement <= MOST_DISAGREEMENT and first_M.mean() >= 0.5:
        return ""
    return (
        "The networks disagree, so none of the conditions is named with confidence; let a "
        "clinician look at it."
    )


def _risk(
    rule: UrgentRiskRule | None,
    miss_rate: float | None,
    probabilities_PC: NDArray[np.float64],
    skin_type: int | None,
) -> UrgentRisk | None:
    if rule is None:
        return None
    level = rule.level(miss_rate)
    group = rule.group(level, skin_type)
    promise = rule.promise(level, group)
    return UrgentRisk(
        risk=float(rule.risks(probabilities_PC).max()),
        threshold=level.thresholds[group],
        miss_rate=level.miss_rate,
        confidence=promise.confidence,
        bound=promise.bound,
        lesions=promise.lesions,
        group=group,
        # Measured by the threshold of all images alone.
        sent_on=shared(level.sent_on) if group == ALL else None,
    )


def _promise(predictor: ConclusionRules, skin_type: int | None) -> Promise | None:
    conformal = predictor.conformal
    if conformal is None:
        return None
    group = conformal.group(skin_type)
    return Promise(
        level=conformal.level,
        urgent_level=conformal.urgent_level,
        pictures=conformal.images_of(group),
        group=group,
        urgent_missed=shared(conformal.urgent_missed),
        urgent_raised=shared(conformal.urgent_raised),
    )
