"""The running averages of all factors, the same on every rank."""

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from skindx.comm.grouping import fixed_buckets
from skindx.training.preconditioners.kfac.layers import Layer, Sums

Key = tuple[str, str]
"""Layer and factor."""

_BUCKET_MB = 25


class Factors:
    """E[a a^T] and E[g g^T] of each layer, in single precision.

    They travel by a dense all-reduce whatever exchange the gradients take: an average of what was
    left out would not be positive.
    """

    def __init__(self, layers: Sequence[Layer], ranks: int, device: torch.device) -> None:
        """Begin without any; `ranks` take part."""
        self._ranks, self._device = ranks, device
        self.shapes: dict[Key, tuple[int, int, int]] = {
            (layer.name, factor): (blocks, width, width)
            for layer in layers
            for factor, (blocks, width) in layer.shapes.items()
        }
        self.averages: dict[Key, Tensor] = {}

    @property
    def bytes(self) -> int:
        """Size of all factors."""
        return sum(4 * blocks * width * width for blocks, width, _ in self.shapes.values())

    def take_in(self, sums: Mapping[str, Sums], images: int, decay: float) -> None:
        """Add the mean over the images of all ranks; every rank calls this.

        A factor that is not finite on some rank leaves the average as it was, on all of them. So
        does a step without images.
        """
        totals = {
            key: sums.get(key[0], {}).get(key[1], torch.zeros(shape, device=self._device))
            for key, shape in self.shapes.items()
        }
        if self._ranks > 1:
            count = torch.tensor(float(images), device=self._device)
            dist.all_reduce(count)
            images = round(float(count))
            totals = dict(zip(totals, _summed(list(totals.values())), strict=True))
        if not images:
            return
        # |a b| <= (a^2 + b^2) / 2: the diagonal says it of all.
        diagonals = [total.diagonal(dim1=1, dim2=2).sum() for total in totals.values()]
        finite = torch.stack(diagonals).isfinite().tolist()
        for (key, total), usable in zip(totals.items(), finite, strict=True):
            if not usable:
                continue
            old = self.averages.get(key)
            if old is None:
                self.averages[key] = total / images
            else:
                self.averages[key] = (old * decay).add_(total, alpha=(1 - decay) / images)


def _summed(tensors: list[Tensor]) -> list[Tensor]:
    """Return the sums over all ranks, which travel some at a time."""
    done: list[Tensor] = []
    for count in fixed_buckets([tensor.nbytes for tensor in tensors], _BUCKET_MB):
        group = tensors[len(done) : len(done) + count]
        flat = torch.cat([tensor.reshape(-1) for tensor in group])
        dist.all_reduce(flat)
        parts = torch.split(flat, [tensor.numel() for tensor in group])
        done += [part.view(tensor.shape) for part, tensor in zip(parts, group, strict=True)]
    return done
