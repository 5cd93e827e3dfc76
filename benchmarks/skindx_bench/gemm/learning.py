"""A tree over the shapes of products A B^T: directly (NT) or by a transposed copy of B.

Timed are those where skindx multiplies by a transpose, and a grid between them.
"""

import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from skindx.core.machine import cpu_count, cpu_flags, free_memory
from skindx.core.measurement import interleave, torch_threads

PAPER = (
    "MTNN | Shi, Xu and Chu, Supervised Learning Based Algorithm Selection for Deep Neural "
    "Networks, arXiv 1702.03192, 2017 | benchmarks/tests/test_nt_tree.py | docs/measured/gemm.json"
)

Feature = Literal["m", "n", "k", "blocks", "m_over_n", "n_over_k", "dtype", "threads"]
"""Sizes and their ratios as logarithms to base 2; the dtype as its place in `DTYPES`."""
Dtype = Literal["float32", "bfloat16", "float16"]
Device = Literal["cpu", "cuda"]
FEATURES: tuple[Feature, ...] = get_args(Feature)
DTYPES: tuple[Dtype, ...] = get_args(Dtype)
MOST_THREADS = 4096


@dataclass(frozen=True, slots=True)
class ProductShape:
    """`blocks` such products in a stack, or a single one of matrices (0), on so many threads."""

    m: int
    n: int
    k: int
    blocks: int = 0
    dtype: Dtype = "float32"
    threads: int = 1

    @property
    def operations(self) -> int:
        return 2 * self.m * self.n * self.k * max(1, self.blocks)

    @property
    def matrices(self) -> tuple[int, int, int, int]:
        """The shape alone: m, n, k, blocks."""
        return self.m, self.n, self.k, self.blocks

    def features(self) -> dict[Feature, float]:
        """Return the value of each feature; sizes are at least 1."""
        m, n, k = math.log2(self.m), math.log2(self.n), math.log2(self.k)
        blocks = math.log2(self.blocks) if self.blocks else -1.0
        dtype, threads = float(DTYPES.index(self.dtype)), float(self.threads)
        return dict(zip(FEATURES, (m, n, k, blocks, m - n, n - k, dtype, threads), strict=True))


@dataclass(frozen=True)
class TreeLeaf:
    """What is done with shapes that come here."""

    transposed: bool
    """True: by a transposed copy; False: NT."""
    products: int
    """Timed products that came here."""
    gain: float
    """Mean over them of log(time of NT / time with the copy)."""


@dataclass(frozen=True)
class TreeSplit:
    """Shapes whose feature is at most `at` go on at the node `below`, others at `above`."""

    feature: Feature
    at: float
    below: int
    above: int


@dataclass(frozen=True)
class ShapeTree:
    """Nodes, the root first. Shapes outside of what was timed are left to NT."""

    nodes: tuple[TreeSplit | TreeLeaf, ...]
    dtypes: tuple[Dtype, ...]
    least: dict[Feature, float]
    most: dict[Feature, float]
    """Of each feature, among the products that were timed."""

    @property
    def always_nt(self) -> bool:
        """True where no shape is multiplied by a transposed copy."""
        return not any(isinstance(node, TreeLeaf) and node.transposed for node in self.nodes)

    @property
    def leaves(self) -> int:
        return sum(isinstance(node, TreeLeaf) for node in self.nodes)

    def transposes(self, shape: ProductShape) -> bool:
        """Return whether a product of this shape is to be computed by a transposed copy."""
        values = shape.features()
        timed = all(self.least[name] <= values[name] <= self.most[name] for name in FEATURES)
        if shape.dtype not in self.dtypes or not timed:
            return False
        node = self.nodes[0]
        while isinstance(node, TreeSplit):
            node = self.nodes[node.below if values[node.feature] <= node.at else node.above]
        return node.transposed


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


_LEAST_S = 0.001
"""A sample repeats a product until it takes as long as this."""
_MOST_REPEATS = 1000
_ONCE = 3
_ROUNDS = (4, 7)
"""Fewest and most of a product."""
_SHARES = 4
"""A product may take so many times its even share of the time."""
_BF16 = ("avx512_bf16", "amx_bf16")


@dataclass(frozen=True)
class TimedProduct:
    """Seconds of one product by NT and by a transposed copy, one of each round."""

    shape: ProductShape
    nt_s: tuple[float, ...]
    transposed_s: tuple[float, ...]

    @property
    def seconds(self) -> tuple[float, float]:
        """The least of the rounds, NT first: what else the machine does only adds."""
        return min(self.nt_s), min(self.transposed_s)

    @property
    def halves(self) -> tuple["TimedProduct", "TimedProduct"]:
        """Every second round, and the others: what one half decides, the other one judges."""
        first, second = (
            TimedProduct(self.shape, self.nt_s[half::2], self.transposed_s[half::2])
            for half in (0, 1)
        )
        return first, second

    @property
    def ratios(self) -> tuple[float, ...]:
        """Time of NT over that with the copy, by round."""
        pairs = zip(self.nt_s, self.transposed_s, strict=True)
        return tuple(nt / transposed for nt, transposed in pairs)


def dtypes_of(device: Device) -> tuple[Dtype, ...]:
    """Return the types that this device multiplies by itself."""
    if device == "cuda":
        return ("float32", "bfloat16", "float16")
    return ("float32", "bfloat16") if cpu_flags().intersection(_BF16) else ("float32",)


def shapes_of(
    products: Sequence[Sizes], device: Device, threads: Sequence[int] = ()
) -> list[ProductShape]:
    """Return the products by each type; by default on one thread and on all.

    Sizes come in an order of chance, the same each time: where the time ends early, each kind has
    had its share.
    """
    threads = threads or sorted({1, cpu_count()})
    sizes = list(dict.fromkeys(products))
    random.Random(0).shuffle(sizes)  # noqa: S311 (an order)
    return [
        ProductShape(m, n, k, blocks, dtype, count)
        for m, n, k, blocks in sizes
        for dtype in dtypes_of(device)
        for count in (threads if device == "cpu" else [1])
    ]


def measure(
    shapes: Sequence[ProductShape], seconds: float, device: Device = "cpu"
) -> tuple[list[TimedProduct], int]:
    """Time products in this order, for at most so many seconds; return how many had their turn.

    A product that alone would take too large a share of the time, or does not fit into the memory,
    is left out.
    """
    end = time.monotonic() + seconds
    found: list[TimedProduct] = []
    for turn, shape in enumerate(shapes):
        most_s = min(_SHARES * seconds / len(shapes), end - time.monotonic())
        if most_s <= 0:
            return found, turn
        if timed := _timed(shape, most_s, device):
            found.append(timed)
    return found, len(shapes)


def _timed(shape: ProductShape, most_s: float, device: Device) -> TimedProduct | None:
    if _bytes(shape) > free_bytes(torch.device(device)) / 4:
        return None
    with torch_threads(shape.threads), torch.inference_mode():
        a_MK, b_NK = (_random(shape, rows, device) for rows in (shape.m, shape.n))
        ways: dict[str, Callable[[], Tensor]] = {
            "nt": lambda: a_MK @ b_NK.mT,
            "transposed": lambda: a_MK @ b_NK.mT.contiguous(),
        }
        once_s = 2 * _once(ways["nt"], most_s, device)  # the other one may take longer
        repeats = max(1, min(_MOST_REPEATS, round(_LEAST_S / max(once_s, 1e-9))))
        rounds = min(_ROUNDS[1], int(most_s / (2 * repeats * max(once_s, 1e-9))) - 1)
        if rounds < _ROUNDS[0]:
            return None
        clock = time.process_time if shape.threads == 1 and device == "cpu" else time.perf_counter
        calls = {name: partial(_repeated, call, repeats, device) for name, call in ways.items()}
        seconds = interleave(calls, rounds, clock=clock)
    nt_s, transposed_s = (
        tuple(max(took, 1e-9) / repeats for took in seconds[name]) for name in ways
    )
    return TimedProduct(shape, nt_s, transposed_s)


def free_bytes(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_memory()


def _random(shape: ProductShape, rows: int, device: Device) -> Tensor:
    size = (rows, shape.k) if not shape.blocks else (shape.blocks, rows, shape.k)
    return torch.rand(size, device=device).to(getattr(torch, shape.dtype))


def _bytes(shape: ProductShape) -> int:
    """Return what the matrices, the copy and the result take."""
    m, n, k = shape.m, shape.n, shape.k
    return 4 * max(1, shape.blocks) * (m * k + 2 * n * k + m * n)


def _once(call: Callable[[], Tensor], most_s: float, device: Device) -> float:
    """Return the shortest of the first calls in seconds of the clock, of one call if it is long."""
    seconds: list[float] = []
    while not seconds or (len(seconds) < _ONCE and min(seconds) < most_s / _ROUNDS[0]):
        seconds += interleave({"once": partial(_repeated, call, 1, device)}, 1, 0)["once"]
    return min(seconds)


def _repeated(call: Callable[[], Tensor], repeats: int, device: Device) -> None:
    for _ in range(repeats):
        call()
    if device == "cuda":
        torch.cuda.synchronize()


def by_matrices(timed: Sequence[TimedProduct]) -> Mapping[Sizes, list[int]]:
    """Return the places of the timings of each product, whatever its type and threads."""
    places: dict[Sizes, list[int]] = {}
    for place, one in enumerate(timed):
        places.setdefault(one.shape.matrices, []).append(place)
    return places


LEAST_GAIN = 1.05
"""Times as fast that a transposed copy must be: of a product, and on average of a leaf."""
FOLDS = 5
_DEPTH, _LEAVES, _LEAST_IN_LEAF = 4, 12, 3
_WORST = math.log(4)
"""Largest gain or loss that a product counts with: one of a hundred times must not decide alone."""
_LEAST_WEIGHT = 1e-3

Nodes = list[TreeSplit | TreeLeaf]


def gain(timed: TimedProduct) -> float:
    """Return log(time of NT / time with a transposed copy)."""
    nt_s, transposed_s = timed.seconds
    return math.log(nt_s / transposed_s)


def transposed_wins(timed: TimedProduct) -> bool:
    """Return whether the copy is clearly faster: by the least gain, and in three of four rounds."""
    low = statistics.quantiles(timed.ratios, n=4, method="inclusive")[0]
    return gain(timed) >= math.log(LEAST_GAIN) and low > 1


def learn(timed: Sequence[TimedProduct]) -> ShapeTree:
    """Return the tree of some timings; NT always where a tree gains nothing on held-out products.

    Timings that are not finite are left out. Raises ValueError where none remains.
    """
    timed = [one for one in timed if all(map(math.isfinite, (*one.nt_s, *one.transposed_s)))]
    if not timed:
        raise ValueError("there is no timing to learn from")
    tree = _grown(timed)
    if tree.always_nt:
        return tree
    chosen = _held_out(timed, _grown)
    gains = [_counted(one) for one, transposed in zip(timed, chosen, strict=True) if transposed]
    return tree if _clearly_positive(gains) else _tree(timed, [_leaf(timed, nt=True)])


def held_out_choices(timed: Sequence[TimedProduct]) -> list[bool]:
    """Return whether each product is transposed by a tree that was learned without its sizes."""
    return _held_out(timed, learn)


def _held_out(
    timed: Sequence[TimedProduct], learner: Callable[[Sequence[TimedProduct]], ShapeTree]
) -> list[bool]:
    groups = list(by_matrices(timed).values())
    random.Random(0).shuffle(groups)  # noqa: S311 (folds)
    chosen = [False] * len(timed)
    for fold in range(FOLDS):
        out = {place for group in groups[fold::FOLDS] for place in group}
        rest = [one for place, one in enumerate(timed) if place not in out]
        if not out or not rest:
            continue
        tree = learner(rest)
        for place in out:
            chosen[place] = tree.transposes(timed[place].shape)
    return chosen


def _grown(timed: Sequence[TimedProduct]) -> ShapeTree:
    wins = [transposed_wins(one) for one in timed]
    if sum(wins) < _LEAST_IN_LEAF:
        return _tree(timed, [_leaf(timed, nt=True)])
    from sklearn.tree import DecisionTreeClassifier

    features = [one.shape.features() for one in timed]
    classifier = DecisionTreeClassifier(
        max_depth=_DEPTH, max_leaf_nodes=_LEAVES, min_samples_leaf=_LEAST_IN_LEAF, random_state=0
    )
    classifier.fit(
        np.array([[own[name] for name in FEATURES] for own in features]),
        wins,
        sample_weight=[max(_LEAST_WEIGHT, abs(_counted(one))) for one in timed],
    )
    return _tree(timed, _nodes(classifier.tree_, 0, timed))


def _nodes(grown: object, number: int, timed: Sequence[TimedProduct], first: int = 0) -> Nodes:
    """Return a node of scikit-learn's tree and all below; the node itself has the place `first`.

    Two leaves that decide alike become one.
    """
    left, right = grown.children_left[number], grown.children_right[number]  # type: ignore[attr-defined]
    if left < 0:
        return [_leaf(timed)]
    feature = FEATURES[grown.feature[number]]  # type: ignore[attr-defined]
    at = float(grown.threshold[number])  # type: ignore[attr-defined]
    sides: tuple[list[TimedProduct], list[TimedProduct]] = ([], [])
    for one in timed:
        sides[one.shape.features()[feature] > at].append(one)
    below = _nodes(grown, left, sides[0], first + 1)
    above = _nodes(grown, right, sides[1], first + 1 + len(below))
    if len(below) == len(above) == 1:
        one_leaf, other = below[0], above[0]
        assert isinstance(one_leaf, TreeLeaf)
        assert isinstance(other, TreeLeaf)
        if one_leaf.transposed == other.transposed:
            return [_leaf(timed, nt=not one_leaf.transposed)]
    return [
        TreeSplit(feature=feature, at=at, below=first + 1, above=first + 1 + len(below)),
        *below,
        *above,
    ]


def _leaf(timed: Sequence[TimedProduct], *, nt: bool | None = None) -> TreeLeaf:
    """Return a leaf for some products, by their mean gain or as `nt` says."""
    mean = statistics.fmean(map(_counted, timed)) if timed else 0.0
    if nt is None:
        nt = mean < math.log(LEAST_GAIN)
    return TreeLeaf(transposed=not nt, products=len(timed), gain=mean)


def _clearly_positive(gains: Sequence[float]) -> bool:
    """Return whether the mean is above zero by its standard error."""
    if len(gains) < 2:
        return False
    return statistics.fmean(gains) > statistics.stdev(gains) / math.sqrt(len(gains))


def _counted(timed: TimedProduct) -> float:
    return max(-_WORST, min(_WORST, gain(timed)))


def _tree(timed: Sequence[TimedProduct], nodes: Nodes) -> ShapeTree:
    features = [one.shape.features() for one in timed]
    seen = {one.shape.dtype for one in timed}
    return ShapeTree(
        nodes=tuple(nodes),
        dtypes=tuple(name for name in DTYPES if name in seen),
        least={name: min(own[name] for own in features) for name in FEATURES},
        most={name: max(own[name] for own in features) for name in FEATURES},
    )
