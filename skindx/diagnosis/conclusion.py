"""The conclusion from the probabilities: set of classes, next step, or abstention."""

import math
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from skindx.diagnosis.next_step import is_of_cancers, next_step, suspicion
from skindx.diagnosis.record import NextStep
from skindx.diagnosis.record_figures import Promise, UrgentRisk, UsedFacts
from skindx.models.combination import Prevalence, mutual_information
from skindx.models.conformal import ALL, Conformal, Share
from skindx.models.metadata_head import MetadataField
from skindx.models.urgent_risk import UrgentRiskRule
from skindx.taxonomy import SkinClass, Taxonomy, advice_for, urgent_known
from skindx.texts.catalogue import joined, text

LARGEST_SET = 5
"""The model abstains with more classes in the set, or with more than half of all."""
LEAST_VOTES = 0.5
"""Share of the members that must put the likeliest class first."""
MOST_DISAGREEMENT = 0.4
"""Share of the disagreement of members that are each sure of another class."""
LEAST_ALIKE = 0.6
"""Least cosine of the embeddings of two photos of one lesion that are not asked about.

With the rule of `are_sure_of_others` the released bundle asks about 14 % of pairs of one lesion
and 78 % of two lesions, 67 % where both have one diagnosis (docs/measured/lesion-pairs.json).
"""
LEAST_OOD_P_VALUE = 0.05
"""Out-of-distribution score above 19 of 20 calibration images, below the rejection threshold."""

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
    beyond: str = "",
) -> Conclusion:
    """Draw the conclusion from the probabilities of one case's photos, of which it takes the mean.

    The set is what any of the photos leaves possible: each photo's own set keeps its promise, so
    all of them together do, while a mean of probabilities has no guarantee. The urgent risk is the
    highest of the photos for the same reason. `beyond` says which given facts describe what the
    model knows nothing about: then it abstains.
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
        beyond
        or _nearly_out_of_distribution(ood_p_value, len(probabilities_PC))
        or _differing(probabilities_PC)
        or _contradicting(disagreement, members_MC.argmax(axis=1) == order[0])
    )
    abstained = doubtful or _too_many(next_step(ranked).classes, len(classes))
    risk, soon_risk = (
        _risk(rule, predictor.miss_rate, probabilities_PC, skin_type)
        for rule in (predictor.urgent_risk, predictor.soon_risk)
    )
    speaks = urgent_known(classes)
    step = next_step(
        ranked,
        risk,
        soon_risk,
        doubtful=bool(doubtful),
        speaks_of_urgency=speaks,
        named=not abstained,
    )
    suspected = suspicion(ranked, step, risk, soon_risk) if abstained else ""
    names_reason = not abstained or (suspected and not beyond)
    if names_reason and is_of_cancers(ranked, step):
        step = step.model_copy(update={"advice": advice_for(f"{step.urgency}_cancer")})
    if abstained:  # it names no condition, but the reason of its advice does
        # No figure says anything of a case beyond what the model learned.
        update = {"because": text("because_precaution"), "more": ()} if beyond else {}
        step = step.model_copy(update=update)
        step = step.model_copy(update={"because": joined(suspected, step.because)})
    if abstained and step.urgency == "routine":
        # An abstention must not advise waiting.
        because = text("because_unsure" if speaks else "because_unsure_no_urgent")
        because = text("because_beyond") if beyond else because
        unknown = {"urgency": "unknown", "advice": advice_for("unknown"), "because": because}
        step = step.model_copy(update=unknown | {"decided_by": ""})
    promise = _promise(predictor, skin_type)
    return Conclusion(ranked, step, abstained, promise, disagreement, risk, soon_risk)


def _nearly_out_of_distribution(ood_p_value: float | None, photos: int) -> str:
    if ood_p_value is None or ood_p_value > LEAST_OOD_P_VALUE:
        return ""
    return text("abstain_unlike", n=photos)


def _differing(probabilities_PC: NDArray[np.float64]) -> str:
    """Return why photos that are each sure of another class give no answer; "" for others."""
    return text("abstain_photos_differ") if are_sure_of_others(probabilities_PC) else ""


def are_sure_of_others(probabilities_PC: NDArray[np.float64]) -> bool:
    """Tell whether photos are each sure of another class."""
    return float(mutual_information(probabilities_PC[:, None])[0]) > MOST_DISAGREEMENT


def _too_many(possible: int, classes: int) -> str:
    if possible <= LARGEST_SET and 2 * possible <= classes:
        return ""
    many = text("abstain_many", possible=possible, classes=classes)
    return joined(many, text("abstain_many_help"))


def _contradicting(disagreement: float, first_M: NDArray[np.bool_]) -> str:
    if first_M.sum() < (least := math.ceil(LEAST_VOTES * len(first_M))):
        return text("abstain_votes", votes=int(first_M.sum()), least=least, count=len(first_M))
    return text("abstain_disagree") if disagreement > MOST_DISAGREEMENT else ""


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
    risks = [float(one) for one in rule.risks(probabilities_PC)]
    return UrgentRisk(
        risk=max(risks),
        by_photo=tuple(risks) if len(risks) > 1 else (),
        threshold=level.thresholds[group],
        miss_rate=level.miss_rate,
        confidence=promise.confidence,
        bound=promise.bound,
        lesions=promise.lesions,
        group=group,
        # Measured by the threshold of all images alone.
        sent_on=_widened(level.sent_on) if group == ALL else None,
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
        urgent_missed=_widened(conformal.urgent_missed),
        urgent_raised=_widened(conformal.urgent_raised),
    )


def _widened(share: Share | None) -> Share | None:
    return share.with_width() if share else None


@dataclass(frozen=True)
class ServedRules:
    """The rules of a served bundle, for what is known of the person."""

    taxonomy: Taxonomy
    conformal: Conformal | None
    urgent_risk: UrgentRiskRule | None
    soon_risk: UrgentRiskRule | None
    miss_rate: float | None
    weights: tuple[float, ...] | None
    prevalence: Prevalence | None = None
    """The mix of diseases that shown probabilities hold for; None: that of the calibration."""
    fields: tuple[MetadataField, ...] = ()
    """The facts of the person that changed the probabilities."""


@dataclass(frozen=True)
class CaseConclusion:
    """The conclusion on a case as a record shows it: probabilities are those of the mix."""

    conclusion: Conclusion
    members_MC: NDArray[np.float64]
    ood_p_value: float | None
    deciding: int
    """Place in the taxonomy of the class that decides the next step, or else of the likeliest."""
    used: UsedFacts | None
    is_beyond: bool
    """Whether the given facts describe what the model learned nothing about."""


def conclude_case(
    rules: ServedRules,
    probabilities_PC: NDArray[np.float64],
    alone_PC: NDArray[np.float64],
    members_MPC: NDArray[np.float64],
    *,
    skin_type: int | None,
    ood_p_value: float | None,
    beyond: str = "",
) -> CaseConclusion:
    """Draw the conclusion on a case; `alone_PC` are the probabilities by its photos alone.

    Sets, risk and threshold are of the uncorrected probabilities, which they were fitted on; what
    is shown follows the operator's prevalence where one is given.
    """
    drawn = conclude(
        rules,
        probabilities_PC,
        members_MPC,
        skin_type=skin_type,
        ood_p_value=ood_p_value,
        beyond=beyond,
    )
    first, step = drawn.ranked[0][0], drawn.next_step
    drawn = replace(drawn, ranked=_at_prevalence(drawn.ranked, rules))
    if drawn.ranked[0][0] != first and step.because == text("because_only", name=first.name):
        step = step.model_copy(update={"because": text("because_follows", name=first.name)})
        drawn = replace(drawn, next_step=step)
    key = drawn.next_step.decided_by or drawn.ranked[0][0].key
    members_MC = members_MPC.mean(axis=1)
    if rules.prevalence:
        members_MC = rules.prevalence.correct(members_MC)
    used = _used_facts(rules, alone_PC.mean(axis=0), drawn.ranked[0][0].key)
    place = rules.taxonomy.keys.index(key)
    return CaseConclusion(drawn, members_MC, ood_p_value, place, used, bool(beyond))


def _at_prevalence(
    ranked: tuple[tuple[SkinClass, float, bool], ...], rules: ServedRules
) -> tuple[tuple[SkinClass, float, bool], ...]:
    """Return ranked classes with the probabilities of the operator's mix."""
    if rules.prevalence is None:
        return ranked
    places = {key: place for place, key in enumerate(rules.taxonomy.keys)}
    shares_C = np.zeros(len(places))
    for skin_class, probability, _ in ranked:
        shares_C[places[skin_class.key]] = probability
    corrected_C = rules.prevalence.correct(shares_C)
    corrected = [
        (skin_class, min(float(corrected_C[places[skin_class.key]]), 1.0), in_set)
        for skin_class, _, in_set in ranked
    ]
    return tuple(sorted(corrected, key=lambda row: -row[1]))


def _used_facts(
    rules: ServedRules, alone_C: NDArray[np.float64], first_key: str
) -> UsedFacts | None:
    """Return what of the person the conclusion used, and what it would be without; None: nothing.

    `alone_C` are the probabilities by the photos alone, `first_key` is the likeliest class.
    """
    if not rules.fields:
        return None
    if rules.prevalence:
        alone_C = rules.prevalence.correct(alone_C)
    first, leading = int(alone_C.argmax()), rules.taxonomy.keys.index(first_key)
    return UsedFacts(
        fields=rules.fields,
        without=min(float(alone_C[leading]), 1.0),
        first_without=rules.taxonomy.classes[first].name if first != leading else "",
    )
