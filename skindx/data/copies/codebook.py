"""The fixed projection and codebook: the same code for the same point in every pool.

The projection is a PCA of RootSIFT descriptors whose covariance was made symmetric under the
mirror, so that each component is even or odd: a mirrored image's code is the code with the signs
of the odd components turned. The cells are those of an inverted multi-index (Babenko, Lempitsky
2012, "The inverted multi-index"): two halves of the leading components, a codebook for each.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

# P = points, D = 128 dimensions of SIFT, C = components of a code, H = 2 halves, K = words a half
# L = leading components, which the halves share; R = nearest words that are kept

FILE = Path(__file__).parent / "codebook.npz"
COMPONENTS = 64
LEADING = 32
NEAREST = 2
SCALE = 254.0
"""Of a code: a component of a descriptor of length 1 becomes a whole number of -127..127."""


def mirror_permutation() -> NDArray[np.intp]:
    """Return permutation_D: the descriptor of a mirrored patch is descriptor[permutation].

    OpenCV's SIFT has 4 rows across the point's direction, 4 columns along it, and 8 directions.
    """
    row, column, direction = np.meshgrid(range(4), range(4), range(8), indexing="ij")
    order: NDArray[np.intp] = (((3 - row) * 4 + column) * 8 + (8 - direction) % 8).ravel()
    return order


@dataclass(frozen=True)
class Codebook:
    """The package's codebook; `learn.codebook` made it of painted images."""

    mean_D: NDArray[np.float32]
    components_CD: NDArray[np.float32]
    odd_C: NDArray[np.bool_]
    words_HKL: NDArray[np.float32]
    """In units of a code; half h owns the leading components h, h + 2, ..."""

    @property
    def signs(self) -> NDArray[np.int8]:
        """Return what turns a code into that of the mirrored point."""
        signs_C: NDArray[np.int8] = np.where(self.odd_C, -1, 1).astype(np.int8)
        return signs_C

    def encode(self, descriptors_PD: NDArray[np.float32]) -> NDArray[np.int8]:
        """Return codes_PC of RootSIFT descriptors of length 1."""
        exact_PC = (descriptors_PD - self.mean_D) @ self.components_CD.T
        codes_PC: NDArray[np.int8] = np.rint(exact_PC * SCALE).clip(-127, 127).astype(np.int8)
        return codes_PC

    def nearest(self, codes_PC: NDArray[np.int8]) -> NDArray[np.uint8]:
        """Return nearest_PHR, the words of each half that are nearest to each point."""
        leading_PL = codes_PC[:, :LEADING].astype(np.float32)
        nearest_PHR = np.empty((len(codes_PC), 2, NEAREST), np.uint8)
        for half in (0, 1):
            words_KL = self.words_HKL[half]
            distance_PK = (words_KL**2).sum(1) - 2 * leading_PL[:, half::2] @ words_KL.T
            part_PR = np.argpartition(distance_PK, NEAREST, axis=1)[:, :NEAREST]
            order_PR = np.argsort(np.take_along_axis(distance_PK, part_PR, 1), axis=1)
            nearest_PHR[:, half] = np.take_along_axis(part_PR, order_PR, 1)
        return nearest_PHR


@cache
def shipped() -> Codebook:
    """Return the codebook of the package."""
    with np.load(FILE) as file:
        return Codebook(file["mean_D"], file["components_CD"], file["odd_C"], file["words_HKL"])


def write_codebook(path: Path, codebook: Codebook) -> None:
    """Write a codebook for the package."""
    np.savez_compressed(
        path,
        mean_D=codebook.mean_D,
        components_CD=codebook.components_CD,
        odd_C=codebook.odd_C,
        words_HKL=codebook.words_HKL,
    )
