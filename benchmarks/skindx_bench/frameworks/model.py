"""The compared frameworks, what each sends in a step, and a model of its iteration.

Shi et al. 2018 (arXiv 1805.03812), equation of the iteration without prefetching: it reads, copies,
computes forward and backward, communicates and updates; of the communication of a framework that
sends while backward goes on, only what backward does not hide. Communication is a latency a round
and a time a byte: a framework that sends each tensor by itself pays the latency for each of them.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from skindx.comm.grouping import MB, fixed_buckets
from skindx.core.cost.collectives import Cost
from skindx_bench.frameworks.rank import COMPILED
from skindx_methods.factored.factored import factors_pay

Sending = Literal["buckets", "factors", "whole", "tensors", "shards", "sparse"]
"""buckets: of 25 MB, the first of 1 MB; factors: inputs and output gradients of wide linear layers
at once, and the others in buckets; whole: all gradients at once; tensors: one by one; shards:
weights are gathered and gradients scattered, layer by layer; sparse: 8 bytes an element that is
sent, to one partner after the other."""

BUCKET_MB, FIRST_MB = 25, 1
FACTORED_FROM_MB = 1
"""Of a weight, by default."""
SHARDED_FROM = 1_000_000
"""Weights of a layer from which FSDP2 shards and gathers it by itself."""


@dataclass(frozen=True)
class Traffic:
    """Collectives of one step: `rounds` of latency, `volume` bytes on each rank's link.

    `last_rounds` and `last_volume` are those of the last collective, which can begin only when
    backward has ended.
    """

    rounds: float
    volume: float
    last_rounds: float
    last_volume: float


def traffic(
    sending: Sending,
    layers: Sequence[Sequence[tuple[int, ...]]],
    ranks: int,
    density: float = 0.001,
    batch: int = 1,
) -> Traffic:
    """Return what a rank sends in a step. `layers`: shapes of the tensors, layer by layer.

    A ring all-reduce takes 2 (P - 1) rounds of a P-th of the buffer, a gather or a scatter half of
    them.
    """
    if ranks == 1:
        return Traffic(0, 0, 0, 0)
    shapes = [shape for layer in reversed(layers) for shape in reversed(layer)]
    factors = [
        shape
        for shape in shapes
        if sending == "factors"
        and len(shape) == 2
        and 4 * math.prod(shape) >= FACTORED_FROM_MB * MB
        and factors_pay(batch, *shape, ranks)
    ]
    sizes = [4 * math.prod(shape) for shape in shapes if shape not in factors]
    if sending == "sparse":
        rounds = math.ceil(math.log2(ranks))
        volume = rounds * 8.0 * math.ceil(density * sum(sizes) / 4)
        return Traffic(rounds, volume, rounds, volume)
    ring, share = 2 * (ranks - 1), 2 * (ranks - 1) / ranks
    if sending == "shards":
        weights = [sum(map(math.prod, layer)) for layer in layers]
        large = [4 * count for count in weights if count >= SHARDED_FROM]
        rest = sum(sizes) - sum(large)
        # A large layer is gathered again for backward, the others are still there.
        gathered = ring * (1.5 * len(large) + 1)
        return Traffic(gathered, share * (1.5 * sum(large) + rest), ring / 2, share * rest / 2)
    if sending == "whole":
        messages = [sum(sizes)]
    elif sending == "tensors":
        messages = sizes
    else:
        messages = _grouped(sizes, fixed_buckets(sizes, BUCKET_MB, first_mb=FIRST_MB))
    gathered = (ranks - 1) * 4.0 * batch * sum(map(sum, factors))
    rounds = ring * len(messages) + (ranks - 1) * bool(factors)
    return Traffic(rounds, share * sum(messages) + gathered, ring, share * messages[-1])


def _grouped(sizes: Sequence[int], groups: Sequence[int]) -> list[int]:
    found, first = [], 0
    for count in groups:
        found.append(sum(sizes[first : first + count]))
        first += count
    return found


_TORCH = "skindx_bench.frameworks.torch_rank"


@dataclass(frozen=True)
class FrameworkArm:
    """One framework, or one exchange of ours."""

    module: str = _TORCH
    """Its rank. Arms of one module and environment share processes, which memory is enough for."""
    environment: str = ""
    """Of a peer; empty: ours."""
    kind: str = ""
    """Of the rank, where it has several."""
    options: dict[str, Any] = field(default_factory=dict)
    """What its rank is given with each network."""
    lossless: bool = True
    """Its steps are those of one process, but for rounding."""
    sending: Sending = "buckets"
    """How its gradients go to the others, for the model of its iteration."""
    hides: bool = False
    """Gradients are sent while backward goes on."""
    alone: bool = False
    """It has one rank, which takes the batches of all ranks one after the other."""

    @property
    def ours(self) -> bool:
        """One of skindx' exchanges."""
        return self.kind == "skindx"


def _skindx(exchange: dict[str, Any], **more: Any) -> FrameworkArm:
    return FrameworkArm(kind="skindx", options={"exchange": exchange}, **more)


ARMS: dict[str, FrameworkArm] = {
    "plain": FrameworkArm(kind="plain", alone=True),
    "ddp": FrameworkArm(kind="ddp", hides=True),
    "fsdp2": FrameworkArm(kind="fsdp2", sending="shards"),
    "deepspeed": FrameworkArm(kind="deepspeed", sending="whole"),
    "skindx dense": _skindx({"kind": "dense"}, sending="whole"),
    "skindx fused": _skindx({"kind": "fused", "tune": False}, hides=True),
    "skindx factored": _skindx({"kind": "factored"}, sending="factors", hides=True),
    "skindx gtopk": _skindx({"kind": "gtopk", "warmup": []}, lossless=False, sending="sparse"),
    "fabric": FrameworkArm("skindx_bench.frameworks.fabric_rank", "fabric", hides=True),
    "jax": FrameworkArm("skindx_bench.frameworks.jax_rank", "jax", sending="tensors"),
    "tensorflow": FrameworkArm(
        "skindx_bench.frameworks.tensorflow_rank", "tensorflow", sending="tensors"
    ),
}
"""Name -> arm. Of a peer the rank's module is run by the Python of its environment."""


Floats = npt.NDArray[np.float64]

_ALPHAS_S = np.concatenate([[0.0], np.geomspace(1e-5, 1e-1, 400)])
_SLOWER = np.geomspace(1.0, 30.0, 200)
"""Times by which a byte may take longer than the link alone: a processor that is shared copies it,
too. No framework is faster than the link."""
_DOUBT = 0.02
"""Relative error for which a byte may be taken to be slower by a factor of e. Few networks cannot
tell many messages from slow bytes; bytes then cost what the link says."""


@dataclass(frozen=True)
class StepPoint:
    """A measured iteration, and the stages of one rank alone with as many images."""

    network: str
    ranks: int
    traffic: Traffic
    step_s: float
    alone: Mapping[str, float]
    """Seconds of each stage on one rank that has the machine for itself."""


@dataclass(frozen=True)
class Predicted:
    """An iteration by the model that was fitted to the other networks."""

    point: StepPoint
    stages: Mapping[str, float]

    @property
    def step_s(self) -> float:
        """The sum of the stages."""
        return sum(self.stages.values())

    @property
    def error(self) -> float:
        """Relative to what was measured."""
        return self.step_s / self.point.step_s - 1


def predict(point: StepPoint, link: Cost, cores: int, *, hides: bool) -> dict[str, float]:
    """Return the seconds of each stage.

    Ranks that share cores compute at a share of their speed, also what an exchange computes.
    """
    shared = max(1.0, point.ranks / cores)
    found = {name: shared * seconds for name, seconds in point.alone.items()}
    hidden = found.get("backward", 0.0) if hides else 0.0
    waited = _waited(point.traffic, link.alpha_s, link.beta_s_per_byte, hidden)
    found["communicate"] = found.get("communicate", 0.0) + float(waited)
    return found


def _waited(
    sent: Traffic, alpha_s: float | Floats, beta_s: float | Floats, hidden: float
) -> float | Floats:
    """Return the seconds of communication less those that are hidden; the last message never is."""
    whole = sent.rounds * alpha_s + sent.volume * beta_s
    if not hidden:
        return whole
    last = sent.last_rounds * alpha_s + sent.last_volume * beta_s
    return np.maximum(last, whole - hidden)


def fit_link(points: Sequence[StepPoint], cores: int, byte_s: float, *, hides: bool) -> Cost:
    """Return the link (alpha, beta) with the least mean relative error of the iterations.

    `byte_s` is what a byte takes on the bare link. All of a grid are tried: what backward hides
    bends the sum, so that no corner is the optimum.
    """
    nothing = Cost(0.0, 0.0)
    alphas_A1, betas_B = _ALPHAS_S[:, None], byte_s * _SLOWER
    error_AB = np.zeros((len(_ALPHAS_S), len(_SLOWER)))
    for point in points:
        alone = predict(point, nothing, cores, hides=False)
        hidden = alone.get("backward", 0.0) if hides else 0.0
        step_AB = sum(alone.values()) + _waited(point.traffic, alphas_A1, betas_B, hidden)
        error_AB += np.abs(step_AB / point.step_s - 1)
    error_AB = error_AB / max(1, len(points)) + _DOUBT * np.log(_SLOWER)
    alpha, beta = np.unravel_index(error_AB.argmin(), error_AB.shape)
    return Cost(float(_ALPHAS_S[alpha]), float(betas_B[beta]))


def left_out(
    points: Sequence[StepPoint], cores: int, byte_s: float, *, hides: bool
) -> list[Predicted]:
    """Predict the iterations of each network by a link fitted to those of all others.

    Empty where there is no other network.
    """
    found = []
    for name in dict.fromkeys(point.network for point in points):
        others = [point for point in points if point.network != name]
        if not others:
            continue
        link = fit_link(others, cores, byte_s, hides=hides)
        found += [
            Predicted(point, predict(point, link, cores, hides=hides))
            for point in points
            if point.network == name
        ]
    return found


def stage_errors(
    predicted: Sequence[Predicted], measured: Sequence[Mapping[str, float]]
) -> dict[str, float]:
    """Return, by stage, the mean difference of prediction and measurement over the iteration.

    Empty where a framework compiles its stages into one.
    """
    if any(COMPILED in stages for stages in measured):
        return {}
    names = list(dict.fromkeys(name for stages in measured for name in stages))
    return {
        name: statistics.fmean(
            abs(one.stages.get(name, 0.0) - stages[name]) / one.point.step_s
            for one, stages in zip(predicted, measured, strict=True)
        )
        for name in names
        if predicted
    }
