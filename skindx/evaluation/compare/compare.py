"""Two predictors on the same images: paired differences over groups, and McNemar's test."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skindx.core.errors import UserError
from skindx.evaluation.answers import Answers
from skindx.evaluation.breakdown import UNKNOWN, order, skin_type_name
from skindx.evaluation.formatting import plain
from skindx.evaluation.headline import FIGURES, LEVEL, SEED
from skindx.evaluation.misses import CANCERS, cancer_of
from skindx.metrics import Interval, McNemar, Statistic, mcnemar, paired_interval

# N = images, C = classes

Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Compared:
    """One headline figure of both, and the first minus the second on the same resampled groups."""

    key: str
    first: float
    second: float
    difference: Interval


@dataclass(frozen=True, slots=True)
class ComparedPart:
    """Some of the images: the share that each predictor finds, and which of them only one does.

    Found means named rightly; among urgent classes that some urgent class is named; for the next
    step that it is urgent, or of other classes that it is not.
    """

    attribute: str
    value: str
    n: int
    groups: int
    first: float
    second: float
    difference: Interval
    test: McNemar


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything that was compared; differences are first minus second."""

    first: str
    second: str
    pictures: int
    groups: int
    draws: int
    level: float
    k: int
    figures: tuple[Compared, ...]
    test: McNemar
    """Of top-1, image by image."""
    parts: tuple[ComparedPart, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; a figure that is not defined is None."""
        values: dict[str, Any] = plain(self)
        return values


def compare(
    first: Answers, second: Answers, names: tuple[str, str], *, draws: int = 1000
) -> Comparison:
    """Compare two predictors. Raises UserError when they did not answer the same images."""
    second = align(first, second, names)
    truth_N, groups_N = first.truth_N, first.groups_N

    def figure(key: str) -> Compared:
        ours, theirs = (FIGURES[key].make(side.ensemble_NC, truth_N) for side in (first, second))
        difference = paired_interval(ours, theirs, groups_N, draws=draws, level=LEVEL, seed=SEED)
        return Compared(key, ours.value, theirs.value, difference)

    def part(
        attribute: str, value: str, among_N: Bools, ours_N: Bools, theirs_N: Bools
    ) -> ComparedPart:
        ours, theirs = (Statistic.mean(found_N[among_N]) for found_N in (ours_N, theirs_N))
        groups = groups_N[among_N]
        difference = paired_interval(ours, theirs, groups, draws=draws, level=LEVEL, seed=SEED)
        test = mcnemar(ours_N[among_N], theirs_N[among_N])
        size = int(among_N.sum()), len(np.unique(groups))
        return ComparedPart(attribute, value, *size, ours.value, theirs.value, difference, test)

    return Comparison(
        *names,
        pictures=len(first),
        groups=len(np.unique(groups_N)),
        draws=draws,
        level=LEVEL,
        k=min(5, len(first.classes)),
        figures=tuple(map(figure, FIGURES)),
        test=mcnemar(first.right_N, second.right_N),
        parts=tuple(part(*values) for values in _parts(first, second)),
    )


def align(first: Answers, second: Answers, names: tuple[str, str]) -> Answers:
    """Return `second` in the images' and classes' order of `first`. Raises UserError."""
    keys, theirs = ([skin_class.key for skin_class in side.classes] for side in (first, second))
    if set(keys) != set(theirs):
        unshared = sorted(set(keys) ^ set(theirs))
        raise UserError(
            f"{names[0]} and {names[1]} know different classes, such as {unshared[0]}; "
            "compare predictors of the same taxonomy."
        )
    place = {str(sha256): row for row, sha256 in enumerate(second.sha256_N)}
    missing = {str(sha256) for sha256 in first.sha256_N} ^ place.keys()
    if missing or len(first) != len(second):
        raise UserError(
            f"{names[0]} and {names[1]} are of different images: {len(missing)} are in only one "
            "of the two; evaluate both on the same split of the same dataset."
        )
    column_C = np.array([theirs.index(key) for key in keys])
    moved = second.some(np.array([place[str(sha256)] for sha256 in first.sha256_N]))
    moved = dataclasses.replace(
        moved,
        classes=first.classes,
        truth_N=np.argsort(column_C)[moved.truth_N],
        ensemble_NC=moved.ensemble_NC[:, column_C],
        members_NMC=moved.members_NMC[:, :, column_C],
        sets_NC=None if moved.sets_NC is None else moved.sets_NC[:, column_C],
        urgent_risk=None,  # its columns are those of the order before
    )
    for what, ours_N, theirs_N in (
        ("label", first.truth_N, moved.truth_N),
        ("group", first.groups_N, moved.groups_N),
    ):
        if (ours_N != theirs_N).any():
            raise UserError(
                f"{names[0]} and {names[1]} give {int((ours_N != theirs_N).sum())} images "
                f"another {what}; evaluate both on the same version of the dataset."
            )
    return moved


def _parts(first: Answers, second: Answers) -> Iterator[tuple[str, str, Bools, Bools, Bools]]:
    """Yield attribute, value, the images meant, and which of all each predictor finds."""
    kind_C = np.array([cancer_of(skin_class) for skin_class in first.classes])
    urgent_C = np.array([skin_class.urgency == "urgent" for skin_class in first.classes])
    truth_N, predictions = first.truth_N, (first.predicted_N, second.predicted_N)
    if urgent_C[truth_N].any():
        yield ("not to be missed", "urgent classes", urgent_C[truth_N],
               urgent_C[predictions[0]], urgent_C[predictions[1]])  # fmt: skip
    for name in CANCERS:
        if (kind_C[truth_N] == name).any():
            ours_N, theirs_N = (kind_C[predicted] == name for predicted in predictions)
            yield "not to be missed", name, kind_C[truth_N] == name, ours_N, theirs_N
    yield from _by_step(first, second, urgent_C[truth_N])
    for i, info in enumerate(first.classes):
        if (truth_N == i).any():
            yield "class", info.name, truth_N == i, first.right_N, second.right_N
    for attribute, values in (
        ("skin type", [skin_type_name(skin_type) for skin_type in first.skin_types]),
        ("source", [source or UNKNOWN for source in first.sources]),
    ):
        yield from _by(attribute, values, first.right_N, second.right_N)


def _by_step(
    first: Answers, second: Answers, urgent_N: Bools
) -> Iterator[tuple[str, str, Bools, Bools, Bools]]:
    """Yield what both sent on as urgent, where both evaluations know the next steps."""
    if first.steps is None or second.steps is None:
        return
    ours_N, theirs_N = (np.array(side.steps) == "urgent" for side in (first, second))
    if urgent_N.any():
        yield "next step", "urgent classes, sent on as urgent", urgent_N, ours_N, theirs_N
    if not urgent_N.all():
        yield "next step", "other classes, not sent on as urgent", ~urgent_N, ~ours_N, ~theirs_N


def _by(
    attribute: str, values: Sequence[str], ours_N: Bools, theirs_N: Bools
) -> Iterator[tuple[str, str, Bools, Bools, Bools]]:
    """Yield a part for each value; none where nothing is known or all images have one value."""
    if len(set(values)) > 1:
        for value in order(values):
            yield attribute, value, np.array(values) == value, ours_N, theirs_N
