"""The figures of the benches of hardware and frameworks."""

from collections.abc import Mapping, Sequence
from typing import Any

from blocks.texts import Load, bench_machine, digits, median, whole
from skindx_bench.devices.figures import BANDWIDTH
from skindx_bench.frameworks.page import MORE_HEADINGS, STAGE_HEADINGS, tables
from skindx_bench.harness.compare import EXPLAINED, Measurement, compare_lines, other_settings, told
from skindx_bench.harness.result import markdown_table

_CHECKED = {
    "skindx_over_best": ("skindx over the fastest other framework, the least of all networks", 1.0),
    "loss_difference": ("losses of lossless frameworks differ from one process'", 1e-5),
    "stages_difference": ("the stages do not add up to the iteration, the worst framework", 0.03),
}
"""Figure -> what it is, and its target: of a ratio at least, of a difference at most."""

_ENERGY = {
    "energy_model_error_median": ("error of the joules of a network that is left out", 0.10),
    "energy_interval_coverage": ("its readings inside the interval", (0.85, 0.95)),
    "energy_one_reading_error_median": ("error at other clocks after one reading of a meter", None),
    "energy_one_reading_coverage": ("its readings inside the interval", None),
}


def energy(load: Load) -> str:
    """Return how well joules are modelled, with its target."""
    written = load("energy.json")
    lines = ["| figure | value [95 % interval] | target | |", "|---|---|---|---|"]
    for key, (what, target) in _ENERGY.items():
        figure = written["figures"][key]
        low, high = figure["spread"]
        shown = f"{whole(figure['value'])} [{whole(low)}, {whole(high)}], n = {figure['n']}"
        if isinstance(target, tuple):
            met = target[0] <= figure["value"] <= target[1]
            wanted = f"{whole(target[0])} to {whole(target[1])}"
        else:
            met = target is None or figure["value"] <= target
            wanted = "" if target is None else f"≤ {whole(target)}"
        lines.append(f"| {what} | {shown} | {wanted} | {'' if met else '**missed**'} |")
    return "\n".join([*lines, *_notes(written), "", bench_machine(written)])


_GPU_CHECKS = {
    "gpu-h200-first.json": "first",
    "gpu-h200.json": "last",
}


def gpu(load: Load) -> str:
    """Return what the checks of a GPU found, and the trainer beside timm's loop."""
    lines = ["| check | passed | failed | skipped | |", "|---|---|---|---|---|"]
    failed: list[str] = []
    for file, when in _GPU_CHECKS.items():
        tests = load(file)["parts"]["tests"]
        failed += [name.partition("::")[2].partition("[")[0] for name in tests["failed"]]
        ended = f"{tests['status']} after {tests['seconds']:.0f} s"
        counts = f"{tests['passed']} | {len(tests['failed'])} | {len(tests['skipped'])}"
        lines.append(f"| {when} | {counts} | {ended} |")
    names = ", ".join(f"`{name}`" for name in dict.fromkeys(failed))
    lines += ["", f"Failed at first: {names}.", ""]
    trainer = load("trainer-h200.json")
    lines += ["| figure | median [25 %, 75 %] |", "|---|---|"]
    lines += [f"| {key} | {median(figure)} |" for key, figure in trainer["figures"].items()]
    machine = f"{trainer['hardware']['accelerator']}; {bench_machine(trainer)}"
    return "\n".join([*lines, *_notes(trainer), "", machine])


_DEVICES = ("devices-xeon.json", "devices-epyc.json")


def devices(load: Load) -> str:
    """Return peaks and networks of the machines side by side, then each machine by itself."""
    machines = [
        Measurement(name.removeprefix("devices-").removesuffix(".json"), load(name))
        for name in _DEVICES
    ]
    return "\n\n".join([_beside(machines), *(_device(one.written) for one in machines)])


def _beside(machines: Sequence[Measurement]) -> str:
    """Return what all machines measured, with the intervals and the verdict of bench compare."""
    lines = [
        f"| figure | {' | '.join(one.name for one in machines)} | over the first |",
        f"|---|{'---|' * len(machines)}---|",
    ]
    networks = {
        f"{key}: samples"
        for one in machines
        for key, part in one.written["parts"].items()
        if part["kind"] == "network"
    }
    lines += [
        f"| {line.key.removesuffix(': samples')} | "
        f"{' | '.join(cell or '–' for cell in line.cells)} | {told(line)} |"
        for line in compare_lines(machines)
        if line.key in networks or line.key.startswith("peak ") or line.key == BANDWIDTH
    ]
    notes = [EXPLAINED, *other_settings(machines)]
    return "\n".join([*lines, *(line for note in notes for line in ("", note))])


def _device(written: Mapping[str, Any]) -> str:
    figures = written["figures"]
    lines = [f"**{written['hardware']['device']}**", ""]
    lines += ["| what | median [25 %, 75 %] |", "|---|---|"]
    lines += [
        f"| {key} | {median(figure)} |"
        for key, figure in figures.items()
        if key.startswith("peak ") or key == BANDWIDTH
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


def frameworks(load: Load) -> str:
    """Return how fast the same training is in several frameworks, and its stages."""
    written = load("frameworks.json")
    figures = written["figures"]
    lines = ["| checked | measured | target | |", "|---|---|---|---|"]
    for key, (what, target) in _CHECKED.items():
        value, faster = figures[key]["value"], "_over_" in key
        shown = _ratio(figures[key]) if faster else f"{value:.2g} {figures[key]['unit']}"
        met = value >= target if faster else value <= target
        wanted = f"{'≥' if faster else '≤'} {target:g}"
        lines.append(f"| {what} | {shown} | {wanted} | {'' if met else '**missed**'} |")
    lines += ["", "| network: ours over another | ratio |", "|---|---|"]
    lines += [
        f"| {key.replace('_over_', ' over ')} | {_ratio(figure)}, n = {figure['n']} |"
        for key, figure in figures.items()
        if "_over_" in key and ":" in key
    ]
    stages, more = tables(written["parts"])
    lines += ["", markdown_table(STAGE_HEADINGS, stages), markdown_table(MORE_HEADINGS, more)]
    lines += ["| framework | mean error of its model | least and largest |", "|---|---|---|"]
    for key, figure in figures.items():
        if key.endswith(": model error"):
            low, high = map(whole, figure["spread"])
            name = key.removesuffix(": model error")
            lines.append(f"| {name} | {whole(figure['value'])} | {low} to {high} |")
    return "\n".join([*lines, *_notes(written), "", bench_machine(written)])


def _ratio(figure: Mapping[str, Any]) -> str:
    low, high = figure["spread"]
    return f"{digits(figure['value'])} × [{digits(low)}, {digits(high)}]"


def _notes(written: Mapping[str, Any]) -> list[str]:
    stopped = [f"Partial: {written['partial']}."] if "partial" in written else []
    return [line for note in (*stopped, *written["notes"]) for line in ("", note)]
