"""Text on the guarantees of the set of conditions and of the risk threshold, for all outputs."""

from skindx.diagnosis.record import SET_HOLDS, Diagnosis, Promise, Share

_URGENT_APART = (
    "Urgent conditions have a threshold of their own: one may be in the set though it is less "
    "likely than another outside."
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
    return f"{coverage(diagnosis.promise, count)} {missed(diagnosis.promise)}"


def coverage(promise: Promise, count: int) -> str:
    """Return how often such a set of `count` conditions holds the true one."""
    these = "This condition is" if count == 1 else f"These {count} conditions are"
    whose = "" if promise.group == "all" else f" of {promise.group.replace('_', ' ')}"
    urgent = apart = ""
    if promise.urgent_level is not None and promise.urgent_apart:
        urgent = f", of urgent conditions about {100 * promise.urgent_level:.0f}"
        apart = f" {_URGENT_APART}"
    fitted = f"fitted on {promise.pictures:,} images{whose}"
    return f"{these} the set: {set_holds(promise.level)}{urgent} ({fitted}).{apart}"


def missed(promise: Promise) -> str:
    """Return how often a set misses what is urgent, with its interval."""
    if promise.urgent_missed is None:
        return "How often such a set misses an urgent condition could not be measured."
    return (
        f"Of calibration images of urgent conditions, {_share(promise.urgent_missed)} had no "
        "urgent condition in "
        "their set."
    )


def _share(share: Share) -> str:
    return (
        f"{100 * share.value:.1f} % (95 % interval {100 * share.low:.1f} to "
        f"{100 * share.high:.1f} %, {share.pictures:,} images)"
    )


def risk_guarantee(diagnosis: Diagnosis) -> str:
    """Return the guarantee with its confidence, or why there is none.

    Empty for an answer that abstains, since the guarantee is about photos like the calibration
    images, and for a record of an older version.
    """
    risk = diagnosis.urgent_risk
    if risk is None:
        return diagnosis.no_urgent_risk
    if diagnosis.abstained:
        return ""
    whose = "" if risk.group == "all" else f" of {risk.group}"
    return (
        f"The threshold was set on {risk.lesions:,} calibration lesions{whose} with an urgent "
        f"condition: of 100 such lesions, at most {100 * risk.miss_rate:g} are expected below it "
        f"(confidence that it keeps to this rate: {100 * risk.confidence:.0f} %; with 95 % "
        f"confidence at most {100 * risk.bound:.1f} are below it)."
    )
