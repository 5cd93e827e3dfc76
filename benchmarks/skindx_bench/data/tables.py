"""What tables cost: a build by a table beside one by folders, a wide table, shards with images.

The set has HAM10000's size and layout of Kaggle, the wide table the columns of ISIC 2024's, and the
shards are those of the Hugging Face hub. Images are painted and small, so that what is measured is
the reading of the layout and not the decoder.
"""

import csv
import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from pydantic import Field

from skindx.core.machine import spawn_context
from skindx.core.settings_base import Settings
from skindx_bench.harness.result import Figure, Result, median, ratio

SMALLEST = ("images=28", "rows=200", "columns=14", "shard_images=10", "rounds=2")
_CLASSES = ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")
_READ = {
    "isic_id": "file",
    "target": "label",
    "patient_id": "group",
    "age_approx": "age",
    "sex": "sex",
    "anatom_site_general": "site",
    "copyright_license": "licence",
    "attribution": "attribution",
}
"""Column of the wide table -> what a recipe reads it as."""


class Config(Settings):
    """`images` of a set in Kaggle's layout, and `rows` x `columns` of a table beside HDF5.

    The shards have `shard_images` images, and then four times as many.
    """

    images: int = Field(10_015, ge=21)
    rows: int = Field(400_000, ge=10)
    columns: int = Field(55, ge=len(_READ) + 2)
    shard_images: int = Field(2_000, ge=4)
    rounds: int = Field(3, ge=2)
    seed: int = 0


def run(settings: Config) -> Result:
    """Measure each in processes of its own; what is compared takes turns."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        _write_set(folder / "set", settings)
        _write_wide(folder / "wide.csv", settings)
        few, many = (folder / f"shards-{size}" for size in ("few", "many"))
        _write_shards(few, settings.shard_images, settings.seed)
        _write_shards(many, 4 * settings.shard_images, settings.seed)
        found: dict[str, list[tuple[float, float]]] = {}
        for _ in range(settings.rounds):
            for key, work, path in (
                ("table", _build_table, folder / "set"),
                ("folder", _build_folder, folder / "set"),
                ("wide", _read_wide, folder / "wide.csv"),
                ("shards", _gather_shards, few),
                ("shards_4x", _gather_shards, many),
            ):
                found.setdefault(key, []).append(_alone(work, path))
    seconds = {key: [took for took, _ in rounds] for key, rounds in found.items()}
    peaks_mb = {key: [peak for _, peak in rounds] for key, rounds in found.items()}
    figures: dict[str, Figure] = {
        "table_build": median([settings.images / s for s in seconds["table"]], "images/s"),
        "folder_build": median([settings.images / s for s in seconds["folder"]], "images/s"),
        "table_over_folder": ratio(seconds["table"], seconds["folder"]),
        "wide_table": median(seconds["wide"], "s"),
        "wide_table_memory": median(peaks_mb["wide"], "MB"),
        "shards_memory": median(peaks_mb["shards"], "MB"),
        "shards_4x_memory": median(peaks_mb["shards_4x"], "MB"),
    }
    notes = (
        f"{settings.images:,} painted images of 200 x 150 pixels: a metadata table beside two "
        "folders of parts, and the same images in a folder a class; all of a build is timed. "
        f"The wide table has {settings.rows:,} rows of {settings.columns} columns, of which a "
        f"recipe reads {len(_READ)}. The shards have {settings.shard_images:,} images, and four "
        "times as many. Memory is the peak of the resident memory of a process of its own, its "
        "libraries included.",
    )
    return Result("tables", figures, notes=notes)


def _alone(work: Callable[[Path], None], path: Path) -> tuple[float, float]:
    """Return the seconds of some work in a process of its own, and its peak memory in MB."""
    ours, theirs = (context := spawn_context()).Pipe(duplex=False)
    process = context.Process(target=_measured, args=(work, path, theirs))
    process.start()
    theirs.close()
    took, peak_mb = json.loads(ours.recv_bytes())
    process.join()
    return took, peak_mb


def _measured(work: Callable[[Path], None], path: Path, answers: Connection) -> None:
    start = time.perf_counter()
    work(path)
    took = time.perf_counter() - start
    lines = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1000
    answers.send_bytes(json.dumps([took, peak]).encode())


def _build_table(folder: Path) -> None:
    columns = {"file": "image_id", "label": "dx", "group": "lesion_id", "age": "age"}
    columns |= {"sex": "sex", "site": "localization", "confirmed": "dx_type"}
    files = {"path": folder / "HAM10000_metadata.csv", "files": "HAM10000_images_part_*"}
    _build({"kind": "files", **files, "columns": columns}, folder.parent / "out")


def _build_folder(folder: Path) -> None:
    _build({"kind": "folder", "path": folder / "classes"}, folder.parent / "out")


def _build(source: dict[str, Any], out: Path) -> None:
    from skindx.data.build.build_dataset import build
    from skindx.data.recipe import BuildSettings

    shutil.rmtree(out, ignore_errors=True)
    build(BuildSettings.parse({"name": "x", "taxonomy": "ham10000", "sources": [source]}), out)
    shutil.rmtree(out)


def _read_wide(path: Path) -> None:
    from skindx.data.sources.files import FileColumns
    from skindx.data.tables.fields import TableLog
    from skindx.data.tables.shape import TableShape, shaped_lines

    columns = FileColumns.parse(
        {field: column for column, field in _READ.items()} | {"skin_type": ""}
    )
    lines = shaped_lines(path, columns, TableShape(), TableLog(), label=columns.label)
    assert lines[0][columns.label] in ("0", "1")


def _gather_shards(folder: Path) -> None:
    from skindx.data.sources.huggingface import HuggingFaceSource

    source = HuggingFaceSource.parse({"kind": "huggingface", "path": folder})
    rows = source.gather(folder.parent / "gathered")
    assert all(row.status == "stored" for row in rows)
    shutil.rmtree(folder.parent / "gathered")


def _write_set(folder: Path, settings: Config) -> None:
    """Write images in two folders of parts, a table, and links to them in a folder a class."""
    rows = []
    for number, data in enumerate(_painted(settings.images, settings.seed)):
        label = _CLASSES[number % len(_CLASSES)]
        name = f"ISIC_{number:07d}"
        file = folder / f"HAM10000_images_part_{1 + 2 * number // settings.images}" / f"{name}.jpg"
        for path in (file, folder / "classes" / label / file.name):
            path.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        os.link(file, folder / "classes" / label / file.name)
        rows.append(
            [f"HAM_{number // 2}", name, label, "histo", f"{number % 90}.0", "male", "back"]
        )
    header = ["lesion_id", "image_id", "dx", "dx_type", "age", "sex", "localization"]
    _write_rows(folder / "HAM10000_metadata.csv", header, rows)


def _write_wide(path: Path, settings: Config) -> None:
    more = [f"tbp_lv_{number}" for number in range(settings.columns - len(_READ))]
    rng = np.random.default_rng(settings.seed)
    numbers = [f"{value:.6f}" for value in rng.normal(20, 9, 1000)]
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow([*_READ, *more])
        for row in range(settings.rows):
            known = (f"ISIC_{row:07d}", int(row % 1000 == 0), f"IP_{row // 385:07d}")
            facts = (f"{row % 18 * 5}.0", "male", "posterior torso", "CC-BY", "A hospital, a city")
            values = (numbers[(row + at) % len(numbers)] for at in range(len(more)))
            table.writerow([*known, *facts, *values])


def _write_shards(folder: Path, images: int, seed: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    (folder / "data").mkdir(parents=True)
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    schema = pa.schema([("image", kind), ("label", pa.string())])
    with pq.ParquetWriter(folder / "data" / "train-00000-of-00001.parquet", schema) as writer:
        for number, data in enumerate(_painted(images, seed, grain=20)):
            image = {"bytes": data, "path": f"{number}.jpg"}
            batch = {"image": [image], "label": [_CLASSES[number % len(_CLASSES)]]}
            writer.write_table(pa.table(batch, schema=schema))


def _write_rows(path: Path, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])


def _painted(count: int, seed: int, grain: float = 2.0) -> Any:
    """Yield JPEGs of 200 x 150 pixels, each another one, in the colours of skin."""
    import cv2
    import simplejpeg

    rng = np.random.default_rng(seed)
    for _ in range(count):
        coarse = rng.uniform(90, 210, (6, 8, 1)) * np.array([1.0, 0.8, 0.7])
        smooth = cv2.resize(coarse.astype(np.float32), (200, 150), interpolation=cv2.INTER_CUBIC)
        grainy = smooth + rng.normal(0, grain, smooth.shape).astype(np.float32)
        yield simplejpeg.encode_jpeg(np.clip(grainy, 0, 255).astype(np.uint8), 90)
