"""The k largest elements of gradient plus residual: where a compressed exchange spends its time."""

import math

import numpy as np
import torch
from torch import Tensor

from skindx.comm.sparse import Sparse, largest

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
    found, values = np.empty(room, dtype=np.int32), np.empty(room, dtype=np.float32)
    count, finite = add_and_find(
        gradient, gradient.view(np.int32), residual, threshold.view(np.int32), found, values
    )
    if not finite:
        return None
    if k <= count <= room:
        at_N, values_N = torch.from_numpy(found[:count]), torch.from_numpy(values[:count])
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
