"""Reads what `skindx bench NAME --json FILE` wrote, and names the machines."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skindx.core.errors import UserError


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
