"""How fast a rank multiplies matrices and decomposes them: what K-FAC's price is made of."""

from collections.abc import Callable
from functools import partial

import torch

from skindx.planning.profile import Rates
from skindx.training.preconditioners.kfac.eigen import Eigen, precondition
from skindx.training.profiling.local_work import timed_work

# S = matrices of a stack, W = width, M = elements

_PRODUCT = {"cpu": 1024, "cuda": 4096}
"""Side of the matrices that are multiplied."""
_ELEMENTS = 1 << 23
"""Of the tensor that is read and written, beyond what a cache holds."""
_WIDTHS = (2, 16, 64, 256, 1024)
_STACKED = 512
"""Small matrices are decomposed in stacks, as those of a batch norm are: so many rows together."""
_BUDGET_S = 0.2
"""For each measurement; two calls are timed however long they take."""
_TINY = 4


def matrix_rates(device: torch.device) -> Rates:
    """Time products, memory, eigen-decompositions, and a layer of next to nothing."""
    generator = torch.Generator().manual_seed(0)
    side = _PRODUCT[device.type]
    rows_WW = torch.randn(side, side, generator=generator).to(device)
    product = timed_work(lambda: rows_WW @ rows_WW, device, _BUDGET_S)
    flat_M = rows_WW.new_ones(_ELEMENTS)
    passing = timed_work(partial(torch.mul, flat_M, 2.0), device, _BUDGET_S)
    eigen_s, spreads = [], [product.spread, passing.spread]
    for width in _WIDTHS:
        count = max(1, _STACKED // width)
        factor_SWW = torch.randn(count, width, 2 * width, generator=generator).to(device)
        factor_SWW = factor_SWW @ factor_SWW.transpose(1, 2) / width
        work = timed_work(partial(torch.linalg.eigh, factor_SWW), device, _BUDGET_S)
        eigen_s.append((width, work.base_s / count))
        spreads.append(work.spread)
    return Rates(
        product_flop_s=2 * side**3 / product.base_s,
        memory_bytes_s=2 * 4 * _ELEMENTS / passing.base_s,
        eigen_s=tuple(eigen_s),
        layer_s=timed_work(_tiny(device), device, _BUDGET_S).base_s,
        spread=sorted(spreads)[len(spreads) // 2],
    )


def _tiny(device: torch.device) -> Callable[[], None]:
    """Return a layer's way through preconditioning, KL clip and back."""
    gradient_SGA = torch.randn(1, _TINY, _TINY, device=device)
    eye_SWW = torch.eye(_TINY, device=device)[None]
    eigen = Eigen(torch.ones(1, _TINY, device=device), eye_SWW)

    def work() -> None:
        own_SGA = gradient_SGA.clone()
        natural_SGA = precondition(own_SGA, eigen, eigen, 1.0)
        length = (natural_SGA * own_SGA).sum()
        own_SGA.copy_(natural_SGA * length)

    return work
