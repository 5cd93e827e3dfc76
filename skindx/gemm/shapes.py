"""The products that are timed: where skindx multiplies by a transpose, and a grid between them."""

from itertools import product

Sizes = tuple[int, int, int, int]
"""m, n, k, blocks."""

_SIDES = (8, 64, 512, 2048)
_MOST = 2.5e9
"""Operations of a product of the grid."""

# Of ResNets and MobileNets at 224 px and 32 images: width of the inner factor and the columns that
# are spread out at once; width of the outer factor and all positions; stacks of batch norms and
# depthwise convolutions.
_FACTORS: tuple[Sizes, ...] = (
    (576, 576, 28_224, 1),
    (1152, 1152, 14_112, 1),
    (2304, 2304, 6272, 1),
    (257, 257, 6272, 1),
    (1025, 1025, 1568, 1),
    (513, 513, 32, 1),
    (2049, 2049, 32, 1),
    (64, 64, 100_352, 1),
    (128, 128, 25_088, 1),
    (256, 256, 6272, 1),
    (512, 512, 1568, 1),
    (100, 100, 32, 1),
    (2, 2, 32, 64),
    (2, 2, 32, 512),
    (9, 9, 25_088, 96),
    (9, 9, 1568, 960),
)
# Outputs, and the width of the inner factor twice: its eigenvectors are square.
_GRADIENTS: tuple[Sizes, ...] = tuple(
    (outputs, inside, inside, blocks)
    for outputs, inside, blocks in (
        (64, 147, 1),
        (64, 576, 1),
        (128, 1152, 1),
        (256, 2304, 1),
        (512, 4608, 1),
        (256, 64, 1),
        (64, 256, 1),
        (512, 1024, 1),
        (2048, 512, 1),
        (100, 513, 1),
        (100, 2049, 1),
        (1, 2, 64),
        (1, 2, 512),
        (1, 9, 96),
        (1, 9, 960),
    )
)
# Images of a batch against the bank of the nearest training images, and against prototypes.
_HEADS: tuple[Sizes, ...] = tuple(
    (batch, rows, dimensions, 0)
    for batch, rows, dimensions in (
        *product((1, 32), (1000, 20_000), (512, 2048)),
        *product((1, 32), (9, 100), (512, 768)),
    )
)
# A part of the embedding index against the photos of a case.
_SEARCH: tuple[Sizes, ...] = tuple(
    (rows, photos, dimensions, 0)
    for rows, photos, dimensions in product((500, 4096), (1, 4), (512, 768, 2048))
)
_GRID: tuple[Sizes, ...] = tuple(
    (m, n, k, 0) for m, n, k in product(_SIDES, repeat=3) if 2 * m * n * k <= _MOST
)
_STACKS: tuple[Sizes, ...] = tuple(
    (m, n, k, blocks) for blocks in (16, 256) for m, n, k in product((16, 64), repeat=3)
)

PRODUCTS: dict[str, tuple[Sizes, ...]] = {
    "K-FAC: factors": _FACTORS,
    "K-FAC: gradients": _GRADIENTS,
    "heads": _HEADS,
    "search of similar cases": _SEARCH,
    "grid": _GRID,
    "grid of stacks": _STACKS,
}
"""Where a product comes from -> its sizes."""
