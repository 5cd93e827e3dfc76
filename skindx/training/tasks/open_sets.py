"""The training and validation images of a member, opened alike on all ranks."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from skindx.data.loader.cache import CacheContext, Say, node_of, open_cached
from skindx.data.loader.load import Reading, load, memory_for, threads_for
from skindx.data.loader.settings import LoaderSettings
from skindx.data.loader.source import Files, ImageSource
from skindx.data.manifest import Record
from skindx.models.classifier.preprocess import Preprocess, framed_square
from skindx.training.config.run import MemberSettings
from skindx.training.parallel.mesh import Mesh
from skindx.training.tasks.image_sets import TrainingSet

# N = images, T = images of a task, S = side

_VALIDATION_BATCH = 64
_KEPT = "validation images"


@dataclass
class ValidationSet:
    """This rank's validation images, as evaluation and diagnosis see them, bit for bit."""

    source: ImageSource
    labels_N: NDArray[np.int64]
    preprocess: Preprocess
    reading: Reading
    keep: bool
    """Hold the squares in memory (N x S x S x 3 bytes) instead of decoding them in each epoch."""
    known: dict[str, NDArray[np.uint8]] | None = None
    """Where they are held instead, by their images' `hashes`."""
    hashes: Sequence[str] = ()
    _kept: list[NDArray[np.uint8]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.labels_N)

    def squares(self) -> Iterable[NDArray[np.uint8]]:
        """Return batches of the images' squares, B x S x S x 3, in order."""
        if not self.keep or self.known is not None:
            return self._load()
        if not self._kept:
            self._kept = list(self._load())
        return self._kept

    def _load(self) -> Iterator[NDArray[np.uint8]]:
        def fill(indices: Sequence[int], out_TSS3: NDArray[np.uint8]) -> None:
            for index, out_SS3 in zip(indices, out_TSS3, strict=True):
                out_SS3[...] = self._square(index)

        pieces = -(-len(self) // _VALIDATION_BATCH)
        return load(
            fill,
            np.array_split(np.arange(len(self)), pieces) if pieces else [],
            self.preprocess.size,
            threads=self.reading.threads,
            prefetch=self.reading.prefetch,
            # Cached images must not be pinned memory.
            allocate=None if self.keep else self.reading.allocate,
        )

    def _square(self, index: int) -> NDArray[np.uint8]:
        if not self.keep or self.known is None:
            return framed_square(self.source.image(index), self.preprocess)
        name = self.hashes[index]
        if name not in self.known:
            self.known[name] = framed_square(self.source.image(index), self.preprocess)
        return self.known[name]


def _known(member: MemberSettings, mesh: Mesh) -> dict[str, NDArray[np.uint8]] | None:
    """Return the validation images that this process holds from group to group."""
    if mesh.kept is None:
        return None
    kept = mesh.kept.get(_KEPT)
    if kept is None or kept[0] != member.preprocess:
        mesh.kept[_KEPT] = kept = member.preprocess, {}
    return kept[1]


def class_numbers(records: Sequence[Record], classes: Sequence[str]) -> NDArray[np.int64]:
    """Return labels_N: the place of each record's label among the classes."""
    number = {key: index for index, key in enumerate(classes)}
    return np.array([number[record.label] for record in records], dtype=np.int64)


@dataclass(frozen=True)
class TrainingData:
    """A dataset folder, its training and validation rows, and the class keys in order."""

    dataset: Path
    train: Sequence[Record]
    val: Sequence[Record]
    classes: tuple[str, ...]


OpenImages = Callable[
    [TrainingData, MemberSettings, LoaderSettings, Mesh, Say], tuple[TrainingSet, ValidationSet]
]
"""Opens what a member learns from and is validated on."""


def open_sets(
    data: TrainingData, member: MemberSettings, loader: LoaderSettings, mesh: Mesh, say: Say
) -> tuple[TrainingSet, ValidationSet]:
    """Return the training images and this rank's validation images; every rank calls this.

    `say` gets a line for what takes time or changes the order of the images. Raises
    UserError for an image that is gone and for a cache that cannot be written.
    """
    node = node_of(mesh)
    threads = threads_for(loader.threads, node.ranks)
    reading = Reading(threads, loader.prefetch, memory_for(mesh.device))
    cached = open_cached(
        Files(data.dataset, data.train),
        member.preprocess.margin_size,
        CacheContext(loader, node, mesh, say),
    )
    labels_N = class_numbers(data.train, data.classes)
    local_val = data.val[mesh.data.rank :: mesh.data.size]
    return (
        TrainingSet(
            cached.source, labels_N, cached.sharded, reading, cached.redrawn, cached.shuffler
        ),
        ValidationSet(
            Files(data.dataset, local_val),
            class_numbers(local_val, data.classes),
            member.preprocess,
            reading,
            keep=loader.cache.kind != "none",
            known=_known(member, mesh),
            hashes=[record.sha256 for record in local_val],
        ),
    )
