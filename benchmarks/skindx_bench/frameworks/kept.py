"""What was measured, in a file: a stopped run, or one in several parts, goes on from there."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from skindx.core.atomic_files import write_json
from skindx.core.errors import UserError
from skindx_bench.frameworks.found import Case, Found, Opening, Turn
from skindx_bench.frameworks.settings import Config

_FREE = {
    *("arms", "networks", "fewer_ranks", "rounds", "opening"),
    *("environments", "limit_s", "html", "kept"),
}
"""Settings that may differ between the parts: what is measured, and not how."""


@dataclass
class Kept:
    """The file of a run, and what disturbed each of its parts."""

    file: Path | None
    settings: dict[str, Any]
    marks: list[str] = field(default_factory=list)
    parts: int = 0

    def covered(self, settings: Config, found: Found) -> Config:
        """Return the settings of all parts: with every arm and network that has a turn."""
        arms = [case.arm for case in found.turns]
        networks = [case.network for case in found.turns]
        fewer = {case.ranks for case in found.turns} - {settings.ranks}
        known = type(settings).model_fields
        return settings.model_copy(
            update={
                name: tuple(one for one in known[name].default if one in {*own, *more})
                for name, own, more in (
                    ("arms", settings.arms, arms),
                    ("networks", settings.networks, networks),
                )
            }
            | {"fewer_ranks": tuple(sorted(fewer | set(settings.fewer_ranks)))}
        )

    def save(self, found: Found) -> None:
        """Write what was found so far, atomically; nothing where no file was asked for."""
        if self.file is None:
            return
        cases = {*found.turns, *found.losses, *found.openings}
        write_json(
            self.file,
            {
                "settings": self.settings,
                "marks": self.marks,
                "parts": self.parts,
                "versions": found.versions,
                "layers": found.layers,
                "cases": [
                    {
                        "case": list(case),
                        "turns": [asdict(turn) for turn in found.turns.get(case, [])],
                        "losses": list(found.losses.get(case, ())),
                        "opening": asdict(found.openings[case]) if case in found.openings else None,
                    }
                    for case in sorted(cases)
                ],
            },
        )


def open_kept(settings: Config) -> tuple[Kept, Found]:
    """Return the file of these settings and what it holds; empty where there is none.

    Raises UserError for a file of other settings, and for what is no such file.
    """
    how = {
        name: value for name, value in settings.model_dump(mode="json").items() if name not in _FREE
    }
    kept, found = Kept(settings.kept, how), Found()
    if kept.file is None or not kept.file.exists():
        return kept, found
    try:
        written = json.loads(kept.file.read_text(encoding="utf-8"))
        _fill(found, written)
        before: dict[str, Any] = dict(written["settings"])
        kept.marks, kept.parts = [str(mark) for mark in written["marks"]], int(written["parts"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"kept={kept.file} is no file of bench frameworks ({error}); name another one."
        ) from None
    other = [name for name in how if before.get(name) != how[name]]
    if other:
        raise UserError(
            f"kept={kept.file} was measured with {other[0]}={before.get(other[0])} and not "
            f"{how[other[0]]}; set the same, or name another file."
        )
    return kept, found


def _fill(found: Found, written: dict[str, Any]) -> None:
    found.versions |= written["versions"]
    found.layers |= written["layers"]
    for row in written["cases"]:
        arm, network, ranks, batch = row["case"]
        case = Case(arm, network, int(ranks), int(batch))
        if row["turns"]:
            found.turns[case] = [
                Turn(**{**turn, "losses": tuple(turn["losses"])}) for turn in row["turns"]
            ]
        if row["losses"]:
            found.losses[case] = tuple(row["losses"])
        if row["opening"]:
            found.openings[case] = Opening(**row["opening"])
