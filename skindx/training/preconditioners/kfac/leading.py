"""The largest eigenvalues of a wide factor, with their eigenvectors, without all the others.

Subspace iteration from a random start (Halko, Martinsson and Tropp 2011, arXiv 0909.4061, algorithm
4.4), as for K-FAC in Puiu 2022 (arXiv 2206.15397). It costs W^2 R where all eigenvectors cost W^3.
"""

# S = 1 block, W = width of the factor, R = vectors that are carried along

import torch
from torch import Tensor

from skindx.gemm.product import Multiply, plain_nt
from skindx.training.preconditioners.kfac.eigen import Eigen

NARROWEST = 512
"""A narrower factor is decomposed as a whole, which takes no longer."""
_LARGEST_SHARE = 1 / 3
"""Of the width; with more vectors, all of them come as fast."""
_FIRST, _MORE = 96, 32
"""Vectors to begin with, and those beyond what was found before."""
_ROUNDS = 3
"""Products with the factor before its eigenvectors are sought in their span."""
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
    wanted = max(_FIRST, span_WR.shape[1] + _MORE)
    while wanted <= most:
        fresh = torch.randn(width, wanted - span_WR.shape[1], generator=generator)
        span_WR = torch.cat([span_WR, fresh.to(factor_WW)], dim=1)
        for _ in range(_ROUNDS):
            span_WR = torch.linalg.qr(multiply(factor_WW, span_WR.mT)).Q
        values_R, turned_RR = torch.linalg.eigh(span_WR.mT @ multiply(factor_WW, span_WR.mT))
        span_WR = span_WR @ turned_RR
        if not bool(values_R.isfinite().all()):
            return None
        if float(values_R[0]) < _BELOW * least:
            return _filled(values_R, span_WR, least)
        wanted *= 2
    return None


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
