"""Boxes that a model proposes for images without annotations; a person corrects them.

A bundle's detector proposes, or else a classifier: Grad-CAM (Selvaraju et al. 2017, equations 1 and
2) on the last feature map, a threshold at a fifth of its maximum, and the box around the largest
component (Zhou et al. 2016, section 3.2). Such a box is where the classifier found its evidence:
coarse, one an image, and never "no lesion".

H, W = height, width of the image; h, w = of the feature map; K = channels, C = classes
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from skindx.core.atomic_files import only_writer, sha256_file
from skindx.core.errors import UserError
from skindx.data.box import Box
from skindx.data.boxes.annotations import Annotation, now, read_proposals, write_proposals
from skindx.data.manifest import read_image, read_manifest
from skindx.models.bundle.bundle import Bundle, open_bundle
from skindx.models.bundle.bundle_index import INDEX
from skindx.models.combination import apply_temperature
from skindx.models.detector import Detector
from skindx.models.ensemble import Member

THRESHOLD = 0.2
"""Share of the map's maximum (Zhou et al. 2016)."""

_LEAST_SIDE = 32

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ActivationBoxes:
    """Proposes one box an image from a member's class activation; the score is its confidence."""

    member: Member

    def sees_places(self) -> bool:
        """True when the last features are a map K x h x w, as a convolutional network's are."""
        size = self.member.preprocess.size
        image = np.zeros((size, size, 3), dtype=np.uint8)
        try:
            with torch.no_grad():
                features = self._features(image)
        except (AttributeError, AssertionError, RuntimeError):
            return False
        return features.ndim == 4 and features.shape[1] > features.shape[2] == features.shape[3]

    def detect(self, images: Sequence[NDArray[np.uint8]]) -> list[tuple[Box, ...]]:
        """Return one box of each decoded image; none without evidence for the class."""
        return [self._detect_one(image) for image in images]

    def _detect_one(self, image_HW3: NDArray[np.uint8]) -> tuple[Box, ...]:
        map_hw, confidence = self.class_activation(image_HW3)
        height, width = image_HW3.shape[:2]
        corners = activation_box(map_hw, width, height)
        return (Box(*corners, label="lesion", score=confidence),) if corners else ()

    def class_activation(self, image_HW3: NDArray[np.uint8]) -> tuple[Floats, float]:
        """Return Grad-CAM of the likeliest class, h x w, and that class's probability."""
        net = self.member.classifier.net
        with torch.enable_grad():
            features_1Khw = self._features(image_HW3).detach().requires_grad_()
            logits_1C = net.forward_head(features_1Khw)  # type: ignore[operator]
            gradient_1Khw = torch.autograd.grad(logits_1C.max(), features_1Khw)[0]
        weight_1K11 = gradient_1Khw.mean(dim=(2, 3), keepdim=True)
        map_hw = torch.relu((weight_1K11 * features_1Khw).sum(dim=1))[0]
        log_1C = torch.log_softmax(logits_1C.detach().double(), dim=1).cpu().numpy()
        confidence = float(apply_temperature(log_1C, self.member.temperature).max())
        return map_hw.detach().double().cpu().numpy(), confidence

    def _features(self, image_HW3: NDArray[np.uint8]) -> torch.Tensor:
        """Return features of the whole image, not of a central square: lesions lie anywhere."""
        classifier = self.member.classifier
        pixels_HW3 = whole(image_HW3, self.member.preprocess.margin_size)
        scale = classifier.scale
        pixels_13HW = torch.from_numpy(pixels_HW3).to(scale.device).permute(2, 0, 1)[None]
        net_input = pixels_13HW.to(scale.dtype) * scale + classifier.shift
        features: torch.Tensor = classifier.net.forward_features(net_input)  # type: ignore[operator]
        return features


def whole(image_HW3: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """Resize to the area of a square of `side`, keeping the aspect: no strip costs more."""
    height, width = image_HW3.shape[:2]
    stretch = (width / height) ** 0.5
    size_wh = (max(_LEAST_SIDE, round(side * stretch)), max(_LEAST_SIDE, round(side / stretch)))
    shrinks = size_wh[0] < width
    resized: NDArray[np.uint8] = cv2.resize(
        image_HW3, size_wh, interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    )
    return resized


def activation_box(
    map_hw: Floats, width: int, height: int
) -> tuple[float, float, float, float] | None:
    """Return the box in pixels around the largest component above the threshold, None of nothing.

    The map is enlarged before it is cut, since one of its cells may be a seventh of the image.
    """
    if not map_hw.max() > 0:
        return None
    side = 256
    fine = cv2.resize(map_hw.astype(np.float32), (side, side), interpolation=cv2.INTER_LINEAR)
    above = (fine >= THRESHOLD * fine.max()).astype(np.uint8)
    _, _, stats, _ = cv2.connectedComponentsWithStats(above, connectivity=4)
    largest = stats[1 + int(stats[1:, cv2.CC_STAT_AREA].argmax())]
    left, top, wide, high = (int(value) for value in largest[:4])
    x, y = width / side, height / side
    return left * x, top * y, (left + wide) * x, (top + high) * y


_FLOOR = 0.05
"""Least confidence of a proposal: a wrong box is deleted faster than a missing one is drawn."""
_BATCH = 16

Progress = Callable[[int, int], None]


class Proposer(Protocol):
    """Finds boxes with a score in decoded images (H x W x 3 RGB uint8)."""

    def detect(self, images: Sequence[NDArray[np.uint8]]) -> list[tuple[Box, ...]]: ...


@dataclass(frozen=True, slots=True)
class Proposed:
    """Result of `propose`."""

    model: str
    """The annotator in proposals.parquet: bundle, part, and the start of the bundle's hash."""
    images: int
    boxes: int
    empty: int
    skipped: int
    """Images that a person has annotated."""
    note: str
    """Why it is not the bundle's detector that proposes; empty when it is."""


def propose(
    dataset: Path, bundle: Path, *, everywhere: bool = False, progress: Progress | None = None
) -> Proposed:
    """Write DATASET/proposals.parquet: the bundle's boxes for images without annotations.

    The bundle's detector proposes, or without one the class activation of its convolutional member
    of the largest input. Manifest and annotations stay as they are. `everywhere` also takes
    images that have boxes, to compare with `skindx boxes agree`. Proposals of other models stay
    for images that this run does not look at. Raises UserError.
    """
    opened = open_bundle(bundle)
    proposer, part, note = _proposer(opened)
    model = f"{opened.spec.name}/{part}@{sha256_file(bundle / INDEX)[:12]}"
    records = read_manifest(dataset)
    wanted = [record for record in records if everywhere or record.boxes is None]
    if not wanted:
        raise UserError(
            f"every image of {dataset} is already annotated by a person; add --everywhere to "
            "propose boxes for annotated images too."
        )
    when, rows, done = now(), [], 0
    for start in range(0, len(wanted), _BATCH):
        batch = wanted[start : start + _BATCH]
        images = [read_image(dataset, record) for record in batch]
        for record, boxes in zip(batch, proposer.detect(images), strict=True):
            signed = tuple(replace(box, drawn_by=model, drawn_at=when) for box in boxes)
            rows.append(Annotation(record.sha256, model, when, signed))
        done += len(batch)
        if progress:
            progress(done, len(wanted))
    ours = {row.sha256 for row in rows}
    with only_writer(dataset):
        existing = [row for row in read_proposals(dataset) if row.sha256 not in ours]
        write_proposals(dataset, [*existing, *rows])
    return Proposed(
        model,
        len(rows),
        sum(len(row.boxes) for row in rows),
        sum(not row.boxes for row in rows),
        len(records) - len(wanted),
        note,
    )


@dataclass(frozen=True)
class _DetectorBoxes:
    detector: Detector

    def detect(self, images: Sequence[NDArray[np.uint8]]) -> list[tuple[Box, ...]]:
        return self.detector.detect(images, min(_FLOOR, self.detector.spec.confidence))


def _proposer(bundle: Bundle) -> tuple[Proposer, str, str]:
    """Return who proposes, the name of the part of the bundle, and why it is no detector."""
    note = "the bundle has no detector"
    try:
        detector = bundle.detector()
    except UserError as error:
        detector, note = None, str(error)
    if detector:
        return _DetectorBoxes(detector), "detector", ""
    # The member that sees images largest has the finest map.
    members = sorted(bundle.ensemble().members, key=lambda member: -member.preprocess.size)
    for member in members:
        boxes = ActivationBoxes(member)
        if boxes.sees_places():
            return boxes, member.name, note
    raise UserError(
        f"{bundle.path} has no usable detector ({note}) and no convolutional member to propose "
        "boxes; give a bundle with one of them."
    )
