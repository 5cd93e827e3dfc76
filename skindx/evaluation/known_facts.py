"""Effect of age, sex and place: the same images by the photos alone, and with what is known."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from skindx.data.manifest import Record
from skindx.evaluation.answers import Answers
from skindx.evaluation.figures import FIGURES, LEVEL, SEED, bounds, change, shown, shown_difference
from skindx.metrics import Interval, bootstrap_interval, confidence_interval, paired_interval
from skindx.models.ensemble import Prediction
from skindx.models.metadata_head import Facts, MetadataSpec, log_gain

if TYPE_CHECKING:
    from rich.table import Table

_FIGURES = ("top1", "balanced_accuracy", "auroc", "brier")

# N = images, C = classes


@dataclass(frozen=True, slots=True)
class KnownFigure:
    """One headline figure by the photos alone, and with what is known."""

    without: Interval
    known: Interval
    difference: Interval
    """With minus without, paired on the same resampled groups."""


@dataclass(frozen=True, slots=True)
class KnownFacts:
    """Effect of the fields that the dataset says, in answers of a bundle that uses them."""

    pictures: int
    told: int
    """How many have an answer with at least one field."""
    changed: int
    """Of them, those that were given another class by it."""
    log_loss: Interval
    """How much lower the log loss is with what is known."""
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
        facts, known_C = Facts.of(record), None
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
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(title=known_heading(known), title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("", no_wrap=True)
    for name in ("photos alone", "with what is known", "difference"):
        table.add_column(name, justify="right")
    for row in known_rows(known):
        table.add_row(*row)
    return table
