"""Ranks send each other the images of their next shares (Kumar et al. 2017, arXiv 1711.00705).

Shares that stay for ever would show a rank the same images in each epoch, and its batch norms
with them; between epochs they are drawn again, and the encoded bytes travel instead of being read.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from skindx.core.errors import JobError
from skindx.data.loader.batches import owners
from skindx.data.loader.source import InMemory, rank_in_memory

PAPER = (
    "Shuffled shards in memory | Kumar et al., Efficient Training of Convolutional Neural Nets "
    "on Large Distributed Systems, arXiv 1711.00705, 2017 | tests/training/test_shuffler.py | "
    "docs/measured/loader.json"
)

# N = images, M = images that move, P = ranks


class RankPlace(Protocol):
    """The place of this rank among all."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...


class RankSettings(Protocol):
    """What is set of the ranks."""

    @property
    def timeout_s(self) -> float: ...


class Ranks(Protocol):
    """All ranks of a training, as far as they share images."""

    @property
    def data(self) -> RankPlace: ...
    @property
    def settings(self) -> RankSettings: ...
    @property
    def beside(self) -> int: ...
    @property
    def kept(self) -> dict[str, Any] | None: ...

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's value, in rank order, on every rank."""


CHUNK_BYTES = 64 * 2**20
"""What a rank sends and receives at a time.

Shuffling takes twice that beside the share, and a few images for each partner.
"""


@dataclass
class ShardShuffler:
    """Brings a rank's memory from one epoch's share to the next one's.

    What an epoch's share is follows from (seed, epoch, ranks) alone: a training that goes on from
    a checkpoint holds nothing at first and reads its share from the files.
    """

    source: InMemory
    sizes_N: NDArray[np.int64]
    """Bytes of the files of all images."""
    kept_P: NDArray[np.float64]
    """The share of its images that each rank can keep in memory."""
    mesh: Ranks
    group: Any
    """A gloo group of all ranks (see `gloo_group`); none: images are read from the files."""
    chunk_bytes: int = CHUNK_BYTES
    sent_bytes: int = 0
    """Images that this rank sent before the last epoch."""
    _at: tuple[int, int] | None = field(default=None, init=False)
    _places_N: NDArray[np.float64] = field(init=False)

    def __post_init__(self) -> None:
        self._places_N = np.array([rank_in_memory(index) for index in range(len(self.sizes_N))])

    def enter(self, seed: int, epoch: int) -> None:
        """Hold the share of an epoch; every rank calls this before it plans the epoch.

        Raises JobError when another rank is gone, UserError for a file that cannot be read.
        """
        if self._at == (seed, epoch):
            return
        after_N = self._owners(seed, epoch)
        self.sent_bytes = 0
        if self.group is not None and self._at == (seed, epoch - 1):
            self._shuffle(self._owners(seed, epoch - 1), after_N, epoch)
        self.source.forget_all_but(after_N == self.mesh.data.rank)
        self._at = (seed, epoch)

    def _owners(self, seed: int, epoch: int) -> NDArray[np.int64]:
        return owners(len(self.sizes_N), seed, epoch, self.mesh.data.size)

    def _shuffle(self, before_N: NDArray[np.int64], after_N: NDArray[np.int64], epoch: int) -> None:
        waves = list(self._waves(before_N, after_N))
        # Two buffers for all waves: gloo lets go of a collective's memory only some time after it.
        sizes = np.array([[self._bytes(out), self._bytes(into)] for out, into in waves])
        sending, received = (np.empty(size, np.uint8) for size in sizes.max(axis=0))
        for outgoing, incoming in waves:
            try:
                self._move(outgoing, incoming, sending, received)
            except RuntimeError as error:
                raise JobError(
                    f"the exchange of images before epoch {epoch + 1} failed on rank "
                    f"{self.mesh.data.rank}, because another rank stopped or did not answer for "
                    f"{self.mesh.settings.timeout_s:g} s ({' '.join(str(error).split())}); see "
                    "the log of that rank"
                ) from None

    def _waves(
        self, before_N: NDArray[np.int64], after_N: NDArray[np.int64]
    ) -> Iterator[tuple[list[NDArray[np.int64]], list[NDArray[np.int64]]]]:
        """Yield what goes to and what comes from each rank, in pieces that fit a chunk.

        Every pair of ranks cuts its images into the same number of pieces, so that a rank's
        share grows or shrinks evenly to its next size. What a rank sends and receives in a wave is
        at most a chunk, and one image more for each partner.
        """
        rank, world = self.mesh.data.rank, self.mesh.data.size
        # What either end does not keep is read from its file anyway.
        both_N = np.minimum(self.kept_P[before_N], self.kept_P[after_N])
        moving_M = np.flatnonzero((before_N != after_N) & (self._places_N < both_N))
        sizes_M, from_M, to_M = self.sizes_N[moving_M], before_N[moving_M], after_N[moving_M]
        busiest = max(np.bincount(ends, sizes_M, world).max() for ends in (from_M, to_M))
        count = max(1, int(np.ceil(busiest / self.chunk_bytes)))

        def pieces(mask_M: NDArray[np.bool_]) -> list[NDArray[np.int64]]:
            sizes = sizes_M[mask_M]
            starts = np.cumsum(sizes) - sizes
            piece = starts * count // max(1, int(sizes.sum()))
            return np.split(moving_M[mask_M], np.searchsorted(piece, np.arange(1, count)))

        outgoing = [pieces((from_M == rank) & (to_M == other)) for other in range(world)]
        incoming = [pieces((to_M == rank) & (from_M == other)) for other in range(world)]
        for wave in range(count):
            yield [parts[wave] for parts in outgoing], [parts[wave] for parts in incoming]

    def _bytes(self, pieces: list[NDArray[np.int64]]) -> int:
        return int(sum(self.sizes_N[piece].sum() for piece in pieces))

    def _move(
        self,
        outgoing: list[NDArray[np.int64]],
        incoming: list[NDArray[np.int64]],
        sending: NDArray[np.uint8],
        received: NDArray[np.uint8],
    ) -> None:
        """Send one piece to every rank and receive one from each, in one collective."""
        import torch
        import torch.distributed as dist

        out_splits = [int(self.sizes_N[piece].sum()) for piece in outgoing]
        in_splits = [int(self.sizes_N[piece].sum()) for piece in incoming]
        # An image leaves the share as it enters the buffer, so that no chunk is held twice.
        at = 0
        for index in np.concatenate(outgoing).tolist():
            data = self.source.take(index)
            if len(data) != self.sizes_N[index]:
                raise self.source.unreadable(index, "its size changed while the training read it")
            sending[at : at + len(data)] = np.frombuffer(data, np.uint8)
            at += len(data)
        dist.all_to_all_single(
            torch.from_numpy(received[: sum(in_splits)]),
            torch.from_numpy(sending[: sum(out_splits)]),
            in_splits,
            out_splits,
            group=self.group,
        )
        self.sent_bytes += sum(out_splits)
        at = 0
        for index in np.concatenate(incoming).tolist():
            end = at + int(self.sizes_N[index])
            self.source.hold(index, received[at:end].tobytes())
            at = end


def gloo_group(mesh: Ranks) -> Any:
    """Return a group of all ranks for bytes in memory, whatever serves the gradients.

    Every rank calls this. A collective in it that waits longer than `engine.timeout_s` fails.
    """
    import torch.distributed as dist

    return dist.new_group(backend="gloo", timeout=timedelta(seconds=mesh.settings.timeout_s))
