"""`skindx features evaluate` as a process: from a file of embeddings to a bundle and a report."""

import resource
import tempfile
import time
from pathlib import Path

import numpy as np
from pydantic import Field

from skindx.core.settings_base import Settings
from skindx.data.layout import TAXONOMY, store_bytes
from skindx.data.manifest import Record, Split, write_manifest
from skindx.taxonomy import load_taxonomy
from skindx_bench.harness.result import Result, median
from skindx_bench.harness.training import HEIGHT, WIDTH, describe, noisy_jpegs, run_skindx

SMALLEST = ("images=270", "dimensions=32", "rounds=2", "heads=[knn]")

_SPLITS: tuple[Split, ...] = (*("train",) * 6, "val", "calibration", "test", "test")


class Config(Settings):
    """Embeddings of noise in which the nine classes of isic9 lie a little apart."""

    images: int = Field(2000, ge=270)
    dimensions: int = Field(1024, ge=16)
    heads: tuple[str, ...] = ()
    """Those that are fitted; none: all."""
    apart: float = Field(2.0, gt=0)
    """Distance of a class's mean from the origin, in standard deviations of a number."""
    rounds: int = Field(3, ge=2)


def run(settings: Config) -> Result:
    """Time the verb from its start to its end, imports, all heads, bundle and report included."""
    with tempfile.TemporaryDirectory(prefix="skindx-bench-") as name:
        folder = Path(name)
        files = noisy_jpegs(settings.images)
        _write(folder, files, settings)
        chosen = [word for head in settings.heads for word in ("--head", head)]
        seconds, busy = [], []
        for number in range(settings.rounds):
            start, used = time.perf_counter(), _processor_s()
            run_skindx(
                *("features", "evaluate", folder / "rows.npy", folder / "data"),
                *("--files", folder / "rows.txt", "--out", folder / str(number), *chosen),
            )
            seconds.append(time.perf_counter() - start)
            busy.append(_processor_s() - used)
    heads = ", ".join(settings.heads) or "linear, mlp, knn and prototypes"
    note = (
        f"{settings.images} rows of {settings.dimensions} numbers in single precision; heads: "
        f"{heads}. Timed is the whole verb, in a process of its own; processor_s: of all cores, "
        "which other work on the machine changes little."
    )
    figures = {
        "features_report_s": median(seconds, "s"),
        "features_report_processor_s": median(busy, "s"),
    }
    return Result("features", figures, notes=(describe(files), note))


def _processor_s() -> float:
    """Return what ended child processes have used of all processors."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _write(folder: Path, files: list[bytes], settings: Config) -> None:
    taxonomy = load_taxonomy("isic9")
    rng = np.random.default_rng(0)
    mean_CD = rng.normal(size=(len(taxonomy.keys), settings.dimensions))
    mean_CD *= settings.apart / np.linalg.norm(mean_CD, axis=1, keepdims=True)
    labels_N = np.arange(len(files)) % len(taxonomy.keys)
    rows_ND = rng.normal(size=(len(files), settings.dimensions)) + mean_CD[labels_N]
    records = []
    for number, data in enumerate(files):
        sha256, path = store_bytes(folder / "data", data, ".jpg")
        split = _SPLITS[number // len(taxonomy.keys) % len(_SPLITS)]
        label = taxonomy.keys[labels_N[number]]
        records.append(Record(path, sha256, "", WIDTH, HEIGHT, label, sha256, split))
    taxonomy.save(folder / "data" / TAXONOMY)
    write_manifest(folder / "data", records)
    np.save(folder / "rows.npy", rows_ND.astype(np.float32))
    (folder / "rows.txt").write_text("".join(f"{record.sha256}\n" for record in records))
