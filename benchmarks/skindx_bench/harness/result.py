"""Figures and results of benchmarks: medians with quartiles, tables, plots, JSON."""

import os
import shutil
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from skindx.core import measurement
from skindx.core.atomic_files import atomic_file, write_json
from skindx.core.machine import cpu_count, cpu_flags
from skindx.core.settings_base import Settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Plot
    from rich.console import Group
    from rich.table import Table

    from skindx.metrics import Interval


@dataclass(frozen=True, slots=True)
class Figure:
    """A median of `n` measurements; `spread` is their 25th and 75th percentile.

    In results with the headings MEANS: a mean of `n` trainings and its 95 % interval.
    """

    value: float
    unit: str
    n: int
    spread: tuple[float, float]

    @classmethod
    def of(cls, found: "Interval", unit: str, n: int, scale: float = 1) -> Self:
        """Return an interval of `n` things, times `scale`."""
        return cls(scale * found.value, unit, n, (scale * found.low, scale * found.high))


def median(samples: Sequence[float], unit: str) -> Figure:
    """Summarise at least two measurements."""
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    return Figure(middle, unit, len(samples), (low, high))


def ratio(ours: Sequence[float], other: Sequence[float]) -> Figure:
    """Return how many times faster `ours` is than `other`: the median of the ratios by round.

    Both are seconds of the same interleaved rounds; the result belongs under a key `_over_X`.
    """
    pairs = zip(ours, other, strict=True)
    return median([theirs / mine for mine, theirs in pairs], "×")


def bracketed(figure: Figure, form: str = ".1f") -> str:
    """Return a figure with its spread, without the unit: 400.0 [350.0, 450.0]."""
    low, high = figure.spread
    return f"{figure.value:{form}} [{low:{form}}, {high:{form}}]"


def markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; every row has a cell for each heading."""
    assert all(len(row) == len(headings) for row in rows)
    head, *lines = (f"| {' | '.join(line)} |\n" for line in (headings, *rows))
    return "".join((head, "|---" * len(headings) + "|\n", *lines))


def terminal_table(
    title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], *, no_wrap: bool = False
) -> "Table":
    """Return a table for a terminal: the first column is a name, the others are numbers."""
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left", no_wrap=no_wrap)
    for row in rows:
        table.add_row(*row)
    return table


def new_plot(width: float, height: float) -> "Plot":
    """Return an empty matplotlib figure of so many inches; no window is opened for it."""
    from matplotlib.figure import Figure as Plot

    return Plot(figsize=(width, height), layout="constrained")


def write_plot(path: Path, plot: "Plot", dpi: int = 150) -> None:
    """Write a PNG atomically."""
    with atomic_file(path) as temporary:
        plot.savefig(temporary, format="png", dpi=dpi)


MEDIANS, MEANS = ("median", "25 % .. 75 %"), ("mean", "95 % interval")
PREDICTIONS = ("predicted", "90 % interval")
"""Headings of a table: of timed rounds, of trainings and images, or of what a plan says."""

_PACKAGES = (
    "torch",
    "torchvision",
    "timm",
    "numpy",
    "numba",
    "faiss-cpu",
    "deepspeed",
    "ultralytics",
    "gradio",
)
_INSTRUCTIONS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16")
"""As Linux names them."""


def hardware() -> dict[str, Any]:
    """Return cpu (model), instructions, cores (that this process may use), memory_gb, accelerator.

    The instructions are those of the CPU's sets that speed depends on.
    """
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": measurement.cpu_model(),
        "instructions": ", ".join(name for name in _INSTRUCTIONS if name in cpu_flags()),
        "cores": cpu_count(),
        "memory_gb": round(memory_bytes / 1e9, 1),
        "accelerator": _accelerator(),
    }


def versions() -> dict[str, str]:
    """Return the versions of Python, skindx and its large packages, without importing them."""
    return measurement.versions(_PACKAGES)


def changed_settings(settings: Settings) -> dict[str, Any]:
    """Return what of a bench's settings is not the default, as plain values, but for paths."""
    changed = settings.model_dump(exclude_defaults=True)
    named = {name for name, value in changed.items() if _has_path(value)}
    return settings.model_dump(mode="json", exclude_defaults=True, exclude=named)


def _has_path(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_path, value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return any(map(_has_path, value))
    return isinstance(value, Path)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True, slots=True)
class Result:
    """The figures of one bench run.

    A key that ends in `_over_X` is how many times faster than X, measured interleaved in this
    run; its unit is "×". `baselines` stand in the table for comparison and not in the JSON.
    `notes` are sentences on what was measured: inputs, peers, what was left out.
    """

    bench: str
    figures: Mapping[str, Figure]
    baselines: Mapping[str, Figure] = field(default_factory=dict)
    hardware: Mapping[str, Any] = field(default_factory=hardware)
    versions: Mapping[str, str] = field(default_factory=versions)
    date: str = field(default_factory=_now)
    """UTC, ISO 8601."""
    notes: tuple[str, ...] = ()
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Plain values of each model that was compared, where models are."""
    parts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Seconds and more of each part, where a bench has parts; status where they can fail."""
    headings: tuple[str, str] = MEDIANS
    """Meaning of the figures' values and spreads."""
    partial: str = ""
    """Why figures are missing, where a run was stopped; empty for a whole run."""
    settings: Mapping[str, Any] | None = None
    """What was set otherwise than by default, without the paths of this machine."""

    def __post_init__(self) -> None:
        """Check that a ratio is named as one, and nothing else is."""
        for key, figure in self.figures.items():
            assert ("_over_" in key) == (figure.unit == "×"), (key, figure)

    def to_json(self, path: Path) -> None:
        """Write the figures under their keys, with hardware and versions, atomically."""
        figures = {
            key: {
                "value": figure.value,
                "unit": figure.unit,
                "n": figure.n,
                "spread": list(figure.spread),
            }
            for key, figure in self.figures.items()
        }
        write_json(
            path,
            {
                "bench": self.bench,
                "date": self.date,
                "figures": figures,
                "hardware": dict(self.hardware),
                "versions": dict(self.versions),
                **({"notes": list(self.notes)} if self.notes else {}),
                **({"models": dict(self.models)} if self.models else {}),
                **({"parts": dict(self.parts)} if self.parts else {}),
                **({"headings": list(self.headings)} if self.headings != MEDIANS else {}),
                **({"partial": self.partial} if self.partial else {}),
                **({"settings": dict(self.settings)} if self.settings is not None else {}),
            },
        )

    def table(self) -> "Group":
        """Return the figures as a table for a terminal, machine and versions below."""
        from rich.console import Group
        from rich.text import Text

        rows = [
            (key, f"{figure.value:.4g} {figure.unit}", _spread(figure), str(figure.n))
            for key, figure in {**self.figures, **self.baselines}.items()
        ]
        headings = ("figure", *self.headings, "n")
        table = terminal_table(f"bench {self.bench}", headings, rows)
        machine = (
            f"{self.hardware['cpu']}, {self.hardware['cores']} cores, "
            f"{self.hardware['memory_gb']} GB, accelerator: {self.hardware['accelerator']}"
        )
        packages = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        stopped = (f"PARTIAL: {self.partial}",) if self.partial else ()
        lines = (*stopped, *self.notes, machine, packages, self.date)
        return Group(table, *(Text(line) for line in lines))


def _spread(figure: Figure) -> str:
    low, high = figure.spread
    return f"{low:.4g} .. {high:.4g}"


def _accelerator() -> str:
    """Return the names of the NVIDIA GPUs, or "none"."""
    if shutil.which("nvidia-smi") is None:
        return "none"
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown: nvidia-smi does not answer"
    names = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    return ", ".join(names) if done.returncode == 0 and names else "none"
