"""The roofline plot: what operators reach, under what memory and arithmetic allow (Williams 2009).

Attainable FLOP/s = min(peak, bandwidth × FLOP a byte).
"""

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from skindx.core.svg_plots import BLUE, INK, SOFT, Plot
from skindx_bench.devices.figures import BANDWIDTH
from skindx_bench.harness.writing import new_plot

OVERLAP = 1.3
"""Peaks within this ratio lie less than a line of text apart on the logarithmic axis."""

_MARKERS = {"fp32": "o", "bf16": "s", "fp16": "^", "int8": "D"}


def points(
    written: Mapping[str, Any],
) -> list[tuple[str, str, float, float]]:
    """Return (key, precision, FLOP a byte, GFLOP/s) of each operator of a machine's JSON."""
    return [
        (
            key,
            part["precision"],
            part["flops"] / part["bytes"],
            written["figures"][f"{key}: arithmetic"]["value"],
        )
        for key, part in written.get("parts", {}).items()
        if part["bytes"] and f"{key}: arithmetic" in written["figures"]
    ]


def attainable(peak: float, bandwidth: float, intensity: float) -> float:
    """Return the GFLOP/s that `intensity` FLOP a byte allow, of peaks in GFLOP/s and GB/s."""
    return min(peak, bandwidth * intensity)


def _labels(peaks: Mapping[str, float]) -> list[tuple[float, str]]:
    """Return (peak, label); precisions whose labels would overlap share the highest one's."""
    labels: list[tuple[float, list[str]]] = []
    for precision, peak in sorted(peaks.items(), key=lambda item: -item[1]):
        if labels and peak > labels[-1][0] / OVERLAP:
            labels[-1][1].append(precision)
        else:
            labels.append((peak, [precision]))
    return [(peak, ", ".join(names)) for peak, names in labels]


def roofline(written: Mapping[str, Any]) -> Markup | None:
    """Return the plot of one machine as SVG, or None where its bandwidth or peak is missing."""
    figures, found = written["figures"], points(written)
    peaks = {
        key.removeprefix("peak "): figure["value"]
        for key, figure in figures.items()
        if key.startswith("peak ")
    }
    if not found or not peaks or BANDWIDTH not in figures:
        return None
    from matplotlib.ticker import FuncFormatter, NullFormatter

    bandwidth = figures[BANDWIDTH]["value"]
    plot = new_plot(8, 4.5)
    axes = plot.subplots()
    low = min(intensity for _, _, intensity, _ in found) / 2
    high = max(intensity for _, _, intensity, _ in found) * 2
    for peak in peaks.values():
        bend = min(max(peak / bandwidth, low), high)
        xs = [low, bend, high]
        axes.plot(xs, [attainable(peak, bandwidth, x) for x in xs], color=SOFT, linewidth=1)
    for peak, name in _labels(peaks):
        axes.annotate(name, (high, peak), color=INK, ha="right", va="bottom")
    titles = {}
    for index, (key, precision, intensity, rate) in enumerate(found):
        (mark,) = axes.plot(
            [intensity], [rate], _MARKERS[precision], color=BLUE, markersize=6, alpha=0.7
        )
        mark.set_gid(f"point-{index}")
        titles[f"point-{index}"] = f"{key}: {rate:.3g} GFLOP/s at {intensity:.3g} FLOP/byte"
    axes.set_xscale("log")
    axes.set_yscale("log")
    bottom = min(rate for _, _, _, rate in found)
    axes.set_ylim(bottom / 1.5, 1.6 * max(peaks.values()))  # room for the label of the highest
    for axis in (axes.xaxis, axes.yaxis):
        # An SVG on a page has no formulas: 10 to a power is written out.
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("FLOP / byte", color=INK)
    axes.set_ylabel("GFLOP/s", color=INK, labelpad=12)
    label = f"Roofline: {len(found)} operators under a bandwidth of {bandwidth:.3g} GB/s"
    return Plot(plot, axes, label, titles).svg()
