"""Base of exact exchanges that run bucket by bucket during backward."""

from abc import abstractmethod
from collections.abc import Sequence

from torch import Tensor

from skindx.buckets import fixed_buckets
from skindx.comm.background import Background
from skindx.comm.exchange import Exchange
from skindx.comm.fabric import Fabric
from skindx.comm.gradients import Gradients


class BucketedExchange(Exchange):
    """Sums buckets of a fixed size, each as soon as backward has made it, one after the other."""

    def __init__(self, bucket_mb: float) -> None:
        self._bucket_mb = bucket_mb

    def attach(self, fabric: Fabric, gradients: Gradients, steps_per_epoch: int) -> None:
        """Cut the buckets."""
        super().attach(fabric, gradients, steps_per_epoch)
        self._groups = fixed_buckets(
            [4 * elements for elements in gradients.sizes], self._bucket_mb
        )
        self._background = Background(fabric.device)

    @abstractmethod
    def sum(self, span: Tensor) -> None:
        """Sum a bucket over all ranks, in place."""

    @property
    def groups(self) -> Sequence[int]:
        """How many tensors each bucket has."""
        return self._groups

    def launch(self, group: int) -> None:
        """Begin with a bucket, while backward goes on."""
        first = sum(self._groups[:group])
        span = self.gradients.span(first, first + self._groups[group])
        self._background.do(lambda: self._mean(span))

    def _mean(self, span: Tensor) -> None:
        self.sum(span)
        span.div_(self.fabric.world)

    def finish(self) -> bool:
        """Wait for all buckets."""
        self._background.wait()
        return True

    def close(self) -> None:
        """End the thread."""
        self._background.close()
