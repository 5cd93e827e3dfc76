"""Draw the twelve example photos of the model from the test images of its release evaluation.

    python models/ham10000/draw_examples.py RELEASE DATASET OUT

They are drawn by lot with a fixed seed, one photo a lesion: one of each class whatever the model
says of it, one melanoma that it calls a mole, and others with histology until there are twelve. So
the examples flatter it no more than chance does. OUT gets the photos and `examples.yaml`.
"""

import random
import shutil
import sys
from pathlib import Path
from typing import Any

import yaml

from skindx.core.atomic_files import FolderKind, atomic_folder, read_parquet, sha256_file
from skindx.data.manifest import read_manifest

SEED, COUNT = 2026, 12
MELANOMA, MOLE = "Melanoma", "Nevus"
HISTOLOGY = "histopathology"
CREDIT = (
    "HAM10000, lesion {lesion}: Tschandl, Rosendahl, Kittler, Scientific Data 5, 180161 (2018), "
    "CC BY-NC 4.0"
)
INDEX = "examples.yaml"

Row = dict[str, Any]


def drawn(rows: list[Row]) -> list[tuple[Row, str]]:
    """Return the rows of the examples, each with why it was drawn."""
    lot = random.Random(SEED)  # noqa: S311 - no secret
    left = sorted(rows, key=lambda row: row["sha256"])
    lot.shuffle(left)
    chosen: list[tuple[Row, str]] = []
    lesions: set[str] = set()

    def take(why: str, wanted: list[Row], count: int = 1) -> None:
        for row in wanted:
            if count and row["group"] not in lesions:
                lesions.add(row["group"])
                chosen.append((row, why))
                count -= 1

    for label in sorted({row["label"] for row in rows}):
        take(
            "It was drawn by lot from the test photos of its class.",
            [row for row in left if row["label"] == label],
        )
    called_mole = [row for row in left if (row["label"], row["predicted"]) == (MELANOMA, MOLE)]
    take(
        "It was drawn by lot from the test photos of melanoma that the model calls a mole.",
        called_mole,
    )
    with_histology = [row for row in left if row["confirmed_by"] == HISTOLOGY]
    take(
        "It was drawn by lot from the test photos with histology.",
        with_histology,
        COUNT - len(chosen),
    )
    return chosen


def main(release: Path, dataset: Path, out: Path) -> None:
    """Write the photos and their index."""
    rows = read_parquet(release / "rows.parquet").to_pylist()
    paths = {record.sha256: dataset / record.path for record in read_manifest(dataset)}
    kind = FolderKind("the examples of a model", INDEX, (INDEX, "*.jpg"))
    with atomic_folder(out, kind) as folder:
        index = []
        for number, (row, why) in enumerate(
            drawn([row for row in rows if row["part"] == "test"]), start=1
        ):
            name = f"example-{number:02}.jpg"
            shutil.copyfile(paths[row["sha256"]], folder / name)
            index.append(
                {
                    "file": name,
                    "sha256": sha256_file(folder / name),
                    "truth": row["label"],
                    "truth_by": row["confirmed_by"],
                    "credit": CREDIT.format(lesion=row["group"]),
                    "note": why,
                }
            )
        text = yaml.safe_dump(index, sort_keys=False, allow_unicode=True, width=100)
        (folder / INDEX).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
