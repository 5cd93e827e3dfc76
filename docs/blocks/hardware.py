"""The figures of the benches of hardware: energy, devices, container."""

from collections.abc import Mapping
from typing import Any

from blocks.texts import Load, bench_machine, digits, median, whole

_ENERGY = {
    "energy_model_error_median": ("error of the joules of a network that is left out", 0.10),
    "energy_interval_coverage": ("its readings inside the interval", (0.85, 0.95)),
    "energy_one_reading_error_median": ("error at other clocks after one reading of a meter", None),
    "energy_one_reading_coverage": ("its readings inside the interval", None),
}


def energy(load: Load) -> str:
    """Return how well joules are modelled, with what is asked."""
    written = load("energy.json")
    lines = ["| figure | value [95 % interval] | asked | |", "|---|---|---|---|"]
    for key, (what, asked) in _ENERGY.items():
        figure = written["figures"][key]
        low, high = figure["spread"]
        shown = f"{whole(figure['value'])} [{whole(low)}, {whole(high)}], n = {figure['n']}"
        if isinstance(asked, tuple):
            met = asked[0] <= figure["value"] <= asked[1]
            wanted = f"{whole(asked[0])} to {whole(asked[1])}"
        else:
            met = asked is None or figure["value"] <= asked
            wanted = "" if asked is None else f"≤ {whole(asked)}"
        lines.append(f"| {what} | {shown} | {wanted} | {'' if met else '**missed**'} |")
    return "\n".join([*lines, *_notes(written), "", bench_machine(written)])


def devices(load: Load) -> str:
    """Return speed and joules of the networks, and the peaks of the device."""
    written = load("devices.json")
    figures = written["figures"]
    lines = ["| what | median [25 %, 75 %] |", "|---|---|"]
    lines += [
        f"| {key} | {median(figure)} |"
        for key, figure in figures.items()
        if key.startswith("peak ") or key == "memory bandwidth"
    ]
    lines += [
        "",
        "| network | images or sequences | arithmetic | joules | |",
        "|---|---|---|---|---|",
    ]
    for key, part in written["parts"].items():
        if part["kind"] == "network" and f"{key}: samples" in figures:
            joules = figures.get(f"{key}: energy")
            used = part["energy"] if joules is None else f"{median(joules)}, {part['energy']}"
            speed, arithmetic = figures[f"{key}: samples"], figures[f"{key}: arithmetic"]
            marks = "; ".join(part["marks"])
            lines.append(f"| {key} | {median(speed)} | {median(arithmetic)} | {used} | {marks} |")
    return "\n".join([*lines, *_notes(written), "", bench_machine(written)])


def container(load: Load) -> str:
    """Return what a container costs, task by task, and whether sham and plant came out right."""
    written = load("container.json")
    lines = [
        "| task | container over host | sham | planted | believed |",
        "|---|---|---|---|---|",
    ]
    for task, part in written["parts"].items():
        cells = [
            _ratio(written["figures"][f"{task}: {arm}_over_host"])
            for arm in ("container", "sham", "planted")
        ]
        lines.append(f"| {task} | {' | '.join(cells)} | {'yes' if part['sound'] else '**no**'} |")
    return "\n".join([*lines, *_notes(written), "", bench_machine(written)])


def _ratio(figure: Mapping[str, Any]) -> str:
    low, high = figure["spread"]
    return f"{digits(figure['value'])} × [{digits(low)}, {digits(high)}]"


def _notes(written: Mapping[str, Any]) -> list[str]:
    stopped = [f"Partial: {written['partial']}."] if "partial" in written else []
    return [line for note in (*stopped, *written["notes"]) for line in ("", note)]
