"""Figures of an answer from its bundle's evaluation: values, which `answer_texts` puts in words.

They follow the layout of `skindx evaluate`. A figure that is missing or damaged is left out, as in
evaluations of older versions.
"""

import math
from typing import Any

from skindx.diagnosis.record import AdviceErrors, MeasuredSets, PredictiveValue, Promise
from skindx.metrics.share_intervals import proportion_interval
from skindx.models.conformal import Share

Metrics = dict[str, Any] | None

STATED_PREVALENCE = 0.01
"""Share of urgent lesions that predictive values hold for where the operator gave none: less than
in a test set, which is taken from what clinics removed."""


def advice_errors(
    metrics: Metrics, miss_rate: float | None, prevalence: float | None = None
) -> AdviceErrors | None:
    """Return both errors of the advice as it was given, refused images and abstentions counted.

    The threshold's own errors are others: an abstention can stay urgent below it, and a refused
    photo gets no advice. `miss_rate` is that of the threshold in use, None without one; an
    evaluation with another threshold says nothing of it. `prevalence` is what the operator gave.
    """
    chosen = part_of(metrics, "urgent_risk").get("chosen")
    if (miss_rate is None) != (chosen is None):
        return None
    if miss_rate is not None and not (
        isinstance(chosen, float) and math.isclose(chosen, miss_rate)
    ):
        return None
    rows = {str(row.get("name")): row for row in rows_of(metrics or {}, "served")}
    urgent, other = rows.get("urgent classes", {}), rows.get("other classes", {})
    called = share_of(part_of(urgent, "rates").get("urgent"), urgent.get("n"))
    raised = share_of(part_of(other, "rates").get("urgent"), other.get("n"))
    if called is None or raised is None:
        return None
    missed = Share(
        value=1 - called.value, low=1 - called.high, high=1 - called.low, pictures=called.pictures
    )
    of_test = called.pictures / (called.pictures + raised.pictures)
    stated = STATED_PREVALENCE if prevalence is None else prevalence
    return AdviceErrors(
        split=split_of(metrics),
        missed=missed,
        raised=raised,
        refused=_counted(part_of(urgent, "steps").get("none")),
        abstained=_counted(urgent.get("abstained")),
        values=tuple(_predictive(missed.value, raised.value, at) for at in (stated, of_test)),
    )


def _predictive(missed: float, raised: float, prevalence: float) -> PredictiveValue:
    """Return the predictive values by Bayes' rule."""
    right, wrong = prevalence * (1 - missed), (1 - prevalence) * raised
    rest_right, rest_wrong = (1 - prevalence) * (1 - raised), prevalence * missed
    return PredictiveValue(
        prevalence=prevalence,
        ppv=right / (right + wrong) if right + wrong else None,
        npv=rest_right / (rest_right + rest_wrong) if rest_right + rest_wrong else None,
    )


def _counted(value: Any) -> int:
    return value if isinstance(value, int) and value >= 0 else 0


def with_measured_sets(promise: Promise | None, metrics: Metrics) -> Promise | None:
    """Return a promise with what the evaluation measured of the sets, where there is one."""
    sets = part_of(metrics, "sets")
    coverage = share_of(sets.get("coverage"), metrics.get("pictures") if metrics else None)
    if promise is None or coverage is None:
        return promise
    groups, classes = rows_of(sets, "by_group"), rows_of(sets, "by_class")
    covered = [
        (str(row.get("name")), share)
        for row in classes
        if (share := share_of(row.get("coverage"), row.get("n")))
    ]
    least_name, least = min(covered, key=lambda row: row[1].value, default=("", None))
    urgent = next((row for row in groups if row.get("name") == "urgent classes"), {})
    missed, raised = part_of(sets, "urgent_missed"), part_of(sets, "false_alarms")
    measured_sets = MeasuredSets(
        split=split_of(metrics),
        coverage=coverage,
        urgent=share_of(urgent.get("coverage"), urgent.get("n")),
        least_name=least_name,
        least=least,
        urgent_missed=share_of(missed.get("rate"), missed.get("n")),
        urgent_raised=share_of(raised.get("rate"), raised.get("n")),
    )
    return promise.model_copy(update={"measured": measured_sets})


def right_at(metrics: Metrics, probability: float) -> Share | None:
    """Return how often the likeliest class was right where it had about this probability.

    Of the evaluation's bin of probabilities; None where it measured no such share.
    """
    for one in rows_of(metrics or {}, "reliability"):
        ends = [end for end in (one.get("low"), one.get("high")) if isinstance(end, float | int)]
        if len(ends) == 2 and ends[0] < max(probability, 1e-9) <= ends[1]:
            return share_of(one.get("right"), one.get("n"))
    return None


def shared(share: Share | None) -> Share | None:
    """Return a bundle's share for a record.

    An interval without width at 0 or 1, as older versions may have written, becomes the exact one.
    """
    if share is None or share.high > share.low:
        return share
    exact = proportion_interval(share.value, share.pictures)
    return share.model_copy(update={"low": exact.low, "high": exact.high})


def share_of(interval: Any, pictures: Any) -> Share | None:
    """Return a measured share; None for what is none."""
    if not isinstance(interval, dict) or not isinstance(pictures, int) or pictures < 1:
        return None
    value, low, high = (interval.get(key) for key in ("value", "low", "high"))
    if not isinstance(value, float | int) or not 0 <= value <= 1:  # NaN is in no range
        return None
    ends = [end if isinstance(end, float | int) and 0 <= end <= 1 else value for end in (low, high)]
    return shared(Share(value=value, low=ends[0], high=ends[1], pictures=pictures))


def split_of(metrics: Metrics) -> str:
    """Return the split that was evaluated."""
    split = part_of(metrics, "origin").get("split")
    return split if isinstance(split, str) else "test"


def rows_of(whole: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """Return a list of mappings of the evaluation; empty for what is none."""
    rows = whole.get(key)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def part_of(whole: Metrics, key: str) -> dict[str, Any]:
    """Return a mapping of the evaluation; empty for what is none."""
    part = whole.get(key) if whole else None
    return part if isinstance(part, dict) else {}
