"""Two predictors on the same images: paired differences over groups, and McNemar's test.

Both are evaluations, or bundles that are evaluated for it; the result is JSON, one HTML page, and
tables in the terminal.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from skindx.core.atomic_files import FolderKind, atomic_folder, write_json, write_text
from skindx.core.errors import UserError
from skindx.evaluation.answers import Answers, Part, read_predictions
from skindx.evaluation.breakdown import CANCERS, UNKNOWN, Bools, cancer_of, order, skin_type_name
from skindx.evaluation.evaluate import evaluate
from skindx.evaluation.evaluation_report import render
from skindx.evaluation.figures import (
    FIGURES,
    LEVEL,
    SEED,
    bounds,
    figures_of,
    figures_table,
    p_equation,
    p_value,
    percent,
    plain,
    points,
    shown,
    shown_difference,
    title,
)
from skindx.metrics import Interval, McNemar, Statistic, mcnemar, paired_interval
from skindx.models.bundle.bundle_index import INDEX

if TYPE_CHECKING:
    from rich.console import Console


# N = images, C = classes


@dataclass(frozen=True, slots=True)
class ComparedFigure:
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
    figures: tuple[ComparedFigure, ...]
    test: McNemar
    """McNemar's test of top-1, image by image."""
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

    def figure(key: str) -> ComparedFigure | None:
        ours, theirs = (
            FIGURES[key].measure(side.ensemble_NC, truth_N, side.mix_C) for side in (first, second)
        )
        if ours is None or theirs is None:
            return None
        difference = paired_interval(ours, theirs, groups_N, draws=draws, level=LEVEL, seed=SEED)
        return ComparedFigure(key, ours.value, theirs.value, difference)

    def part(
        attribute: str, value: str, among_N: Bools, ours_N: Bools, theirs_N: Bools
    ) -> ComparedPart:
        ours, theirs = (Statistic.mean(right_N[among_N]) for right_N in (ours_N, theirs_N))
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
        figures=tuple(filter(None, map(figure, FIGURES))),
        test=mcnemar(first.right_N, second.right_N),
        parts=tuple(part(*values) for values in _parts(first, second)),
    )


def align(first: Answers, second: Answers, names: tuple[str, str]) -> Answers:
    """Return `second` in the images' and classes' order of `first`. Raises UserError."""
    keys, theirs = ([skin_class.key for skin_class in side.classes] for side in (first, second))
    if set(keys) != set(theirs):
        unshared = sorted(set(keys) ^ set(theirs))
        raise UserError(
            f"{names[0]} and {names[1]} have different classes, because only one has "
            f"{unshared[0]}; give two predictors of the same taxonomy."
        )
    place = {str(sha256): row for row, sha256 in enumerate(second.sha256_N)}
    missing = {str(sha256) for sha256 in first.sha256_N} ^ place.keys()
    if missing or len(first) != len(second):
        raise UserError(
            f"{names[0]} and {names[1]} were evaluated on different images ({len(missing)} are in "
            "only one of the evaluations); evaluate both on the same split of the same dataset."
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
        mix_C=None if moved.mix_C is None else moved.mix_C[column_C],
        urgent_risk=None,  # their columns are those of the order before
        soon_risk=None,
    )
    for what, ours_N, theirs_N in (
        ("classes", first.truth_N, moved.truth_N),
        ("groups", first.groups_N, moved.groups_N),
    ):
        if (ours_N != theirs_N).any():
            raise UserError(
                f"{names[0]} and {names[1]} put {int((ours_N != theirs_N).sum())} images into "
                f"different {what}; evaluate both on the same version of the dataset."
            )
    return moved


def _parts(first: Answers, second: Answers) -> Iterator[tuple[str, str, Bools, Bools, Bools]]:
    """Yield attribute, value, the images meant, and which of all each predictor finds."""
    kind_C = np.array([cancer_of(skin_class) for skin_class in first.classes])
    urgent_C = first.urgent_C
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


def write_page(path: Path, comparison: Comparison) -> None:
    """Write the comparison as one self-contained HTML file."""
    write_text(path, render_page(comparison))


def render_page(comparison: Comparison) -> str:
    """Return the page as HTML that is well-formed XML too; every value is escaped."""
    return render(
        "comparison.html.jinja",
        c=comparison,
        parts=_by_attribute(comparison),
        verdict=verdict(comparison),
    )


def verdict(comparison: Comparison) -> str:
    """Return in a sentence whether the two differ in balanced accuracy."""
    difference = next(
        figure.difference for figure in comparison.figures if figure.key == "balanced_accuracy"
    )
    sentence = f"In balanced accuracy A − B is {shown_difference(difference, 'balanced_accuracy')}"
    if math.isnan(difference.low):
        return f"{sentence}: with a single group nothing bounds it."
    if difference.low > 0:
        return f"{sentence}: A is better on these images."
    if difference.high < 0:
        return f"{sentence}: B is better on these images."
    return f"{sentence}: the interval holds 0, so these images cannot tell them apart."


def _part_rows(comparison: Comparison) -> Iterator[tuple[str, ...]]:
    for attribute, parts in _by_attribute(comparison).items():
        yield (attribute,)
        for part in parts:
            yield (
                *(f"  {part.value}", str(part.n), percent(part.first), percent(part.second)),
                f"{points(part.difference.value)} {bounds(part.difference, 'points')}",
                *(f"{part.test.only_first} : {part.test.only_second}", p_value(part.test.p)),
            )


def print_comparison(comparison: Comparison, console: "Console") -> None:
    """Print the headline figures of both, their differences, and the parts."""
    from rich.markup import escape

    size = f"{comparison.pictures} images, {comparison.groups} groups"
    heading = f"{size}; {100 * comparison.level:.0f} % intervals of A − B"
    printed = figures_of(comparison.k)
    rows = [
        (
            title(figure.key, comparison.k),
            *(shown(figure.first, figure.key), shown(figure.second, figure.key)),
            shown_difference(figure.difference, figure.key),
        )
        for figure in comparison.figures
        if figure.key in printed
    ]
    console.print(f"A: {escape(comparison.first)}\nB: {escape(comparison.second)}", highlight=False)
    console.print(figures_table(heading, ("", "A", "B", "A − B"), rows))
    columns = ("", "n", "A finds", "B finds", "A − B, points", "only A : only B", "p")
    console.print(figures_table("", columns, _part_rows(comparison)))
    test = comparison.test
    console.print(
        f"{verdict(comparison)}\nOnly A is right on {test.only_first} images, only B on "
        f"{test.only_second}: McNemar's exact {p_equation(test.p)}, which takes every image "
        "for independent.",
        highlight=False,
    )


def _by_attribute(comparison: Comparison) -> dict[str, list[ComparedPart]]:
    return {
        attribute: list(parts)
        for attribute, parts in groupby(comparison.parts, key=lambda part: part.attribute)
    }


JSON, PAGE = "comparison.json", "comparison.html"
_EVALUATIONS = ("first", "second")
_COMPARISON = FolderKind("a comparison", JSON, (PAGE, *_EVALUATIONS))


def compare_folders(
    first: Path,
    second: Path,
    out: Path,
    *,
    dataset: Path | None = None,
    split: Part = "test",
    draws: int = 1000,
    progress: Callable[[str, int, int], None] | None = None,
) -> Comparison:
    """Compare evaluations or bundles, and write a JSON file and a page to `out`.

    A bundle is evaluated on `dataset` first, into a folder of `out`. Raises UserError for what
    is neither, for a bundle without a dataset, and for what cannot be compared.
    """
    _COMPARISON.check(out)
    if draws < 1:
        raise UserError(
            f"draws={draws} is not possible, because an interval needs at least 1 draw; give 1000."
        )
    sides = (first, second)
    bundles = [side for side in sides if (side / INDEX).is_file()]
    if bundles and dataset is None:
        raise UserError(
            f"{bundles[0]} is a bundle, and the dataset for the comparison is missing; give it "
            "with --dataset."
        )
    if dataset is not None and not bundles:
        raise UserError(
            f"--dataset {dataset} works only with bundles, but {first} and {second} are not "
            "bundles; remove --dataset."
        )
    with atomic_folder(out, _COMPARISON) as folder:

        def answers(side: Path, name: str) -> Answers:
            if dataset is None or side not in bundles:
                return read_predictions(side)
            step = (lambda done, of: progress(name, done, of)) if progress else None
            evaluate(side, dataset, folder / name, split=split, draws=draws, progress=step)
            return read_predictions(folder / name)

        pair = [answers(*given) for given in zip(sides, _EVALUATIONS, strict=True)]
        comparison = compare(pair[0], pair[1], (str(first), str(second)), draws=draws)
        write_json(folder / JSON, comparison.to_dict())
        write_page(folder / PAGE, comparison)
    return comparison
