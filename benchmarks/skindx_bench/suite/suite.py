"""`skindx bench all`: devices, exchange, loader, serve and container, on one page."""

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import Field

from skindx.core.atomic_files import write_text
from skindx.core.errors import UserError
from skindx.core.settings_base import Settings
from skindx_bench.compare.files import Measurement, read_measurements
from skindx_bench.gpu.parts import Outcome, Part, run_part
from skindx_bench.harness.clock import Figure
from skindx_bench.harness.conditions import Conditions
from skindx_bench.harness.result import Result
from skindx_bench.suite.quick import QUICK, QUICK_S

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
    from skindx_bench import BENCHES

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
    from skindx_bench.compare.pages import pages
    from skindx_bench.devices.page import offers
    from skindx_bench.devices.roofline import roofline
    from skindx_bench.suite.tables import tables

    environment = pages("skindx_bench.suite")
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
    command = [
        sys.executable,
        "-m",
        "skindx_bench",
        name,
        "--json",
        str(folder / f"{name}.json"),
    ]
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
