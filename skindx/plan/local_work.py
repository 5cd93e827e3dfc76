"""Work of a rank's own cores: each exchange's, on a rank that sends nothing, and products."""

import math
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from statistics import median, stdev

import torch
import torch.distributed as dist
from torch import Tensor, nn

from skindx.comm.exchange_kinds import EXCHANGES, AnyExchange, build_exchange
from skindx.comm.fabric import Fabric, GradientBuffer
from skindx.comm.sparse_vectors import Sparse, merge
from skindx.comm.topk import DENSITY
from skindx.core.cost.profile import LocalWork, Rates
from skindx.core.kinds import load_object

_LEAST, _REPEATS = 2, 5
_BUDGET_S = 30.0


def local_work(
    module: nn.Module, device: torch.device, budget_s: float = _BUDGET_S
) -> dict[str, LocalWork]:
    """Return the work of each kind on gradients of a module's shapes.

    Each is timed at least twice, however little `budget_s` allows.
    """
    kinds = EXCHANGES.loaded()
    timed = {name: settings for name, kind in kinds.items() if (settings := kind.timed())}
    engines = {name: kind.local_code for name, kind in kinds.items() if kind.local_code}
    part_s = budget_s / (len(timed) + len(engines) + 2)  # the cast to 16 bits and the merge too
    fabric = _Alone(device)
    gradients = GradientBuffer(list(module.named_parameters()))
    before = {parameter: parameter.grad for parameter in gradients.parameters}
    generator = torch.Generator().manual_seed(0)
    source_M = torch.randn(gradients.flat.shape, generator=generator).pow_(3).to(device)
    result = {
        name: _exchange(settings, fabric, gradients, source_M, part_s)
        for name, settings in timed.items()
    }
    for name, code in engines.items():
        result[name] = timed_work(partial(load_object(code), gradients), device, part_s)
    result["bf16"] = timed_work(
        lambda: gradients.flat.copy_(gradients.flat.bfloat16()), device, part_s
    )
    merging = timed_work(_merging(source_M), device, part_s)
    for name, settings in timed.items():
        if density := getattr(settings, "density", None):
            merged = {"merge_s": merging.base_s, "density": density}
            result[name] = result[name].model_copy(update=merged)
    for name, kind in kinds.items():
        if kind.local_as in result:
            result[name] = result[kind.local_as]
    for parameter, gradient in before.items():
        parameter.grad = gradient
    return result


class _Alone(Fabric):
    """The links of a rank without peers: nothing is sent, however many ranks there are."""

    def __init__(self, device: torch.device) -> None:
        self.rank, self.world, self.device = 0, 1, device
        self.bytes_sent = 0

    def all_reduce(self, tensor: Tensor) -> dist.Work:
        """Leave the tensor as it is."""
        return _Done()

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """Return this rank's tensor."""
        return [tensor.clone()]


class _Done(dist.Work):
    """Nothing to wait for."""

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return at once."""
        return True


def _exchange(
    settings: AnyExchange,
    fabric: Fabric,
    gradients: GradientBuffer,
    source_M: Tensor,
    budget_s: float,
) -> LocalWork:
    exchange = build_exchange(settings)
    assert exchange is not None
    exchange.attach(fabric, gradients, 1)

    def fill() -> None:
        gradients.flat.copy_(source_M)

    def work() -> None:
        for group in range(len(exchange.groups)):
            exchange.launch(group)
        exchange.finish()
        gradients.flat.copy_(source_M)  # as the next backward brings its gradients

    result = timed_work(work, fabric.device, budget_s, fill)
    exchange.close()
    return result


def _merging(source_M: Tensor) -> Callable[[], object]:
    """Return the merge of what two ranks send."""
    k = max(1, math.ceil(DENSITY * len(source_M)))
    room = len(source_M) // 2

    def sparse(seed: int) -> Sparse:
        generator = torch.Generator().manual_seed(seed)
        at_K = torch.randperm(max(room, k), generator=generator)[:k].sort().values.int()
        values_K = torch.randn(k, generator=generator)
        return Sparse(at_K.to(source_M.device), values_K.to(source_M.device))

    first, second = sparse(1), sparse(2)
    return lambda: merge(first, second, k)


def timed_work(
    call: Callable[[], object],
    device: torch.device,
    budget_s: float,
    before: Callable[[], None] = lambda: None,
) -> LocalWork:
    """Return the median of some calls, at least two; the first one compiles and does not count."""
    times: list[float] = []
    until = time.monotonic() + budget_s
    for _ in range(_REPEATS + 1):
        if len(times) > _LEAST and time.monotonic() > until:
            break
        before()
        _settle(device)
        started = time.perf_counter()
        call()
        _settle(device)
        times.append(time.perf_counter() - started)
    times = times[1:]
    middle = median(times)
    return LocalWork(base_s=middle, spread=min(10.0, stdev(times) / middle) if middle else 0.0)


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


_PRODUCT = {"cpu": 1024, "cuda": 4096}
"""Side of the matrices that are multiplied."""
_RATE_BUDGET_S = 0.2
"""Two calls are timed however long they take."""


def matrix_rates(device: torch.device) -> Rates:
    """Time a product of matrices."""
    side = _PRODUCT[device.type]
    rows_WW = torch.randn(side, side, generator=torch.Generator().manual_seed(0)).to(device)
    product = timed_work(lambda: rows_WW @ rows_WW, device, _RATE_BUDGET_S)
    return Rates(product_flop_s=2 * side**3 / product.base_s, spread=product.spread)
