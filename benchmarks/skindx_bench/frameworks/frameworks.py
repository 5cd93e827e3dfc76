"""The same training in PyTorch, DDP, FSDP2, DeepSpeed, skindx, Fabric, JAX and TensorFlow.

Shi et al. 2017 (arXiv 1711.05979): one network, one harness, and an iteration cut into its stages.
"""

import json
import os
import shutil
import tempfile
from dataclasses import asdict, dataclass, field
from functools import partial as partial_of
from pathlib import Path
from typing import Any

from skindx.core.atomic_files import write_json
from skindx.core.errors import UserError
from skindx_bench.frameworks.turns import Case, Config, FrameworkTurns, Opening, Turn
from skindx_bench.harness.netlab import Link, NetLab, require
from skindx_bench.harness.result import Result

PAPER = (
    "Comparison of frameworks | Shi and Chu, Performance Modeling and Evaluation of "
    "Distributed Deep Learning Frameworks on GPUs, arXiv 1711.05979, 2017 | "
    "benchmarks/tests/test_bench_frameworks.py | docs/measured/frameworks.json"
)

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

    def covered(self, settings: Config, found: FrameworkTurns) -> Config:
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

    def save(self, found: FrameworkTurns) -> None:
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


def open_kept(settings: Config) -> tuple[Kept, FrameworkTurns]:
    """Return the file of these settings and what it holds; empty where there is none.

    Raises UserError for a file of other settings, and for what is no such file.
    """
    how = {
        name: value for name, value in settings.model_dump(mode="json").items() if name not in _FREE
    }
    kept, found = Kept(settings.kept, how), FrameworkTurns()
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


def _fill(found: FrameworkTurns, written: dict[str, Any]) -> None:
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


SMALLEST = (
    "arms=[plain, skindx dense]",
    "networks=[alexnet]",
    "ranks=2",
    "fewer_ranks=[]",
    "batch=2",
    "shrink=16",
    "rounds=2",
    "steps=1",
    "loss_steps=2",
    "opening=false",
)


def run(settings: Config) -> Result:
    """Measure on an emulated cluster; Ctrl-C ends it with what was measured until then.

    Raises UserError where no cluster can be built, and for settings that do not fit together.
    """
    require()
    if missing := [tool for tool in ("setpriv", "unshare") if shutil.which(tool) is None]:
        raise UserError(
            f"bench frameworks starts its ranks by {' and '.join(missing)}, which is not here; "
            "install util-linux."
        )
    for ranks in settings.fewer_ranks:
        if settings.ranks % ranks:
            raise UserError(
                f"fewer_ranks={ranks} does not divide ranks={settings.ranks}: strong scaling "
                "shares one batch out; choose divisors."
            )
    from rich.console import Console

    from skindx_bench.frameworks.measure import Measurement
    from skindx_bench.frameworks.page import markdown, notes, write_page
    from skindx_bench.frameworks.turns import figures_of, parts_of
    from skindx_bench.harness.conditions import Conditions, load_now

    console = Console(stderr=True)
    kept, found = open_kept(settings)
    partial, load = "", load_now()
    cores = os.cpu_count() or 1
    with tempfile.TemporaryDirectory(prefix="skindx-frameworks-") as folder:
        conditions = Conditions()
        try:
            with NetLab(settings.ranks, Link(settings.rate_mbit)) as lab:
                measurement = Measurement(
                    settings,
                    lab,
                    Path(folder),
                    found,
                    console.print,
                    partial_of(kept.save, found),
                )
                running = measurement.prepare()
                with conditions:
                    measurement.measure(running)
        except KeyboardInterrupt:
            partial = f"stopped after {sum(map(len, found.turns.values()))} turns"
    kept.parts += 1
    kept.marks += [mark for mark in conditions.marks if mark not in kept.marks]
    kept.save(found)
    settings = kept.covered(settings, found)
    result = Result(
        "frameworks",
        figures_of(settings, found, cores),
        notes=notes(settings, found, load, kept.marks, kept.parts),
        parts=parts_of(settings, found, cores),
        partial=partial,
    )
    Console().print(markdown(result), soft_wrap=True, markup=False, highlight=False)
    if settings.html is not None:
        write_page(settings.html, result)
    return result
