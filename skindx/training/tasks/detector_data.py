"""Training images and their boxes as batches: letterboxed and changed on threads."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from skindx.core.machine import go_offline
from skindx.data.loader.augment import turn
from skindx.data.loader.batches import sample_seed
from skindx.data.loader.cache import cache_folder, kept_share, node_of
from skindx.data.loader.load import Reading, memory_for, threads_for
from skindx.data.loader.pixels import open_pixels
from skindx.data.loader.settings import DiskCache, LoaderSettings, MemoryCache
from skindx.data.loader.source import Files, ImageSource, InMemory
from skindx.data.manifest import Record, Split, box_labels, split_of
from skindx.models.detector import GREY, letterbox
from skindx.training.config.ensemble import BoxAugment, DetectorSettings
from skindx.training.parallel.mesh import Mesh

if TYPE_CHECKING:
    from albumentations import Compose


# S = side, K = boxes

_LEAST_SIDE = 2
"""Pixels: what is smaller after a change is no lesion to learn from."""
_LEAST_VISIBLE = 0.1
"""Share of a box's area that must be left inside the square."""

Boxes = NDArray[np.float64]
Labels = NDArray[np.int64]
Change = Callable[[NDArray[np.uint8], Boxes, Labels, int], tuple[NDArray[np.uint8], Boxes, Labels]]


def box_changer(augment: BoxAugment) -> Change:
    """Return (square, boxes_K4, labels_K, seed) -> the same, changed; for any thread.

    Boxes are x1, y1, x2, y2 in pixels of the square. The seed decides everything: neither the
    thread nor the order of calls does.
    """
    local = threading.local()  # a Compose carries the generator that it was seeded with last

    def change(
        square_SS3: NDArray[np.uint8], boxes_K4: Boxes, labels_K: Labels, seed: int
    ) -> tuple[NDArray[np.uint8], Boxes, Labels]:
        if not hasattr(local, "colour"):
            local.place, local.colour = _place(augment), _colour(augment)
        if local.place:  # albumentations warns of boxes that no step could move
            local.place.set_random_seed(seed)
            moved = local.place(image=square_SS3, bboxes=boxes_K4, labels=labels_K)
            square_SS3 = moved["image"]
            boxes_K4 = np.asarray(moved["bboxes"], np.float64).reshape(-1, 4)
            labels_K = np.asarray(moved["labels"], np.int64)
        local.colour.set_random_seed(seed)
        return local.colour(image=square_SS3)["image"], boxes_K4, labels_K

    return change


def _place(augment: BoxAugment) -> "Compose | None":
    """Return what moves an image and its boxes; None when nothing does."""
    go_offline()
    import albumentations as A

    steps: list[A.BasicTransform] = [turn()] if augment.flip else []
    if augment.scale or augment.translate:
        steps.append(
            A.Affine(
                scale=(1 - augment.scale, 1 + augment.scale),
                translate_percent=(-augment.translate, augment.translate),
                keep_ratio=True,
                fill=GREY,
                p=1,
            )
        )
    boxes = A.BboxParams(
        format="pascal_voc",
        label_fields=["labels"],
        clip=True,
        min_width=_LEAST_SIDE,
        min_height=_LEAST_SIDE,
        min_visibility=_LEAST_VISIBLE,
    )
    return A.Compose(steps, bbox_params=boxes) if steps else None


def _colour(augment: BoxAugment) -> "Compose":
    """Return what changes an image's colours."""
    import albumentations as A

    jitter = A.ColorJitter(
        brightness=augment.brightness,
        contrast=0,
        saturation=augment.saturation,
        hue=augment.hue,
        p=1,
    )
    return A.Compose([jitter])


# B = images, S = side, K = boxes of all images


@dataclass(frozen=True)
class BoxedSet:
    """Reviewed images; one without boxes teaches what is no lesion."""

    source: ImageSource
    records: Sequence[Record]
    labels: tuple[str, ...]
    reading: Reading

    def __len__(self) -> int:
        return len(self.records)

    def boxes(self, index: int) -> tuple[Boxes, Labels]:
        """Return an image's boxes as shares of its width and height, and their class numbers."""
        record = self.records[index]
        drawn = record.boxes or ()
        size = np.array([record.width, record.height] * 2, np.float64)
        boxes_K4 = np.array([(b.x1, b.y1, b.x2, b.y2) for b in drawn], np.float64).reshape(-1, 4)
        labels_K = np.array([self.labels.index(b.label) for b in drawn], np.int64)
        return boxes_K4 / size, labels_K

    def square(self, index: int, size: int) -> tuple[NDArray[np.uint8], Boxes, Labels]:
        """Return an image in its grey square, its boxes in pixels of the square, their classes."""
        image_HW3 = self.source.image(index)
        shares_K4, labels_K = self.boxes(index)
        height, width = image_HW3.shape[:2]
        square_SS3, scale, (left, top) = letterbox(image_HW3, size)
        boxes_K4 = shares_K4 * np.array([width, height] * 2) * scale + np.array([left, top] * 2)
        return square_SS3, boxes_K4, labels_K


@dataclass(frozen=True, slots=True)
class BoxedBatch:
    """uint8 squares B x S x S x 3, and the boxes of all of them as the loss takes them."""

    images_BSS3: Tensor
    boxes_K4: Tensor
    """Centre x, y, width, height as shares of the square."""
    labels_K: Tensor
    image_K: Tensor
    """The place in the batch of each box's image."""


def open_boxed(
    dataset: Path, records: Sequence[Record], size: int, loader: LoaderSettings, mesh: Mesh
) -> tuple[BoxedSet, BoxedSet]:
    """Return the training images of all ranks, and this rank's validation images.

    Only reviewed images. Every rank calls this. Raises UserError for an image
    that is gone and for a cache that cannot be written.
    """
    labels = box_labels(records)
    train, val = looked_at(records, "train"), looked_at(records, "val")
    local_val = val[mesh.data.rank :: mesh.data.size]
    node = node_of(mesh)
    reading = Reading(
        threads_for(loader.threads, node.ranks), loader.prefetch, memory_for(mesh.device)
    )
    files = Files(dataset, train)
    source: ImageSource = files
    if isinstance(loader.cache, DiskCache):
        file = cache_folder(dataset, loader.cache) / f"boxes-{size}.pixels"
        source = open_pixels(file, files, size, threads=reading.threads)
    elif isinstance(loader.cache, MemoryCache):
        total = sum(files.size_bytes(index) for index in range(len(train)))
        source = InMemory(dataset, train, kept_share(total, node, node.ranks, sharded=False))
    return (
        BoxedSet(source, train, labels, reading),
        BoxedSet(Files(dataset, local_val), local_val, labels, reading),
    )


def looked_at(records: Sequence[Record], split: Split) -> list[Record]:
    """Return a split's images that were reviewed for boxes, also those without any."""
    return [record for record in split_of(records, split) if record.boxes is not None]


def boxed_batches(
    data: BoxedSet, shares: Sequence[NDArray[np.int64]], settings: DetectorSettings, epoch: int
) -> Iterator[BoxedBatch]:
    """Yield changed images and their boxes for each index array.

    Raises UserError for an image that is gone or damaged.
    """
    change, size = box_changer(settings.augment), settings.size
    moved: dict[int, tuple[Boxes, Labels]] = {}  # an image comes once in an epoch

    def fill(indices: Sequence[int], out_TSS3: NDArray[np.uint8]) -> None:
        for index, out_SS3 in zip(indices, out_TSS3, strict=True):
            seed = sample_seed(settings.seed, epoch, index)
            out_SS3[...], boxes_K4, labels_K = change(*data.square(index, size), seed)
            moved[index] = boxes_K4, labels_K

    with closing(data.reading.load(fill, shares, size)) as batches:
        for images_BSS3, indices_B in zip(batches, shares, strict=True):
            targets = [moved.pop(int(index)) for index in indices_B]
            yield to_batch(images_BSS3, targets)


def to_batch(images_BSS3: NDArray[np.uint8], targets: Sequence[tuple[Boxes, Labels]]) -> BoxedBatch:
    """Put the boxes of all images (pixels of the square, class numbers) one after another."""
    corners_K4 = np.concatenate([np.zeros((0, 4)), *(boxes for boxes, _ in targets)])
    corners_K4 /= images_BSS3.shape[1]
    centre_K2 = (corners_K4[:, :2] + corners_K4[:, 2:]) / 2
    size_K2 = corners_K4[:, 2:] - corners_K4[:, :2]
    labels_K = np.concatenate([np.zeros(0, np.int64), *(labels for _, labels in targets)])
    image_K = np.repeat(np.arange(len(targets)), [len(labels) for _, labels in targets])
    return BoxedBatch(
        torch.from_numpy(images_BSS3),
        torch.from_numpy(np.hstack([centre_K2, size_K2])).float(),
        torch.from_numpy(labels_K).float(),
        torch.from_numpy(image_K).float(),
    )
