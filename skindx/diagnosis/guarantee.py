"""Text on the guarantees of the set of conditions and of the risk threshold, for all outputs."""

from skindx.core.text import counted
from skindx.diagnosis.record import (
    SET_HOLDS,
    Diagnosis,
    MeasuredSets,
    Promise,
    Share,
    UrgentRisk,
    percent,
)
from skindx.models.conformal import ALL

_URGENT_APART = (
    "Urgent conditions have a threshold of their own: one may be in the set though it is less "
    "likely than another outside."
)
_OF_OTHERS = (
    "The threshold was set to miss at most {miss_rate:g} % of urgent lesions like the calibration "
    "lesions, which this photo may not be like."
)
_NO_SETS = "This bundle has no calibrated sets."
_NOTHING = "How often the true condition is among these is not known{urgent}."
_NOR_URGENT = ", nor how often an urgent condition is missed"


def set_holds(level: float) -> str:
    """Return how many true conditions sets of a level (0..1) hold, as a part of a sentence."""
    return SET_HOLDS.format(level=f"{100 * level:.0f}")


def guarantee(diagnosis: Diagnosis) -> str:
    """Return what the set guarantees, or why there is none.

    Empty where the model abstains: a share of all photos says nothing of one that it cannot judge.
    """
    if diagnosis.abstained:
        return ""
    if diagnosis.promise is None:
        nothing = _NOTHING.format(urgent=_NOR_URGENT if diagnosis.knows_urgent else "")
        return f"{diagnosis.no_promise or _NO_SETS} {nothing}"
    count = sum(candidate.in_set for candidate in diagnosis.candidates)
    if not diagnosis.knows_urgent:
        return coverage(diagnosis.promise, count)
    return f"{coverage(diagnosis.promise, count)} {errors(diagnosis.promise)}"


def coverage(promise: Promise, count: int) -> str:
    """Return how often such a set of `count` conditions holds the true one."""
    these = "This condition is" if count == 1 else f"These {count} conditions are"
    if promise.measured:
        return f"{these} the set. {measured_coverage(promise.measured)}"
    whose = "" if promise.group == "all" else f" of {promise.group.replace('_', ' ')}"
    urgent = apart = ""
    if promise.urgent_level is not None and promise.urgent_apart:
        urgent = f", of urgent conditions about {100 * promise.urgent_level:.0f}"
        apart = f" {_URGENT_APART}"
    fitted = f"fitted on {counted(promise.pictures, 'image')}{whose}"
    return f"{these} the set: {set_holds(promise.level)}{urgent} ({fitted}).{apart}"


def measured_coverage(sets: MeasuredSets) -> str:
    """Return how often sets held the true condition in an evaluation, which counts for the promise.

    The condition that they held least often is named.
    """
    urgent = f"; of urgent conditions {shown_share(sets.urgent)}" if sets.urgent else ""
    least = f"; least often of {sets.least_name}: {shown_share(sets.least)}" if sets.least else ""
    return (
        f"Measured on the {sets.split} split, such sets held the true condition for "
        f"{shown_share(sets.coverage)}{urgent}{least}."
    )


def errors(promise: Promise) -> str:
    """Return how often a set misses what is urgent and how often it warns of it falsely."""
    sets = promise.measured
    if sets and (sets.urgent_missed or sets.urgent_raised):
        return _both(f"Of images of the {sets.split} split", sets.urgent_missed, sets.urgent_raised)
    raised = ""
    if promise.urgent_raised:
        raised = (
            f" Of those of other conditions, {shown_share(promise.urgent_raised)} had an urgent "
            "condition in their set."
        )
    return missed(promise) + raised


def _both(of: str, missed: Share | None, raised: Share | None) -> str:
    parts = []
    if missed:
        parts.append(f"with an urgent condition, {shown_share(missed)} had none in their set")
    if raised:
        parts.append(
            f"with another condition, {shown_share(raised)} had an urgent one in their set"
        )
    return f"{of} {'; of those '.join(parts)}."


def missed(promise: Promise) -> str:
    """Return how often a set misses what is urgent, with its interval."""
    if promise.urgent_missed is None:
        return "How often such a set misses an urgent condition could not be measured."
    return (
        f"Of calibration images of urgent conditions, {shown_share(promise.urgent_missed)} had no "
        "urgent condition in "
        "their set."
    )


def shown_share(share: Share) -> str:
    """Return a measured share with its interval and the number of images behind it.

    With as many digits as the interval needs to be read as one.
    """
    digits = next((n for n in (1, 2, 3) if _shown(share.low, n) != _shown(share.high, n)), 4)
    return (
        f"{_shown(share.value, digits)} % (95 % interval {_shown(share.low, digits)} to "
        f"{_shown(share.high, digits)} %, {counted(share.pictures, 'image')})"
    )


def _shown(value: float, digits: int) -> str:
    return f"{100 * value:.{digits}f}"


def risk_guarantee(diagnosis: Diagnosis) -> str:
    """Return the guarantee with its confidence, or why there is none.

    An answer that abstains has none, since the guarantee is about photos like the calibration
    images; where it is urgent, both errors stand there as shares of those images alone. Empty for
    a record of an older version.
    """
    risk = diagnosis.urgent_risk
    warns = bool(diagnosis.abstained) and diagnosis.next_step.urgency == "urgent"
    if risk is None:
        if warns and diagnosis.promise and diagnosis.knows_urgent:
            return f"{diagnosis.no_urgent_risk} {errors(diagnosis.promise)}".strip()
        return diagnosis.no_urgent_risk
    if diagnosis.abstained:
        if not warns:
            return ""
        return _OF_OTHERS.format(miss_rate=100 * risk.miss_rate) + _called_urgent(risk)
    whose = "" if risk.group == "all" else f" of {risk.group}"
    return (
        f"The threshold was set on {counted(risk.lesions, 'calibration lesion')}{whose} with an "
        f"urgent condition: of 100 such lesions, at most {100 * risk.miss_rate:g} are expected "
        f"below it (confidence that it keeps to this rate: {100 * risk.confidence:.0f} %; with "
        f"95 % confidence at most {100 * risk.bound:.1f} are below it).{_called_urgent(risk)}"
    )


def how_combined(diagnosis: Diagnosis) -> str:
    """Return what was done to the networks' mean; empty for one network, or where nothing was."""
    if len(diagnosis.votes) < 2 or abs(diagnosis.temperature - 1) < 0.005:
        return ""
    how, than = ("sharpened", "surer") if diagnosis.temperature < 1 else ("softened", "less sure")
    return (
        f"The combined answer of the networks was {how} by a temperature of "
        f"{diagnosis.temperature:.2f}, fitted on the validation images, so it can be {than} than "
        "each of them."
    )


def _called_urgent(risk: UrgentRisk) -> str:
    """Return how many others the threshold calls urgent, and both errors where they were measured.

    Both stand together: a threshold misses few by calling many urgent.
    """
    text = ""
    if risk.sent_on:
        others = shown_share(risk.sent_on)
        text = f" Of calibration images of other conditions, {others} are urgent by it."
    elif risk.group != ALL:
        text = (
            f" How many other conditions it calls urgent was not measured for {risk.group} alone."
        )
    missed, sent_on = risk.measured_missed, risk.measured_sent_on
    if missed:
        text += (
            f" Measured on the {risk.measured_on} split, it misses {shown_share(missed)} of urgent "
            "conditions."
        )
    if sent_on:
        text += (
            f" Measured on the {risk.measured_on} split, {shown_share(sent_on)} of other "
            "conditions are urgent by it."
        )
    if risk.prevalence is not None and risk.ppv is not None and risk.npv is not None:
        text += (
            f" Where {percent(risk.prevalence)} of the photos show an urgent condition, "
            f"{percent(risk.ppv)} of those called urgent do (positive predictive value), and "
            f"{percent(risk.npv)} of the others do not (negative predictive value)."
        )
    return text
