"""The detector's own parts: its loss over ranks, boxes under augmentation, batches, settings."""

import dataclasses
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from ranks import run_ranks

from skindx.core.errors import UserError
from skindx.data.box import Box
from skindx.data.loader.batches import global_batches, share
from skindx.data.loader.settings import DiskCache, LoaderSettings, NoCache
from skindx.data.manifest import read_manifest
from skindx.data.origin import ImageOrigin
from skindx.models.bundle.bundle import DetectorParts
from skindx.models.detector import DetectorSpec
from skindx.training.checkpoint.finished import CHECKPOINT, load_parts, packed_parts, save_parts
from skindx.training.checks import check_detector
from skindx.training.config.engine import EngineSettings
from skindx.training.config.ensemble import BoxAugment, DetectorSettings
from skindx.training.config.run import TrainSettings
from skindx.training.parallel.mesh import Mesh, ProcessGroup
from skindx.training.tasks.detector_data import (
    BoxedBatch,
    box_changer,
    boxed_batches,
    looked_at,
    open_boxed,
    to_batch,
)
from skindx.training.tasks.detector_job import (
    CLASS_GAIN,
    DetectionLoss,
    DetectionNet,
    MovingAverage,
    all_scores,
    build_network,
    measure_recall,
    score_detector,
)

SIDE = 64
CPU = torch.device("cpu")


def _mesh(rank: int = 0, world: int = 1) -> Mesh:
    return Mesh(ProcessGroup(rank, world), CPU, EngineSettings(accelerator="cpu"))


class _Alone(Mesh):
    """A mesh of one, without a process group."""

    def gather(self, value: object) -> list[object]:
        return [value]


ALONE = _Alone(ProcessGroup(0, 1), CPU, EngineSettings(accelerator="cpu"))


def _network() -> torch.nn.Module:
    """Return a small network whose batch norm does not depend on the batch."""
    torch.manual_seed(0)
    net = build_network("yolov8n.yaml", 2).train()
    for module in net.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.eval()
    return net


def _batch(numbers: NDArray[np.int64]) -> BoxedBatch:
    """Return seven images' share; image 2 shows nothing, image 3 three boxes."""
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (7, SIDE, SIDE, 3), dtype=np.uint8)
    targets = []
    for count in (1, 1, 0, 3, 1, 2, 1):
        corner, size = random.uniform(0, 20, (count, 2)), random.uniform(16, 40, (count, 2))
        targets.append((np.hstack([corner, corner + size]), random.integers(0, 2, count)))
    return to_batch(images[numbers], [targets[number] for number in numbers])


def _pixels(batch: BoxedBatch) -> torch.Tensor:
    return batch.images_BSS3.permute(0, 3, 1, 2).float() / 255


def _gradients_of_one_rank() -> list[NDArray[np.float32]]:
    """Return the mean over two ranks of gradients, as DeepSpeed would take it."""
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    net = _network()
    loss = DetectionLoss(net)
    (numbers,) = global_batches(7, 7, 0, 0)
    own = _batch(share(numbers, rank, world))
    found = net(_pixels(own))
    loss_sum, scores = loss(found, own.boxes_K4, own.labels_K, own.image_K)
    divisor = all_scores(scores, _mesh(rank, world))
    (loss_sum * world / divisor).backward()
    gradients = []
    for parameter in net.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            gradients.append((parameter.grad / world).numpy())
    dist.destroy_process_group()
    return gradients


@pytest.mark.distributed
def test_uneven_ranks_give_the_gradients_of_one() -> None:
    """Two ranks with 4 and 3 images, against ultralytics' own loss of all seven."""
    from ultralytics.utils.loss import v8DetectionLoss

    everyone = run_ranks(2, _gradients_of_one_rank)
    net = _network()
    net.args = SimpleNamespace(box=7.5, cls=CLASS_GAIN, dfl=1.5)
    (numbers,) = global_batches(7, 7, 0, 0)
    batch = _batch(numbers)
    targets = {"batch_idx": batch.image_K, "cls": batch.labels_K, "bboxes": batch.boxes_K4}
    times_batch, _ = v8DetectionLoss(net)(net(_pixels(batch)), targets)
    (times_batch.sum() / 7).backward()
    expected = [parameter.grad for parameter in net.parameters() if parameter.grad is not None]
    assert len(expected) > 100
    for gradients in everyone:
        assert len(gradients) == len(expected)
        for found, true in zip(gradients, expected, strict=True):
            tolerance = 1e-4 * float(true.abs().max()) + 1e-7
            torch.testing.assert_close(torch.from_numpy(found), true, rtol=1e-3, atol=tolerance)


def test_a_share_without_any_box_has_a_loss() -> None:
    net = _network()
    empty = _batch(np.array([2]))
    arguments = (empty.boxes_K4, empty.labels_K, empty.image_K)
    loss_sum, scores = DetectionLoss(net)(net(_pixels(empty)), *arguments)
    assert float(scores) == 0
    assert all_scores(scores, ALONE) == 1
    assert loss_sum.item() > 0


augments = st.builds(
    BoxAugment,
    flip=st.booleans(),
    scale=st.floats(0, 0.5),
    translate=st.floats(0, 0.4),
    hue=st.just(0.0),
    saturation=st.just(0.0),
    brightness=st.just(0.0),
)


@given(augments, st.data(), st.integers(0, 2**32 - 1))
def test_boxes_move_with_the_image(augment: BoxAugment, data: st.DataObject, seed: int) -> None:
    x, y = data.draw(st.integers(0, 70)), data.draw(st.integers(0, 70))
    width, height = data.draw(st.integers(12, 96 - x)), data.draw(st.integers(12, 96 - y))
    square = np.full((96, 96, 3), 200, np.uint8)
    square[y : y + height, x : x + width] = (250, 0, 0)
    box = np.array([[x, y, x + width, y + height]], np.float64)
    changed, boxes, labels = box_changer(augment)(square, box, np.array([5]), seed)
    rows, columns = np.nonzero(changed[..., 0].astype(int) - changed[..., 1] > 125)
    if len(boxes):
        seen = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
        np.testing.assert_allclose(boxes[0], seen, atol=1.5)
        assert labels.tolist() == [5]
    else:  # hardly anything of it is left
        assert len(rows) < 0.2 * 1.5**2 * width * height


def test_colours_leave_boxes_alone_and_the_seed_decides() -> None:
    augment = BoxAugment(flip=False, scale=0, translate=0)
    random = np.random.default_rng(0)
    square = random.integers(0, 256, (64, 64, 3), dtype=np.uint8)
    boxes, labels = np.array([[3.25, 4.5, 40, 50]]), np.array([0])
    change = box_changer(augment)
    first, moved, _ = change(square, boxes, labels, 1)
    again, _, _ = box_changer(augment)(square, boxes, labels, 1)
    other, _, _ = change(square, boxes, labels, 2)
    np.testing.assert_allclose(moved, boxes, atol=1e-4)
    assert (first == again).all()
    assert not (first == other).all()
    assert not (first == square).all()


def test_images_without_boxes_are_negatives_and_unseen_ones_stay_out(small_dataset: Path) -> None:
    records = read_manifest(small_dataset)
    first = next(n for n, record in enumerate(records) if record.split == "train")
    records[first] = dataclasses.replace(records[first], boxes=None)
    looked = looked_at(records, "train")
    assert len(looked) == sum(record.split == "train" for record in records) - 1
    train, val = open_boxed(small_dataset, records, 96, LoaderSettings(), ALONE)
    assert [len(train), len(val)] == [53, 12]
    assert sum(not record.boxes for record in train.records) == 18
    (batch,) = boxed_batches(train, [np.arange(53)], DetectorSettings(size=96), 0)
    assert batch.images_BSS3.shape == (53, 96, 96, 3)
    # Of 35 boxes hardly any is moved out, and each lies in the image it was drawn in.
    images = batch.image_K.long().tolist()
    assert len(images) >= 30
    assert all(train.records[n].boxes for n in images)
    assert 0 <= float(batch.boxes_K4.min()) <= float(batch.boxes_K4.max()) <= 1


@pytest.mark.parametrize("kind", ["none", "disk"])
def test_the_cache_does_not_change_what_is_learned(
    small_dataset: Path, tmp_path: Path, kind: str
) -> None:
    cache = NoCache() if kind == "none" else DiskCache(folder=tmp_path)
    records, own = read_manifest(small_dataset), DetectorSettings(size=64)
    batches = []
    for loader in (LoaderSettings(), LoaderSettings(cache=cache)):
        train, _ = open_boxed(small_dataset, records, 64, loader, ALONE)
        batches.append(list(boxed_batches(train, [np.arange(9), np.arange(9, 20)], own, 3)))
    for one, other in zip(*batches, strict=True):
        torch.testing.assert_close(one.boxes_K4, other.boxes_K4, rtol=0, atol=0.01)
        if kind == "none":
            assert one.images_BSS3.equal(other.images_BSS3)


def test_the_true_boxes_score_one_and_false_alarms_cost(small_dataset: Path) -> None:
    records = read_manifest(small_dataset)
    _, val = open_boxed(small_dataset, records, 64, LoaderSettings(), ALONE)
    truth = [tuple(dataclasses.replace(b, score=0.9) for b in r.boxes or ()) for r in val.records]
    wrong = [boxes or (Box(5, 5, 30, 30, "lesion", "x", 0.95),) for boxes in truth]
    scores = []
    for answers in (truth, wrong):
        left = list(answers)
        detector = SimpleNamespace(
            detect=lambda images, confidence, left=left: [left.pop(0) for _ in images]
        )
        score = score_detector(detector, val, ALONE)
        assert score is not None
        scores.append(score.map50)
    assert scores[0] == pytest.approx(1)
    assert scores[1] < 0.8


def test_recall_by_size_counts_the_boxes_of_validation(small_dataset: Path, tmp_path: Path) -> None:
    _, val = open_boxed(small_dataset, read_manifest(small_dataset), 64, LoaderSettings(), ALONE)
    truth = [record.boxes or () for record in val.records]
    answers = [boxes if place % 2 else () for place, boxes in enumerate(truth)]
    asked: list[float] = []

    def detect(images: list[Any], confidence: float) -> list[Any]:
        asked.append(confidence)
        return [answers.pop(0) for _ in images]

    spec = DetectorSpec(size=64, confidence=0.3)
    found = [len(boxes) for place, boxes in enumerate(truth) if place % 2]
    recall = measure_recall(SimpleNamespace(detect=detect, spec=spec), val, ALONE)
    assert recall is not None
    assert set(asked) == {0.3} == {recall.confidence}
    assert recall.images == len(val)
    large = sum(band.lesions for band in recall.bands)
    assert 0 < large <= sum(map(len, truth))
    assert sum(band.found for band in recall.bands) <= sum(found) < large
    # It is kept with the run, and a run that takes the detector has it too.
    net = build_network("yolov8n.yaml", 1)
    parts = DetectorParts(spec, {**net.yaml, "nc": 1}, net.state_dict(), recall)
    save_parts(tmp_path, small_dataset, parts, [{"epoch": 1}], "")
    assert load_parts(tmp_path).recall == recall
    assert load_parts(tmp_path).images.painted == ""
    paintings = dataclasses.replace(parts, images=ImageOrigin(painted="all"))
    save_parts(tmp_path, small_dataset, paintings, [{"epoch": 1}], "")
    assert load_parts(tmp_path).images.painted == "all"
    settings = SimpleNamespace(detector=SimpleNamespace(from_run=tmp_path))
    taken = packed_parts(tmp_path / "other", settings)
    assert taken is not None
    assert taken.images.painted == "all"


def test_the_average_forgets_its_random_start() -> None:
    norm = torch.nn.BatchNorm1d(2)
    net, average = DetectionNet(norm), MovingAverage(norm)
    for step in range(4):
        norm.weight.data.fill_(float(step))
        norm.running_mean.fill_(float(step))
        norm.num_batches_tracked.fill_(step)
        average.update(net, step + 1)
    value = 0.0
    for step in (1, 2, 3):
        decay = 0.9999 * (1 - np.exp(-step / 2000))
        value = decay * value + (1 - decay) * step
    assert average.module.weight[0].item() == pytest.approx(value)
    assert average.module.running_mean[0].item() == pytest.approx(value)
    assert average.module.num_batches_tracked == 3


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("yolo99q.yaml", "is neither a detector of ultralytics"),
        ("yolov8n-seg.yaml", "no head for the v8 loss"),
        ("yolov10n.yaml", "no head for the v8 loss"),
    ],
)
def test_other_networks_are_refused(model: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        build_network(model, 1)


def test_what_cannot_train_is_reported_before(small_dataset: Path, tmp_path: Path) -> None:
    records = read_manifest(small_dataset)
    cases = {
        "some of the 3 ranks get no image": {"detector": {"batch": 2}, "engine": {"ranks": 3}},
        "has no trained detector": {"detector": {"from": str(tmp_path)}},
    }
    for said, raw in cases.items():
        with pytest.raises(UserError, match=said):
            check_detector(TrainSettings.parse(raw), records, ranks=3)
    with pytest.raises(UserError, match="size would have no effect"):
        TrainSettings.parse({"detector": {"from": "runs/boxes", "size": 64}})
    with pytest.raises(UserError, match="fusion needs a detector"):
        TrainSettings.parse({"fusion": {}})
    with pytest.raises(UserError, match="has no trained detector"):
        load_parts(tmp_path)


def test_settings_with_a_run_survive_a_file(tmp_path: Path) -> None:
    written = TrainSettings.parse({"detector": {"from": "runs/boxes"}, "fusion": {"margin": 2}})
    written.save(tmp_path / "train.yaml")
    assert TrainSettings.load(tmp_path / "train.yaml") == written


@pytest.mark.long
def test_a_training_learns_the_boxes(small_dataset: Path, tmp_path: Path) -> None:
    """From random weights, where a third of the images shows no lesion; it stops by itself."""
    detector = {"size": 64, "epochs": 30, "batch": 6, "learning_rate": 0.002, "stop_map50": 0.6}
    TrainSettings.parse({"engine": {"accelerator": "cpu"}, "detector": detector}).save(
        tmp_path / "train.yaml"
    )
    command = [
        sys.executable,
        "-m",
        "skindx.training.launching.rank",
        str(tmp_path),
        str(small_dataset),
    ]
    subprocess.run([*command, CHECKPOINT], check=True, timeout=280)
    lines = (tmp_path / "detector" / "history.csv").read_text().splitlines()
    assert lines[0] == "epoch,loss,map50,map50_95,seconds,skipped_steps"
    map50 = [float(line.split(",")[2]) for line in lines[1:]]
    assert map50[-1] >= 0.6
    assert all(score < 0.6 for score in map50[:-1])
    assert len(map50) < 30
    recall = load_parts(tmp_path).recall
    assert recall is not None
    assert sum(band.found for band in recall.bands) > 0
