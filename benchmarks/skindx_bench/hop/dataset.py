"""The dataset and the settings of the hop bench's trainings."""

from pathlib import Path
from typing import Any

from skindx.data.layout import store_bytes
from skindx.data.manifest import SPLITS, Record, write_manifest
from skindx.taxonomy import SkinClass, Taxonomy
from skindx_bench.data.images import HEIGHT, WIDTH, noisy_jpegs

CLASSES = tuple(f"class{number}" for number in range(8))


def write_dataset(folder: Path, train: int, val: int) -> None:
    """Write a dataset of noisy images."""
    records = []
    for number, data in enumerate(noisy_jpegs(train + val)):
        sha256, path = store_bytes(folder, data, ".jpg")
        label, split = CLASSES[number % len(CLASSES)], SPLITS[0 if number < train else 1]
        records.append(Record(path, sha256, "0" * 16, WIDTH, HEIGHT, label, sha256, split))
    classes = tuple(SkinClass(key=key, name=key) for key in CLASSES)
    Taxonomy(name="bench", title="Bench", classes=classes).save(folder / "taxonomy.yaml")
    write_manifest(folder, records)


def training(
    model: str, size: int, batch: int, members: int, epochs: int, **engine: Any
) -> dict[str, Any]:
    """Return the settings of a run of equal members, as plain values."""
    return {
        "engine": {"accelerator": "cpu", **engine},
        "recipe": {"epochs": epochs, "batch": batch, "warmup_epochs": 0},
        "loader": {"threads": 1},
        "members": [
            {
                "name": f"member{number}",
                "model": model,
                "seed": number,
                "preprocess": {"size": size},
            }
            for number in range(members)
        ],
    }
