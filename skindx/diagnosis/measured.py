"""Results of a bundle's evaluation, for the reader of an answer.

They read the layout of `skindx evaluate`; a figure that is missing is left out, as in evaluations
of older versions.
"""

import math
from typing import Any

from skindx.diagnosis.record import MeasuredSets, Promise, Share, UrgentRisk
from skindx.metrics.share_intervals import proportion_interval
from skindx.models.conformal import MeasuredShare


def measured(metrics: dict[str, Any] | None) -> str:
    """Return what the bundle's evaluation measured, in a sentence; empty when it says nothing."""
    ensemble = _part(metrics, "ensemble")
    figures = [
        text
        for name, key in (
            ("top-1", "top1"),
            ("balanced accuracy", "balanced_accuracy"),
            ("calibration error", "calibration_error"),
        )
        if (text := _figure(name, _part(ensemble, key)))
    ]
    if not figures:
        return ""
    split = _part(metrics, "origin").get("split")
    images = metrics.get("pictures") if metrics else None
    of = f" ({images:,} images)" if isinstance(images, int) else ""
    where = f"its {split} split" if isinstance(split, str) else "images kept apart"
    return f"Measured on {where}{of}: {', '.join(figures)}."


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
    found = MeasuredSets(
        split=_split(metrics),
        coverage=coverage,
        urgent=_share(urgent.get("coverage"), urgent.get("n")),
        least_name=least_name,
        least=least,
        urgent_missed=_share(missed.get("rate"), missed.get("n")),
        urgent_raised=_share(raised.get("rate"), raised.get("n")),
    )
    return promise.model_copy(update={"measured": found})


def with_measured_risk(
    risk: UrgentRisk | None, metrics: dict[str, Any] | None
) -> UrgentRisk | None:
    """Return a risk with both errors of its threshold as the evaluation measured them."""
    for level in _rows(_part(metrics, "urgent_risk"), "levels") if risk else ():
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


def shared(share: MeasuredShare | None) -> Share | None:
    """Return a bundle's share for a record.

    An interval without width at 0 or 1, as older versions may have written, becomes the exact one.
    """
    if share is None:
        return None
    if share.high > share.low:
        return Share(**share.model_dump())
    exact = proportion_interval(share.value, share.pictures)
    return Share(value=share.value, low=exact.low, high=exact.high, pictures=share.pictures)


def _share(interval: Any, pictures: Any) -> Share | None:
    """Return a measured share; None for what is none."""
    if not isinstance(interval, dict) or not isinstance(pictures, int) or pictures < 1:
        return None
    value, low, high = (interval.get(key) for key in ("value", "low", "high"))
    if not isinstance(value, float | int) or not 0 <= value <= 1:  # NaN is in no range
        return None
    ends = [end if isinstance(end, float | int) and 0 <= end <= 1 else value for end in (low, high)]
    found = MeasuredShare(value=value, low=ends[0], high=ends[1], pictures=pictures)
    return shared(found)


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
