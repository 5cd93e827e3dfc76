"""What a node takes for one step of a network, layer by layer.

A `Trace` is one iteration of a network, tensor by tensor in backward order.
"""

import math
from itertools import accumulate
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from skindx.core.settings_base import Settings

MOST_S = 1e9
"""Seconds, thirty years: no step takes as long."""
MOST_BYTES = 10**15
MOST_TENSORS = 4096
"""Most tensors of a network: three times those of the largest published; plans compare pairs."""

Seconds = Annotated[float, Field(ge=0, le=MOST_S, allow_inf_nan=False)]
Bytes = Annotated[int, Field(ge=0, le=MOST_BYTES)]
Name = Annotated[str, Field(max_length=1000)]


class Trace(Settings):
    """One iteration on one rank, without communication; tensors in backward order."""

    names: tuple[Name, ...] = Field(min_length=1, max_length=MOST_TENSORS)
    sizes_bytes: tuple[Bytes, ...] = Field(max_length=MOST_TENSORS)
    """Bytes as sent: half of the fp32 size where gradients are sent in 16 bits."""
    backward_s: tuple[Seconds, ...] = Field(max_length=MOST_TENSORS)
    """Time from the gradient before (for the first: from the end of forward) to this one."""
    forward_s: Seconds = 0.0
    update_s: Seconds = 0.0

    @model_validator(mode="after")
    def _one_of_each(self) -> Self:
        counts = {len(self.names), len(self.sizes_bytes), len(self.backward_s)}
        if len(counts) > 1:
            raise ValueError("names, sizes_bytes and backward_s must have the same length")
        if len(set(self.names)) < len(self.names):
            raise ValueError("two tensors have the same name; give each tensor its own name")
        return self

    @property
    def ready_s(self) -> list[float]:
        """When each gradient is complete, counted from the start of the iteration."""
        return list(accumulate(self.backward_s, initial=self.forward_s))[1:]


Count = Annotated[int, Field(ge=1, le=10**12)]
Number = Annotated[int, Field(ge=0, le=10**12)]
Images = Annotated[int, Field(ge=1, le=10**6)]
"""Number of images in one step."""
Rate = Annotated[float, Field(ge=1, le=1e24, allow_inf_nan=False)]
"""Number of operations a second."""
Positive = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]
Shape = Annotated[tuple[Count, ...], Field(max_length=16)]
Spread = Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)]
"""Standard deviation over the mean."""


class ProfiledLayer(Settings):
    """One layer with parameters; the time of those without counts to the next one in backward."""

    name: Name
    operator: Name = ""
    forward_s: Seconds | None
    """Forward time; null: it was never measured."""
    backward_s: Seconds | None
    shapes: tuple[Shape, ...] = Field((), max_length=MOST_TENSORS)
    """Shapes of its parameters, in the order in which backward completes their gradients."""
    parameter_bytes: Bytes
    """Size of its parameters in fp32."""
    activation_bytes: Bytes = 0
    """Size of its output at the profile's batch."""
    input_bytes: Bytes = 0
    """Size of its input at the profile's batch; 0: not known."""
    outputs: Number = 0
    """Output channels or features; 0: not known, or as its shapes say."""
    groups: Count = 1
    """Groups of a grouped convolution; 1 for every other layer."""

    @model_validator(mode="after")
    def _shapes_fit(self) -> Self:
        if self.shapes and 4 * sum(map(math.prod, self.shapes)) != self.parameter_bytes:
            raise ValueError(f"{self.name}: shapes and parameter_bytes do not agree")
        return self


class AtBatch(Settings):
    """Whole steps at one batch."""

    batch: Images
    """Images of one rank in one piece."""
    compute_s: Seconds
    """Forward and backward."""
    spread: Spread = 0.0
    peak_bytes: Bytes = 0
    """Memory of the process at its highest; on a GPU of the GPU."""


class LocalWork(Settings):
    """Work of an exchange on a rank's own cores in a step, at the profile's parameters."""

    base_s: Seconds
    """Time without any merge: select, keep, scatter; project and orthogonalise; copy."""
    merge_s: Seconds = 0.0
    """Seconds to merge one message of another rank."""
    spread: Spread = 0.0
    density: float | None = Field(None, ge=0, le=1)
    """Share of elements that was sent when it was measured."""


class Rates(Settings):
    """How fast one rank multiplies matrices in single precision."""

    product_flop_s: Rate
    """Operations a second of a matrix product, an addition and a multiplication counted as two."""
    spread: Spread = 0.0


class Profile(Settings):
    """One network on one rank."""

    name: Name
    variant: Name | None = None
    """Head, arguments, trunk and what of its recipe costs time, where they are not the defaults;
    null: not known, as in traces of earlier versions."""
    size: Count | None = None
    """Side of its images in pixels."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    batch: Images = 32
    """Batch at which the layers were timed."""
    layers: tuple[ProfiledLayer, ...] = Field(min_length=1, max_length=MOST_TENSORS)
    """The layers in forward order."""
    at: tuple[AtBatch, ...] = Field((), max_length=MOST_TENSORS)
    """Two batches or more, from which others follow."""
    update_s: Seconds = 0.0
    update_spread: Spread = 0.0
    read_s: Seconds = 0.0
    """Read, decode and augment an image, on one core."""
    read_spread: Spread = 0.0
    optimizer: Name = ""
    optimizer_bytes: Bytes = 0
    """Memory of the optimizer beside the weights."""
    checkpointing: AtBatch | None = None
    """The same step with activations recomputed in backward."""
    local: dict[str, LocalWork] = Field(default_factory=dict)
    """`exchange.kind` to its work."""
    rates: Rates | None = None
    """Traces of earlier versions lack them."""

    @model_validator(mode="after")
    def _few_enough(self) -> Self:
        if (tensors := sum(max(1, len(layer.shapes)) for layer in self.layers)) > MOST_TENSORS:
            raise ValueError(
                f"the model {self.name[:80]} has {tensors} tensors, and a plan can have at most "
                f"{MOST_TENSORS}; merge the layers of a block into one"
            )
        if self.parameter_bytes > MOST_BYTES:
            raise ValueError(
                f"the model {self.name[:80]} has more than {MOST_BYTES} bytes of parameters; use "
                "a smaller model"
            )
        return self

    @property
    def parameter_bytes(self) -> int:
        """Size of all layers' parameters in fp32."""
        return sum(layer.parameter_bytes for layer in self.layers)
