"""A network's body that skips zeros where that is faster: timed on images, kept as choices.

The file holds choices alone; the weights are the network's own, in the bundle's safetensors.
"""

import hashlib
import logging
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from skindx.core.atomic_files import write_json
from skindx.core.errors import UserError
from skindx.core.machine import cache_folder, cpu_count
from skindx.core.measurement import interleave, torch_threads
from skindx.models.classifier.classifier import Classifier
from skindx.models.ensemble import Body
from skindx.models.exports.sparse_backend import Choice, LayerRecord, Setting, SparseRecord
from skindx.models.exports.sparse_graph import (
    FusedBody,
    FusedConvolution,
    dense_choices,
    fingerprint,
    fuse,
    setting_of,
)

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


log = logging.getLogger(__name__)

MOST_S = 60.0
"""Measuring a network when it is opened ends after so many seconds."""

_NO_ZEROS = (
    "no convolution of it reads zeros of a ReLU (activations such as SiLU and GELU make none), so "
    "there is nothing to skip"
)


def write_sparse(
    file: Path, classifier: Classifier, squares: Sequence[NDArray[np.uint8]], precision: str
) -> None:
    """Write the choices for a network, measured here on central squares S x S x 3 of images."""
    write_json(file, _measured(classifier, squares, precision).model_dump(mode="json"))


def load_sparse(file: Path, classifier: Classifier, size: int, precision: str) -> Body:
    """Return the body by its file, an untrusted one; squares have `size` pixels a side.

    On another machine than the one that measured, this one measures, once: see `_remembered`.
    Raises UserError for a file of another network.
    """
    record = SparseRecord.read(file)
    if record.alone:
        return classifier.forward_features
    body = fuse(classifier)
    able = {name for name, layer in body.layers.items() if layer.skips}
    named = {name for name, layer in record.layers.items() if "sparse" in layer.choices.values()}
    if not (record.layers.keys() <= body.layers.keys() and named <= able):
        raise UserError(f"{file} names convolutions that the network lacks; export it again.")
    choices = {choice for layer in record.layers.values() for choice in layer.choices.values()}
    if "bf16" in choices and precision != "bf16":
        raise UserError(f"{file} has layers in bf16 in an export in fp32; export it again.")
    here = fingerprint()
    if record.machine != here:
        record = _remembered(file, record, here, body, size=size, precision=precision)
    _put_all(body, record)
    return body


def layers_that_skip(file: Path) -> tuple[int, int]:
    """Return how many convolutions skip zeros for one image on one thread, and how many there are.

    Raises UserError.
    """
    record = SparseRecord.read(file)
    choices = [layer.choices.get("one") for layer in record.layers.values()]
    return choices.count("sparse"), len(choices)


def _measured(
    classifier: Classifier, squares: Sequence[NDArray[np.uint8]], precision: str
) -> SparseRecord:
    try:
        body = fuse(classifier)
    except UserError as error:
        return SparseRecord(alone=str(error))
    squares_BSS3 = torch.from_numpy(np.stack(squares))
    zeros = measure_zeros(body, squares_BSS3)
    if max(zeros.values(), default=0.0) < LEAST_ZEROS:
        return SparseRecord(alone=f"{_NO_ZEROS}.")
    _choose_all(body, squares_BSS3, zeros, precision)
    return _record(body, zeros, fingerprint())


def _choose_all(
    body: FusedBody,
    squares_BSS3: Tensor,
    zeros: dict[str, float],
    precision: str,
    thin: Thin = lambda _, input_NCHW: input_NCHW,
    *,
    end: float = math.inf,
) -> None:
    many = squares_BSS3.repeat(-(-MANY // len(squares_BSS3)), 1, 1, 1)[:MANY]
    for threads in sorted({1, cpu_count()}):
        for batch in (squares_BSS3[:1], many):
            choose(body, batch, zeros, precision, threads=threads, thin=thin, end=end)


def _record(body: FusedBody, zeros: dict[str, float], machine: str) -> SparseRecord:
    layers = {
        name: LayerRecord(zeros=zeros.get(name, 0.0), choices=layer.choices, dense=layer.dense)
        for name, layer in body.layers.items()
    }
    return SparseRecord(machine=machine, layers=layers)


def _put_all(body: FusedBody, record: SparseRecord) -> None:
    for name, layer in record.layers.items():
        for setting, choice in layer.choices.items():
            put(body, setting, {name: choice})


def _remembered(
    file: Path, record: SparseRecord, here: str, body: FusedBody, *, size: int, precision: str
) -> SparseRecord:
    """Return the choices of this machine for a file of another, from the user's cache if there.

    The images are not here: noise takes the place of what reaches a layer, with the layer's share
    of zeros. After `MOST_S` seconds convolutions that were not measured stay dense, in later
    processes too: it would take as long there.
    """
    parts = (file.read_bytes(), here.encode(), str(size).encode(), precision.encode())
    digest = hashlib.sha256(b"\0".join(parts)).hexdigest()[:32]
    cached = cache_folder() / "runtimes" / f"sparse-{digest}.json"
    with suppress(UserError, OSError):
        known = SparseRecord.read(cached)
        if known.machine == here and known.layers.keys() == body.layers.keys():
            return known
    log.info("%s was measured on another machine: measuring its convolutions here", file.name)
    zeros = {name: layer.zeros for name, layer in record.layers.items()}
    random = torch.Generator().manual_seed(0)
    squares_BSS3 = torch.randint(0, 256, (MANY, size, size, 3), dtype=torch.uint8, generator=random)
    end = time.monotonic() + MOST_S
    _choose_all(body, squares_BSS3, zeros, precision, thinned(zeros), end=end)
    if time.monotonic() >= end:
        log.warning(
            "measuring %s took its limit of %g s: what was not measured is computed densely; to "
            "measure again when the machine has less to do, delete %s",
            *(file.name, MOST_S, cached),
        )
    measured = _record(body, zeros, here)
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        write_json(cached, measured.model_dump(mode="json"))
    except OSError as error:
        log.info("the choices are not kept: %s", error)
    return measured
