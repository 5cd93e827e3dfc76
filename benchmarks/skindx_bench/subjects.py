"""Benchmarks by group: `skindx bench GROUP SUBJECT` measures one and compares it with peers.

A benchmark is a module with `class Config(Settings)`, `run(settings: Config) -> Result` and
`SMALLEST`: settings under which it ends as soon as it can. They show that it runs; they measure
nothing.
"""

import difflib
import importlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from skindx.core.errors import UserError
from skindx_bench.harness.result import Result, changed_settings


class Subject(NamedTuple):
    """The module of a benchmark, and what `--help` says of it."""

    module: str
    about: str


GROUPS: dict[str, dict[str, Subject]] = {
    "data": {
        "audit-alarms": Subject("data.audit_alarms", "Intimate regions that the audit flags."),
        "clean": Subject("data.clean", "Copies and images without skin, planted and found again."),
        "dedup": Subject("data.dedup", "Near copies by hashes, beside imagededup and faiss."),
        "dicom-import": Subject("data.dicom_import", "Images made of DICOM photos on one core."),
        "leak": Subject("data.leak", "Copies that fingerprints recognise, and strangers linked."),
        "loader": Subject("data.loader", "Images a second for training, beside torchvision."),
        "scale": Subject("data.scale", "Joining hashes and searching copies in large pools."),
        "screen": Subject("data.screen", "Checking files by the strict decoder, beside others."),
        "second-photos": Subject("data.second_photos", "Recall of second photos of a lesion."),
        "tables": Subject("data.tables", "Builds by a table, a wide table, shards with images."),
        "threshold": Subject("data.threshold", "What a threshold of the hashes costs and saves."),
    },
    "train": {
        "checkpoint-stall": Subject("train.checkpoint_stall", "What checkpoints cost a step."),
        "convergence": Subject("train.convergence", "Does a changed training learn as well?"),
        "elastic": Subject("train.elastic", "What lost ranks cost, beside a start again."),
        "features": Subject("train.features", "A report from a file of embeddings."),
        "folds": Subject("train.folds", "What an ensemble gains out of fold; goes on elsewhere."),
        "frozen-heads": Subject("train.frozen_heads", "Linear heads on untouched networks."),
        "heads": Subject("train.heads", "Many heads on features that are computed once."),
        "local": Subject("train.local", "Local steps: accuracy, bytes, time, beside exchanges."),
        "metadata": Subject("train.metadata_gain", "What age, sex and place add to networks."),
        "model-comparison": Subject("train.model_comparison", "Members and ensembles on folds."),
        "real-skin": Subject("train.real_skin", "The tables on real skin, of kept predictions."),
        "second-order": Subject("train.second_order", "K-FAC beside AdamW, SGD and Muon."),
        "trainer": Subject("train.trainer", "The trainer beside bare PyTorch loops."),
    },
    "cluster": {
        "exchange": Subject("cluster.exchange", "Gradient exchanges on an emulated cluster."),
        "frameworks": Subject("frameworks.frameworks", "One training in eight frameworks."),
        "hop": Subject("cluster.hop", "Hopping members beside data-parallel ones."),
        "parallel": Subject("cluster.parallel", "Wide layers split over ranks."),
        "plan": Subject("cluster.plan", "Predictions of `skindx plan` against measurements."),
        "wires": Subject("cluster.wires", "Which exchange `skindx plan` takes on which wires."),
    },
    "serve": {
        "api": Subject("serve.api", "What predict costs beside its networks."),
        "container": Subject("serve.container", "What a container costs, in pairs of tasks."),
        "drift": Subject("serve.drift", "How soon a monitor notices a shift, how often falsely."),
        "first-hour": Subject("serve.first_hour", "A folder of images to the page, by command."),
        "int8": Subject("serve.int8", "Exports in int8 beside every higher precision."),
        "review": Subject("serve.review", "The review page before 10,000 images in a browser."),
        "serve": Subject("serve.serve", "Runtimes, what HTTP adds, and the page in a browser."),
        "sparse": Subject("serve.sparse", "Convolutions that skip zeros beside dense ones."),
        "startup": Subject("serve.startup", "How long the command line takes to answer."),
    },
    "scan": {
        "crop": Subject("scan.crop", "The detector's crop beside the whole image, by size."),
        "planted": Subject("scan.planted", "The shipped detector before planted lesions."),
        "scan": Subject("scan.scan", "Lesions on photos of bodies, beside SAHI."),
        "scan-compare": Subject("scan.scan_compare", "Two scans of one body, lesion by lesion."),
    },
    "devices": {
        "devices": Subject("devices.devices", "Operators and networks: speed, peak, joules."),
        "energy": Subject("devices.energy", "Joules modelled where no counter can be read."),
        "gemm": Subject("devices.gemm", "Products with a transposed matrix, two ways."),
        "gpu": Subject("devices.gpu", "All that needs a GPU: its tests, and the trainer."),
        "gpu-release": Subject("gpu_release.release", "What needs a GPU longer, in slices."),
        "install": Subject("devices.install_size", "What skindx and its extras take on a disk."),
    },
    "honesty": {
        "external": Subject("honesty.external", "What changes elsewhere, before and after adapt."),
        "heat": Subject("honesty.heat", "Do heat maps show what decided an answer?"),
        "host": Subject("train.host", "Does a classifier read where a photo comes from?"),
        "intervals": Subject("honesty.intervals", "How often an interval holds the true figure."),
        "labels": Subject("honesty.labels", "How many planted wrong labels are found."),
        "lesion-pairs": Subject("honesty.lesion_pairs", "Are two lesions sent as one noticed?"),
        "modality": Subject("honesty.modality", "Dermoscopic or clinical: fitted and measured."),
        "ood": Subject("honesty.ood", "Out-of-distribution detectors on left-out classes."),
        "released": Subject("honesty.released", "A released bundle's curve, mix and refusals."),
        "unknowns": Subject("honesty.unknowns", "Detectors on frozen features, a class left out."),
    },
}
"""Group -> subject -> its module below this package, imported when it is called."""

ALL = Subject("devices.suite", "Devices, exchange, loader, serve and container, on one page.")

BENCHES: dict[str, str] = {
    name: f"{__package__}.{subject.module}"
    for name, subject in sorted(
        {"all": ALL, **{k: v for own in GROUPS.values() for k, v in own.items()}}.items()
    )
}
"""Name -> module of every benchmark."""

COMPARE = "compare"
"""What stands in the place of a benchmark to lay JSON files side by side."""

ALIASES = {"zoo": "model-comparison"}
"""Older name of a benchmark -> its name."""


def known(name: str) -> str:
    """Return the name of a benchmark, of which `name` may be an older one. Raises UserError."""
    name = ALIASES.get(name, name)
    if name not in BENCHES:
        near = difflib.get_close_matches(name, BENCHES, n=1, cutoff=0.0)[0]
        raise UserError(
            f"there is no bench {name!r}; did you mean {near!r}? Valid: {', '.join(BENCHES)}."
        )
    return name


def run_bench(
    name: str,
    json_file: Path | None = None,
    sets: Iterable[str] = (),
    *,
    smallest: bool = False,
    quick: bool = False,
    html: Path | None = None,
    files: Iterable[Path] = (),
) -> Result:
    """Run a benchmark with its settings overridden by `sets`, print its table, write its JSON.

    `smallest` starts from the benchmark's smallest settings instead of its usual ones. `quick`
    and `html` set the settings of these names, of benchmarks that have them.

    Raises UserError for an unknown name, a bad setting, a `json_file` that is a folder, `files`.
    """
    from rich.console import Console

    name = known(name)
    for option, file in (("--json", json_file), ("--html", html)):
        if file is not None and file.is_dir():
            raise UserError(f"{option} {file} is a folder; name a file in it.")
    if listed := [str(file) for file in files]:
        raise UserError(f"bench {name} takes no files ({listed[0]}); bench {COMPARE} does.")
    module = importlib.import_module(BENCHES[name])
    start = list(module.SMALLEST) if smallest else []
    flags = (("quick", "true" if quick else None), ("html", html))
    for setting, value in flags:
        if value is not None and setting not in module.Config.model_fields:
            raise UserError(f"bench {name} has no --{setting}; leave it out.")
        start += [] if value is None else [f"{setting}={value}"]
    settings = module.Config.load(None, [*start, *sets])
    result: Result = replace(module.run(settings), settings=changed_settings(settings))
    Console().print(result.table(), soft_wrap=True)
    if json_file is not None:
        result.to_json(json_file)
    return result


def compare_results(files: Iterable[Path], html: Path | None = None, *, others: bool) -> None:
    """Print JSON files of benchmarks side by side, and write a page when asked.

    Raises UserError for files that no benchmark wrote, and for `others`: options of a benchmark.
    """
    from skindx_bench.harness.compare import compare

    if others:
        raise UserError(f"bench {COMPARE} measures nothing; it takes JSON files and --html alone.")
    compare(list(files), html)
