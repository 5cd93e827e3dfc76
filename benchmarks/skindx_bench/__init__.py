"""Benches: `skindx bench NAME` measures and compares.

A bench is a module with `class Config(Settings)`, `run(settings: Config) -> Result` and `SMALLEST`:
settings under which it ends as soon as it can. They show that the bench runs; they measure nothing.
"""

import difflib
import importlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from skindx.core.errors import UserError

if TYPE_CHECKING:
    from skindx_bench.harness.result import Result

BENCHES: dict[str, str] = {
    "all": "skindx_bench.devices.suite",
    "clean": "skindx_bench.data.clean",
    "container": "skindx_bench.serve.container",
    "convergence": "skindx_bench.train.convergence",
    "dedup": "skindx_bench.data.dedup",
    "detector": "skindx_bench.scan.detector",
    "devices": "skindx_bench.devices.devices",
    "energy": "skindx_bench.devices.energy",
    "exchange": "skindx_bench.cluster.exchange",
    "families": "skindx_bench.train.families",
    "frameworks": "skindx_bench.frameworks.frameworks",
    "gemm": "skindx_bench.devices.gemm",
    "gpu": "skindx_bench.devices.gpu",
    "heads": "skindx_bench.train.heads",
    "heat": "skindx_bench.honesty.heat",
    "hop": "skindx_bench.cluster.hop",
    "int8": "skindx_bench.serve.int8",
    "intervals": "skindx_bench.honesty.intervals",
    "labels": "skindx_bench.honesty.labels",
    "loader": "skindx_bench.data.loader",
    "model-comparison": "skindx_bench.train.model_comparison",
    "ood": "skindx_bench.honesty.ood",
    "parallel": "skindx_bench.cluster.parallel",
    "plan": "skindx_bench.cluster.plan",
    "scale": "skindx_bench.data.scale",
    "second-order": "skindx_bench.train.second_order",
    "scan": "skindx_bench.scan.scan",
    "scan-compare": "skindx_bench.scan.scan_compare",
    "screen": "skindx_bench.data.screen",
    "serve": "skindx_bench.serve.serve",
    "second-photos": "skindx_bench.data.second_photos",
    "sparse": "skindx_bench.serve.sparse",
    "startup": "skindx_bench.serve.startup",
    "trainer": "skindx_bench.train.trainer",
}
"""Name -> module, imported when it is asked for."""

COMPARE = "compare"
"""What stands in the place of a bench to lay JSON files side by side."""

ALIASES = {"zoo": "model-comparison"}
"""Older name of a bench -> its name."""


def run_bench(
    name: str,
    json_file: Path | None = None,
    sets: Iterable[str] = (),
    *,
    smallest: bool = False,
    quick: bool = False,
    fit: bool = False,
    html: Path | None = None,
    files: Iterable[Path] = (),
) -> "Result":
    """Run a bench with its settings overridden by `sets`, print its table, write its JSON.

    `smallest` starts from the bench's smallest settings instead of its usual ones. `quick`,
    `fit` and `html` set the settings of these names, of benches that have them.

    Raises UserError for an unknown bench, a bad setting, a `json_file` that is a folder, `files`.
    """
    from rich.console import Console

    from skindx_bench.harness.result import changed_settings

    name = ALIASES.get(name, name)
    if name not in BENCHES:
        near = difflib.get_close_matches(name, BENCHES, n=1, cutoff=0.0)[0]
        raise UserError(
            f"there is no bench {name!r}; did you mean {near!r}? Valid: {', '.join(BENCHES)}."
        )
    for option, file in (("--json", json_file), ("--html", html)):
        if file is not None and file.is_dir():
            raise UserError(f"{option} {file} is a folder; name a file in it.")
    if listed := [str(file) for file in files]:
        raise UserError(f"bench {name} takes no files ({listed[0]}); bench {COMPARE} does.")
    module = importlib.import_module(BENCHES[name])
    start = list(module.SMALLEST) if smallest else []
    flags = (("quick", "true" if quick else None), ("fit", "true" if fit else None), ("html", html))
    for setting, value in flags:
        if value is not None and setting not in module.Config.model_fields:
            raise UserError(f"bench {name} has no --{setting}; leave it out.")
        start += [] if value is None else [f"{setting}={value}"]
    settings = module.Config.load(None, [*start, *sets])
    found: Result = module.run(settings)
    result = replace(found, settings=changed_settings(settings))
    Console().print(result.table(), soft_wrap=True)
    if json_file is not None:
        result.to_json(json_file)
    return result


def compare_results(files: Iterable[Path], html: Path | None = None, *, others: bool) -> None:
    """Print JSON files of benches side by side, and write a page when asked.

    Raises UserError for files that no bench wrote, and for `others`: options that only a bench has.
    """
    from skindx_bench.harness.compare import compare

    if others:
        raise UserError(f"bench {COMPARE} measures nothing; it takes JSON files and --html alone.")
    compare(list(files), html)
