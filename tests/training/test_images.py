import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from skindx.core import machine
from skindx.core.compiled_loops import compiler
from skindx.core.errors import UserError
from skindx.data.layout import store_bytes
from skindx.data.loader import augment as augment_module
from skindx.data.loader import cache
from skindx.data.loader.augment import (
    changer,
    composed_changer,
    squares_changer,
    turned,
)
from skindx.data.loader.crops import fill_random_crops, sample_seeds
from skindx.data.loader.load import Pool, Reading, threads_for
from skindx.data.loader.settings import Augment, LoaderSettings
from skindx.data.loader.source import Files
from skindx.data.manifest import read_manifest, split_of
from skindx.imaging.decode import decode
from skindx.models.classifier.preprocess import framed_square
from skindx.training.checkpoint.fingerprints import fingerprint
from skindx.training.config.engine import EngineSettings
from skindx.training.config.run import MemberSettings, TrainSettings
from skindx.training.parallel.mesh import Mesh, ProcessGroup
from skindx.training.tasks.image_sets import TrainingSet, training_batches
from skindx.training.tasks.open_sets import TrainingData, open_sets

CLASSES = ("Disc", "Stripes", "Plain")
MEMBER = MemberSettings(name="a", model="test_resnet", preprocess={"size": 32})


class Alike(Mesh):
    """One rank of several whose answers are all the same, without the others."""

    def gather(self, value):
        return [value] * self.data.size


def rank_of(rank: int, world: int) -> Mesh:
    return Alike(ProcessGroup(rank, world), torch.device("cpu"), EngineSettings(accelerator="cpu"))


def data_of(dataset: Path) -> TrainingData:
    records = read_manifest(dataset)
    return TrainingData(dataset, split_of(records, "train"), split_of(records, "val"), CLASSES)


def settings_of(**loader: object) -> LoaderSettings:
    return TrainSettings.parse({"loader": loader}).loader


def epoch_of(dataset: Path, rank: int, world: int, **loader: object) -> dict[int, np.ndarray]:
    """Load one epoch of one rank; return its images by their number."""
    mesh = rank_of(rank, world)
    training, _ = open_sets(data_of(dataset), MEMBER, settings_of(**loader), mesh, print)
    training.enter(0, 1)
    shares = [step[rank] for step in training.plan(8, 0, 1, mesh)]
    loaded = training_batches(training, shares, Augment(), side=32, seed=0, epoch=1)
    found: dict[int, np.ndarray] = {}
    for (images, labels), indices in zip(loaded, shares, strict=True):
        assert labels.tolist() == training.labels_N[indices].tolist()
        for image, index in zip(images.numpy(), indices.tolist(), strict=True):
            assert index not in found
            found[index] = image.copy()
    return found


@pytest.mark.parametrize("kind", ["none", "memory", "disk"])
def test_ranks_shards_and_threads_change_no_image(small_dataset: Path, kind: str) -> None:
    count = len(split_of(read_manifest(small_dataset), "train"))
    alone = epoch_of(small_dataset, 0, 1, cache={"kind": kind}, threads=1)
    assert sorted(alone) == list(range(count))
    for world, sharded, threads in ((1, "auto", 3), (2, False, 2), (2, True, 1), (3, True, 2)):
        parts = [
            epoch_of(
                small_dataset,
                rank,
                world,
                cache={"kind": kind},
                sharded=sharded,
                threads=threads,
                exchange="never",
            )
            for rank in range(world)
        ]
        assert Counter(index for part in parts for index in part) == Counter(range(count))
        assert all((part[index] == alone[index]).all() for part in parts for index in part)
        if sharded is True:
            assert all({index % world for index in part} == {r} for r, part in enumerate(parts))


@pytest.mark.parametrize("kind", ["none", "memory"])
def test_shares_drawn_anew_change_no_image(small_dataset: Path, kind: str) -> None:
    alone = epoch_of(small_dataset, 0, 1)
    parts = [
        epoch_of(small_dataset, rank, 3, cache={"kind": kind}, sharded=True, exchange="read")
        for rank in range(3)
    ]
    assert Counter(index for part in parts for index in part) == Counter(alone.keys())
    assert all((part[index] == alone[index]).all() for part in parts for index in part)
    assert all(len({index % 3 for index in part}) == 3 for part in parts)


def test_a_cache_on_disk_cannot_draw_shares_anew() -> None:
    with pytest.raises(UserError, match=r"set loader.cache.kind=memory"):
        settings_of(cache={"kind": "disk"}, exchange="send")
    assert not settings_of(cache={"kind": "disk"}).redraws
    assert settings_of().redraws


def test_memory_and_files_give_the_same(small_dataset: Path) -> None:
    first = epoch_of(small_dataset, 0, 1, cache={"kind": "none"})
    second = epoch_of(small_dataset, 0, 1, cache={"kind": "memory"})
    assert all((first[index] == second[index]).all() for index in first)


def test_a_cache_on_disk_may_lie_elsewhere(small_dataset: Path, tmp_path: Path) -> None:
    epoch_of(small_dataset, 0, 1, cache={"kind": "disk", "folder": str(tmp_path)})
    epoch_of(small_dataset, 1, 2, cache={"kind": "disk", "folder": str(tmp_path)}, sharded=True)
    (folder,) = tmp_path.iterdir()
    names = sorted(file.name for file in folder.glob("*.pixels"))
    assert names == ["train-45-1of2.pixels", "train-45.pixels"]


def test_shards_when_memory_is_small(small_dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def opened(world: int, **loader: object) -> TrainingSet:
        settings = settings_of(exchange="never", **loader)
        return open_sets(data_of(small_dataset), MEMBER, settings, rank_of(0, world), said.append)[
            0
        ]

    assert not opened(2).sharded
    monkeypatch.setattr(cache, "free_memory", lambda: 1000)
    # Two ranks of one node have one copy: shares would take as much.
    assert not opened(2).sharded
    assert not said
    monkeypatch.setattr(cache, "create_memory", lambda sizes: None)
    assert opened(2).sharded
    assert said == ["each of the 2 ranks sees its own share of the images, the same in each epoch"]
    assert not opened(1).sharded
    assert not opened(2, sharded=False).sharded
    assert not opened(2, cache={"kind": "none"}).sharded
    monkeypatch.setattr(cache, "free_memory", machine.free_memory)
    assert opened(2, sharded=True).sharded


@pytest.mark.parametrize("kind", ["none", "memory"])
def test_validation_sees_what_evaluation_sees(small_dataset: Path, kind: str) -> None:
    data = data_of(small_dataset)
    for rank in range(2):
        settings = settings_of(cache={"kind": kind})
        _, validation = open_sets(data, MEMBER, settings, rank_of(rank, 2), print)
        own = data.val[rank::2]
        for _ in range(2):
            squares = np.concatenate(list(validation.squares()))
            assert len(squares) == len(own) == len(validation)
            for record, square in zip(own, squares, strict=True):
                image = decode((small_dataset / record.path).read_bytes())
                assert (square == framed_square(image, MEMBER.preprocess)).all()
        assert [CLASSES[label] for label in validation.labels_N] == [
            held_out.label for held_out in own
        ]


@pytest.mark.parametrize("kind", ["none", "memory", "disk"])
@pytest.mark.parametrize("damage", ["gone", "truncated"])
def test_a_damaged_dataset_is_one_sentence(
    small_dataset: Path, tmp_path: Path, damage: str, kind: str
) -> None:
    records = read_manifest(small_dataset)[:8]
    data = (small_dataset / records[3].path).read_bytes()
    path = (
        store_bytes(tmp_path, data[: len(data) // 2], ".png")[1]
        if damage == "truncated"
        else "gone.png"
    )
    bad = [dataclasses.replace(record, path=path) for record in records]

    def epoch() -> None:
        broken = TrainingData(tmp_path, bad, [], CLASSES)
        settings = settings_of(cache={"kind": kind})
        training, _ = open_sets(broken, MEMBER, settings, rank_of(0, 1), print)
        list(training_batches(training, [np.arange(8)], Augment(), side=32, seed=0, epoch=0))

    with pytest.raises(UserError, match=rf"{path} cannot be read .*build"):
        epoch()


@pytest.mark.parametrize("name", ["e", "r90", "r180", "r270", "v", "h", "t", "hvt"])
def test_a_turn_is_that_of_albumentations(name: str) -> None:
    from albumentations.augmentations.geometric.functional import d4

    square_SS3 = np.random.default_rng(0).integers(0, 256, (7, 7, 3), np.uint8)
    found_SS3 = turned(square_SS3, name)
    np.testing.assert_array_equal(found_SS3, d4(square_SS3, name))
    assert found_SS3.flags.c_contiguous


@pytest.mark.parametrize(
    "augment", [Augment(), Augment(colour=0.5), Augment(flip=False), Augment(colour=0)]
)
def test_without_blur_the_changes_are_those_of_albumentations(augment: Augment) -> None:
    ours, theirs = changer(augment), composed_changer(augment)
    draw = np.random.default_rng(0)
    for seed in range(60):
        square_SS3 = draw.integers(0, 256, (17, 17, 3), np.uint8)
        np.testing.assert_array_equal(ours(square_SS3, seed), theirs(square_SS3, seed))


@pytest.mark.parametrize(
    "augment", [Augment(), Augment(colour=0.5), Augment(flip=False, colour=0.4)]
)
@pytest.mark.parametrize("side", [64, 37])
def test_many_squares_at_once_have_the_pixels_of_one_after_the_other(
    augment: Augment, side: int
) -> None:
    assert augment_module.SOURCE.kernel() is not None or not compiler()
    draw = np.random.default_rng(3)
    squares_TSS3 = draw.integers(0, 256, (60, side, side, 3), np.uint8)
    squares_TSS3[0] = squares_TSS3[0, 0, 0]  # of one colour
    squares_TSS3[1] = squares_TSS3[1, :, :, :1]  # grey
    seeds = draw.integers(0, 2**32, 60).tolist()
    change = changer(augment)
    wanted = [change(square, seed) for square, seed in zip(squares_TSS3, seeds, strict=True)]
    squares_changer(augment)(squares_TSS3, seeds)
    # At the end of a row that its vectors do not fill, OpenCV rounds the hue otherwise.
    distance = np.abs(squares_TSS3.astype(int) - wanted)
    assert distance.max() <= (0 if side == 64 else 4)
    assert (distance > 0).mean() < 0.08


def test_every_hue_moves_as_opencv_moves_it() -> None:
    kernel = augment_module._kernel()
    if kernel is None:
        pytest.skip("no C++ compiler: OpenCV changes the colours itself")
    levels = np.arange(0, 256, 3, dtype=np.uint8)
    colours_SS3 = np.stack(np.meshgrid(*[levels] * 3), -1).reshape(-1, 3)[: 768**2]
    square_SS3 = np.ascontiguousarray(colours_SS3.reshape(768, 768, 3))
    wanted = augment_module._hue_moved(square_SS3, 0.021)
    turns, steps = np.zeros(1, np.int32), np.array([3, -1, -1, -1], np.int32)
    factors = np.array([1, 1, 1, 0.021])
    kernel.change(1, 768, *(array.ctypes.data for array in (square_SS3, turns, steps, factors)))
    np.testing.assert_array_equal(square_SS3, wanted)


def test_the_seed_alone_decides_a_change() -> None:
    square = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    first, second = (changer(Augment()) for _ in range(2))
    for seed in (7, 8, 7):
        # Another order of calls, as on another rank, changes nothing.
        second(square, seed + 100)
        assert (first(square, seed) == second(square, seed)).all()
    assert (first(square, 7) != first(square, 8)).any()
    coloured = changer(Augment(flip=False, colour=0.2))
    changed = sum((coloured(square[:4, :4], seed) != square[:4, :4]).any() for seed in range(1000))
    assert 760 < changed < 840  # of 0.8 of all images
    still = changer(Augment(flip=False, colour=0))
    assert (still(square, 7) == square).all()


GAMMA: dict[str, Any] = {
    "transform": {"__class_fullname__": "RandomGamma", "p": 1.0, "gamma_limit": (80, 120)}
}


@pytest.mark.parametrize("kind", ["rotate", "white", "blur", "sharpen", "holes", "pipeline"])
def test_each_change_is_seeded_and_does_something(kind: str) -> None:
    square = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    strength = {"rotate": 30, "white": 0.5, "pipeline": GAMMA}.get(kind, 1)
    augment = Augment.parse({"flip": False, "colour": 0, kind: strength})
    first, second = changer(augment), changer(augment)
    for seed in range(5):
        second(square, seed + 100)
        changed = first(square, seed)
        assert (changed == second(square, seed)).all()
        assert (changed != square).any()
        squares_TSS3 = square[None].copy()
        squares_changer(augment)(squares_TSS3, [seed])
        assert (squares_TSS3[0] == changed).all()
        if kind == "holes":
            assert 0.005 < (changed != square).any(axis=2).mean() < 3 * 0.3**2 + 0.01


def test_a_pipeline_is_kept_as_a_file_keeps_it_and_what_it_cannot_be_is_one_sentence() -> None:
    augment = Augment.parse({"pipeline": GAMMA})
    assert augment == Augment.model_validate_json(augment.model_dump_json())
    assert "pipeline" not in Augment().model_dump()  # fingerprints of older runs stay
    for wrong, words in {
        "os.system": "albumentations cannot create this pipeline",
        "ToFloat": "of float32; remove the steps that resize, normalise or make tensors",
        "Transpose": "",
    }.items():
        given: dict[str, Any] = {"transform": {"__class_fullname__": wrong, "p": 1.0}}
        if words:
            with pytest.raises(UserError, match=words):
                Augment.parse({"pipeline": given})
        else:
            Augment.parse({"pipeline": given})


@given(threads=st.integers(1, 4), order=st.permutations(range(9)))
def test_batches_are_the_same_on_any_threads(
    small_dataset: Path, threads: int, order: list[int]
) -> None:
    records = read_manifest(small_dataset)[::10]
    training = TrainingSet(
        Files(small_dataset, records), np.arange(9), False, Reading(threads, 2, Pool())
    )
    shares = [np.array(order[:4]), np.array(order[4:])]
    found = np.empty((9, 32, 32, 3), np.uint8)
    for images, labels in training_batches(training, shares, Augment(), side=32, seed=5, epoch=2):
        found[labels.numpy()] = images.numpy()
    reference = _REFERENCE.setdefault("views", found)
    assert (found == reference).all()


_REFERENCE: dict[str, np.ndarray] = {}


@pytest.mark.parametrize("kind", ["none", "memory", "disk"])
def test_whole_images_are_learned_between_bars(small_dataset: Path, kind: str) -> None:
    member = MEMBER.model_copy(
        update={"preprocess": MEMBER.preprocess.model_copy(update={"frame": "whole"})}
    )
    data = data_of(small_dataset)
    training, validation = open_sets(
        data, member, settings_of(cache={"kind": kind}), rank_of(0, 1), print
    )
    bars = member.preprocess.bars
    assert bars is not None
    everything = Augment(scale=(1.0, 1.0))
    files = Files(small_dataset, data.train)
    ((images, _),) = training_batches(
        training, [np.arange(8)], everything, bars, side=32, seed=0, epoch=0
    )
    for number, image in enumerate(images.numpy()):
        height, width = files.size(number)
        seen = (image != bars).any(axis=2)
        # A window of all of the area is no square: its aspect is drawn.
        assert seen.mean() == pytest.approx(min(height, width) / max(height, width), abs=0.3)
    for square in next(iter(validation.squares())):
        assert square.shape == (member.preprocess.size,) * 2 + (3,)


def test_a_random_window_of_a_whole_image_shows_it_in_its_aspect() -> None:
    """Of a photo of 2 : 1 with four colours: all of it, at any place, or a part without bars."""
    image = np.zeros((60, 120, 3), np.uint8)
    image[:30, :60], image[:30, 60:], image[30:, :60], image[30:, 60:] = 60, 120, 180, 240

    class One:
        def size(self, index):
            return 60, 120

        def image(self, index, at_least=None):
            return image

    out = np.empty((40, 64, 64, 3), np.uint8)
    seeds = sample_seeds((0, 0), range(40))
    fill_random_crops(One(), range(40), seeds, (1.0, 1.0), (1.0, 1.0), bars=(1, 2, 3), out_TSS3=out)
    for square in out:
        rows = np.flatnonzero((square != (1, 2, 3)).any(axis=(1, 2)))
        assert len(rows) == 32
        shown = square[rows[0] : rows[-1] + 1]
        assert {int(shown[r, c, 0]) for r in (4, 28) for c in (4, 60)} == {60, 120, 180, 240}
    bars_too = TrainingSet(One(), np.zeros(40, np.int64), False, Reading(1, 1, Pool()))
    everything = Augment(scale=(1.0, 1.0), flip=False, colour=0)
    ((images, _),) = training_batches(
        bars_too, [np.arange(8)], everything, (1, 2, 3), side=64, seed=0, epoch=0
    )
    assert (images.numpy() == (1, 2, 3)).all(axis=3).mean() >= 0.4
    fill_random_crops(One(), range(40), seeds, (0.1, 0.2), (1.0, 1.0), bars=(1, 2, 3), out_TSS3=out)
    assert (out[..., 0] >= 60).all(), "a small window lies within the image"


def test_tensors_share_the_loaders_memory(small_dataset: Path) -> None:
    pools: list[np.ndarray] = []

    def allocate(shape):
        pools.append(np.empty(shape, np.uint8))
        return pools[-1]

    records = read_manifest(small_dataset)[:5]
    source = Files(small_dataset, records)
    training = TrainingSet(source, np.zeros(5, np.int64), False, Reading(1, 1, allocate))
    ((images, labels),) = training_batches(
        training, [np.arange(5)], Augment(), side=32, seed=0, epoch=0
    )
    assert images.data_ptr() == pools[0].ctypes.data
    assert images.shape == (5, 32, 32, 3)
    assert images.dtype == torch.uint8
    assert labels.dtype == torch.int64


def test_threads_are_shared_among_the_ranks_of_a_node() -> None:
    alone = threads_for("auto", 1)
    assert alone >= 1
    assert threads_for("auto", 2) == max(1, alone // 2)
    assert threads_for("auto", 1000) == 1
    assert threads_for(7, 1000) == 7


def test_what_changes_weights_changes_the_fingerprint(small_dataset: Path) -> None:
    def mark(**loader: object) -> str:
        settings = TrainSettings.parse({"members": [MEMBER.model_dump()], "loader": loader})
        return fingerprint(settings, settings.members[0], small_dataset)

    same = mark()
    assert mark(threads=3, prefetch=9, cache={"kind": "none"}) == same
    assert mark(cache={"kind": "disk"}) != same
    assert mark(cache={"kind": "disk"}) != mark(cache={"kind": "disk", "margin": 1.5})
    assert mark(sharded=True) != same


def test_a_wrong_cache_lists_the_kinds() -> None:
    with pytest.raises(UserError, match="Valid: none, memory, disk"):
        settings_of(cache={"kind": "tape"})
