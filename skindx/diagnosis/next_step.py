"""The next step: by the risks against their thresholds, and by the set of conditions.

The urgent risk decides whether it is urgent; where the bundle has no threshold the set does. The
risk of urgent and soon conditions together can only raise it.
"""

from collections.abc import Sequence

from skindx.diagnosis.record import NextStep
from skindx.diagnosis.record_figures import UrgentRisk
from skindx.models.urgent_risk import TIERS, Question
from skindx.taxonomy import SkinClass, Urgency, advice_for
from skindx.texts.catalogue import text, told_apart

CARRIED = 0.9
"""The next step looks, without sets, at the classes that together carry this probability."""

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
    named: bool = True,
) -> NextStep:
    """Return the next step for one case; `doubtful` when its probabilities are not to be trusted.

    `named` is false where the answer names no condition, so that no likelier one stands beside the
    condition that decides.

    `speaks_of_urgency` is false where none of all classes is urgent: what is then the most urgent
    one would reassure falsely, and is not called so.

    The urgent risk decides whether it is urgent. Below the threshold the most urgent class of the
    set decides among the lower tiers, and an urgent class in the set means "soon": what is not
    ruled out does not wait for a routine visit. A doubtful answer is not lowered in this way: the
    set alone can make it urgent. Without a risk the set decides everything.

    From the threshold of `soon_risk` on it is at least soon. Below that threshold nothing is
    lowered: a set that names an urgent or a soon class has not ruled it out.
    """
    step = _by_set_and_risk(
        ranked, risk, doubtful=doubtful, speaks_of_urgency=speaks_of_urgency, named=named
    )
    if soon_risk is None or not soon_risk.is_reached or step.urgency == "urgent":
        return step
    by_set = step.urgency == "soon"
    if by_set and _urgent_is_named(ranked):
        return step  # its reason is the urgent condition that is not ruled out
    key = step.decided_by if by_set else _likeliest(ranked, "soon_risk")[0]
    return step.model_copy(
        update={
            "urgency": "soon",
            "advice": advice_for("soon"),
            "because": _because_soon(soon_risk),
            "more": (_below(risk),) if risk else (),
            "decided_by": key,
        }
    )


def is_of_cancers(ranked: Ranked, step: NextStep) -> bool:
    """Tell whether only cancers are among the conditions that made it urgent or soon."""
    tiers = {"urgent": ("urgent",), "soon": ("urgent", "soon")}.get(step.urgency, ())
    made = [one for one, _, inside in ranked if inside or one.key == step.decided_by]
    cancers = [one.is_cancer for one in made if one.urgency in tiers]
    return bool(cancers) and all(cancers)


def _urgent_is_named(ranked: Ranked) -> bool:
    return _deciding(_possible(ranked)[0]).urgency == "urgent"


def _by_set_and_risk(
    ranked: Ranked,
    risk: UrgentRisk | None,
    *,
    doubtful: bool,
    speaks_of_urgency: bool,
    named: bool,
) -> NextStep:
    by_set = _by_set(ranked, speaks_of_urgency=speaks_of_urgency)
    if risk is None:
        return by_set
    shown, least = told_apart(risk.risk, risk.threshold)
    if risk.is_reached:
        key, likeliest = _likeliest(ranked, "urgent_risk")
        alone = sum(one.urgency == "urgent" for one, _, _ in ranked) == 1
        because = "because_urgent" if alone else "because_urgent_any"
        if alone and named and ranked[0][0].urgency != "urgent":
            because = "because_urgent_despite"  # the largest bar is of a less urgent condition
        update = {
            "urgency": "urgent",
            "advice": advice_for("urgent"),
            "because": text(because, name=likeliest, risk=shown, least=least),
            "decided_by": key,
        }
        return by_set.model_copy(update=update)
    below = {"more": (_below(risk),)}
    if by_set.urgency != "urgent":
        return by_set.model_copy(update=below)
    name = _deciding(_possible(ranked)[0]).name
    if doubtful:
        because = text("because_doubtful", name=name)
        return by_set.model_copy(update=below | {"because": because})
    because = text("because_not_ruled_out", name=name)
    soon = {"urgency": "soon", "advice": advice_for("soon"), "because": because}
    return by_set.model_copy(update=below | soon)


def _likeliest(ranked: Ranked, question: Question) -> tuple[str, str]:
    """Return key and name of the likeliest class of a question."""
    of_question = (one for one, _, _ in ranked if one.urgency in TIERS[question])
    likeliest = next(of_question, ranked[0][0])
    return likeliest.key, likeliest.name


def _because_soon(risk: UrgentRisk) -> str:
    shown, least = told_apart(risk.risk, risk.threshold)
    return text("because_soon", risk=shown, least=least)


def _below(risk: UrgentRisk) -> str:
    shown, least = told_apart(risk.risk, risk.threshold)
    return text("because_below", risk=shown, least=least)


def _by_set(ranked: Ranked, *, speaks_of_urgency: bool) -> NextStep:
    """Return the next step by the most urgent class of the set, however harmless the likeliest is.

    Without sets those classes stand for it that together carry 90 %. A class of unknown urgency
    outweighs a routine one, since it may not be safe to wait.
    """
    possible, carried = _possible(ranked)
    deciding, count = _deciding(possible), len(possible)
    name = deciding.name
    if not speaks_of_urgency:
        because = text("because_follows", name=name)
        if count > 1 and carried:
            because = text("because_follows_carried", name=name, count=count, share=carried)
        elif count > 1:
            because = text("because_follows_set", name=name, count=count)
    elif carried:
        because = text("because_alone", name=name, share=carried)
        if count > 1:
            because = text("because_carried", name=name, count=count, share=carried)
    elif count > 1:
        because = text("because_most_urgent", name=name, count=count)
    else:
        because = text("because_only", name=name)
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


def suspicion(
    ranked: Ranked, step: NextStep, risk: UrgentRisk | None, soon_risk: UrgentRisk | None
) -> str:
    """Return which condition's risk made it urgent or soon, in a sentence; "" where none did."""
    by_risk = step.urgency == "urgent" and risk is not None and risk.is_reached
    by_soon = (
        step.urgency == "soon"
        and soon_risk is not None
        and soon_risk.is_reached
        and step.because == _because_soon(soon_risk)
    )
    if not (by_risk or by_soon):
        return ""
    name = next(one.name for one, _, _ in ranked if one.key == step.decided_by)
    return text("because_suspected", name=name)
