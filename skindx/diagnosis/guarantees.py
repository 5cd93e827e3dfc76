"""What holds of an answer, for its reader: guarantees and measurements in sentences.

The guarantees are of the set of conditions and of the risk threshold. Measurements follow the
layout of `skindx evaluate`; a figure that is missing is left out, as in evaluations of older
versions.
"""

import math
from typing import Any

from skindx.core.text import counted
from skindx.diagnosis.record import SET_HOLDS, Diagnosis, MeasuredSets, Promise, UrgentRisk, percent
from skindx.metrics.share_intervals import proportion_interval
from skindx.models.conformal import ALL, Share
from skindx.models.urgent_risk import QUESTION_WORDS, Question

_URGENT_APART = (
    "Urgent conditions have a threshold of their own: one may be in the set though it is less "
    "likely than another outside."
)
_OF_OTHER_CONDITIONS = (
    "The threshold was set to miss at most {miss_rate:g} % of urgent lesions like the calibration "
    "lesions, which this photo may not be like."
)
_ELSEWHERE = "On photos by another camera both errors can be much larger."
"""After both errors: the bundle's own images are by few cameras."""
_UNLIKE = (
    "On photos by another camera, or else unlike the images of these figures, as this one may be, "
    "both errors can be much larger."
)
"""The same of an answer that abstains."""
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
    held = coverage(diagnosis.promise, sum(one.in_set for one in diagnosis.candidates))
    return f"{held} {errors(diagnosis.promise)}" if diagnosis.knows_urgent else held


def set_errors(diagnosis: Diagnosis) -> str:
    """Return `guarantee` in short: how often the set holds the true condition, and both errors."""
    promise = diagnosis.promise
    if diagnosis.abstained or promise is None:
        return guarantee(diagnosis)
    inside = [one.in_set for one in diagnosis.candidates]  # likeliest first
    apart = "" if inside == sorted(inside, reverse=True) else _urgent_level(promise)[1]
    held = set_holds(promise.level)
    if promise.measured:
        held = f"such sets held the true condition for {shown_share(promise.measured.coverage)}"
    known = f" {errors(promise)}" if diagnosis.knows_urgent else ""
    return f"{_these(sum(inside))}: {held}.{apart}{known}"


def risk_errors(diagnosis: Diagnosis) -> str:
    """Return both errors of the thresholds, or all of `risk_guarantee` where it is no more."""
    if not (risks := _risks(diagnosis)):
        return risk_guarantee(diagnosis)
    elsewhere = _UNLIKE if diagnosis.abstained else _ELSEWHERE
    return " ".join((*(_both_errors(*risk) for risk in risks), elsewhere))


def _risks(diagnosis: Diagnosis) -> list[tuple[UrgentRisk, Question]]:
    """Return the risks whose errors an answer names: one that abstains only those of a warning."""
    abstained, soon_risk = bool(diagnosis.abstained), diagnosis.soon_risk
    if diagnosis.urgent_risk is None or (abstained and diagnosis.next_step.urgency != "urgent"):
        return []
    risks: list[tuple[UrgentRisk, Question]] = [(diagnosis.urgent_risk, "urgent_risk")]
    return risks if abstained or not soon_risk else [*risks, (soon_risk, "soon_risk")]


def _both_errors(risk: UrgentRisk, question: Question) -> str:
    condition, called = QUESTION_WORDS[question]
    missed = f"is set to miss at most {100 * risk.miss_rate:g} % of {condition} conditions"
    if risk.measured_missed:
        missed = f"misses {shown_share(risk.measured_missed)} of {condition} conditions"
    raised = f"how many other conditions it calls {called} was not measured"
    if sent_on := risk.measured_sent_on or risk.sent_on:
        of = "" if risk.measured_sent_on else "calibration images of "
        raised = f"it calls {shown_share(sent_on)} of {of}other conditions {called}"
    return f"The threshold{'' if condition == called else f' of {called}'} {missed}; {raised}."


def theory(diagnosis: Diagnosis) -> tuple[str, ...]:
    """Return what the short sentences leave out: how threshold and set were fitted and measured."""
    fitted = [
        _OF_OTHER_CONDITIONS.format(miss_rate=100 * risk.miss_rate)
        if diagnosis.abstained
        else _fitted(risk, question) + _predictive(risk, question)
        for risk, question in _risks(diagnosis)
    ]
    if (promise := diagnosis.promise) and not diagnosis.abstained:
        if promise.measured and (by_kind := _by_kind(promise.measured)):
            sets = f"Sets held the true condition, on the {promise.measured.split} images:"
            fitted.append(f"{sets} {'; '.join(by_kind)}.")
        elif not promise.measured:
            urgent, _ = _urgent_level(promise)
            holds = urgent and f"; of 100 photos{urgent[1:]} have their condition in it"
            fitted.append(f"The set was {_fitted_on(promise)}{holds}.")
    return tuple(fitted)


def _these(count: int) -> str:
    which = "This condition is" if count == 1 else f"These {count} conditions are"
    return f"{which} the set that the model names"


def coverage(promise: Promise, count: int) -> str:
    """Return how often such a set of `count` conditions holds the true one."""
    these = _these(count)
    if promise.measured:
        return f"{these}. {measured_coverage(promise.measured)}"
    urgent, apart = _urgent_level(promise)
    return f"{these}: {set_holds(promise.level)}{urgent} ({_fitted_on(promise)}).{apart}"


def _fitted_on(promise: Promise) -> str:
    whose = "" if promise.group == "all" else f" of {promise.group.replace('_', ' ')}"
    return f"fitted on {counted(promise.pictures, 'image')}{whose}"


def _urgent_level(promise: Promise) -> tuple[str, str]:
    if promise.urgent_level is None or not promise.urgent_apart:
        return "", ""
    return f", of urgent conditions about {100 * promise.urgent_level:.0f}", f" {_URGENT_APART}"


def measured_coverage(sets: MeasuredSets) -> str:
    """Return how often sets held the true condition in an evaluation, which counts for the promise.

    The condition that they held least often is named.
    """
    held = f"such sets held the true condition for {shown_share(sets.coverage)}"
    return f"Measured on the {sets.split} images, {'; '.join((held, *_by_kind(sets)))}."


def _by_kind(sets: MeasuredSets) -> list[str]:
    urgent = f"of urgent conditions {shown_share(sets.urgent)}" if sets.urgent else ""
    least = f"least often of {sets.least_name}: {shown_share(sets.least)}" if sets.least else ""
    return [text for text in (urgent, least) if text]


def errors(promise: Promise) -> str:
    """Return how often a set misses what is urgent and how often it warns of it falsely."""
    sets = promise.measured
    if sets and (sets.urgent_missed or sets.urgent_raised):
        return _both(f"Of {sets.split} images", sets.urgent_missed, sets.urgent_raised)
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
        "urgent condition in their set."
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
    risk, soon_risk = diagnosis.urgent_risk, diagnosis.soon_risk
    soon = ""
    if soon_risk and not diagnosis.abstained:
        soon = f" {_kept_to(soon_risk, 'soon_risk')}"
    warns = bool(diagnosis.abstained) and diagnosis.next_step.urgency == "urgent"
    if risk is None:
        if warns and diagnosis.promise and diagnosis.knows_urgent:
            return f"{diagnosis.no_urgent_risk} {errors(diagnosis.promise)} {_UNLIKE}".strip()
        return f"{diagnosis.no_urgent_risk}{soon}".strip()
    if diagnosis.abstained:
        if not warns:
            return ""
        return _OF_OTHER_CONDITIONS.format(miss_rate=100 * risk.miss_rate) + _errors_of(risk)
    return f"{_kept_to(risk)}{soon} {_ELSEWHERE}"


def _kept_to(risk: UrgentRisk, question: Question = "urgent_risk") -> str:
    return f"{_fitted(risk, question)}{_errors_of(risk, question)}"


def _fitted(risk: UrgentRisk, question: Question) -> str:
    condition, called = QUESTION_WORDS[question]
    whose = "" if risk.group == "all" else f" of {risk.group}"
    return (
        f"The threshold{'' if condition == called else f' of {called}'} was set on "
        f"{counted(risk.lesions, 'calibration lesion')}{whose} with an {condition} condition: of "
        f"100 such lesions, at most {100 * risk.miss_rate:g} are expected below it (confidence "
        f"that it keeps to this rate: {100 * risk.confidence:.0f} %; with 95 % confidence at most "
        f"{100 * risk.bound:.1f} are below it)."
    )


def how_combined(diagnosis: Diagnosis) -> str:
    """Return what was done to the networks' mean; empty for one network, or where nothing was."""
    if len(diagnosis.votes) < 2 or abs(diagnosis.temperature - 1) < 0.005:
        return ""
    images = "local" if diagnosis.source.adapted else "validation"
    how, than = ("sharpened", "surer") if diagnosis.temperature < 1 else ("softened", "less sure")
    return (
        f"The combined answer of the networks was {how} by a temperature of "
        f"{diagnosis.temperature:.2f}, fitted on the {images} images, so it can be {than} than "
        "each of them."
    )


def _errors_of(risk: UrgentRisk, question: Question = "urgent_risk") -> str:
    """Return how many others the threshold calls urgent, and both errors where they were measured.

    Both stand together: a threshold misses few by calling many urgent.
    """
    text = ""
    condition, called = QUESTION_WORDS[question]
    if risk.sent_on and not risk.measured_sent_on:
        share = shown_share(risk.sent_on)
        text = f" Of calibration images of other conditions, {share} are called {called}."
    elif not risk.sent_on and risk.group != ALL:
        text = (
            f" How many other conditions it calls {called} was not measured for {risk.group} alone."
        )
    missed, sent_on = risk.measured_missed, risk.measured_sent_on
    if missed:
        text += (
            f" Measured on the {risk.measured_on} images, it misses {shown_share(missed)} of "
            f"{condition} conditions."
        )
    if sent_on:
        text += (
            f" Measured on the {risk.measured_on} images, it calls {shown_share(sent_on)} of "
            f"other conditions {called}."
        )
    return text + _predictive(risk, question)


def _predictive(risk: UrgentRisk, question: Question) -> str:
    if risk.prevalence is None or risk.ppv is None or risk.npv is None:
        return ""
    condition, called = QUESTION_WORDS[question]
    return (
        f" Where {percent(risk.prevalence)} of the photos show an {condition} condition, "
        f"{percent(risk.ppv)} of those called {called} do (positive predictive value), and "
        f"{percent(risk.npv)} of the others do not (negative predictive value)."
    )


def measured(metrics: dict[str, Any] | None) -> str:
    """Return what the bundle's evaluation measured, in a sentence; empty when it says nothing."""
    ensemble = _part(metrics, "ensemble")
    figures = [
        text
        for name, key in (
            ("the likeliest condition is the true one in", "top1"),
            ("averaged over the conditions, in", "balanced_accuracy"),
            ("on average its probability is off by", "calibration_error"),
        )
        if (text := _figure(name, _part(ensemble, key)))
    ]
    if not figures:
        return ""
    reasons = metrics.get("not_useful") if metrics else None
    warning = "This bundle is not useful yet. " if isinstance(reasons, list) and reasons else ""
    warning += "".join(f"{reason} " for reason in reasons) if warning and reasons else ""
    split = _part(metrics, "origin").get("split")
    images = metrics.get("pictures") if metrics else None
    many = f"{images:,} " if isinstance(images, int) else ""
    where = f"its {many}{split} images" if isinstance(split, str) else f"{many}images kept apart"
    return f"{warning}Measured on {where}: {'; '.join(figures)}.{_observed(metrics)}"


def right_at(metrics: dict[str, Any] | None, probability: float) -> Share | None:
    """Return how often the likeliest class was right where it had about this probability.

    Of the evaluation's bin of probabilities; None where it measured no such share.
    """
    for one in _rows(metrics or {}, "reliability"):
        ends = [end for end in (one.get("low"), one.get("high")) if isinstance(end, float | int)]
        if len(ends) == 2 and ends[0] < max(probability, 1e-9) <= ends[1]:
            return _share(one.get("right"), one.get("n"))
    return None


def _observed(metrics: dict[str, Any] | None) -> str:
    """Return how common urgent conditions were against their probabilities, if it was measured."""
    urgent = next(
        (row for row in _rows(metrics or {}, "questions") if row.get("key") == "urgent_risk"), {}
    )
    interval = _part(urgent, "observed_over_expected")
    value, low, high = (interval.get(key) for key in ("value", "low", "high"))
    bounded = isinstance(low, float | int) and isinstance(high, float | int)
    if not isinstance(value, float | int) or not bounded:
        return ""
    band = _part(urgent, "band")
    observed, said = _share(band.get("observed"), band.get("n")), band.get("said")
    where = ""
    if observed and isinstance(said, float):
        where = f"; where it said {percent(said)} on average, {shown_share(observed)} were urgent"
    return (
        f" Urgent conditions were {value:.2f} times as common as its probabilities said (95 % "
        f"interval {low:.2f} to {high:.2f}){where}."
    )


def with_measured_sets(promise: Promise | None, metrics: dict[str, Any] | None) -> Promise | None:
    """Return a promise with what the evaluation measured of the sets, where there is one."""
    sets = _part(metrics, "sets")
    coverage = _share(sets.get("coverage"), metrics.get("pictures") if metrics else None)
    if promise is None or coverage is None:
        return promise
    groups, classes = _rows(sets, "by_group"), _rows(sets, "by_class")
    covered = [
        (str(row.get("name")), share)
        for row in classes
        if (share := _share(row.get("coverage"), row.get("n")))
    ]
    least_name, least = min(covered, key=lambda row: row[1].value, default=("", None))
    urgent = next((row for row in groups if row.get("name") == "urgent classes"), {})
    missed, raised = _part(sets, "urgent_missed"), _part(sets, "false_alarms")
    measured_sets = MeasuredSets(
        split=_split(metrics),
        coverage=coverage,
        urgent=_share(urgent.get("coverage"), urgent.get("n")),
        least_name=least_name,
        least=least,
        urgent_missed=_share(missed.get("rate"), missed.get("n")),
        urgent_raised=_share(raised.get("rate"), raised.get("n")),
    )
    return promise.model_copy(update={"measured": measured_sets})


def with_measured_risk(
    risk: UrgentRisk | None, metrics: dict[str, Any] | None, question: Question = "urgent_risk"
) -> UrgentRisk | None:
    """Return a risk with both errors of its threshold as the evaluation measured them."""
    for level in _rows(_part(metrics, question), "levels") if risk else ():
        rate = level.get("miss_rate")
        if risk and isinstance(rate, float) and math.isclose(rate, risk.miss_rate):
            missed, raised = _part(level, "misses"), _part(level, "false_alarms")
            update = {
                "measured_on": _split(metrics),
                "measured_missed": _share(missed.get("rate"), missed.get("n")),
                "measured_sent_on": _share(raised.get("rate"), raised.get("n")),
            }
            return risk.model_copy(update=update)
    return risk


def shared(share: Share | None) -> Share | None:
    """Return a bundle's share for a record.

    An interval without width at 0 or 1, as older versions may have written, becomes the exact one.
    """
    if share is None or share.high > share.low:
        return share
    exact = proportion_interval(share.value, share.pictures)
    return share.model_copy(update={"low": exact.low, "high": exact.high})


def _share(interval: Any, pictures: Any) -> Share | None:
    """Return a measured share; None for what is none."""
    if not isinstance(interval, dict) or not isinstance(pictures, int) or pictures < 1:
        return None
    value, low, high = (interval.get(key) for key in ("value", "low", "high"))
    if not isinstance(value, float | int) or not 0 <= value <= 1:  # NaN is in no range
        return None
    ends = [end if isinstance(end, float | int) and 0 <= end <= 1 else value for end in (low, high)]
    return shared(Share(value=value, low=ends[0], high=ends[1], pictures=pictures))


def _split(metrics: dict[str, Any] | None) -> str:
    split = _part(metrics, "origin").get("split")
    return split if isinstance(split, str) else "test"


def _rows(whole: dict[str, Any], key: str) -> list[dict[str, Any]]:
    rows = whole.get(key)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _figure(name: str, interval: dict[str, Any]) -> str:
    value, low, high = (interval.get(key) for key in ("value", "low", "high"))
    if not isinstance(value, float | int):
        return ""
    if isinstance(low, float | int) and isinstance(high, float | int):
        return f"{name} {100 * value:.1f} % (95 % interval {100 * low:.1f} to {100 * high:.1f} %)"
    return f"{name} {100 * value:.1f} %"


def _part(whole: dict[str, Any] | None, key: str) -> dict[str, Any]:
    part = whole.get(key) if whole else None
    return part if isinstance(part, dict) else {}
