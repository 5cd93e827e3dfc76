import dataclasses
from pathlib import Path

import numpy as np
import pytest

from skindx.data.manifest import read_manifest
from skindx.data.store import put
from skindx.errors import UserError
from skindx.models.preprocess import Preprocess
from skindx.training.pictures import augmenter, load_pictures, training_batches
from skindx.training.settings import Augment

CLASSES = ("Disc", "Stripes", "Plain")


def test_pictures_are_shrunk_never_enlarged(small_dataset: Path) -> None:
    records = read_manifest(small_dataset)[:5]
    assert load_pictures(small_dataset, records, CLASSES, 36, 2).pictures[0].shape == (36, 48, 3)
    assert load_pictures(small_dataset, records, CLASSES, 500, 2).pictures[0].shape == (72, 96, 3)


@pytest.mark.parametrize("damage", ["gone", "truncated"])
def test_a_damaged_dataset_is_one_sentence(
    small_dataset: Path, tmp_path: Path, damage: str
) -> None:
    record = read_manifest(small_dataset)[0]
    data = (small_dataset / record.path).read_bytes()
    path = put(tmp_path, data[: len(data) // 2], ".png")[1] if damage == "truncated" else "gone.png"
    with pytest.raises(UserError, match=r"cannot be read .*; build the dataset again"):
        load_pictures(tmp_path, [dataclasses.replace(record, path=path)], CLASSES, 36, 1)


def test_the_seed_alone_decides_a_view() -> None:
    picture = np.random.default_rng(0).integers(0, 256, (80, 100, 3), dtype=np.uint8)
    first, second = (augmenter(Augment(), Preprocess(size=64)) for _ in range(2))
    for seed in (7, 8, 7):
        # Another order of calls, as on another rank, changes nothing.
        second(picture, seed + 100)
        assert (first(picture, seed) == second(picture, seed)).all()
    assert (first(picture, 7) != first(picture, 8)).any()
    assert first(picture, 7).shape == (64, 64, 3)


def test_batches_carry_their_own_labels(small_dataset: Path) -> None:
    data = load_pictures(small_dataset, read_manifest(small_dataset), CLASSES, 40, 2)
    view = augmenter(Augment(), Preprocess(size=32))
    shares = [np.array([0, 31, 61]), np.array([5])]
    batches = list(training_batches(data, shares, view, seed=0, epoch=0))
    assert [tuple(pictures.shape) for pictures, _ in batches] == [(3, 32, 32, 3), (1, 32, 32, 3)]
    assert batches[0][1].tolist() == [0, 1, 2]
