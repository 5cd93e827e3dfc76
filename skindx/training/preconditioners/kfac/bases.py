"""The eigenvectors of all factors: computed on one rank each, held by a row of ranks."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor

from skindx.core.cost.assignment import Sharing
from skindx.gemm.product import Multiply, plain_nt
from skindx.training.parallel.mesh import Mesh
from skindx.training.preconditioners.kfac.eigen import Eigen, decompose
from skindx.training.preconditioners.kfac.factors import Key
from skindx.training.preconditioners.kfac.layers import INSIDE, OUTSIDE
from skindx.training.preconditioners.kfac.leading import NARROWEST, leading, nothing
from skindx.training.preconditioners.kfac.prepared import STEEPEST


class Bases:
    """This rank's eigenvectors, and the groups in which they are sent."""

    def __init__(self, shapes: Mapping[Key, tuple[int, int, int]], sharing: Sharing, mesh: Mesh):
        """Make the groups of rows and columns; every rank calls this."""
        self._shapes, self.sharing, self._mesh = shapes, sharing, mesh
        self.rank = mesh.data.rank
        self.found: dict[Key, Eigen] = {}
        """Of the layers of this rank's row, those that could be decomposed."""
        self.plain: set[str] = {name for name, _ in shapes}
        """Layers without eigenvectors, on every rank alike."""
        timeout = timedelta(seconds=mesh.settings.timeout_s)
        self._row = _own_group(sharing.rows, self.rank, timeout)
        self.column = _own_group(sharing.columns, self.rank, timeout)
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
        own = {
            key: self._decomposed(key, factors, damping, negligible, multiply)
            if key in factors
            else None
            for key in self._shapes
            if rank_of[key] == self.rank
        }
        held = [key for key in self._shapes if self.mine(key[0])]
        self.found = self._sent(held, own, self._row if self.sharing.workers > 1 else None)
        failed = {key[0] for key in held if key not in self.found}
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
                if found := leading(factor, least, self.found.get(key), multiply):
                    return found
        return decompose(factor, damping)

    def whole(self) -> dict[Key, Eigen]:
        """Return all eigenvectors on every rank; every rank calls this."""
        if len(self.sharing.rows) == 1:
            return dict(self.found)
        own = {key: self.found.get(key) for key in self._shapes if self._computes(key)}
        return self._sent(list(self._shapes), own, dist.group.WORLD)

    def load(self, whole: Mapping[Key, Eigen]) -> None:
        """Take what this rank holds of all eigenvectors; the others are dropped."""
        device = self._mesh.device
        self.found = {
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
        own: Mapping[Key, Eigen | None],
        group: dist.ProcessGroup | None,
    ) -> dict[Key, Eigen]:
        """Return the eigenvectors of `keys` that there are, each sent by its rank in the group."""
        packed = {
            key: _packed(own[key], self._shapes[key], self._mesh.device)
            if key in own
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


def _own_group(
    groups: Sequence[Sequence[int]], rank: int, timeout: timedelta
) -> dist.ProcessGroup | None:
    """Make a process group of each of some sets of ranks, and return that of this rank.

    None where it would be alone. Every rank makes all groups, in the same order.
    """
    own = None
    for ranks in groups:
        if len(ranks) < 2:
            continue
        group = dist.new_group(list(ranks), timeout=timeout)
        if rank in ranks:
            own = cast(dist.ProcessGroup, group)
    return own
