"""Effects of what an answer uses beside the whole photo: the crop of a lesion, and known facts.

The same images are judged without and with it; differences are paired over groups.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from skindx.data.manifest import Record
from skindx.evaluation.answers import Answers
from skindx.evaluation.breakdown import share
from skindx.evaluation.figures import (
    FIGURES,
    LEVEL,
    SEED,
    bounds,
    change,
    figures_table,
    percent,
    points,
    shown,
    shown_difference,
)
from skindx.metrics import (
    Interval,
    Statistic,
    bootstrap_interval,
    confidence_interval,
    paired_interval,
)
from skindx.models.class_calibration import log_gain
from skindx.models.ensemble import Prediction
from skindx.models.metadata_head import Facts, MetadataSpec

if TYPE_CHECKING:
    from rich.table import Table

# N = images, C = classes


@dataclass(frozen=True, slots=True)
class AssistedClass:
    """A class's sensitivity by the whole image alone, and with the crop beside it."""

    key: str
    name: str
    n: int
    boxed: int
    """How many of its images were predicted from a crop as well."""
    changed: int
    """How many of its images get another class because of the crop."""
    without: Interval
    assisted: Interval
    difference: Interval
    """Assisted minus without, paired on the same resampled groups; no bounds if none changed.

    Every draw of images that did not change gives 0, which would look like certainty. The bounds of
    all classes hold together: each is of the level 1 - 0.05 / classes (Bonferroni).
    """


@dataclass(frozen=True, slots=True)
class Assisted:
    """Effect of boxes, by class and in balanced accuracy."""

    pictures: int
    boxed: int
    changed: int
    level: float
    classes: tuple[AssistedClass, ...]
    """Classes with images in the split."""
    without: float
    assisted: float
    difference: Interval
    """Difference in balanced accuracy, assisted minus without."""
    without_interval: Interval
    assisted_interval: Interval

    @property
    def verdict(self) -> str:
        """The classes that gain by the crop, those that lose, and those that may do either."""
        gain, lose, either = (
            ", ".join(score.name for score in self.classes if sign == _sign(score.difference))
            for sign in (1, -1, 0)
        )
        return (
            f"The intervals of the {len(self.classes)} classes hold together at "
            f"{100 * self.level:.0f} %. By the crop gain: {gain or 'no class'}. Lose: "
            f"{lose or 'no class'}. May do either: {either or 'no class'}."
        )


def _sign(difference: Interval) -> int:
    """Return on which side of 0 an interval is; 0 where it holds 0, or has no bounds."""
    return int(difference.low > 0) - int(difference.high < 0)


def measure_assistance(
    answers: Answers, predictions: Sequence[Prediction], *, draws: int = 1000
) -> Assisted | None:
    """Compare the served predictions with those of whole images alone; None where no box was used.

    The rows of `answers` are those of `predictions`.
    """
    boxed_N = np.array([prediction.whole_C is not None for prediction in predictions])
    if not boxed_N.any():
        return None
    whole_NC = np.stack(
        [
            prediction.probabilities_C if prediction.whole_C is None else prediction.whole_C
            for prediction in predictions
        ]
    )
    plain = replace(answers, ensemble_NC=whole_NC)

    changed_N = answers.predicted_N != plain.predicted_N
    labels = np.unique(answers.truth_N)

    def gain(
        first: Statistic, second: Statistic, among_N: NDArray[np.bool_], together: int = 1
    ) -> Interval:
        if not changed_N[among_N].any():
            return Interval(0.0, float("nan"), float("nan"))
        groups_N, level = answers.groups_N[among_N], 1 - (1 - LEVEL) / together
        many = draws * min(together, 10)  # a smaller tail needs more draws
        return paired_interval(first, second, groups_N, draws=many, level=level, seed=SEED)

    def one(number: int) -> AssistedClass:
        of_class_N = answers.truth_N == number
        ours, theirs = (
            Statistic.top_k(source.ensemble_NC[of_class_N], source.truth_N[of_class_N], 1)
            for source in (answers, plain)
        )
        return AssistedClass(
            answers.classes[number].key,
            answers.classes[number].name,
            int(of_class_N.sum()),
            int((of_class_N & boxed_N).sum()),
            int((of_class_N & changed_N).sum()),
            share(of_class_N & plain.right_N, of_class_N, plain),
            share(of_class_N & answers.right_N, of_class_N, answers),
            gain(ours, theirs, of_class_N, len(labels)),
        )

    ours, theirs = (
        Statistic.balanced_accuracy(source.ensemble_NC, source.truth_N)
        for source in (answers, plain)
    )
    return Assisted(
        len(answers),
        int(boxed_N.sum()),
        int(changed_N.sum()),
        LEVEL,
        tuple(one(int(number)) for number in labels),
        theirs.value,
        ours.value,
        gain(ours, theirs, np.ones(len(answers), dtype=np.bool_)),
        *(confidence_interval(one, answers.groups_N, level=LEVEL) for one in (theirs, ours)),
    )


def assisted_table(assisted: Assisted) -> "Table":
    """Return the comparison as a table for a terminal."""
    heading = (
        f"Sensitivity without and with the crop around the best box, which {assisted.boxed} of "
        f"{assisted.pictures} images have"
    )

    def row(name: str, counts: tuple[int, ...], *figures: Interval) -> list[str]:
        *both, difference = figures
        shares = [f"{percent(one)} {bounds(one)}" for one in both]
        moved = f"{points(difference.value)} {bounds(difference, 'points')}"
        return [name, *map(str, counts), *shares, moved]

    rows = [
        row(
            score.name,
            (score.n, score.boxed, score.changed),
            *(score.without, score.assisted, score.difference),
        )
        for score in assisted.classes
    ]
    counts = (assisted.pictures, assisted.boxed, assisted.changed)
    both = (assisted.without_interval, assisted.assisted_interval)
    rows.append(row("balanced accuracy", counts, *both, assisted.difference))
    columns = ("class", "n", "crops", "changed", "without", "with", "points")
    return figures_table(heading, columns, rows, caption=assisted.verdict, emphasised=len(rows) - 1)


if TYPE_CHECKING:
    from rich.table import Table

_FIGURES = ("top1", "balanced_accuracy", "auroc", "brier")

# N = images, C = classes


@dataclass(frozen=True, slots=True)
class KnownFigure:
    """A headline figure by the photos alone, and with the known fields."""

    without: Interval
    known: Interval
    difference: Interval
    """Known minus without, paired on the same resampled groups."""


@dataclass(frozen=True, slots=True)
class KnownFacts:
    """Effect of the fields that the dataset says, in answers of a bundle that uses them."""

    pictures: int
    told: int
    """Number of images with an answer that uses at least one field."""
    changed: int
    """How many of these get another class because of the fields."""
    log_loss: Interval
    """Reduction of the log loss by the known fields."""
    figures: dict[str, KnownFigure]


class UsesFacts(Protocol):
    """A predictor, as far as it uses age, sex and place."""

    @property
    def metadata(self) -> MetadataSpec | None: ...


def with_known_facts(
    predictor: UsesFacts, records: Sequence[Record], predictions: Sequence[Prediction]
) -> list[Prediction]:
    """Return predictions that also hold the probabilities with what the manifest says."""
    spec = predictor.metadata
    if spec is None or spec.head is None:
        return list(predictions)
    result = []
    for record, prediction in zip(records, predictions, strict=True):
        facts, known_C = Facts.from_record(record), None
        if fields := spec.served(facts):
            (known_C,) = spec.head.apply(prediction.probabilities_C[None], [facts.only(fields)])
        result.append(replace(prediction, known_C=known_C))
    return result


def measure_known_facts(
    answers: Answers, predictions: Sequence[Prediction], *, draws: int = 1000
) -> KnownFacts | None:
    """Compare answers with what is known to those by photos alone; None where none used a field.

    The rows of `answers` are those of `predictions`.
    """
    told_N = np.array([prediction.known_C is not None for prediction in predictions])
    if not told_N.any():
        return None
    without_NC, truth_N, groups_N = answers.ensemble_NC, answers.truth_N, answers.groups_N
    known_NC: NDArray[np.float64] = np.stack(
        [p.probabilities_C if p.known_C is None else p.known_C for p in predictions]
    )

    def one(key: str) -> KnownFigure:
        without, known = (FIGURES[key].make(p_NC, truth_N) for p_NC in (without_NC, known_NC))
        settings: dict[str, Any] = {"draws": draws, "level": LEVEL, "seed": SEED}
        return KnownFigure(
            confidence_interval(without, groups_N, **settings),
            confidence_interval(known, groups_N, **settings),
            paired_interval(known, without, groups_N, **settings),
        )

    gain = log_gain(known_NC, without_NC, truth_N)
    return KnownFacts(
        len(answers),
        int(told_N.sum()),
        int((known_NC.argmax(axis=1) != answers.predicted_N).sum()),
        bootstrap_interval(gain, groups_N, draws=draws, level=LEVEL, seed=SEED),
        {key: one(key) for key in _FIGURES},
    )


def known_rows(known: KnownFacts) -> list[tuple[str, str, str, str]]:
    """Return title, figure without, figure with and difference of each row of the table."""
    rows = [
        (
            FIGURES[key].title,
            f"{shown(row.without, key)} {bounds(row.without, FIGURES[key].unit)}",
            f"{shown(row.known, key)} {bounds(row.known, FIGURES[key].unit)}",
            shown_difference(row.difference, key),
        )
        for key, row in known.figures.items()
    ]
    gain = known.log_loss
    less = Interval(-gain.value, -gain.high, -gain.low)
    return [*rows, ("log loss", "", "", f"{change(less.value)} {bounds(less, 'change')}")]


def known_heading(known: KnownFacts) -> str:
    return (
        f"By the photos alone, and with age, sex and place, which {known.told} of {known.pictures} "
        f"images say; {known.changed} answers change"
    )


def known_table(known: KnownFacts) -> "Table":
    """Return the comparison as a table for a terminal."""
    columns = ("", "photos alone", "with what is known", "difference")
    return figures_table(known_heading(known), columns, known_rows(known))
