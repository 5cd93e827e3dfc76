"""Muon: a step along the orthogonalised momentum of each matrix; AdamW for all other weights.

Jordan et al. 2024 (https://kellerjordan.github.io/posts/muon): M = 0.95 M + 0.05 G; five steps of
Newton and Schulz make all singular values of M nearly 1; W moves by the rate times 0.2 sqrt(the
longer side), which has the root mean square of AdamW's steps (Liu et al. 2025, arXiv 2502.16982,
section 2.2). timm has the code.
"""

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

from skindx.training.config.optimizers import OptimizerKind

if TYPE_CHECKING:
    from skindx.training.config.recipe import Recipe

_NARROWEST, _LONGEST = 4, 128
"""Rows or columns at least, and the larger number of them over the smaller one at most."""


class Muon(OptimizerKind):
    """Momentum of each matrix, its singular values made alike (Liu et al. 2025, arXiv 2502.16982).

    Biases, norms, depthwise kernels and the last layer are left to AdamW. A step has the length of
    AdamW's, so that rate, decay and their scaling with the batch are those of AdamW.
    """

    builds = "skindx.training.config.muon:muon"
    moments = 1  # AdamW keeps one more of the few weights that are left to it
    preconditioned = False
    matrices: ClassVar[bool] = True

    @classmethod
    def options_of(cls, shape: Sequence[int], *, last: bool) -> dict[str, Any]:
        """Leave the last layer, and what is no matrix, to AdamW."""
        return {"use_fallback": last or not is_matrix(shape)}


def is_matrix(shape: Sequence[int]) -> bool:
    """Tell whether weights are a matrix of outputs x inputs, positions of a kernel with the inputs.

    Biases, norms, depthwise kernels (one input each), tokens and position embeddings (one output)
    are none, and what has few rows or columns is not worth it; timm draws the same line.
    """
    if len(shape) < 2 or 1 in shape[:2]:
        return False
    narrow, wide = sorted((shape[0], prod(shape[1:])))
    return narrow >= _NARROWEST and wide <= _LONGEST * narrow


def muon(recipe: "Recipe") -> tuple[type[Any], dict[str, Any]]:
    """Return timm's Muon: torch's own refuses convolutions."""
    from timm.optim import Muon as TimmMuon

    return TimmMuon, {}
