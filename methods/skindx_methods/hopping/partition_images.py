"""Partitions of the images: the bytes of each are opened once by one worker, for every member."""

import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from skindx.core.errors import UserError
from skindx.core.machine import free_memory
from skindx.data.loader.batches import learning, partition, steps_of
from skindx.data.loader.cache import Node, Say, cache_folder, kept_share
from skindx.data.loader.load import Reading, memory_for, threads_for
from skindx.data.loader.pixels import open_pixels
from skindx.data.loader.settings import DiskCache, LoaderSettings, MemoryCache
from skindx.data.loader.source import Files, ImageSource, InMemory
from skindx.data.manifest import Record, split_of
from skindx.training.config.run import MemberSettings, TrainSettings
from skindx.training.parallel.mesh import Mesh
from skindx.training.tasks.image_sets import TrainingSet
from skindx.training.tasks.open_sets import OpenImages, TrainingData, ValidationSet, class_numbers

# N = images


@dataclass(frozen=True)
class Partitions:
    """The images of train and validation, divided into so many partitions."""

    count: int
    owner: dict[str, int]
    """Path of an image -> its partition."""
    learned: tuple[str, ...] = ("train",)
    """Splits that at least one member learns from."""

    @classmethod
    def of(cls, records: Sequence[Record], settings: TrainSettings, count: int) -> "Partitions":
        """Deal out the images in manifest order, so that labels and sources are even.

        Where members learn from folds, train and val are divided as one.
        """
        folds = any(member.fold is not None for member in settings.members)
        parts = [learning(records)] if folds else [split_of(records, s) for s in ("train", "val")]
        owner = {record.path: place % count for part in parts for place, record in enumerate(part)}
        return cls(count, owner, ("train", "val") if folds else ("train",))

    def owner_N(self, records: Sequence[Record]) -> NDArray[np.int64]:  # noqa: N802
        """Return the partition of each of some images."""
        return np.array([self.owner[record.path] for record in records], dtype=np.int64)

    def least_of_visits(self, records: Sequence[Record], batch: int) -> int:
        """Return the fewest images of a step, of a member that learns from these records."""
        owner_N = self.owner_N(records)
        count_P = np.bincount(owner_N, minlength=self.count)
        steps_P = Visits(owner_N, self.count).steps(batch)
        return min(int(count) // steps for count, steps in zip(count_P, steps_P, strict=True))

    def of_partition(self, records: Sequence[Record], number: int) -> list[Record]:
        """Return those images that lie in a partition, in order."""
        return [record for record in records if self.owner.get(record.path) == number]


def check_partitions(records: Sequence[Record], settings: TrainSettings, count: int) -> None:
    """Raise UserError when a partition gives a member less than a batch."""
    partitions = Partitions.of(records, settings, count)
    for member in settings.members:
        train, _ = partition(records, member.fold, settings.folds)
        least = int(np.bincount(partitions.owner_N(train), minlength=count).min())
        batch = settings.recipe_of(member).batch
        if batch > least:
            raise UserError(
                f"member {member.name}: recipe.batch={batch} is more than the {least} training "
                f"images in the smallest of {count} partitions; lower recipe.batch or "
                "engine.partitions."
            )


def partitions_of(settings: TrainSettings, workers: int) -> int:
    """Return into how many partitions a run's training split is cut at its first start."""
    wanted = settings.engine.partitions
    return workers if wanted == "auto" else wanted


# N = images of a member, S = side


@dataclass
class Visits:
    """Where each image lies, and which partitions an epoch has visited; the last one is here.

    The steps of a partition depend on (seed, epoch, partition) alone: whichever worker takes them,
    and whatever came before, they show the same images in the same order.
    """

    owner_N: NDArray[np.int64]
    """The partition of each image."""
    partitions: int
    order: Sequence[int] = field(default=())
    """Partitions of the current epoch."""

    def plan(self, batch: int, seed: int, epoch: int) -> list[NDArray[np.int64]]:
        """Return the image numbers of each step of the partitions in `order`."""
        steps_P = self.steps(batch)
        return [
            numbers
            for partition in self.order
            for numbers in self._steps_of(partition, steps_P[partition], seed, epoch)
        ]

    def _steps_of(
        self, partition: int, steps: int, seed: int, epoch: int
    ) -> list[NDArray[np.int64]]:
        images = np.flatnonzero(self.owner_N == partition)
        rng = np.random.default_rng((seed, epoch, self.partitions, partition))
        return np.array_split(rng.permutation(images), steps)

    def steps(self, batch: int) -> list[int]:
        """Return how many steps each partition takes; together as many as the whole split.

        Each has at least one, and otherwise its share by largest remainders.
        """
        count_P = np.bincount(self.owner_N, minlength=self.partitions)
        total = max(steps_of(len(self.owner_N), batch), self.partitions)
        quota_P = count_P * total / max(1, count_P.sum())
        steps_P = np.maximum(1, np.floor(quota_P)).astype(np.int64)
        while steps_P.sum() != total:
            over = steps_P - quota_P
            if steps_P.sum() < total:
                steps_P[np.argmin(over)] += 1
            else:
                steps_P[np.argmax(np.where(steps_P > 1, over, -np.inf))] -= 1
        return [int(steps) for steps in steps_P]


@dataclass(frozen=True)
class VisitedSet(TrainingSet):
    """The training images of a member that visits one partition after the other."""

    visits: Visits = field(kw_only=True)

    def plan(self, batch: int, seed: int, epoch: int, mesh: Mesh) -> list[list[NDArray[np.int64]]]:
        """Return the image numbers of each step of the visited partitions."""
        return [[numbers] for numbers in self.visits.plan(batch, seed, epoch)]


class Renumbered:
    """Images of a partition, asked for by their number among a member's training images."""

    def __init__(self, source: ImageSource, place_N: NDArray[np.int64]) -> None:
        self._source, self._place_N = source, place_N

    def size(self, index: int) -> tuple[int, int]:
        return self._source.size(int(self._place_N[index]))

    def image(self, index: int, at_least: tuple[int, int] | None = None) -> NDArray[np.uint8]:
        return self._source.image(int(self._place_N[index]), at_least)


@dataclass
class PartitionImages:
    """Images that a worker reads; their memory does not depend on the number of members."""

    dataset: Path
    records: Sequence[Record]
    """Records of the whole dataset."""
    partitions: Partitions
    loader: LoaderSettings
    mesh: Mesh
    _sources: dict[tuple[int, int], ImageSource] = field(default_factory=dict, init=False)
    """Sources by partition and, for a cache on disk, by side."""
    _squares: dict[int, tuple[str, ValidationSet]] = field(default_factory=dict, init=False)
    """Validation squares as the last member saw them, by partition."""

    def opener(self, number: int) -> OpenImages:
        """Return what opens a member's images in one partition."""

        def open_images(
            data: TrainingData,
            member: MemberSettings,
            loader: LoaderSettings,
            mesh: Mesh,
            say: Say,
        ) -> tuple[TrainingSet, ValidationSet]:
            records = self._records_of(number)
            place = {record.path: at for at, record in enumerate(records)}
            place_N = np.array([place.get(record.path, -1) for record in data.train], np.int64)
            training = VisitedSet(
                Renumbered(self._source(number, records, member, say), place_N),
                class_numbers(data.train, data.classes),
                sharded=False,
                reading=self._reading(),
                visits=Visits(self.partitions.owner_N(data.train), self.partitions.count),
            )
            return training, self.validation(number, data, member)

        return open_images

    def validation(self, number: int, data: TrainingData, member: MemberSettings) -> ValidationSet:
        """Return a member's validation images in a partition; perhaps with squares."""
        key = f"{member.fold} {member.preprocess.model_dump_json()}"
        if number in self._squares and self._squares[number][0] == key:
            return self._squares[number][1]
        records = self.partitions.of_partition(data.val, number)
        result = ValidationSet(
            Files(self.dataset, records),
            class_numbers(records, data.classes),
            member.preprocess,
            self._reading(),
            keep=self.loader.cache.kind != "none",
        )
        self._squares[number] = (key, result)
        return result

    def has(self, number: int) -> bool:
        """True when the images of a partition are open."""
        return any(known == number for known, _ in self._sources)

    def forget_all_but(self, numbers: Sequence[int]) -> None:
        """Close the partitions that another worker holds now."""
        self._sources = {k: v for k, v in self._sources.items() if k[0] in numbers}
        self._squares = {k: v for k, v in self._squares.items() if k in numbers}

    def _records_of(self, number: int) -> list[Record]:
        """Return the partition's images from which some member learns, in manifest order."""
        kept = [record for record in self.records if record.split in self.partitions.learned]
        return self.partitions.of_partition(kept, number)

    def _reading(self) -> Reading:
        threads = threads_for(self.loader.threads, self.mesh.beside)
        return Reading(threads, self.loader.prefetch, memory_for(self.mesh.device))

    def _source(
        self, number: int, records: Sequence[Record], member: MemberSettings, say: Say
    ) -> ImageSource:
        cache = self.loader.cache
        side = round(member.preprocess.margin_size * cache.margin) if cache.kind == "disk" else 0
        if (number, side) not in self._sources:
            files = Files(self.dataset, records)
            try:
                self._sources[number, side] = self._opened(number, files, side, say)
            except UserError as error:
                raise UserError(
                    f"partition {number + 1} of {self.partitions.count} cannot be read on "
                    f"{socket.gethostname()}: {error}"
                ) from None
        return self._sources[number, side]

    def _opened(self, number: int, files: Files, side: int, say: Say) -> ImageSource:
        cache = self.loader.cache
        if isinstance(cache, DiskCache):
            part = f"{number}of{self.partitions.count}"
            file = cache_folder(files.dataset, cache) / f"hop-{side}-{part}.pixels"

            def on_write(size_bytes: int) -> None:
                say(f"writing {len(files.records)} images, {size_bytes / 1e9:.2g} GB, to {file}")

            threads = threads_for(self.loader.threads, self.mesh.beside)
            return open_pixels(file, files, side, threads=threads, on_write=on_write)
        # Every size is asked for: a partition that is gone is found before anything is trained.
        total = sum(files.size_bytes(index) for index in range(len(files.records)))
        if not isinstance(cache, MemoryCache):
            return files
        node = Node(self.mesh.beside, self.mesh.beside, free_memory())
        share = kept_share(total * node.ranks, node, 1, sharded=False)
        return InMemory(files.dataset, files.records, share)
