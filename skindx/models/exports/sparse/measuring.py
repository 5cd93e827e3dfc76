"""Which convolutions skip zeros: each is timed beside its dense choices, on what reaches it."""

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from skindx.core.measurement import interleave, torch_threads
from skindx.models.exports.sparse.fusing import FusedBody
from skindx.models.exports.sparse.layer import FusedConvolution, dense_choices, setting_of
from skindx.models.exports.sparse.record import Choice, Setting

LEAST_ZEROS = 0.05
"""Share of zeros below which a convolution has nothing to skip."""
MANY = 4
"""Images of the setting of several."""
_ROUNDS, _END_ROUNDS = 5, 9
_LEAST_GAINS = (1.05, 1.3)
"""Of a layer alone, tried in turn: what is little faster alone may be slower among the others,
where its weights have left the cache."""
_LEAST_GAIN_IN_ALL = 1.01

Seen = Callable[[str, FusedConvolution, Tensor, Tensor | None], None]
Thin = Callable[[str, Tensor], Tensor]
"""A layer and its input -> what it is timed on."""


def measure_zeros(body: FusedBody, squares_BSS3: Tensor) -> dict[str, float]:
    """Return the share of zeros in the input of each convolution that could skip them."""
    shares: dict[str, float] = {}

    def look(name: str, layer: FusedConvolution, input_NCHW: Tensor, _: Tensor | None) -> None:
        if layer.skips:
            shares[name] = float((input_NCHW == 0).float().mean())

    with _watched(body, look):
        body(squares_BSS3)
    return shares


def choose(
    body: FusedBody,
    squares_BSS3: Tensor,
    zeros: Mapping[str, float],
    precision: str,
    *,
    threads: int,
    thin: Thin = lambda _, input_NCHW: input_NCHW,
    end: float = math.inf,
) -> dict[str, Choice]:
    """Return the choice for each convolution, and leave it in the body, for such a batch.

    Layers are timed first, in turns. Where the network as a whole is not faster with those that
    skip zeros, each convolution has its fastest dense choice. Seconds are of the processor, and of
    the clock for several threads.

    From `end` on, by `time.monotonic`, nothing more is timed: a layer that has had no turn has the
    usual dense choice, and none skips zeros where the network as a whole has had no turn.
    """
    setting = setting_of(len(squares_BSS3), threads)
    clock = time.process_time if threads == 1 else time.perf_counter
    dense: dict[str, Choice] = {}
    gains: dict[str, float] = {}

    def look(
        name: str, layer: FusedConvolution, input_NCHW: Tensor, residual_NKHW: Tensor | None
    ) -> None:
        names = dense_choices(precision)
        if time.monotonic() >= end:
            dense[name] = names[0]
            return
        input_NCHW = thin(name, input_NCHW)
        if layer.skips and zeros.get(name, 0) >= LEAST_ZEROS:
            names.append("sparse")
        calls = {name: partial(layer.by, name, input_NCHW, residual_NKHW) for name in names}
        seconds = interleave(calls, _ROUNDS, clock=clock)
        dense[name] = _fastest_dense(seconds)
        if "sparse" in seconds:
            low, middle = _ratio(seconds["sparse"], seconds[dense[name]])
            gains[name] = middle if low > 1 else 0.0  # in three of four rounds

    best = dense
    with torch_threads(threads):
        with _watched(body, look):
            body(squares_BSS3)
        for least in _LEAST_GAINS:
            if time.monotonic() >= end:
                break
            skipping: dict[str, Choice] = {
                name: "sparse" for name, gain in gains.items() if gain >= least
            }
            tried = dense | skipping
            if skipping and _faster_in_all(
                body, squares_BSS3, setting, best=tried, dense=dense, clock=clock
            ):
                best = tried
                break
    put(body, setting, best)
    for name, choice in dense.items():
        body.layers[name].dense[setting] = choice
    return best


def put(body: FusedBody, setting: Setting, choices: Mapping[str, Choice]) -> None:
    """Let the convolutions compute by these choices in a setting."""
    for name, choice in choices.items():
        body.layers[name].choices[setting] = choice


def thinned(zeros: Mapping[str, float], seed: int = 0) -> Thin:
    """Return what gives inputs their shares of zeros: for images that are only noise."""
    random = torch.Generator().manual_seed(seed)

    def thin(name: str, input_NCHW: Tensor) -> Tensor:
        if name not in zeros:
            return input_NCHW
        values = torch.randn(input_NCHW.shape, generator=random).abs_().add_(1e-3)
        values *= torch.rand(input_NCHW.shape, generator=random) >= zeros[name]
        return values.contiguous(memory_format=torch.channels_last)

    return thin


def _faster_in_all(
    body: FusedBody,
    squares_BSS3: Tensor,
    setting: Setting,
    *,
    best: Mapping[str, Choice],
    dense: Mapping[str, Choice],
    clock: Callable[[], float],
) -> bool:
    def answer(choices: Mapping[str, Choice]) -> None:
        put(body, setting, choices)
        body(squares_BSS3)

    calls = {"best": partial(answer, best), "dense": partial(answer, dense)}
    seconds = interleave(calls, _END_ROUNDS, clock=clock)
    return _ratio(seconds["best"], seconds["dense"])[1] >= _LEAST_GAIN_IN_ALL


def _fastest_dense(seconds: Mapping[Choice, list[float]]) -> Choice:
    return min(
        (name for name in seconds if name != "sparse"),
        key=lambda name: statistics.median(seconds[name]),
    )


def _ratio(ours: list[float], other: list[float]) -> tuple[float, float]:
    """Return how many times faster ours is, by round: the 25th percentile and the median."""
    ratios = [theirs / max(mine, 1e-9) for mine, theirs in zip(ours, other, strict=True)]
    low, middle, _ = statistics.quantiles(ratios, n=4, method="inclusive")
    return low, middle


@contextmanager
def _watched(body: FusedBody, look: Seen) -> Iterator[None]:
    """Show what reaches each convolution before it is computed."""

    def hook(name: str) -> Callable[[FusedConvolution, tuple[Tensor, ...]], None]:
        def seen(layer: FusedConvolution, inputs: tuple[Tensor, ...]) -> None:
            look(name, layer, inputs[0], inputs[1] if len(inputs) > 1 else None)

        return seen

    handles = [layer.register_forward_pre_hook(hook(name)) for name, layer in body.layers.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
