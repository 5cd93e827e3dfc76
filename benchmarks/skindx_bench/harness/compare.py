"""`skindx bench compare A.json B.json …`: figures side by side, and which differences are real.

A figure is a median of n rounds with its quartiles. Its notch is median ± 1.57 (q75 - q25) / √n:
two medians whose notches do not meet differ at about the 95 % level (McGill, Tukey and Larsen 1978,
"Variations of Box Plots", The American Statistician 32, section 7). Where a benchmark wrote a mean
with its 95 % interval, that interval is taken as it is.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skindx.core.atomic_files import write_text
from skindx.core.errors import UserError
from skindx.core.text import html_environment
from skindx_bench.harness.result import terminal_table

if TYPE_CHECKING:
    from jinja2 import Environment


def pages() -> "Environment":
    """Return the environment of all pages of benchmarks."""
    environment = html_environment("skindx_bench")
    environment.filters |= {"digits": digits, "date": date}
    return environment


def digits(value: float) -> str:
    """Return a number with four significant digits at most and thousands apart: 72,380."""
    return f"{float(f'{value:.4g}'):,.4g}" if abs(value) < 1000 else f"{float(f'{value:.4g}'):,.0f}"


def date(written: str) -> str:
    """Return a time of a JSON file for people, or what stands there where it is none."""
    try:
        return f"{datetime.fromisoformat(written):%Y-%m-%d %H:%M %Z}"
    except ValueError:
        return written


NOTCH = 1.57

FEWEST = 3
"""Rounds below which quartiles say too little: then no difference is called real."""


@dataclass(frozen=True)
class Difference:
    """The second figure over the first one, and whether the two differ by more than chance."""

    ratio: float
    interval: tuple[float, float]
    real: bool


def interval(figure: Mapping[str, Any], *, means: bool) -> tuple[float, float]:
    """Return about 95 % for a figure's value: the notch of a median, the interval of a mean."""
    low, high = figure["spread"]
    if means:
        return float(low), float(high)
    half = NOTCH * (high - low) / math.sqrt(figure["n"])
    return figure["value"] - half, figure["value"] + half


def difference(
    first: Mapping[str, Any], second: Mapping[str, Any], *, means: tuple[bool, bool]
) -> Difference | None:
    """Compare two figures of one key; None where a ratio means nothing.

    The interval of the ratio divides the ends of the intervals, so that it is a wide one.
    """
    if first["unit"] != second["unit"] or first["value"] <= 0 or second["value"] <= 0:
        return None
    low_a, high_a = interval(first, means=means[0])
    low_b, high_b = interval(second, means=means[1])
    ends = (low_b / high_a, high_b / low_a if low_a > 0 else math.inf)
    enough = min(first["n"], second["n"]) >= FEWEST
    return Difference(
        second["value"] / first["value"], ends, enough and (low_b > high_a or low_a > high_b)
    )


def has_means(written: Mapping[str, Any]) -> bool:
    """Return whether a JSON's spreads are intervals of means and not quartiles."""
    return "headings" in written


@dataclass(frozen=True)
class Measurement:
    """One JSON file of a bench, and a short name for its machine that no other one has."""

    name: str
    written: Mapping[str, Any]

    @property
    def machine(self) -> str:
        """Return processor, cores and accelerator."""
        machine = self.written["hardware"]
        return (
            f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB, "
            f"accelerator: {machine['accelerator']}"
        )

    @property
    def settings(self) -> Mapping[str, Any] | None:
        """Return what was set otherwise than by default; None where the file does not tell."""
        return self.written.get("settings")

    def work(self, key: str) -> tuple[Any, Any] | None:
        """Return samples and operations of what a figure is of; None where they are not counted."""
        part = self._part(key)
        return (part.get("samples"), part["flops"]) if "flops" in part else None

    def marks(self, key: str) -> tuple[str, ...]:
        """Return what disturbed a figure; empty where nothing is known of it."""
        marks = self._part(key).get("marks", ())
        return tuple(map(str, marks)) if isinstance(marks, list) else ()

    def _part(self, key: str) -> Mapping[str, Any]:
        part = self.written.get("parts", {}).get(key.rpartition(": ")[0])
        return part if isinstance(part, Mapping) else {}


def read_measurements(files: Sequence[Path]) -> list[Measurement]:
    """Return the files in their order. Raises UserError for what no bench wrote."""
    found: list[Measurement] = []
    for file in files:
        written = _read(file)
        name, count = file.stem, 2
        while name in {other.name for other in found}:
            name, count = f"{file.stem} ({count})", count + 1
        found.append(Measurement(name, written))
    return found


def _read(file: Path) -> Mapping[str, Any]:
    try:
        written = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{file} does not exist; check the path.") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{file} is no JSON file of a bench ({error}); write it again.") from None
    if not isinstance(written, dict) or not _fits(written):
        raise UserError(
            f"{file} was not written by a bench: it lacks bench, figures with value, unit, n and "
            "spread, or hardware; write one with `skindx bench NAME --json FILE`."
        )
    return written


def _fits(written: Mapping[str, Any]) -> bool:
    """Return whether all that is shown is there, with numbers where numbers are."""
    figures, machine = written.get("figures"), written.get("hardware")
    if not isinstance(figures, dict) or not isinstance(machine, dict):
        return False
    if not isinstance(written.get("parts", {}), dict) or not isinstance(written.get("bench"), str):
        return False
    if not isinstance(written.get("settings", {}), dict):
        return False
    if not {"cpu", "cores", "memory_gb", "accelerator"} <= machine.keys():
        return False
    return all(isinstance(figure, dict) and _is_figure(figure) for figure in figures.values())


def _is_figure(figure: Mapping[str, Any]) -> bool:
    spread = figure.get("spread")
    if not isinstance(spread, list) or len(spread) != 2 or not isinstance(figure.get("unit"), str):
        return False
    numbers = [figure.get("value"), figure.get("n"), *spread]
    return all(
        isinstance(number, int | float) and math.isfinite(number) for number in numbers
    ) and bool(figure["n"] >= 1)


@dataclass(frozen=True)
class Line:
    """One figure of one bench on all machines; None where a machine lacks it."""

    bench: str
    key: str
    unit: str
    cells: tuple[str | None, ...]
    differences: tuple[Difference | None, ...]
    """Of each machine from the first that has the figure; None where the work was another one."""
    doubtful: tuple[str, ...] = ()
    """Machines on which something disturbed this figure."""


def compare(files: Sequence[Path], html: Path | None = None) -> list[Line]:
    """Print the figures that at least two files share, and write a page when asked.

    Raises UserError for fewer than two files, files that no bench wrote, and nothing in common.
    """
    from rich.console import Console

    if len(files) < 2:
        raise UserError("bench compare needs two JSON files of benches or more; name them.")
    if html is not None and html.is_dir():
        raise UserError(f"--html {html} is a folder; name a file in it.")
    found = read_measurements(files)
    lines = compare_lines(found)
    if not lines:
        benches = ", ".join(sorted({file.written["bench"] for file in found}))
        raise UserError(f"these files share no figure (benches: {benches}); run one bench on each.")
    headings = ["figure", *(file.name for file in found), "differs"]
    rows = [
        [f"{line.bench}: {line.key}", *(cell or "–" for cell in line.cells), told(line)]
        for line in lines
    ]
    console = Console()
    console.print(terminal_table("machines", headings, rows))
    for file in found:
        console.print(f"{file.name}: {file.machine}", soft_wrap=True)
        if partial := file.written.get("partial"):
            console.print(f"{file.name}: PARTIAL, {partial}", soft_wrap=True)
    for sentence in other_settings(found):
        console.print(sentence, soft_wrap=True)
    console.print(EXPLAINED, soft_wrap=True)
    if html is not None:
        write_text(html, page(found, lines))
    return lines


EXPLAINED = (
    "In brackets: about 95 % for the value (McGill's notch of the rounds' median, or the interval "
    "of a mean). Real: the intervals do not meet. Not comparable: another amount of work. "
    "Doubtful: other processes, or a clock that drifted, disturbed it. Each figure is judged "
    "alone: among many equal ones, about one in twenty looks real."
)


def compare_lines(found: Sequence[Measurement]) -> list[Line]:
    """Return the figures that at least two machines share, in the order of the files."""
    keys = dict.fromkeys(
        (file.written["bench"], key) for file in found for key in file.written["figures"]
    )
    lines = [_line(found, bench, key) for bench, key in keys]
    return [line for line in lines if sum(cell is not None for cell in line.cells) >= 2]


def told(line: Line) -> str:
    """Return a sentence a machine on how it differs from the first one."""
    said = []
    for other in line.differences:
        if other is None:
            said.append("not comparable")
        else:
            word = "real" if other.real else "not shown"
            said.append(f"{other.ratio:.3g} ({word})")
    if line.doubtful:
        said.append(f"doubtful on {', '.join(line.doubtful)}")
    return ", ".join(said) or "–"


def other_settings(found: Sequence[Measurement]) -> list[str]:
    """Return a sentence for each machine whose bench ran with other settings than the first's."""
    said = []
    for file in found:
        first = next(one for one in found if one.written["bench"] == file.written["bench"])
        ours, others = first.settings, file.settings
        if ours is None or others is None or ours == others:
            continue  # a file of an older version does not tell
        names = sorted(name for name in {*ours, *others} if ours.get(name) != others.get(name))
        each = (f"{name} {_shown(others, name)} and not {_shown(ours, name)}" for name in names)
        said.append(f"{file.name} ran with other settings than {first.name}: {', '.join(each)}.")
    return said


def _shown(settings: Mapping[str, Any], name: str) -> str:
    return str(settings[name]) if name in settings else "the default"


def page(found: Sequence[Measurement], lines: Sequence[Line]) -> str:
    """Return the page: one file, no reference to another."""
    template = pages().get_template("compare.html.jinja")
    rows = [(line, told(line), any(d and d.real for d in line.differences)) for line in lines]
    return template.render(
        machines=found,
        rows=rows,
        explained=EXPLAINED,
        settings=other_settings(found),
        benches=len({line.bench for line in lines}),
    )


def _line(found: Sequence[Measurement], bench: str, key: str) -> Line:
    figures = [
        file.written["figures"].get(key) if file.written["bench"] == bench else None
        for file in found
    ]
    means = [has_means(file.written) for file in found]
    cells: list[str | None] = []
    for figure, mean in zip(figures, means, strict=True):
        if figure is None:
            cells.append(None)
        else:
            low, high = interval(figure, means=mean)
            shown = f"{digits(figure['value'])} [{digits(low)}, {digits(high)}] {figure['unit']}"
            cells.append(shown)
    known = [(figure, mean) for figure, mean in zip(figures, means, strict=True) if figure]
    first, first_mean = known[0]
    works = [file.work(key) for file, figure in zip(found, figures, strict=True) if figure]
    differences = tuple(
        difference(first, figure, means=(first_mean, mean)) if work == works[0] else None
        for (figure, mean), work in zip(known[1:], works[1:], strict=True)
    )
    doubtful = tuple(
        file.name for file, figure in zip(found, figures, strict=True) if figure and file.marks(key)
    )
    return Line(bench, key, first["unit"], tuple(cells), differences, doubtful)
