"""PowerSGD: each matrix of the gradient as a product of two thin ones, with error feedback."""

from collections.abc import Sequence

import torch
from torch import Tensor

from skindx.comm.exchange import Exchange, State, take_over
from skindx.comm.fabric import Fabric, GradientBuffer
from skindx.comm.powersgd import PowerSGDSettings
from skindx.core.state_checks import check_like

# M = elements of the gradient; N, D = rows and columns of one matrix; R = rank


class PowerSGD(Exchange):
    """PowerSGD (Vogels et al. 2019, arXiv 1905.13727, algorithms 1 and 2), started warm.

    Matrices too small to gain, and vectors, are sent as they are. What all ranks apply is the mean
    over ranks of gradient plus residual, projected; each rank keeps what it lost by that.
    """

    remembers = True

    def __init__(self, settings: PowerSGDSettings) -> None:
        self.settings = settings

    def attach(self, fabric: Fabric, gradients: GradientBuffer, steps_per_epoch: int) -> None:
        """Draw the same thin matrices on every rank."""
        super().attach(fabric, gradients, steps_per_epoch)
        self._shapes = [_shape(parameter, self.settings.rank) for parameter in gradients.parameters]
        self._residual_M = torch.zeros_like(gradients.flat)
        generator = torch.Generator().manual_seed(0)
        self._right = [
            torch.randn(shape[1], self._rank(shape), generator=generator).to(fabric.device)
            for shape in self._shapes
            if shape
        ]

    def _rank(self, shape: tuple[int, int]) -> int:
        return min(self.settings.rank, *shape)

    def launch(self, group: int) -> None:
        """Wait for `finish`: all matrices travel together."""

    def finish(self) -> bool:
        """Project, sum the thin matrices, and keep what the projection loses."""
        flat_M = self.gradients.flat
        sum_M = flat_M + self._residual_M
        spans = list(zip(self.gradients.offsets, self.gradients.sizes, strict=False))
        matrices, plain = [], []
        for shape, (start, size) in zip(self._shapes, spans, strict=True):
            span = sum_M[start : start + size]
            if shape:
                matrices.append(span.view(shape))
            else:
                plain.append(span)
        left = [
            matrix_ND @ right_DR for matrix_ND, right_DR in zip(matrices, self._right, strict=True)
        ]
        left, plain_mean = self._mean(left), self._mean(plain)
        if not all(bool(tensor.isfinite().all()) for tensor in [*left, *plain_mean]):
            return False
        left = [_orthogonal(each_NR) for each_NR in left]
        right = self._mean(
            [matrix_ND.T @ left_NR for matrix_ND, left_NR in zip(matrices, left, strict=True)]
        )
        if not all(bool(tensor.isfinite().all()) for tensor in right):
            return False
        self._write(sum_M, left, right, plain_mean)
        self._right = right
        return True

    def _write(
        self, sum_M: Tensor, left: list[Tensor], right: list[Tensor], plain: list[Tensor]
    ) -> None:
        """Put the mean into the gradient, and into the residual what it leaves of this rank's."""
        thin, whole = iter(zip(left, right, strict=True)), iter(plain)
        for number, (shape, size) in enumerate(
            zip(self._shapes, self.gradients.sizes, strict=True)
        ):
            start = self.gradients.offsets[number]
            span = self.gradients.flat[start : start + size]
            if shape:
                left_NR, right_DR = next(thin)
                torch.mm(left_NR, right_DR.T, out=span.view(shape))
            else:
                span.copy_(next(whole))
                sum_M[start : start + size] = span  # sent in full: nothing is kept
        self._residual_M = sum_M.sub_(self.gradients.flat)

    def _mean(self, tensors: list[Tensor]) -> list[Tensor]:
        """Return the means over ranks, sent as one message."""
        if not tensors:
            return []
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        self.fabric.all_reduce(flat).wait()
        flat /= self.fabric.world
        parts = torch.split(flat, [tensor.numel() for tensor in tensors])
        return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]

    def state_dict(self) -> State:
        return {"residual": self._residual_M, "right": list(self._right)}

    def load_state_dict(self, states: Sequence[State]) -> None:
        take_over(self._residual_M, states, "residual", self.fabric)
        check_like(states[0].get("right"), self._right, "exchange/right")
        self._right = [tensor.to(self.fabric.device) for tensor in states[0]["right"]]


def _shape(parameter: Tensor, rank: int) -> tuple[int, int] | None:
    """Return rows and columns of a parameter's matrix, or None where thin ones are no smaller."""
    if parameter.ndim < 2:
        return None
    rows, columns = len(parameter), parameter[0].numel()
    thin = min(rank, rows, columns) * (rows + columns)
    return (rows, columns) if thin < parameter.numel() else None


def _orthogonal(matrix_NR: Tensor) -> Tensor:
    """Return an orthonormal basis of the columns."""
    basis_NR: Tensor = torch.linalg.qr(matrix_NR).Q
    return basis_NR
