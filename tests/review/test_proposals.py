"""Proposals of a bundle, and class activation on images whose truth is known."""

import dataclasses
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tiny_bundle import pack_tiny

from skindx.core.atomic_files import sha256_file
from skindx.core.errors import UserError
from skindx.data.box import Box, iou
from skindx.data.boxes.annotations import PROPOSALS, read_proposals
from skindx.data.layout import MANIFEST, store_bytes
from skindx.data.manifest import Record, read_manifest, write_manifest
from skindx.models.bundle.bundle import Bundle
from skindx.models.bundle.bundle_index import INDEX
from skindx.models.classifier.classifier import ClassifierSettings, build_classifier
from skindx.models.classifier.preprocess import Preprocess
from skindx.models.ensemble import Member
from skindx.review.box_proposals import ActivationBoxes, activation_box, propose, whole

COLOURS = ((60, 40, 160), (40, 140, 60))


def spot(
    seed: int, kind: int, width: int = 96, height: int = 72
) -> tuple[NDArray[np.uint8], tuple[float, float, float, float]]:
    """Paint noisy skin with one disc of the class's colour; return it and the disc's box."""
    rng = np.random.default_rng(seed)
    skin = rng.normal((200, 160, 140), 10, (height, width, 3))
    image = np.clip(skin, 0, 255).astype(np.uint8)
    r = int(rng.integers(10, 18))
    x, y = int(rng.integers(r, width - r)), int(rng.integers(r, height - r))
    cv2.circle(image, (x, y), r, COLOURS[kind], -1)
    return image, (x - r, y - r, x + r + 1, y + r + 1)


@pytest.fixture(scope="module")
def member() -> Member:
    """Return a small network that was really trained, from random weights, to tell the spots."""
    torch.manual_seed(0)
    preprocess = Preprocess(size=96)
    args = {"output_stride": 16}  # at 32 its map of such a small image has a dozen cells
    settings = ClassifierSettings(model="test_resnet", model_args=args, preprocess=preprocess)
    classifier = build_classifier(settings, 2)
    optimizer = torch.optim.AdamW(classifier.parameters(), lr=3e-3)
    classifier.train()
    for step in range(30):
        kinds = [n % 2 for n in range(16)]
        batch = [cv2.resize(spot(16 * step + n, kind)[0], (96, 96)) for n, kind in enumerate(kinds)]
        logits_BC = classifier(torch.from_numpy(np.stack(batch)))
        loss = torch.nn.functional.cross_entropy(logits_BC, torch.tensor(kinds))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.2
    return Member("small", classifier.eval(), preprocess)


def test_class_activation_finds_where_the_spot_is(member: Member) -> None:
    painted = [spot(10_000 + n, n % 2) for n in range(40)]
    found = ActivationBoxes(member).detect([image for image, _ in painted])
    overlap, inside = [], []
    for boxes, (_, truth) in zip(found, painted, strict=True):
        (box,) = boxes
        overlap.append(iou([box], [Box(*truth)])[0, 0])
        centre = (truth[0] + truth[2]) / 2, (truth[1] + truth[3]) / 2
        inside.append(box.x1 <= centre[0] <= box.x2 and box.y1 <= centre[1] <= box.y2)
        assert box.score is not None
        assert 0.5 <= box.score <= 1
    whole_image = np.mean([(t[2] - t[0]) * (t[3] - t[1]) / (96 * 72) for _, t in painted])
    # Coarse, as the module says: measured 0.37, where the whole image as the box gives 0.12.
    assert np.mean(inside) > 0.8
    assert np.mean(overlap) > 2 * whole_image


def test_boxes_of_maps_by_hand() -> None:
    map_hw = np.zeros((4, 4))
    assert activation_box(map_hw, 400, 200) is None
    map_hw[1:3, 2] = 1.0
    map_hw[0, 0] = 0.15  # under a fifth of the maximum
    x1, y1, x2, y2 = activation_box(map_hw, 400, 200) or (0, 0, 0, 0)
    assert x1 < 200 < 300 < x2 <= 400
    assert y1 < 50 < 150 < y2 <= 200
    assert x1 > 100


@pytest.mark.parametrize(("width", "height"), [(64, 64), (4000, 1), (30, 900)])
def test_no_strip_costs_more_than_a_square(width: int, height: int) -> None:
    resized = whole(np.zeros((height, width, 3), np.uint8), 71)
    assert min(resized.shape[:2]) >= 32
    assert resized.shape[0] * resized.shape[1] < 32 * 71 * 65


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Return eight images: a person drew in the first, looked at the second, not the others."""
    folder = tmp_path / "data"
    records = []
    for n in range(8):
        coded = cv2.imencode(".png", spot(n, n % 2)[0])[1].tobytes()
        sha256, path = store_bytes(folder, coded, ".png")
        boxes = {0: (Box(1, 2, 30, 40, "mole", "Ann"),), 1: ()}.get(n)
        records.append(Record(path, sha256, "0" * 16, 96, 72, "x", sha256, "train", boxes=boxes))
    write_manifest(folder, records)
    return folder


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Return a bundle without a detector."""
    return pack_tiny(tmp_path_factory.mktemp("bare") / "bundle")


@pytest.mark.parametrize("detector", [True, False])
def test_only_where_nobody_looked(
    dataset: Path, tiny_bundle: Path, bare: Bundle, detector: bool
) -> None:
    bundle = tiny_bundle if detector else bare.path
    before = (dataset / MANIFEST).read_bytes()
    done = propose(dataset, bundle)
    part = "detector" if detector else "resnet"
    assert done.model == f"tiny/{part}@{sha256_file(bundle / INDEX)[:12]}"
    assert (done.images, done.skipped, bool(done.note)) == (6, 2, not detector)
    assert (dataset / MANIFEST).read_bytes() == before
    rows = read_proposals(dataset)
    unseen = {record.sha256 for record in read_manifest(dataset) if record.boxes is None}
    assert {row.sha256 for row in rows} == unseen
    best = [max((box.score or 0 for box in row.boxes), default=0) for row in rows]
    assert best == sorted(best)
    for row in rows:
        for box in row.boxes:
            assert 0 <= box.x1 < box.x2 <= 96
            assert 0 <= box.y1 < box.y2 <= 72
            assert (box.drawn_by, box.drawn_at) == (done.model, row.when)
            assert box.score is not None


def test_other_proposals_stay_and_everybody_looked_is_reported(
    dataset: Path, bare: Bundle, tmp_path: Path
) -> None:
    propose(dataset, bare.path, everywhere=True)
    assert len(read_proposals(dataset)) == 8
    other = pack_tiny(tmp_path / "other", temperature=0.7)
    done = propose(dataset, other.path)
    assert [row.annotator for row in read_proposals(dataset)].count(done.model) == 6
    assert len(read_proposals(dataset)) == 8
    records = [dataclasses.replace(record, boxes=()) for record in read_manifest(dataset)]
    write_manifest(dataset, records)
    with pytest.raises(UserError, match="add --everywhere"):
        propose(dataset, bare.path)


def test_a_bundle_that_cannot_propose_is_one_sentence(
    dataset: Path, bare: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole_ensemble = bare.ensemble()
    vit = dataclasses.replace(whole_ensemble, members=whole_ensemble.members[1:])
    monkeypatch.setattr(Bundle, "ensemble", lambda self: vit)
    with pytest.raises(UserError, match="no usable detector"):
        propose(dataset, bare.path)
    assert not (dataset / PROPOSALS).exists()
