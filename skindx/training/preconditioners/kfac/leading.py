"""The largest eigenvalues of a wide factor, with their eigenvectors, without all the others.

Subspace iteration from a random start (Halko, Martinsson and Tropp 2011, arXiv 0909.4061, algorithm
4.4), as for K-FAC in Puiu 2022 (arXiv 2206.15397). It costs W^2 R where all eigenvectors cost W^3.
"""

# S = 1 block, W = width of the factor, R = vectors that are carried along

import math

import torch
from torch import Tensor

from skindx.gemm.product import Multiply, plain_nt
from skindx.training.preconditioners.kfac.eigen import Eigen

NARROWEST = 512
"""A narrower factor is decomposed as a whole, which takes no longer."""
_LARGEST_SHARE = 1 / 3
"""Of the width; with more vectors, all of them come as fast."""
_FIRST, _MORE = 96, 32
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
    found = span_WR.shape[1]
    wanted = max(_FIRST, found + max(_MORE, int(_BEYOND * found)))
    rounds = _ROUNDS_AGAIN if found else _ROUNDS
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
    return max(_MORE, math.ceil(min(len(values_R), _MARGIN * more)))


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
