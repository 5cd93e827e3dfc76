"""The pipeline of a network whose layers are placed in stages."""

from collections.abc import Callable, Mapping
from typing import Protocol, Self

from torch import Tensor, nn

from skindx.training.parallel.sharding.communicator import Communicator

PIPELINE = "pipeline"
"""What such a network calls its `Pipeline`."""


class Pipeline(Protocol):
    """This rank's stage, and the ranks before and behind it; all of them call all of it."""

    @property
    def wires(self) -> Communicator:
        """Process group of its ranks."""

    @property
    def owners(self) -> Mapping[str, int]:
        """Rank that computes each of the network's statistics, by name."""

    def __deepcopy__(self, memo: object) -> Self:
        """A copied network stands beside the same stage."""

    def forward(self, images_b: Tensor) -> Tensor:
        """Return what the network gives for this rank's images."""

    def backward(self, before_last: Callable[[], None]) -> None:
        """Go back from the gradient of what `forward` returned.

        `before_last` is called before the last micro-batch makes this rank's gradients whole.
        """

    def discard(self) -> None:
        """Forget the micro-batches that are under way."""


def pipeline_of(module: nn.Module) -> Pipeline | None:
    """Return the pipeline of a network, or of a copy of it; None: it has none."""
    found: Pipeline | None = getattr(module, PIPELINE, None)
    return found


def share_statistics(module: nn.Module) -> None:
    """Take what each rank of a pipeline has counted in its layers; all of them call this."""
    pipeline = pipeline_of(module)
    if pipeline is None:
        return
    for name, buffer in module.named_buffers():
        if name in pipeline.owners:
            values = buffer.contiguous()
            buffer.copy_(pipeline.wires.broadcast(values, pipeline.owners[name]))
