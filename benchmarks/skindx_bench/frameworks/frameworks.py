"""The same training in PyTorch, DDP, FSDP2, DeepSpeed, skindx, Fabric, JAX and TensorFlow.

Shi et al. 2017 (arXiv 1711.05979): one network, one harness, and an iteration cut into its stages.
"""

import os
import shutil
import tempfile
from functools import partial as partial_of
from pathlib import Path

from skindx.core.errors import UserError
from skindx_bench.frameworks.settings import Config
from skindx_bench.harness.netlab import Link, NetLab, require
from skindx_bench.harness.result import Result

__all__ = ["Config", "run"]

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

    from skindx_bench.frameworks.figures import figures_of, parts_of
    from skindx_bench.frameworks.kept import open_kept
    from skindx_bench.frameworks.measure import Measurement
    from skindx_bench.frameworks.page import markdown, notes, write_page
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
