"""Eigenvectors of Kronecker factors, all or the largest, and the gradient in their basis."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from skindx_methods.kfac.layers import LEAST, Multiply, plain_nt

# S = blocks, W = width of a factor, G = outputs, A = inputs

_MORE = (10.0, 100.0, 1000.0)
"""Factor of the damping that is added to a factor matrix which is not positive."""


@dataclass(frozen=True)
class Eigen:
    """A stack of symmetric matrices as vectors diag(values) vectors^T, in single precision."""

    values_SW: Tensor
    """Eigenvalues in ascending order."""
    vectors_SWW: Tensor

    @property
    def complete(self) -> bool:
        """Whether all were sought; else only the largest, and zeros stand for the others."""
        return bool(self.vectors_SWW[:, :, 0].any())


def decompose(factor_SWW: Tensor, damping: float) -> Eigen | None:
    """Return the eigenvectors of a factor, with values of at least zero.

    A factor that is not positive beyond rounding, or that LAPACK gives up on, is tried again with
    more and more damping on its diagonal. None when that does not help.
    """
    for added in (0.0, *(damping * more for more in _MORE)):
        if result := _try(factor_SWW, added):
            return result
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


# The largest eigenvalues of a wide factor, with their eigenvectors, without all the others.
#
# Subspace iteration from a random start (Halko, Martinsson and Tropp 2011, arXiv 0909.4061,
# algorithm 4.4), as for K-FAC in Puiu 2022 (arXiv 2206.15397). It costs W^2 R where all
# eigenvectors cost W^3.

# S = 1 block, W = width of the factor, R = vectors that are carried along


NARROWEST = 512
"""A narrower factor is decomposed as a whole, which takes no longer."""
_LARGEST_SHARE = 1 / 3
"""Largest share of the width; with more vectors, a full decomposition is as fast."""
_FIRST, _LEAST_MORE = 96, 32
"""Vectors to begin with, and the least that are sought beyond those found before."""
_BEYOND = 0.5
"""Share of those found before that are sought beyond them: values fall slowly there."""
_MARGIN = 1.25
"""Times the vectors that are missing: the lowest values fall faster than those that follow."""
_ROUNDS, _ROUNDS_AGAIN = 3, 2
"""Products with the factor before its eigenvectors are sought in their span: from a random start,
and from eigenvectors of an older average."""
_BELOW = 0.5
"""The smallest value that is found must be less than this times the least that is asked for: then
the span holds all that are larger."""


def leading(
    factor_SWW: Tensor, least: float, before: Eigen | None, multiply: Multiply = plain_nt
) -> Eigen | None:
    """Return the eigenvectors whose values are `least` or more; zeros for the others.

    They are sought from those of `before`, of an older average, and random ones. None where that is
    not worth it or fails, so that all are to be computed.
    """
    blocks, width, _ = factor_SWW.shape
    most = int(width * _LARGEST_SHARE)
    if blocks > 1 or width < NARROWEST or not bool(factor_SWW.isfinite().all()):
        return None
    factor_WW = factor_SWW[0]
    generator = torch.Generator().manual_seed(width)
    span_WR = _known(before, width, least)
    if span_WR is None:
        span_WR = factor_WW.new_empty(width, 0)
    result = span_WR.shape[1]
    wanted = max(_FIRST, result + max(_LEAST_MORE, int(_BEYOND * result)))
    rounds = _ROUNDS_AGAIN if result else _ROUNDS
    while wanted <= most:
        fresh = torch.randn(width, wanted - span_WR.shape[1], generator=generator)
        span_WR = torch.cat([span_WR, fresh.to(factor_WW)], dim=1)
        for _ in range(rounds):
            span_WR = torch.linalg.qr(multiply(factor_WW, span_WR.mT)).Q
        values_R, turned_RR = torch.linalg.eigh(span_WR.mT @ multiply(factor_WW, span_WR.mT))
        span_WR = span_WR @ turned_RR
        if not bool(values_R.isfinite().all()):
            return None
        if float(values_R[0]) < _BELOW * least:
            return _filled(values_R, span_WR, least)
        wanted += _missing(values_R, least)
    return None


def _missing(values_R: Tensor, least: float) -> int:
    """Return how many more vectors reach down far enough, if values go on to fall as they do."""
    half = len(values_R) // 2
    lowest, middle = float(values_R[0]), float(values_R[half])
    fall = math.log(max(middle / lowest, 1.0)) / half
    more = math.log(lowest / (_BELOW * least)) / fall if fall else math.inf
    return max(_LEAST_MORE, math.ceil(min(len(values_R), _MARGIN * more)))


def nothing(factor_SWW: Tensor) -> Eigen:
    """Return no eigenvectors at all: zeros for every one."""
    return Eigen(factor_SWW.new_zeros(factor_SWW.shape[:2]), torch.zeros_like(factor_SWW))


def _known(before: Eigen | None, width: int, least: float) -> Tensor | None:
    if before is None:
        return None
    first = width - int((before.values_SW[0] >= least).sum())
    return before.vectors_SWW[0, :, first:]


def _filled(values_R: Tensor, vectors_WR: Tensor, least: float) -> Eigen:
    """Return what is large enough at the end of zeros."""
    width = len(vectors_WR)
    first = int((values_R < least).sum())
    values_SW = values_R.new_zeros(1, width)
    vectors_SWW = vectors_WR.new_zeros(1, width, width)
    count = len(values_R) - first
    values_SW[0, width - count :] = values_R[first:]
    vectors_SWW[0, :, width - count :] = vectors_WR[:, first:]
    return Eigen(values_SW, vectors_SWW)


# S = blocks, G = outputs, A = inputs, H, K = eigenvectors of G and of A that count


_SMALL = 32
"""Blocks of one output and at most so many inputs have their inverse written out."""
STEEPEST = 1e4
"""Largest eigenvalue over the damping at which some may be left out: the way round them subtracts
numbers of that ratio, in single precision."""


@dataclass(frozen=True)
class Basis:
    """A large layer's eigenvectors, and the factors of the gradient between them."""

    inside_SAK: Tensor
    outside_SGH: Tensor
    scale_SHK: Tensor
    rest: float
    """Factor of the gradient outside these eigenvectors' span; 0: there is nothing outside."""

    def natural(self, gradient_SGA: Tensor, multiply: Multiply) -> Tensor:
        """Return the gradient times the inverse; `multiply` makes A B^T of A and B."""
        if not self.scale_SHK.numel():
            return gradient_SGA * self.rest
        if len(gradient_SGA) == 1:
            return self._of_one(gradient_SGA[0], multiply)[None]
        rotated_SHK = self.outside_SGH.mT @ (gradient_SGA @ self.inside_SAK)
        natural_SGA = multiply(self.outside_SGH @ rotated_SHK.mul_(self.scale_SHK), self.inside_SAK)
        return natural_SGA.add_(gradient_SGA, alpha=self.rest) if self.rest else natural_SGA

    def _of_one(self, gradient_GA: Tensor, multiply: Multiply) -> Tensor:
        """Return the same of one block: torch gets to plain matrices in a third of the time."""
        inside_AK, inside_KA, outside_GH, outside_HG, scale_HK = self._matrices
        # The choice of a smaller product takes longer than it saves.
        large = len(gradient_GA) * inside_AK.numel() >= LEAST
        rotated_GK = multiply(gradient_GA, inside_KA) if large else torch.mm(gradient_GA, inside_AK)
        rotated_HK = torch.mm(outside_HG, rotated_GK).mul_(scale_HK)
        turned_GK = torch.mm(outside_GH, rotated_HK)
        if large:
            natural_GA = multiply(turned_GK, inside_AK)
            return natural_GA.add_(gradient_GA, alpha=self.rest) if self.rest else natural_GA
        # With rest = 0 the gradient is not read.
        return torch.addmm(gradient_GA, turned_GK, inside_KA, beta=self.rest)

    @cached_property
    def _matrices(self) -> tuple[Tensor, ...]:
        """Matrices of the first block, each as it is and transposed."""
        inside_AK, outside_GH = self.inside_SAK[0], self.outside_SGH[0]
        return inside_AK, inside_AK.mT, outside_GH, outside_GH.mT, self.scale_SHK[0]


def _basis(inside: Eigen, outside: Eigen, damping: float, negligible: float) -> Basis:
    """Prepare Q_G [(Q_G^T gradient Q_A) / (v_G v_A^T + damping)] Q_A^T (arXiv 2007.00784, eq. 15).

    Curvatures v_G v_A below the floor, negligible x damping, are taken for the floor (the end of
    the spectrum as in Puiu 2022, arXiv 2206.15397). Eigenvectors with no larger ones need no
    products, for with r = 1 / (floor + damping) the above is

        r gradient + Q_G [(Q_G^T gradient Q_A) (1 / (v_G v_A^T + damping) - r)] Q_A^T

    It changes nowhere by a jump, so that ranks and rounding make no more difference than before.
    """
    floor = negligible * damping
    v_a, v_g = inside.values_SW, outside.values_SW
    top_a, top_g = v_a[:, -1:], v_g[:, -1:]  # values ascend
    from_a = v_a.shape[1] - _counted(v_a * top_g > floor)
    from_g = v_g.shape[1] - _counted(v_g * top_a > floor)
    steep = float((top_a * top_g).max()) > STEEPEST * damping
    whole = not (from_a or from_g) or (steep and inside.complete and outside.complete)
    if whole:
        from_a = from_g = 0
    curvature = (v_g[:, from_g:, None] * v_a[:, None, from_a:]).clamp_min_(floor)
    rest = 0.0 if whole else 1 / (floor + damping)
    return Basis(
        inside.vectors_SWW[:, :, from_a:].contiguous(),
        outside.vectors_SWW[:, :, from_g:].contiguous(),
        (curvature + damping).reciprocal_().sub_(rest),
        rest,
    )


def _counted(holds_SW: Tensor) -> int:
    return int(holds_SW.sum(1).max())


@dataclass(frozen=True)
class Small:
    """Layers of small blocks with one output, as batch norms have, in one stack."""

    names: tuple[str, ...]
    blocks: tuple[int, ...]
    """Number of blocks of each layer."""
    inverse_SAA: Tensor

    def natural(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return all layers' gradients_S1A times the inverse of their blocks."""
        stacked_S1A = torch.cat([gradients[name] for name in self.names])
        # Products of tiny matrices take longer than their numbers.
        natural_SA = (self.inverse_SAA * stacked_S1A).sum(2)
        parts = torch.split(natural_SA[:, None], list(self.blocks))
        return dict(zip(self.names, parts, strict=True))


def _is_small(inside: Eigen, outside: Eigen | None) -> bool:
    """True when the layer goes into a stack."""
    one = outside is None or outside.values_SW.shape[1] == 1
    return one and inside.values_SW.shape[1] <= _SMALL


def _stacked(layers: Mapping[str, tuple[Eigen, Eigen | None]], damping: float) -> Sequence[Small]:
    """Return a stack of each width; without its second factor a layer's G is 1."""
    by_width: dict[int, dict[str, Tensor]] = {}
    for name, (inside, outside) in layers.items():
        values = inside.values_SW
        if outside:
            values = outside.values_SW * values
        vectors = inside.vectors_SWW
        inverse = (vectors / (values + damping)[:, None, :]) @ vectors.mT
        by_width.setdefault(vectors.shape[1], {})[name] = inverse
    return [
        Small(
            tuple(inverses),
            tuple(len(part) for part in inverses.values()),
            torch.cat(list(inverses.values())),
        )
        for inverses in by_width.values()
    ]


@dataclass(frozen=True)
class Inverse:
    """The damped inverse of all layers of a rank."""

    large: Mapping[str, Basis]
    small: Sequence[Small]

    def natural(self, gradients: Mapping[str, Tensor], multiply: Multiply) -> dict[str, Tensor]:
        """Return gradients_SGA times it, by layer."""
        done = {
            name: basis.natural(gradients[name], multiply) for name, basis in self.large.items()
        }
        for stack in self.small:
            done |= stack.natural(gradients)
        return done


def make_inverse(
    layers: Mapping[str, tuple[Eigen, Eigen | None]], damping: float, negligible: float
) -> Inverse:
    """Prepare the layers, each with the eigenvectors of its A and, unless it is 1, of its G."""
    small = {name: pair for name, pair in layers.items() if _is_small(*pair)}
    large = {
        name: _basis(inside, outside or _one(inside), damping, negligible)
        for name, (inside, outside) in layers.items()
        if name not in small
    }
    return Inverse(large, _stacked(small, damping))


def _one(inside: Eigen) -> Eigen:
    blocks = len(inside.values_SW)
    ones = inside.values_SW.new_ones(blocks, 1)
    return Eigen(ones, ones[:, :, None])
