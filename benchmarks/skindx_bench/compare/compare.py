"""`skindx bench compare A.json B.json …`: figures side by side, and which differences are real."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skindx.core.atomic_files import write_text
from skindx.core.errors import UserError
from skindx_bench.compare.difference import Difference, difference, has_means, interval
from skindx_bench.compare.files import Measurement, read_measurements
from skindx_bench.compare.pages import digits, pages
from skindx_bench.harness.writing import terminal_table


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
    template = pages(__package__).get_template("compare.html.jinja")
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
