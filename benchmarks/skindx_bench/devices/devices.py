"""Operators and networks on one device: speed, share of its peak, watts and joules a sample."""

import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from skindx.core.settings_base import Settings
from skindx.energy import EnergyMeter
from skindx_bench.devices.figures import Machine, bandwidth_cases, summarise
from skindx_bench.devices.measure import (
    Case,
    Device,
    Measured,
    Meter,
    Mode,
    Precision,
    TooSlowError,
    idle_watts,
    measure,
    open_device,
)
from skindx_bench.devices.networks import bundle_networks, config_networks, network_cases, networks
from skindx_bench.devices.operators import operator_cases
from skindx_bench.harness.conditions import load_now
from skindx_bench.harness.result import Figure, Result, changed_settings, hardware, ratio

PAPER = (
    "Performance and energy of processors | Wang et al., Performance and Power Evaluation "
    "of AI Accelerators for Training Deep Learning Models, arXiv 1909.06842, 2019 | "
    "benchmarks/tests/test_bench_devices.py | docs/measured/devices-epyc.json"
)

SMALLEST = (
    "sizes=[16]",
    "precisions=[fp32]",
    "networks=[lstm-2]",
    "shrink=32",
    "batch=2",
    "rounds=2",
    "least_s=0.001",
    "idle_s=0.01",
    "memory_mb=1",
)


DRIFT = "end_over_start"
DRIFTED = 0.05
"""A speed that changes by more from the beginning to the end of a run has drifted."""


class Config(Settings):
    """What is measured, and where."""

    device: Literal["auto", "cpu", "cuda", "rocm", "xpu", "mps"] = "auto"
    """auto: an accelerator if there is one, else the processor."""
    sizes: tuple[int, ...] = (128, 512, 2048)
    """Sizes of the operators: rows of a GEMM, units of an LSTM, places of attention."""
    precisions: tuple[Precision, ...] = ("fp32", "bf16", "fp16", "int8")
    modes: tuple[Mode, ...] = ("inference", "training")
    networks: tuple[str, ...] = ("resnet50", "lstm-2", "deep-speech-2", "transformer-6")
    batch: int = Field(8, ge=2)
    shrink: int = Field(1, ge=1, le=32)
    """Divides the networks' widths: only to see that they run."""
    config: Path | None = None
    """One's own training settings: their members are measured, at their size and batch."""
    config_batch: int | None = Field(None, ge=2)
    """Batch of these members, where that of the settings does not fit."""
    bundle: Path | None = None
    """A bundle, whose members are measured as well."""
    rounds: int = Field(7, ge=2)
    least_s: float = Field(0.3, gt=0)
    """A round repeats its work for so long."""
    most_s: float = Field(20, gt=0)
    """Work of which one call takes longer is left out: some precisions are emulated slowly."""
    limit_s: float | None = Field(None, gt=0)
    """Seconds after which nothing new is begun; the figures so far are marked as partial."""
    idle_s: float = Field(10, gt=0)
    """Seconds in which nothing is done, for the idle power."""
    memory_mb: float = Field(256, gt=0)
    """Of each operand of the copies that find the memory's bandwidth: more than the caches."""
    full_w: float | None = Field(None, gt=0)
    """The device's power limit: joules are then modelled where no counter can be read."""
    html: Path | None = None
    """Also write a page with the roofline and a table of what to buy."""
    machines: tuple[Path, ...] = ()
    """JSON files of other machines, which the page compares."""


def run(settings: Config, device: Device | None = None, meter: Meter = EnergyMeter) -> Result:
    """Measure case after case; after Ctrl-C the figures so far are returned, marked as partial.

    Raises UserError for a device that is not there and for settings that name no network.
    """
    from skindx_bench.devices.page import check_files, write_page

    check_files(settings.machines)
    # Products find the peak and networks say what to buy: they come first, if the time is short.
    cases = sorted(_cases(settings), key=_order)
    device = device or open_device(settings.device)
    measured: list[Measured] = []
    left_out: dict[str, str] = {}
    too_slow: set[tuple[str, str]] = set()
    partial = ""
    drift: Figure | None = None
    idle_w, idle = None, None
    load = load_now()
    end = math.inf if settings.limit_s is None else time.monotonic() + settings.limit_s
    try:
        idle_w, idle = idle_watts(settings.idle_s, meter)
        for number, case in enumerate([*bandwidth_cases(settings.memory_mb), *cases]):
            if time.monotonic() > end:
                partial = f"limit_s is over after {number} of {len(cases) + 2} pieces of work"
                break
            if (case.name, case.precision) in too_slow:
                left_out[case.key] = "its inference is too slow already"
                continue
            try:
                found = measure(
                    case, device, settings.rounds, settings.least_s, meter, settings.most_s
                )
            except (RuntimeError, TypeError) as error:
                if isinstance(error, TooSlowError):
                    too_slow.add((case.name, case.precision))
                left_out[case.key] = str(error).splitlines()[0][:200]
            else:
                measured.append(found)
                print(f"{case.key}: done", flush=True)
        drift = _drift(measured, device, settings, meter)
    except KeyboardInterrupt:
        partial = f"stopped after {len(measured)} of {len(cases) + 2} pieces of work"
    machine = Machine(device, idle_w, idle, load, settings.full_w)
    figures, parts = summarise(measured, machine)
    if drift is not None:
        figures[DRIFT] = drift
    described: dict[str, Any] = {**hardware(), "device": device.name, "kind": device.kind}
    if device.kind != "cpu":
        described["accelerator"] = device.name
    result = Result(
        "devices",
        figures,
        hardware=described,
        notes=_notes(machine, parts, left_out, drift),
        parts=parts,
        partial=partial,
        settings=changed_settings(settings),
    )
    if settings.html is not None:
        write_page(settings.html, result, settings.machines)
    return result


def _drift(
    measured: Sequence[Measured], device: Device, settings: Config, meter: Meter
) -> Figure | None:
    """Repeat the largest product at the end; return its speed then over that at the beginning.

    It shows what a virtual machine's clock hides: a processor that heats up, or a busy neighbour.
    """
    products = [found for found in measured if found.case.name.startswith("gemm-")]
    if not products:
        return None
    first = max(products, key=lambda found: (found.case.precision == "fp32", found.flops))
    again = measure(first.case, device, settings.rounds, settings.least_s, meter)
    # Calls a round may differ: seconds a call.
    before, after = (
        [elapsed / found.repeats for elapsed in found.seconds] for found in (first, again)
    )
    return ratio(after, before)


def _cases(settings: Config) -> Iterator[Case]:
    from skindx.core.errors import UserError

    known = networks(settings.batch, settings.shrink)
    if unknown := [name for name in settings.networks if name not in known]:
        raise UserError(f"networks={unknown[0]} is not known; valid: {', '.join(known)}.")
    yield from operator_cases(settings.sizes, settings.precisions, settings.modes)
    chosen = {name: known[name] for name in settings.networks}
    if settings.config is not None:
        chosen |= config_networks(settings.config, settings.config_batch)
    if settings.bundle is not None:
        chosen |= bundle_networks(settings.bundle, settings.batch)
    yield from network_cases(chosen, settings.precisions, settings.modes)


def _order(case: Case) -> int:
    if case.name.startswith("gemm-"):
        return 0
    return 1 if case.kind == "network" else 2


def _notes(
    machine: Machine,
    parts: dict[str, dict[str, Any]],
    left_out: dict[str, str],
    drift: Figure | None,
) -> tuple[str, ...]:
    marked = [f"{key}: {'; '.join(part['marks'])}" for key, part in parts.items() if part["marks"]]
    notes = [
        f"Device: {machine.device.name} ({machine.device.kind}). Operations count 2 a "
        "multiply-add, three forward passes a step of training; bytes count each operand once. The "
        "peak of a precision is its fastest operator here, the bandwidth the faster of copy and "
        "triad.",
        machine.energy_sentence(),
    ]
    if machine.load is not None:
        notes.append(f"Load before the run: {machine.load:.2f} runnable processes a core.")
    if drift is not None:
        notes.append(
            f"{DRIFT}: speed of the largest product, measured again at the end, over that at the "
            "beginning."
        )
        if abs(drift.value - 1) > DRIFTED:
            notes.append(
                f"Doubtful: this product was {drift.value:.2f} times as fast at the end as at the "
                "beginning; a processor that heats up, or other work on the machine."
            )
    if marked:
        notes.append(f"Doubtful figures, {len(marked)} of {len(parts)}: {'. '.join(marked[:8])}.")
    if left_out:
        listed = "; ".join(f"{key} ({why})" for key, why in list(left_out.items())[:8])
        notes.append(f"Not on this device, {len(left_out)}: {listed}.")
    return tuple(notes)
