"""Both ways of a product, timed in turns on random matrices until the time is spent."""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from skindx.core.machine import cpu_count, cpu_flags
from skindx.core.measurement import interleave, torch_threads
from skindx.gemm.product import free_bytes, plain_nt
from skindx.gemm.record import Device
from skindx.gemm.shape import Dtype, Shape
from skindx.gemm.shapes import Sizes

_LEAST_S = 0.001
"""A sample repeats a product until it takes as long as this."""
_MOST_REPEATS = 1000
_ONCE = 3
_ROUNDS = (4, 7)
"""Fewest and most of a product."""
_SHARES = 4
"""A product may take so many times its even share of the time."""
_BF16 = ("avx512_bf16", "amx_bf16")


@dataclass(frozen=True)
class Timed:
    """Seconds of one product by NT and by a transposed copy, one of each round."""

    shape: Shape
    nt_s: tuple[float, ...]
    transposed_s: tuple[float, ...]

    @property
    def seconds(self) -> tuple[float, float]:
        """The least of the rounds, NT first: what else the machine does only adds."""
        return min(self.nt_s), min(self.transposed_s)

    @property
    def halves(self) -> tuple["Timed", "Timed"]:
        """Every second round, and the others: what one half decides, the other one judges."""
        first, second = (
            Timed(self.shape, self.nt_s[half::2], self.transposed_s[half::2]) for half in (0, 1)
        )
        return first, second

    @property
    def ratios(self) -> tuple[float, ...]:
        """Time of NT over that with the copy, by round."""
        pairs = zip(self.nt_s, self.transposed_s, strict=True)
        return tuple(nt / transposed for nt, transposed in pairs)


def dtypes_of(device: Device) -> tuple[Dtype, ...]:
    """Return the types that this device multiplies by itself."""
    if device == "cuda":
        return ("float32", "bfloat16", "float16")
    return ("float32", "bfloat16") if cpu_flags().intersection(_BF16) else ("float32",)


def shapes_of(
    products: Sequence[Sizes], device: Device, threads: Sequence[int] = ()
) -> list[Shape]:
    """Return the products by each type; by default on one thread and on all.

    Sizes come in an order of chance, the same each time: where the time ends early, each kind has
    had its share.
    """
    threads = threads or sorted({1, cpu_count()})
    sizes = list(dict.fromkeys(products))
    random.Random(0).shuffle(sizes)  # noqa: S311 (an order)
    return [
        Shape(m, n, k, blocks, dtype, count)
        for m, n, k, blocks in sizes
        for dtype in dtypes_of(device)
        for count in (threads if device == "cpu" else [1])
    ]


def measure(
    shapes: Sequence[Shape], seconds: float, device: Device = "cpu"
) -> tuple[list[Timed], int]:
    """Time products in this order, for at most so many seconds; return how many had their turn.

    A product that alone would take too large a share of the time, or does not fit into the memory,
    is left out.
    """
    end = time.monotonic() + seconds
    found: list[Timed] = []
    for turn, shape in enumerate(shapes):
        most_s = min(_SHARES * seconds / len(shapes), end - time.monotonic())
        if most_s <= 0:
            return found, turn
        if timed := _timed(shape, most_s, device):
            found.append(timed)
    return found, len(shapes)


def _timed(shape: Shape, most_s: float, device: Device) -> Timed | None:
    if _bytes(shape) > free_bytes(torch.device(device)) / 4:
        return None
    with torch_threads(shape.threads), torch.inference_mode():
        a_MK, b_NK = (_random(shape, rows, device) for rows in (shape.m, shape.n))
        ways: dict[str, Callable[[], Tensor]] = {
            "nt": partial(plain_nt, a_MK, b_NK),
            "transposed": lambda: a_MK @ b_NK.mT.contiguous(),
        }
        once_s = 2 * _once(ways["nt"], most_s, device)  # the other one may take longer
        repeats = max(1, min(_MOST_REPEATS, round(_LEAST_S / max(once_s, 1e-9))))
        rounds = min(_ROUNDS[1], int(most_s / (2 * repeats * max(once_s, 1e-9))) - 1)
        if rounds < _ROUNDS[0]:
            return None
        clock = time.process_time if shape.threads == 1 and device == "cpu" else time.perf_counter
        calls = {name: partial(_repeated, call, repeats, device) for name, call in ways.items()}
        seconds = interleave(calls, rounds, clock=clock)
    nt_s, transposed_s = (
        tuple(max(took, 1e-9) / repeats for took in seconds[name]) for name in ways
    )
    return Timed(shape, nt_s, transposed_s)


def _random(shape: Shape, rows: int, device: Device) -> Tensor:
    size = (rows, shape.k) if not shape.blocks else (shape.blocks, rows, shape.k)
    return torch.rand(size, device=device).to(getattr(torch, shape.dtype))


def _bytes(shape: Shape) -> int:
    """Return what the matrices, the copy and the result take."""
    m, n, k = shape.m, shape.n, shape.k
    return 4 * max(1, shape.blocks) * (m * k + 2 * n * k + m * n)


def _once(call: Callable[[], Tensor], most_s: float, device: Device) -> float:
    """Return the shortest of the first calls in seconds of the clock, of one call if it is long."""
    seconds: list[float] = []
    while not seconds or (len(seconds) < _ONCE and min(seconds) < most_s / _ROUNDS[0]):
        seconds += interleave({"once": partial(_repeated, call, 1, device)}, 1, 0)["once"]
    return min(seconds)


def _repeated(call: Callable[[], Tensor], repeats: int, device: Device) -> None:
    for _ in range(repeats):
        call()
    if device == "cuda":
        torch.cuda.synchronize()


def by_matrices(timed: Sequence[Timed]) -> Mapping[Sizes, list[int]]:
    """Return the places of the timings of each product, whatever its type and threads."""
    places: dict[Sizes, list[int]] = {}
    for place, one in enumerate(timed):
        places.setdefault(one.shape.matrices, []).append(place)
    return places
