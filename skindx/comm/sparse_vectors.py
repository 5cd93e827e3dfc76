"""Sparse gradients: what is selected of a vector, as one message, and the sum of two of them."""

import math
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
    at, rest_at = np.empty(room, dtype=np.int32), np.empty(room, dtype=np.int32)
    values, rest_values = np.empty(room, dtype=np.float32), np.empty(room, dtype=np.float32)
    count = split_by(
        at_N.numpy(), values_N.numpy(), kept_N.numpy(), at, values, rest_at, rest_values
    )
    rest = len(at_N) - count
    return (
        Sparse(torch.from_numpy(at[:count]), torch.from_numpy(values[:count])),
        Sparse(torch.from_numpy(rest_at[:rest]), torch.from_numpy(rest_values[:rest])),
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


_SAMPLE = 1 << 16

_DENSE = 0.05
"""From this density on the threshold is not worth guessing: nearly every block holds some."""


def add_and_select(gradient_M: Tensor, residual_M: Tensor, k: int) -> Sparse | None:
    """Add `residual_M` to `gradient_M` in place and return the k largest elements of the sum.

    Exact, and among equal magnitudes the first ones. None when the sum is not finite everywhere.
    """
    if gradient_M.device.type != "cpu":
        return _on_gpu(gradient_M, residual_M, k)
    from skindx.comm.kernels import add_and_find

    gradient, residual = gradient_M.numpy(), residual_M.numpy()
    room = min(len(gradient), 4 * k + 1024)
    guessing = k < _DENSE * len(gradient)
    threshold = _guess(gradient, residual, k) if guessing else np.float32(np.inf)
    result, values = np.empty(room, dtype=np.int32), np.empty(room, dtype=np.float32)
    count, finite = add_and_find(
        gradient, gradient.view(np.int32), residual, threshold.view(np.int32), result, values
    )
    if not finite:
        return None
    if k <= count <= room:
        at_N, values_N = torch.from_numpy(result[:count]), torch.from_numpy(values[:count])
        kept_N = largest(values_N, k)
        return Sparse(at_N[kept_N], values_N[kept_N])
    return _whole(gradient_M, k)


def _guess(
    gradient: np.ndarray[tuple[int], np.dtype[np.float32]],
    residual: np.ndarray[tuple[int], np.dtype[np.float32]],
    k: int,
) -> np.float32:
    """Return a threshold that somewhat more than k elements reach, from an even sample."""
    step = max(1, len(gradient) // _SAMPLE)
    sample = np.abs(gradient[::step] + residual[::step])
    expected = k * len(sample) / len(gradient)
    rank = math.ceil(expected + 4 * math.sqrt(expected) + 4)
    if rank >= len(sample):
        return np.float32(0)
    threshold: np.float32 = np.partition(sample, len(sample) - rank)[len(sample) - rank]
    # NaN where the sample holds one: then only NaN is found, and the sum is not finite.
    return threshold


def _whole(sum_M: Tensor, k: int) -> Sparse:
    kept_M = largest(sum_M, k)
    at_K = kept_M.nonzero().squeeze(1)
    return Sparse(at_K.int(), sum_M[at_K])


def _on_gpu(gradient_M: Tensor, residual_M: Tensor, k: int) -> Sparse | None:
    gradient_M += residual_M
    if not bool(gradient_M.isfinite().all()):
        return None
    at_K = torch.topk(gradient_M.abs(), k, sorted=False).indices.sort().values
    return Sparse(at_K.int(), gradient_M[at_K])
