"""Eigenvectors of Kronecker factors, and the gradient in their basis."""

from dataclasses import dataclass

import torch
from torch import Tensor

from skindx.gemm.product import Multiply, plain_nt

# S = blocks, W = width of a factor, G = outputs, A = inputs

_MORE = (10.0, 100.0, 1000.0)
"""Times the damping that is added to a factor which is not positive."""


@dataclass(frozen=True)
class Eigen:
    """A stack of symmetric matrices as vectors diag(values) vectors^T, in single precision."""

    values_SW: Tensor
    """Ascending."""
    vectors_SWW: Tensor

    @property
    def complete(self) -> bool:
        """False where only the largest were sought; zeros stand in for the others."""
        return bool(self.vectors_SWW[:, :, 0].any())


def decompose(factor_SWW: Tensor, damping: float) -> Eigen | None:
    """Return the eigenvectors of a factor, with values of at least zero.

    A factor that is not positive beyond rounding, or that LAPACK gives up on, is tried again with
    more and more damping on its diagonal. None when that does not help.
    """
    for added in (0.0, *(damping * more for more in _MORE)):
        if found := _try(factor_SWW, added):
            return found
    return None


def _try(factor_SWW: Tensor, added: float) -> Eigen | None:
    width = factor_SWW.shape[-1]
    if added:
        eye_WW = torch.eye(width, dtype=factor_SWW.dtype, device=factor_SWW.device)
        factor_SWW = factor_SWW + added * eye_WW
    try:
        values_SW, vectors_SWW = torch.linalg.eigh(factor_SWW)
    except RuntimeError:  # LinAlgError, or what a GPU's library says instead
        return None
    rounding = 10 * width * torch.finfo(values_SW.dtype).eps
    low, high = values_SW.aminmax()
    if not bool((low >= -rounding * high.abs()) & vectors_SWW.isfinite().all()):
        return None
    return Eigen(values_SW.clamp_min(0.0), vectors_SWW)


def precondition(
    gradient_SGA: Tensor,
    inside: Eigen,
    outside: Eigen | None,
    damping: float,
    multiply: Multiply = plain_nt,
) -> Tensor:
    """Return Q_G [(Q_G^T gradient Q_A) / (v_G v_A^T + damping)] Q_A^T (arXiv 2007.00784, eq. 15).

    It is (A kron G + damping)^-1 times the gradient. Without `outside`, G is 1. `multiply` makes
    the product with Q_A^T.
    """
    rotated_SGA = gradient_SGA @ inside.vectors_SWW
    scale = inside.values_SW[:, None, :]
    if outside:
        rotated_SGA = outside.vectors_SWW.transpose(1, 2) @ rotated_SGA
        scale = outside.values_SW[:, :, None] * scale
    rotated_SGA = rotated_SGA / (scale + damping)
    if outside:
        rotated_SGA = outside.vectors_SWW @ rotated_SGA
    return multiply(rotated_SGA, inside.vectors_SWW)
