"""Running averages of all factors, and their eigenvectors: each computed on one rank."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import cached_property
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor

from skindx.comm.grouping import fixed_buckets
from skindx.training.parallel.mesh import Mesh
from skindx_methods.kfac.eigen import (
    NARROWEST,
    STEEPEST,
    Eigen,
    decompose,
    leading,
    nothing,
)
from skindx_methods.kfac.layers import INSIDE, OUTSIDE, Layer, Multiply, Sums, plain_nt
from skindx_methods.kfac.sharing import Sharing

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


class EigenBases:
    """This rank's eigenvectors, and the groups in which they are sent."""

    def __init__(self, shapes: Mapping[Key, tuple[int, int, int]], sharing: Sharing, mesh: Mesh):
        """Make the groups of rows and columns; every rank calls this."""
        self._shapes, self.sharing, self._mesh = shapes, sharing, mesh
        self.rank = mesh.data.rank
        self.eigen_of: dict[Key, Eigen] = {}
        """Eigenvectors of those layers of this rank's row that could be decomposed."""
        self.plain: set[str] = {name for name, _ in shapes}
        """Layers without eigenvectors, on every rank alike."""
        timeout = timedelta(seconds=mesh.settings.timeout_s)
        self._row = _local_group(sharing.rows, self.rank, timeout)
        self.column = _local_group(sharing.columns, self.rank, timeout)
        """The group in which this rank sends finished gradients, where there are several rows."""

    def mine(self, name: str) -> bool:
        """True when this rank holds the eigenvectors of a layer."""
        return self.rank in self.sharing.rows[self.sharing.row_of[name]]

    def renew(
        self,
        factors: Mapping[Key, Tensor],
        damping: float,
        negligible: float = 0.0,
        multiply: Multiply = plain_nt,
    ) -> None:
        """Decompose this rank's part and send it to its row; every rank calls this.

        Of wide factors eigenvectors may be left out whose curvature is less than `negligible`
        times the damping, whatever the other factor's direction; `multiply` makes the products.
        """
        rank_of = self.sharing.rank_of
        local = {
            key: self._decomposed(key, factors, damping, negligible, multiply)
            if key in factors
            else None
            for key in self._shapes
            if rank_of[key] == self.rank
        }
        held = [key for key in self._shapes if self.mine(key[0])]
        self.eigen_of = self._sent(held, local, self._row if self.sharing.workers > 1 else None)
        failed = {key[0] for key in held if key not in self.eigen_of}
        ranks = self._mesh.gather(sorted(failed)) if self.sharing.ranks > 1 else [sorted(failed)]
        self.plain = {name for names in ranks for name in names}

    def _decomposed(
        self,
        key: Key,
        factors: Mapping[Key, Tensor],
        damping: float,
        negligible: float,
        multiply: Multiply,
    ) -> Eigen | None:
        factor = factors[key]
        other = factors.get((key[0], OUTSIDE if key[1] == INSIDE else INSIDE))
        if negligible and factor.shape[1] >= NARROWEST and other is not None:
            largest = _largest(other)
            if largest == 0:  # as behind a norm whose scale begins at zero: no direction counts
                return nothing(factor)
            steep = largest * float(torch.linalg.matrix_norm(factor).max()) > STEEPEST * damping
            if not steep and largest > 0:
                least = negligible * damping / largest
                if result := leading(factor, least, self.eigen_of.get(key), multiply):
                    return result
        return decompose(factor, damping)

    def whole(self) -> dict[Key, Eigen]:
        """Return all eigenvectors on every rank; every rank calls this."""
        if len(self.sharing.rows) == 1:
            return dict(self.eigen_of)
        local = {key: self.eigen_of.get(key) for key in self._shapes if self._computes(key)}
        return self._sent(list(self._shapes), local, dist.group.WORLD)

    def load(self, whole: Mapping[Key, Eigen]) -> None:
        """Take what this rank holds of all eigenvectors, and drop the rest."""
        device = self._mesh.device
        self.eigen_of = {
            key: Eigen(eigen.values_SW.to(device), eigen.vectors_SWW.to(device))
            for key, eigen in whole.items()
            if self.mine(key[0])
        }
        self.plain = {key[0] for key in self._shapes if key not in whole}

    def _computes(self, key: Key) -> bool:
        return self.sharing.rank_of[key] == self.rank

    def _sent(
        self,
        keys: list[Key],
        local: Mapping[Key, Eigen | None],
        group: dist.ProcessGroup | None,
    ) -> dict[Key, Eigen]:
        """Return the eigenvectors of `keys` that there are, each sent by its rank in the group."""
        packed = {
            key: _packed(local[key], self._shapes[key], self._mesh.device)
            if key in local
            else _empty(self._shapes[key], self._mesh.device)
            for key in keys
        }
        if group is not None:
            works = [
                dist.broadcast(packed[key], self.sharing.rank_of[key], group, async_op=True)
                for key in keys
            ]
            for work in works:
                assert work is not None
                work.wait()
        unpacked = {key: _unpacked(both) for key, both in packed.items()}
        return {key: eigen for key, eigen in unpacked.items() if eigen}


def _largest(factor_SWW: Tensor) -> float:
    """Return the largest eigenvalue, or of a wide factor a norm that is not less."""
    if factor_SWW.shape[1] < NARROWEST and bool(factor_SWW.isfinite().all()):
        return float(torch.linalg.eigvalsh(factor_SWW).max())
    return float(torch.linalg.matrix_norm(factor_SWW).max())


def _empty(shape: tuple[int, int, int], device: torch.device) -> Tensor:
    blocks, width, _ = shape
    return torch.empty(blocks, width, width + 1, device=device)


def _packed(eigen: Eigen | None, shape: tuple[int, int, int], device: torch.device) -> Tensor:
    """Return vectors and values in one tensor; what could not be decomposed is NaN."""
    if eigen is None:
        return _empty(shape, device).fill_(torch.nan)
    return torch.cat([eigen.vectors_SWW, eigen.values_SW[:, :, None]], dim=2)


def _unpacked(both: Tensor) -> Eigen | None:
    if bool(both[0, 0, -1].isnan()):
        return None
    return Eigen(both[:, :, -1].contiguous(), both[:, :, :-1].contiguous())


def _local_group(
    groups: Sequence[Sequence[int]], rank: int, timeout: timedelta
) -> dist.ProcessGroup | None:
    """Make a process group of each of some sets of ranks, and return that of this rank.

    None where it would be alone. Every rank makes all groups, in the same order.
    """
    local = None
    for ranks in groups:
        if len(ranks) < 2:
            continue
        group = dist.new_group(list(ranks), timeout=timeout)
        if rank in ranks:
            local = cast(dist.ProcessGroup, group)
    return local


# The gradients of layers as matrices in one buffer, read and written by one call each.
#
# Most layers have few numbers, so that a call for each would take longer than the numbers.

# S = blocks of a layer, G = outputs, A = inputs


class LayerMatrices:
    """Single precision matrices of some layers, for their gradients or their natural ones.

    Where a layer has a bias, its gradient is the last column.
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        """Make the buffer, of zeros."""
        self._layers = layers
        shapes = [_shape(layer) for layer in layers]
        sizes = [blocks * outputs * inputs for blocks, outputs, inputs in shapes]
        device = layers[0].weight.device if layers else None
        self.flat = torch.zeros(sum(sizes), device=device)
        """All numbers, in the layers' order."""
        self.matrices: dict[str, Tensor] = {
            layer.name: part.view(shape)
            for layer, part, shape in zip(
                layers, torch.split(self.flat, sizes), shapes, strict=True
            )
        }
        """A view_SGA of the buffer for each layer."""

    def read(self) -> None:
        """Take the gradients of the layers' weights and biases."""
        views, gradients = self._pairs()
        torch._foreach_copy_(views, gradients)

    def write(self) -> None:
        """Replace the gradients of the layers' weights and biases."""
        views, gradients = self._pairs()
        torch._foreach_copy_(gradients, views)

    def put(self, matrices: Mapping[str, Tensor]) -> None:
        """Take the matrices_SGA of some of the layers."""
        if matrices:
            views = [self.matrices[name] for name in matrices]
            torch._foreach_copy_(views, list(matrices.values()))

    def _pairs(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return views in the shape of the gradients that there are, and these."""
        result = [(view, weight.grad) for weight, view in self._views if weight.grad is not None]
        return [view for view, _ in result], [gradient for _, gradient in result]

    @cached_property
    def _views(self) -> list[tuple[Tensor, Tensor]]:
        """Weights and biases, and views of the buffer in their shape."""
        views = []
        for layer in self._layers:
            weight, bias = layer.parts()
            rows = self.matrices[layer.name].flatten(0, 1)
            if bias is not None:
                views.append((bias, rows[:, -1]))
                rows = rows[:, :-1]
            views.append((weight, rows.view(weight.shape)))
        return views


def _shape(layer: Layer) -> tuple[int, int, int]:
    blocks, inputs = layer.shapes[INSIDE]
    return blocks, layer.shapes.get(OUTSIDE, (blocks, 1))[1], inputs
