"""Joules of a whole command, for a user: one sentence, and a line in a JSON file."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from skindx.bench.meters.energy import EnergyMeter
from skindx.bench.meters.reading import Energy
from skindx.errors import UserError
from skindx.files import write_json

ENERGY = "energy.json"
"""File of a run or report: each command that worked on it, with its seconds and labelled joules."""


@contextmanager
def energy_reported(verb: str, folder: Path, meter: EnergyMeter | None = None) -> Iterator[None]:
    """Measure what stands in the block; append it to FOLDER/energy.json and print a sentence.

    A block that fails is recorded as well, where the folder exists: its joules are spent. One that
    is refused (UserError) is not. Of several ranks that another launcher started the first alone
    reports.
    """
    if os.environ.get("RANK", "0") != "0":
        yield
        return
    meter = meter or EnergyMeter()
    start, finished, refused = time.monotonic(), False, False
    try:
        with meter:
            yield
        finished = True
    except UserError:
        refused = True
        raise
    finally:
        if folder.is_dir() and not refused:
            seconds = time.monotonic() - start
            _append(folder / ENERGY, verb, seconds, meter.energy, finished=finished)
        if finished:
            print(sentence(meter.energy))


def sentence(energy: Energy) -> str:
    """Say how many joules there were and where they come from, or why there are none."""
    if energy.joules is None:
        return f"energy: unavailable ({energy.why})"
    sensors = f" by {', '.join(energy.sensors)}" if energy.sensors else ""
    return f"energy: {energy.joules:,.0f} J, {energy.source}{sensors}, of the whole machine"


def _append(file: Path, verb: str, seconds: float, energy: Energy, *, finished: bool) -> None:
    try:
        runs = json.loads(file.read_text(encoding="utf-8"))["runs"]
    except (OSError, ValueError, KeyError, TypeError):
        runs = []  # the first one, or a file that was cut off: joules are no reason to fail
    own = {
        "verb": verb,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 3),
        "finished": finished,
        **energy.as_dict(),
    }
    write_json(file, {"runs": [*runs, own]})
