"""Results of a bundle's evaluation, in a sentence for the reader of an answer."""

from typing import Any


def measured(metrics: dict[str, Any] | None) -> str:
    """Return what the bundle's evaluation measured, in a sentence; empty when it says nothing.

    Reads the layout of `skindx evaluate`; a figure that is missing is left out.
    """
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
