"""From rounds to figures: rates, shares of the peak, watts, joules with their label."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from skindx.energy import Energy
from skindx_bench.devices.measure import Case, Device, Measured, Work, joules_of
from skindx_bench.devices.power_model import CALIBRATED
from skindx_bench.harness.result import Figure, median


def bandwidth_cases(memory_mb: float) -> list[Case]:
    """Return a copy and a triad (McCalpin's STREAM) over `memory_mb` megabytes an operand."""
    count = max(1, int(memory_mb * 1e6 / 4))

    def copy(device: torch.device) -> Work:
        source = torch.zeros(count, device=device)
        target = torch.empty_like(source)
        return Work(lambda: target.copy_(source), 1, 0.0, 8.0 * count)

    def triad(device: torch.device) -> Work:
        a, b = torch.zeros(count, device=device), torch.ones(count, device=device)
        target = torch.empty_like(a)
        return Work(lambda: torch.add(a, b, alpha=3.0, out=target), 1, 2.0 * count, 12.0 * count)

    return [
        Case("memory copy", "fp32", "inference", "operator", copy),
        Case("memory triad", "fp32", "inference", "operator", triad),
    ]


BANDWIDTH = "memory bandwidth"


@dataclass(frozen=True)
class Machine:
    """What was measured, what it draws when it waits, and how busy it was before."""

    device: Device
    idle_w: float | None
    idle: Energy | None
    load: float | None
    full_w: float | None

    def energy_sentence(self) -> str:
        """Return where joules come from."""
        if self.idle is None:
            return "Energy: not measured, the run was stopped before."
        if self.idle.source == "measured" and self.idle_w is not None:
            return (
                f"Energy: measured, {', '.join(self.idle.sensors)}, the whole machine's; idle "
                f"{self.idle_w:.1f} W. J a sample: all joules; above idle: less the idle watts."
            )
        if self.full_w is not None:
            return (
                f"Energy: modelled from the shares of peak and bandwidth and a limit of "
                f"{self.full_w:g} W; calibrated on {CALIBRATED.calibrated_on}, other devices are "
                f"outside of it. No counter: {self.idle.why}."
            )
        return f"Energy: unavailable ({self.idle.why})."


def summarise(
    measured: Sequence[Measured], machine: Machine
) -> tuple[dict[str, Figure], dict[str, dict[str, Any]]]:
    """Return figures by key, and for each case its label of energy, its marks and its counts."""
    figures: dict[str, Figure] = {}
    peaks = peak_rates(measured)
    bandwidth = _bandwidth(measured)
    for precision, rates in peaks.items():
        figures[f"peak {precision}"] = median(rates, "GFLOP/s")
    if bandwidth:
        figures[BANDWIDTH] = median(bandwidth, "GB/s")
    parts: dict[str, dict[str, Any]] = {}
    for found in measured:
        if found.case.name.startswith("memory "):
            continue
        key = found.case.key
        figures[f"{key}: samples"] = median(found.rates(found.samples), "samples/s")
        figures[f"{key}: arithmetic"] = median(_giga(found.rates(found.flops)), "GFLOP/s")
        if found.bytes_moved is not None:
            figures[f"{key}: memory"] = median(_giga(found.rates(found.bytes_moved)), "GB/s")
        peak = peaks.get(found.case.precision)
        energy = _energy(found, machine, peak, bandwidth)
        joules = joules_of(energy)
        if joules is not None:
            figures |= _joule_figures(found, joules, energy[0], machine)
        parts[key] = {
            "name": found.case.name,
            "precision": found.case.precision,
            "mode": found.case.mode,
            "kind": found.case.kind,
            "samples": found.samples,
            "flops": found.flops,
            "bytes": found.bytes_moved,
            "repeats": found.repeats,
            "energy": energy[0].source if joules is not None else "unavailable",
            "energy_why": next((reading.why for reading in energy if reading.why), ""),
            "clock_mhz": found.conditions.get("clock_mhz"),
            "others_share": found.conditions.get("others_share"),
            "marks": found.conditions.get("marks", []),
        }
    return figures, parts


def peak_rates(measured: Sequence[Measured]) -> dict[str, list[float]]:
    """Return GFLOP/s of the fastest operator in each precision, by round."""
    best: dict[str, list[float]] = {}
    for found in measured:
        if found.case.kind == "operator" and not found.case.name.startswith("memory "):
            rates = _giga(found.rates(found.flops))
            known = best.get(found.case.precision)
            if known is None or median(rates, "").value > median(known, "").value:
                best[found.case.precision] = rates
    return best


def _bandwidth(measured: Sequence[Measured]) -> list[float]:
    found = [
        _giga(row.rates(row.bytes_moved or 0.0))
        for row in measured
        if row.case.name.startswith("memory ")
    ]
    return max(found, key=lambda rates: median(rates, "").value, default=[])


def _giga(rates: Sequence[float]) -> list[float]:
    return [rate / 1e9 for rate in rates]


def _energy(
    found: Measured,
    machine: Machine,
    peak: Sequence[float] | None,
    bandwidth: Sequence[float],
) -> list[Energy]:
    """Return the counters' joules by round, or modelled ones where a power limit is given."""
    if machine.full_w is None or joules_of(found.energy) is not None or not peak or not bandwidth:
        return found.energy
    most, widest = median(peak, "").value, median(bandwidth, "").value
    used = _giga(found.rates(found.flops))
    moved = _giga(found.rates(found.bytes_moved or 0.0))
    return [
        CALIBRATED.energy(
            machine.full_w, seconds, min(1.0, flops / most), min(1.0, moving / widest)
        )
        for seconds, flops, moving in zip(found.seconds, used, moved, strict=True)
    ]


def _joule_figures(
    found: Measured, joules: Sequence[float], label: Energy, machine: Machine
) -> dict[str, Figure]:
    key, samples = found.case.key, found.samples * found.repeats
    watts = [round_j / seconds for round_j, seconds in zip(joules, found.seconds, strict=True)]
    # An idle device lies outside of what the model was calibrated on.
    idle_w = machine.idle_w if label.source == "measured" else None
    figures = {
        f"{key}: power": median(watts, "W"),
        f"{key}: energy": median([round_j / samples for round_j in joules], "J/sample"),
    }
    if idle_w is not None:
        above = [
            (round_j - idle_w * seconds) / samples
            for round_j, seconds in zip(joules, found.seconds, strict=True)
        ]
        figures[f"{key}: energy above idle"] = median(above, "J/sample")
    if label.source == "modelled" and label.interval is not None and label.joules:
        # The interval of the model is far wider than the spread of the rounds.
        low, high = (end / label.joules for end in label.interval)
        for name in (f"{key}: power", f"{key}: energy"):
            one = figures[name]
            figures[name] = Figure(one.value, one.unit, one.n, (one.value * low, one.value * high))
    return figures
