"""The operators of a network, each of which is placed on the ranks as a whole."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from skindx.planning.profile import Layer, Profile

OperatorKind = Literal["convolution", "linear", "other"]

_BY_CHANNEL = ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "BatchNormAct2d", "SyncBatchNorm")
"""They work on each channel alone, and follow the layer before them."""


@dataclass(frozen=True)
class Operator:
    """A layer with weights, and all behind it that has none; bytes are those of one image."""

    name: str
    kind: OperatorKind
    forward_s: float
    """At the profile's batch, on one rank."""
    backward_s: float
    parameter_bytes: int
    weights: int
    """Numbers of its weight matrix alone, without what else it has."""
    outputs: int
    """Channels or features; 0: not known, and so it cannot be split."""
    inputs: int
    """Features of a linear layer's weight; 0 for all else."""
    groups: int
    input_bytes: float
    """0: not known."""
    output_bytes: float
    """Of the layer itself."""
    passed_bytes: float
    """Behind its activation and pooling: what the next operator gets."""
    kept_bytes: float
    """All that backward needs of it."""

    def share(self, ranks: int) -> float:
        """Return the part of its output channels that the first of some ranks computes."""
        return 1.0 if ranks == 1 else -(-self.outputs // ranks) / self.outputs

    def parameters(self, ranks: int) -> int:
        """Return the bytes of its weights on the first of some ranks that split its channels."""
        return round(self.parameter_bytes * self.share(ranks))

    def splits(self, ranks: int) -> bool:
        """Tell whether its output channels can be shared out: one for each rank or more."""
        known = self.kind != "other" and self.groups == 1 and self.input_bytes > 0
        return ranks == 1 or (known and self.outputs >= ranks)


def kind_of(layer: Layer) -> OperatorKind:
    """Return what a layer is: the plain classes, as those derived from them may do otherwise."""
    if layer.operator == "Linear":
        return "linear"
    return "convolution" if layer.operator == "Conv2d" else "other"


def operators_of(profile: Profile) -> tuple[Operator, ...]:
    """Return the operators in forward order; a layer that was never timed counts as 0 s."""
    found: list[Operator] = []
    for layer in profile.layers:
        own = _operator(layer, profile.batch)
        if found and (not layer.parameter_bytes or layer.operator in _BY_CHANNEL):
            found[-1] = _joined(found[-1], own)
        else:
            found.append(own)
    return tuple(_chained(found))


def _operator(layer: Layer, batch: int) -> Operator:
    kind = kind_of(layer)
    weight = max(layer.shapes, key=len, default=())
    outputs = layer.outputs or (weight[0] if len(weight) > 1 and kind != "other" else 0)
    inputs = weight[1] if kind == "linear" and len(weight) == 2 else 0
    input_bytes = layer.input_bytes / batch
    if not input_bytes and inputs:  # as many positions come in as go out
        input_bytes = layer.activation_bytes / batch * inputs / outputs
    output_bytes = layer.activation_bytes / batch
    return Operator(
        name=layer.name,
        kind=kind,
        forward_s=layer.forward_s or 0.0,
        backward_s=layer.backward_s or 0.0,
        parameter_bytes=layer.parameter_bytes,
        weights=math.prod(weight) if weight else layer.parameter_bytes // 4 - outputs,
        outputs=outputs,
        inputs=inputs,
        groups=layer.groups,
        input_bytes=input_bytes,
        output_bytes=output_bytes,
        passed_bytes=output_bytes,
        kept_bytes=output_bytes,
    )


def _joined(first: Operator, second: Operator) -> Operator:
    return replace(
        first,
        forward_s=first.forward_s + second.forward_s,
        backward_s=first.backward_s + second.backward_s,
        parameter_bytes=first.parameter_bytes + second.parameter_bytes,
        # `Size` of a graph makes a few bytes for a whole batch, which are no activation.
        passed_bytes=second.passed_bytes if second.passed_bytes >= 4 else first.passed_bytes,
        kept_bytes=first.kept_bytes + second.kept_bytes,
    )


def _chained(found: Sequence[Operator]) -> Iterator[Operator]:
    """Fill in what goes in by what came out before, and the other way round."""
    for number, own in enumerate(found):
        filled = own
        if not own.input_bytes and number:
            filled = replace(own, input_bytes=found[number - 1].passed_bytes)
        if number + 1 < len(found) and found[number + 1].input_bytes:
            filled = replace(filled, passed_bytes=found[number + 1].input_bytes)
        yield filled
