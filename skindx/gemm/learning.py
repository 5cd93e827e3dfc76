"""A tree learned from timings: weighted by what a wrong choice costs, and NT where it is a tie."""

import math
import random
import statistics
from collections.abc import Callable, Sequence

import numpy as np

from skindx.gemm.measuring import Timed, by_matrices
from skindx.gemm.shape import DTYPES, FEATURES
from skindx.gemm.tree import Leaf, Split, Tree

LEAST_GAIN = 1.05
"""Times as fast that a transposed copy must be: of a product, and on average of a leaf."""
FOLDS = 5
_DEPTH, _LEAVES, _LEAST_IN_LEAF = 4, 12, 3
_WORST = math.log(4)
"""Largest gain or loss that a product counts with: one of a hundred times must not decide alone."""
_LEAST_WEIGHT = 1e-3

Nodes = list[Split | Leaf]


def gain(timed: Timed) -> float:
    """Return log(time of NT / time with a transposed copy)."""
    nt_s, transposed_s = timed.seconds
    return math.log(nt_s / transposed_s)


def transposed_wins(timed: Timed) -> bool:
    """Return whether the copy is clearly faster: by the least gain, and in three of four rounds."""
    low = statistics.quantiles(timed.ratios, n=4, method="inclusive")[0]
    return gain(timed) >= math.log(LEAST_GAIN) and low > 1


def learn(timed: Sequence[Timed]) -> Tree:
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


def held_out_choices(timed: Sequence[Timed]) -> list[bool]:
    """Return whether each product is transposed by a tree that was learned without its sizes."""
    return _held_out(timed, learn)


def _held_out(timed: Sequence[Timed], learner: Callable[[Sequence[Timed]], Tree]) -> list[bool]:
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


def _grown(timed: Sequence[Timed]) -> Tree:
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


def _nodes(grown: object, number: int, timed: Sequence[Timed], first: int = 0) -> Nodes:
    """Return a node of scikit-learn's tree and all below; the node itself has the place `first`.

    Two leaves that decide alike become one.
    """
    left, right = grown.children_left[number], grown.children_right[number]  # type: ignore[attr-defined]
    if left < 0:
        return [_leaf(timed)]
    feature = FEATURES[grown.feature[number]]  # type: ignore[attr-defined]
    at = float(grown.threshold[number])  # type: ignore[attr-defined]
    sides: tuple[list[Timed], list[Timed]] = ([], [])
    for one in timed:
        sides[one.shape.features()[feature] > at].append(one)
    below = _nodes(grown, left, sides[0], first + 1)
    above = _nodes(grown, right, sides[1], first + 1 + len(below))
    if len(below) == len(above) == 1:
        one_leaf, other = below[0], above[0]
        assert isinstance(one_leaf, Leaf)
        assert isinstance(other, Leaf)
        if one_leaf.transposed == other.transposed:
            return [_leaf(timed, nt=not one_leaf.transposed)]
    return [
        Split(feature=feature, at=at, below=first + 1, above=first + 1 + len(below)),
        *below,
        *above,
    ]


def _leaf(timed: Sequence[Timed], *, nt: bool | None = None) -> Leaf:
    """Return a leaf for some products, by their mean gain or as `nt` says."""
    mean = statistics.fmean(map(_counted, timed)) if timed else 0.0
    if nt is None:
        nt = mean < math.log(LEAST_GAIN)
    return Leaf(transposed=not nt, products=len(timed), gain=mean)


def _clearly_positive(gains: Sequence[float]) -> bool:
    """Return whether the mean is above zero by its standard error."""
    if len(gains) < 2:
        return False
    return statistics.fmean(gains) > statistics.stdev(gains) / math.sqrt(len(gains))


def _counted(timed: Timed) -> float:
    return max(-_WORST, min(_WORST, gain(timed)))


def _tree(timed: Sequence[Timed], nodes: Nodes) -> Tree:
    features = [one.shape.features() for one in timed]
    seen = {one.shape.dtype for one in timed}
    return Tree(
        nodes=tuple(nodes),
        dtypes=tuple(name for name in DTYPES if name in seen),
        least={name: min(own[name] for own in features) for name in FEATURES},
        most={name: max(own[name] for own in features) for name in FEATURES},
    )
