"""Sparse gradients: what is selected of a vector, as one message, and the sum of two of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Sparse:
    """The k elements that are kept of a vector: where (int32, ascending) and what (fp32)."""

    at_K: Tensor
    values_K: Tensor

    def pack(self) -> Tensor:
        """Return one message of 8 k bytes (int32): the values' bits, then the indices."""
        return torch.cat([self.values_K.view(torch.int32), self.at_K])

    @classmethod
    def unpack(cls, message: Tensor) -> Self:
        """Undo `pack`."""
        k = len(message) // 2
        return cls(message[k:], message[:k].view(torch.float32))

    @classmethod
    def poison(cls, k: int, device: torch.device) -> Self:
        """Return what a rank sends whose gradient is not finite: it spoils every sum, on purpose.

        So all ranks learn of it from the messages that they exchange anyway.
        """
        return cls(
            torch.arange(k, dtype=torch.int32, device=device),
            torch.full((k,), float("nan"), device=device),
        )

    @property
    def finite(self) -> bool:
        """False for poison and for what came of it."""
        return bool(self.values_K.isfinite().all())

    def scatter(self, flat: Tensor, scale: float = 1.0) -> None:
        """Add the elements, times `scale`, to a whole vector."""
        values_K = self.values_K if scale == 1.0 else self.values_K * scale
        if flat.device.type == "cpu":
            # No index stands twice, so that this is an addition.
            flat.numpy()[self.at_K.numpy()] += values_K.numpy()
        else:
            flat.index_add_(0, self.at_K, values_K)


def largest(values_N: Tensor, k: int) -> Tensor:
    """Return a mask of the k largest magnitudes; among equals the first ones."""
    if k >= len(values_N):
        return torch.ones(len(values_N), dtype=torch.bool, device=values_N.device)
    magnitude_N = values_N.abs()
    if values_N.device.type == "cpu":
        from skindx.comm.kernels import keep_largest

        array = magnitude_N.numpy()
        threshold = np.partition(array, len(array) - k)[len(array) - k]
        kept_N = np.empty(len(array), dtype=np.bool_)
        keep_largest(array, threshold, k - int((array > threshold).sum()), kept_N)
        return torch.from_numpy(kept_N)
    cut = magnitude_N.kthvalue(len(values_N) - k + 1).values
    equal_N = magnitude_N == cut
    above_N = magnitude_N > cut
    return above_N | (equal_N & (equal_N.cumsum(0) <= k - above_N.sum()))


def merge(first: Sparse, second: Sparse, k: int) -> tuple[Sparse, Sparse]:
    """Return the k largest elements of the sum of two sparse vectors, and the rest of the sum.

    `merge(a, b)` and `merge(b, a)` are equal to the bit, so that two ranks that do this for
    themselves agree. Poison stays poison.
    """
    if not (first.finite and second.finite):
        device = first.at_K.device
        none = Sparse(
            torch.empty(0, dtype=torch.int32, device=device), torch.empty(0, device=device)
        )
        return Sparse.poison(k, device), none
    at_N, values_N = _sum(first, second)
    return _split(at_N, values_N, largest(values_N, k))


def add_all(parts: Sequence[Sparse]) -> Sparse:
    """Return the sum of sparse vectors of one length, added in their order."""
    if parts[0].at_K.device.type == "cpu":
        total = parts[0]
        for part in parts[1:]:
            total = Sparse(*_sum(total, part))
        return total
    # On a GPU many small steps cost more than one large one.
    at_N, place_PK = torch.unique(torch.cat([part.at_K for part in parts]), return_inverse=True)
    values_N = torch.zeros(len(at_N), device=at_N.device)
    for part, place_K in zip(parts, place_PK.split(len(parts[0].at_K)), strict=True):
        values_N[place_K] += part.values_K
    return Sparse(at_N, values_N)


def _split(at_N: Tensor, values_N: Tensor, kept_N: Tensor) -> tuple[Sparse, Sparse]:
    if at_N.device.type != "cpu":
        other_N = ~kept_N
        return Sparse(at_N[kept_N], values_N[kept_N]), Sparse(at_N[other_N], values_N[other_N])
    from skindx.comm.kernels import split_by

    room = len(at_N) + 1
    at, others_at = np.empty(room, dtype=np.int32), np.empty(room, dtype=np.int32)
    values, others = np.empty(room, dtype=np.float32), np.empty(room, dtype=np.float32)
    count = split_by(at_N.numpy(), values_N.numpy(), kept_N.numpy(), at, values, others_at, others)
    rest = len(at_N) - count
    return (
        Sparse(torch.from_numpy(at[:count]), torch.from_numpy(values[:count])),
        Sparse(torch.from_numpy(others_at[:rest]), torch.from_numpy(others[:rest])),
    )


def _sum(first: Sparse, second: Sparse) -> tuple[Tensor, Tensor]:
    if first.at_K.device.type == "cpu":
        from skindx.comm.kernels import merge_sorted

        room = len(first.at_K) + len(second.at_K)
        at, values = np.empty(room, dtype=np.int32), np.empty(room, dtype=np.float32)
        n = merge_sorted(
            first.at_K.numpy(),
            first.values_K.numpy(),
            second.at_K.numpy(),
            second.values_K.numpy(),
            at,
            values,
        )
        return torch.from_numpy(at[:n]), torch.from_numpy(values[:n])
    both_at, inverse = torch.unique(torch.cat([first.at_K, second.at_K]), return_inverse=True)
    values_N = torch.zeros(len(both_at), device=both_at.device)
    # An index stands twice at most, and 0 + a + b does not depend on the order.
    values_N.index_add_(0, inverse, torch.cat([first.values_K, second.values_K]))
    return both_at, values_N
