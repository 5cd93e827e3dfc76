"""One page on one or several machines: roofline, networks, joules, and what to buy.

Roofline (Williams 2009): attainable FLOP/s = min(peak, bandwidth × FLOP a byte).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from markupsafe import Markup

from skindx.core.atomic_files import write_text
from skindx.core.errors import UserError
from skindx.core.svg_plots import BLUE, INK, SOFT, Plot
from skindx_bench.devices.figures import BANDWIDTH
from skindx_bench.harness.compare import (
    EXPLAINED,
    Measurement,
    compare_lines,
    other_settings,
    pages,
    read_measurements,
    told,
)
from skindx_bench.harness.result import Result, new_plot

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


_KWH = 3.6e6
"""Joules."""


@dataclass(frozen=True)
class Offer:
    """What a machine does of one network: images an hour and a kWh, with the rounds' quartiles."""

    machine: str
    network: str
    mode: str
    precision: str
    per_hour: tuple[float, float, float]
    per_kwh: tuple[float, float, float] | None
    source: str
    marks: str


def write_page(html: Path, result: Result, others: Sequence[Path]) -> None:
    """Write this machine's figures beside those of other JSON files into one HTML file."""
    with TemporaryDirectory() as folder:
        own = Path(folder) / "this machine.json"
        result.to_json(own)
        write_text(html, page(read_measurements([own, *others])))


def check_files(files: Sequence[Path]) -> None:
    """Raise UserError, before anything is measured, for a file that bench devices did not write."""
    for found in read_measurements(files):
        if found.written["bench"] != "devices":
            raise UserError(
                f"{found.name} is of bench {found.written['bench']}; name JSON files of "
                "`skindx bench devices`."
            )


def page(machines: Sequence[Measurement]) -> str:
    """Return the page as one HTML file that refers to nothing else."""
    environment = pages()
    lines = compare_lines(machines) if len(machines) > 1 else []
    return environment.get_template("devices.html.jinja").render(
        machines=[(machine, roofline(machine.written)) for machine in machines],
        offers=side_by_side([offer for machine in machines for offer in offers(machine)]),
        rows=[(line, told(line), any(d and d.real for d in line.differences)) for line in lines],
        explained=EXPLAINED,
        settings=other_settings(machines),
    )


def side_by_side(found: Sequence[Offer]) -> list[Offer]:
    """Return the offers so that the machines of one network stand below each other."""
    places = dict.fromkeys((one.network, one.mode, one.precision) for one in found)
    order = {place: number for number, place in enumerate(places)}
    return sorted(found, key=lambda one: order[one.network, one.mode, one.precision])


def offers(machine: Measurement) -> list[Offer]:
    """Return what a machine does of each network; all members of a config are one more line.

    The members of a config are trained one after the other: an image counts when all have seen it.
    """
    parts: Mapping[str, Mapping[str, Any]] = machine.written.get("parts", {})
    found = [
        _offer(machine, key, part)
        for key, part in parts.items()
        if part["kind"] == "network" and f"{key}: samples" in machine.written["figures"]
    ]
    wholes = []
    for mode in ("training", "inference"):
        for precision in dict.fromkeys(row.precision for row in found):
            members = [
                row
                for row in found
                if row.network.startswith("member ")
                and (row.mode, row.precision) == (mode, precision)
            ]
            if members:
                wholes.append(_whole(machine.name, members))
    return [*wholes, *found]


def _offer(machine: Measurement, key: str, part: Mapping[str, Any]) -> Offer:
    figures = machine.written["figures"]
    rate = figures[f"{key}: samples"]
    energy = figures.get(f"{key}: energy")
    per_kwh = None
    if energy is not None and energy["value"] > 0 and energy["spread"][0] > 0:
        low, high = energy["spread"]
        per_kwh = (_KWH / energy["value"], _KWH / high, _KWH / low)
    hour = (3600 * rate["value"], 3600 * rate["spread"][0], 3600 * rate["spread"][1])
    return Offer(
        machine.name,
        part["name"],
        part["mode"],
        part["precision"],
        hour,
        per_kwh,
        part["energy"],
        "; ".join(part["marks"]),
    )


def _whole(machine: str, members: Sequence[Offer]) -> Offer:
    def together(rates: Sequence[tuple[float, float, float]]) -> tuple[float, float, float]:
        value, low, high = (
            1 / sum(1 / rate for rate in column) for column in zip(*rates, strict=True)
        )
        return value, low, high

    known = [member.per_kwh for member in members if member.per_kwh is not None]
    sources = {member.source for member in members}
    return Offer(
        machine,
        f"all {len(members)} members of the config",
        members[0].mode,
        members[0].precision,
        together([member.per_hour for member in members]),
        together(known) if len(known) == len(members) else None,
        sources.pop() if len(sources) == 1 else "unavailable",
        "; ".join(dict.fromkeys(member.marks for member in members if member.marks)),
    )
