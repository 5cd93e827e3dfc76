"""Tiny inputs of all slices, the same on every machine: they show that everything runs."""

from pathlib import Path
from typing import Any, NamedTuple

import yaml

from skindx.core.atomic_files import atomic_folder, write_text
from skindx.data.labels import taxonomy_of
from skindx.data.layout import MANIFEST, TAXONOMY, store_bytes
from skindx.data.manifest import SPLITS, Record, write_manifest

BATCH, STEPS, ROUNDS = 4, 2, 3
"""Of the trainer."""
_LABELS = ("Acne", "Eczema")
_SIDE, _IMAGES = 64, 48
_MODEL: dict[str, Any] = {"model": "test_resnet", "preprocess": {"size": 32}}
_RECIPE = {"epochs": 2, "batch": 12}
_TESTS = """import pytest

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("number", range(3))
def test_that_passes(number: int) -> None:
    assert number >= 0


def test_that_is_skipped() -> None:
    pytest.skip("no second GPU")
"""


class ToyInputs(NamedTuple):
    """A dataset, and what is trained on it."""

    dataset: Path
    members: Path
    study: Path


def tests(folder: Path) -> Path:
    """Write a checkout with four tests and return it."""
    root = folder / "toy-checkout"
    write_text(root / "pyproject.toml", '[tool.pytest.ini_options]\nmarkers = ["gpu: a GPU"]\n')
    write_text(root / "tests" / "test_toy.py", _TESTS)
    return root


def inputs(folder: Path) -> ToyInputs:
    """Write a dataset, two networks and a study of three arms, where they are not there yet."""
    home = folder / "toy"
    made = ToyInputs(home / "dataset", home / "members", home / "study.yaml")
    if not home.is_dir():
        with atomic_folder(home) as temporary:
            _write_dataset(temporary / made.dataset.name)
            for seed, name in enumerate(("one", "two")):
                member = {**_MODEL, "name": name, "seed": seed}
                text = yaml.safe_dump({"members": [member], "recipe": _RECIPE})
                write_text(temporary / made.members.name / name / "train.yaml", text)
            large = {"batch": 24, "accumulate": 2, "base_batch": 12, "warmup_epochs": 1}
            study = {
                "training": {
                    "engine": {"gradient_clip": 0},
                    "recipe": {**_RECIPE, "optimizer": "sgd", "learning_rate": 0.01},
                    "members": [{**_MODEL, "name": "m"}],
                },
                "arms": {
                    "dense": {},
                    "lars": {"recipe": {**large, "optimizer": "lars", "learning_rate": 0.1}},
                    "lamb": {"recipe": {**large, "optimizer": "lamb"}},
                },
                "pilot": {"lars": [0.1, 0.2]},
            }
            write_text(temporary / made.study.name, yaml.safe_dump(study, sort_keys=False))
    return made


def _write_dataset(folder: Path) -> None:
    import numpy as np
    import simplejpeg

    random = np.random.default_rng(0)
    records = []
    for number in range(_IMAGES):
        kind = number % 2  # the classes differ in colour
        pixels = random.integers(0, 120, (_SIDE, _SIDE, 3)) + 130 * np.eye(3, dtype=int)[kind]
        data = simplejpeg.encode_jpeg(pixels.astype(np.uint8), quality=90)
        sha256, path = store_bytes(folder, data, ".jpg")
        split = SPLITS[number // 2 % len(SPLITS)]
        named = (_LABELS[kind], f"patient-{number}", split)
        records.append(
            Record(path, sha256, f"{number:016x}", _SIDE, _SIDE, *named, source_url=f"{number}.jpg")
        )
    write_manifest(folder, records)
    taxonomy_of(_LABELS, "toy")[0].save(folder / TAXONOMY)
    assert (folder / MANIFEST).is_file()
