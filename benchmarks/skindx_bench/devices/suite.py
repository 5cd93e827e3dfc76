"""`skindx bench all`: devices, exchange, loader, serve and container, on one page."""

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import Field

from skindx.core.atomic_files import write_text
from skindx.core.errors import UserError
from skindx.core.machine import python_command
from skindx.core.settings_base import Settings
from skindx_bench.harness.compare import Measurement, read_measurements
from skindx_bench.harness.conditions import Conditions
from skindx_bench.harness.parts import Outcome, Part, run_part
from skindx_bench.harness.result import Figure, Result

QUICK: dict[str, tuple[str, ...]] = {
    "devices": (
        "sizes=[128,512,1024]",
        "precisions=[fp32,bf16]",
        "rounds=4",
        "least_s=0.1",
        "idle_s=3",
        "batch=4",
        "memory_mb=128",
        "most_s=2",
        "limit_s=110",
    ),
    "exchange": ("parts=[full]", "model=resnet18", "rounds=3"),
    "loader": ("images=200",),
    "serve": ("models=[]", "rounds=5", "photos=2", "gallery=100", "page=false"),
    "container": (
        "tasks=[disk write,disk read,cpu,memory bandwidth,loader,train step,start-up]",
        "rounds=8",
        "restarts=2",
        "least_s=0.1",
        "build=null",
        "disk_mb=32",
        "memory_mb=64",
        "limit_s=60",
    ),
}
"""Bench -> settings with which all of them take less than ten minutes on two cores."""

QUICK_S: dict[str, float] = {
    "devices": 160,
    "exchange": 120,
    "loader": 70,
    "serve": 100,
    "container": 150,
}
"""Bench -> seconds after which it has ended in a quick run; together ten minutes."""


WORDS = {
    "devices": {
        "memory bandwidth": "memory: the faster of copy and triad",
        "end_over_start": "speed at the end of the run over that at its beginning (1: no drift)",
    },
    "exchange": {
        "gtopk_over_fp32": "gTop-k (lossy) over the dense exchange",
        "gtopk_over_bf16": "gTop-k over the dense exchange in bf16",
        "gtopk_over_powersgd4": "gTop-k over PowerSGD of rank 4",
        "local_ms": "what gTop-k computes, on one core",
        "select_over_memory_limit": "gTop-k's selection over one pass over the memory",
    },
    "loader": {
        "loader_over_decode": "loader over decoding alone",
        "loader_over_imagefolder": "loader over torchvision's ImageFolder",
        "cache_over_imagefolder": "cached images over ImageFolder",
        "cache_over_resize_limit": "cached images over resizing alone",
        "resize_over_opencv": "resizing over OpenCV's",
        "resize_over_copy": "resizing over copying as many pixels",
    },
    "serve": {
        "direct_over_http_cpu": "processor time of a direct call over that of an answer by HTTP",
        "page_12mp_s": "from the click to the whole page, a photo of 12 megapixels",
    },
}
"""Bench -> what its figures are; "over" is how many times faster, or what is said."""

_CONTAINER = {
    "container_over_host": "{}: container over host",
    "sham_over_host": "{}: a second process of the host over the first (must hold 1)",
    "planted_over_host": "{}: the same, made slower on purpose (must lie below 1)",
}


@dataclass(frozen=True)
class SuiteRow:
    """A figure as the page shows it."""

    name: str
    value: float
    unit: str
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Table:
    """Some figures under a title; those of `more` are folded away."""

    title: str
    rows: tuple[SuiteRow, ...]
    more: bool = False


def tables(written: Mapping[str, Any]) -> list[Table]:
    """Return the tables of one bench's JSON, what says most first."""
    bench = written["bench"]
    rows = {key: _row(words(bench, key), figure) for key, figure in written["figures"].items()}
    folded = [key for key in rows if bench == "devices" and re.search(r": \w[\w ]*$", key)]
    shown = Table("", tuple(row for key, row in rows.items() if key not in folded))
    found = [*_exchanges(written), *_parts(written), shown]
    if folded:
        found.append(Table("Operators and networks", tuple(rows[key] for key in folded), more=True))
    return [table for table in found if table.rows]


def words(bench: str, key: str) -> str:
    """Return what a figure is, in words where there are some."""
    task, _, kind = key.rpartition(": ")
    if bench == "container" and kind in _CONTAINER:
        return _CONTAINER[kind].format(task)
    return WORDS.get(bench, {}).get(key, key)


def _exchanges(written: Mapping[str, Any]) -> list[Table]:
    """Return a table of each part of bench exchange: what an exchange takes."""
    if written["bench"] != "exchange":
        return []
    parts: dict[str, list[SuiteRow]] = {}
    for row in written.get("models", {}).values():
        figure = {**row["total_ms"], "unit": "ms"}
        parts.setdefault(row["part"], []).append(_row(row["name"], figure))
    return [Table(part, tuple(rows)) for part, rows in parts.items()]


def _parts(written: Mapping[str, Any]) -> list[Table]:
    """Return what a bench measured on the way: a loader's images/s, the stages of an answer."""
    titles = {"rates": "Images a second", "stages": "Processor time of an answer, by stage"}
    return [
        Table(title, tuple(_row(name, figure) for name, figure in written["parts"][part].items()))
        for part, title in titles.items()
        if part in written.get("parts", {})
    ]


def _row(name: str, figure: Mapping[str, Any]) -> SuiteRow:
    value, unit, (low, high) = figure["value"], figure["unit"], figure["spread"]
    if unit == "s" and max(value, high) < 1:
        value, low, high, unit = 1000 * value, 1000 * low, 1000 * high, "ms"
    return SuiteRow(name, value, unit, low, high, figure["n"])


_TITLES = {
    "devices": "The processor or accelerator (bench devices)",
    "exchange": "Gradients between ranks (bench exchange)",
    "loader": "Images for training (bench loader)",
    "serve": "Answers of the server (bench serve)",
    "container": "What a container costs (bench container)",
}

GRACE_S = 20
"""Seconds in which an interrupted bench writes what it has: its servers and ranks end first."""

SMALLEST = ("benches=[startup]", "smallest=true")


class Config(Settings):
    """Which benches are run, and how long."""

    benches: tuple[str, ...] = Field(
        ("devices", "exchange", "loader", "serve", "container"), min_length=1
    )
    quick: bool = False
    """At most ten minutes in all, on two cores."""
    smallest: bool = False
    """Each bench with its smallest settings: only to see that all run."""
    limit_s: float = Field(3600, gt=0)
    """Seconds after which a bench is ended, where it is not a quick run."""
    folder: Path | None = None
    """Where the JSON file and the log of each bench are kept; none: nowhere."""
    html: Path | None = None


def run(settings: Config) -> Result:
    """Run each bench as a process of its own; one that cannot run here is named, with its reason.

    After Ctrl-C the benches so far are kept, marked as partial, with what the interrupted one has
    measured; so is that of a bench that is out of time. Raises UserError for an unknown bench.
    """
    from skindx_bench.subjects import BENCHES

    for name in settings.benches:
        if name not in BENCHES or name == "all":
            raise UserError(f"benches={name} is no bench that can be part of it; see --help.")
    with TemporaryDirectory(prefix="skindx-all-") as temporary:
        folder = (settings.folder or Path(temporary)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        parts: dict[str, dict[str, Any]] = {}
        figures: dict[str, Figure] = {}
        partial = ""
        found: list[Measurement] = []
        for name in settings.benches:
            written = folder / f"{name}.json"
            written.unlink(missing_ok=True)  # of an earlier run in the same folder
            conditions = Conditions()
            try:
                with conditions:
                    outcome = run_part(_part(name, settings, folder), {}, folder, GRACE_S)
            except KeyboardInterrupt:
                partial = f"stopped while {name} ran"
                parts[name] = {"status": "stopped", "seconds": 0.0}
            else:
                parts[name] = outcome.facts()
                seconds = outcome.seconds
                figures[f"{name}: time"] = Figure(seconds, "s", 1, (seconds, seconds))
                if outcome.status != "passed":
                    parts[name]["why"] = _reason(outcome)
            parts[name] = {"why": "", **parts[name], **conditions.as_dict()}
            if written.exists():
                found += read_measurements([written])
            if partial:
                break
        for bench in found:
            figures |= _figures(bench)
        result = Result("all", figures, notes=_notes(parts, found), parts=parts, partial=partial)
        if settings.html is not None:
            write_text(settings.html, page(result, found))
        return result


def page(result: Result, found: list[Measurement]) -> str:
    """Return one HTML file on all benches that ran, and on those that did not."""
    from skindx_bench.devices.page import offers, roofline
    from skindx_bench.harness.compare import pages

    environment = pages()
    devices = [bench for bench in found if bench.written["bench"] == "devices"]
    return environment.get_template("suite.html.jinja").render(
        result=result,
        found=[(bench, tables(bench.written)) for bench in found],
        titles=_TITLES,
        plots=[plot for device in devices if (plot := roofline(device.written)) is not None],
        offers=[offer for device in devices for offer in offers(device)],
        system=machine_words(),
    )


def _part(name: str, settings: Config, folder: Path) -> Part:
    sets = QUICK.get(name, ()) if settings.quick else ()
    if name == "container":
        sets = (*sets, f"folder={folder / 'container'}")
    given = [argument for assignment in sets for argument in ("--set", assignment)]
    if settings.smallest:
        given.append("--smallest")
    command = python_command("-m", "skindx_bench", name, "--json", str(folder / f"{name}.json"))
    limit = QUICK_S.get(name, 120) - GRACE_S if settings.quick else settings.limit_s
    return Part(name, [*command, *given], limit)


def _figures(measured: Measurement) -> dict[str, Figure]:
    """Return the figures of a bench under its name."""
    bench = measured.written["bench"]
    return {
        f"{bench}: {key}": Figure(
            figure["value"], figure["unit"], figure["n"], (figure["spread"][0], figure["spread"][1])
        )
        for key, figure in measured.written["figures"].items()
    }


def _notes(parts: Mapping[str, Mapping[str, Any]], found: list[Measurement]) -> tuple[str, ...]:
    skipped = [
        f"{name}: {part['status']}" + (f" ({part['why']})" if part.get("why") else "") + "."
        for name, part in parts.items()
        if part["status"] != "passed"
    ]
    doubtful = [
        f"{name}: doubtful, {'; '.join(part['marks'])}."
        for name, part in parts.items()
        if part["marks"]
    ]
    notes = [
        f"{bench.written['bench']}: {note}"
        for bench in found
        for note in bench.written.get("notes", ())
    ]
    partial = [
        f"{bench.written['bench']}: PARTIAL, {bench.written['partial']}."
        for bench in found
        if "partial" in bench.written
    ]
    return (*skipped, *partial, *doubtful, *notes)


def _reason(outcome: Outcome) -> str:
    """Return why a bench did not end by itself: its limit, or what its log says last."""
    if outcome.status == "timed out":
        return "longer than its share of the time"
    lines = [line.strip() for line in _text(outcome).splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error:")]
    return (errors or lines or ["no message"])[-1].removeprefix("error: ").rstrip(".")[:400]


def _text(outcome: Outcome) -> str:
    return outcome.log.read_text(encoding="utf-8", errors="replace")


def machine_words() -> str:
    """Return the system, and the free space of the disk."""
    system = os.uname()
    free = shutil.disk_usage(Path.cwd()).free / 1e9
    return f"{system.sysname} {system.release}, {system.machine}, {free:.0f} GB of disk free"
