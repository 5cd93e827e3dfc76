"""The next step: urgent by the urgent risk, otherwise by the classes that remain possible."""

from collections.abc import Sequence

from skindx.diagnosis.record import NextStep, UrgentRisk, percent
from skindx.taxonomy import URGENCY_ADVICE, SkinClass, Urgency

CARRIED = 0.9
"""Without sets the next step looks at the classes that together carry this much probability."""

_BY_URGENCY: tuple[Urgency, ...] = ("routine", "unknown", "soon", "urgent")

Ranked = Sequence[tuple[SkinClass, float, bool]]
"""All classes, most probable first: class, probability, whether the conformal set holds it."""


def next_step(
    ranked: Ranked,
    risk: UrgentRisk | None = None,
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
    """
    by_set = _by_set(ranked, speaks_of_urgency=speaks_of_urgency)
    if risk is None:
        return by_set
    if risk.is_urgent:
        return by_set.model_copy(update=_urgent(ranked, risk))
    if by_set.urgency != "urgent":
        return by_set.model_copy(update={"because": f"{by_set.because} {_below(risk)}"})
    named = _deciding(_possible(ranked)[0]).name
    if doubtful:
        own, least = risk_words(risk)
        because = (
            f"{named} (urgent) is not ruled out and the answer is not sure, so the advice stays "
            f"urgent although the estimated risk is {own} (urgent from {least} on)."
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
    own, least = f"{100 * risk.risk:.1f} %", f"{100 * risk.threshold:.1f} %"
    if own == least and risk.risk != risk.threshold:
        own, least = f"{100 * risk.risk:.3f} %", f"{100 * risk.threshold:.3f} %"
    return own, least


def _urgent(ranked: Ranked, risk: UrgentRisk) -> dict[str, str]:
    own, least = risk_words(risk)
    likeliest = next(
        (skin_class for skin_class, _, _ in ranked if skin_class.urgency == "urgent"), None
    )
    named = f" The likeliest of these is {likeliest.name}." if likeliest else ""
    because = (
        f"The estimated risk of an urgent condition is {own}; the advice is urgent from {least} "
        f"on.{named}"
    )
    return {"urgency": "urgent", "advice": URGENCY_ADVICE["urgent"], "because": because}


def _below(risk: UrgentRisk) -> str:
    own, least = risk_words(risk)
    return (
        f"The estimated risk of an urgent condition is {own}, below the {least} from which the "
        "advice is urgent."
    )


def _by_set(ranked: Ranked, *, speaks_of_urgency: bool) -> NextStep:
    """Return the next step by the most urgent class of the set, however harmless the likeliest is.

    Without sets those classes stand for it that together carry 90 %. A class of unknown urgency
    outweighs a routine one, since it may not be safe to wait.
    """
    possible, carried = _possible(ranked)
    deciding = _deciding(possible)
    tier = "of unknown urgency" if deciding.urgency == "unknown" else deciding.urgency
    share = percent(carried).replace(">", "more than") + " of the probability"
    count = len(possible)
    if not speaks_of_urgency:
        among = "of the set" if not carried else f"that together carry {share}"
        because = f"The advice follows {deciding.name}"
        because += "." if count == 1 else f", one of the {count} conditions {among}."
        return NextStep(
            urgency=deciding.urgency, advice=deciding.advice, because=because, classes=count
        )
    name = f"{deciding.name} ({tier})"
    if not carried:
        because = (
            f"{name} is the only condition in the set; others remain possible."
            if count == 1
            else f"{name} is the most urgent of the {count} conditions in the set."
        )
    elif count == 1:
        because = f"{name} alone carries {share}."
    else:
        because = f"{name} is the most urgent of the {count} classes that together carry {share}."
    return NextStep(
        urgency=deciding.urgency, advice=deciding.advice, because=because, classes=count
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
