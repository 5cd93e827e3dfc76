"""What `nt_gemm` costs beside `a @ b.T`, on products so small that little else is timed."""

import time
from collections.abc import Callable, Sequence
from functools import partial

import torch

from skindx.core.measurement import interleave, torch_threads
from skindx.models.nt_product import NtChoice, bound, nt_gemm, nt_product
from skindx.models.nt_record import FEATURES, ShapeTree, TreeLeaf, TreeSplit

TINY = ((1, 9, 64), (1, 100, 512), (8, 8, 8), (8, 64, 8), (16, 16, 64), (32, 9, 32), (64, 8, 8))
"""m, n, k."""
_REPEATS = 200


def measure_overhead(choice: NtChoice | None, rounds: int) -> list[float]:
    """Return, for each tiny product, the time of `nt_gemm` over that of `a @ b.T`, less one.

    Processor time on one thread, the least of the rounds; candidates take turns.
    """
    with torch_threads(1), torch.inference_mode(), bound(nt_product(choice)):
        return [_overhead(sizes, rounds) for sizes in TINY]


def asking_tree() -> ShapeTree:
    """Return a tree that is asked for every tiny product and leaves it to NT."""
    nt = TreeLeaf(transposed=False, products=0, gain=0.0)
    last = TreeLeaf(transposed=True, products=0, gain=0.0)
    return ShapeTree(
        nodes=(
            TreeSplit(feature="m", at=20.0, below=1, above=4),
            TreeSplit(feature="n_over_k", at=0.0, below=2, above=3),
            nt,
            nt,
            last,
        ),
        dtypes=("float32",),
        least=dict.fromkeys(FEATURES, -99.0),
        most=dict.fromkeys(FEATURES, 99.0),
    )


def _overhead(sizes: Sequence[int], rounds: int) -> float:
    m, n, k = sizes
    a_MK, b_NK = torch.rand(m, k), torch.rand(n, k)
    calls = {
        "ours": partial(_repeated, lambda: nt_gemm(a_MK, b_NK)),
        "plain": partial(_repeated, lambda: a_MK @ b_NK.T),
    }
    seconds = interleave(calls, rounds, clock=time.process_time)
    return min(seconds["ours"]) / min(seconds["plain"]) - 1


def _repeated(call: Callable[[], object]) -> None:
    for _ in range(_REPEATS):
        call()
