"""Figures of `skindx bench scan crop`: each arm's, their paired differences, what boxes found."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from skindx.core.settings_base import Settings
from skindx.evaluation.figures import FIGURES
from skindx.metrics import (
    Interval,
    Measure,
    Ranked,
    Statistic,
    balanced_rule,
    confidence_interval,
    paired_interval,
    share_interval,
)
from skindx.taxonomy import Taxonomy
from skindx_bench.harness.result import Figure

# N = images, C = classes

Floats = NDArray[np.float64]

OVERLAP = 0.5
"""The IoU from which a box has found the lesion."""
PAIRS = (
    ("detector", "whole"),
    ("drawn", "whole"),
    ("drawn", "detector"),
    ("both", "whole"),
    ("detector", "both"),
    ("centre", "whole"),
    ("detector", "centre"),
    ("fine", "whole"),
    ("detector", "fine"),
)
_MALIGNANT = ("urgent", "soon")
_FEWEST = 5
"""Images of a class below which it has no figure of its own, and two halves none of both."""


class Row(Settings):
    """What was asked of one image, and what each arm answered."""

    where: str
    sha256: str
    group: str
    label: str
    share: float
    """The longer side of the true box over the image's width."""
    answers: Mapping[str, list[float]]
    """Probabilities of the bundle's classes, by arm."""
    refused: Mapping[str, bool]
    """Whether the out-of-distribution check refuses what an arm shows."""
    iou: float | None
    """Of the best box with the true one; None: no box."""
    in_decoy: bool
    decoys: int


def figures_of(
    rows: Sequence[Row], taxonomy: Taxonomy, mix_C: Floats | None, draws: int
) -> dict[str, Figure]:
    """Return the figures of all places, under PLACE_ARM_FIGURE and PLACE_ARM_minus_ARM_FIGURE.

    Classes are chosen by the balanced rule where the mix is known. A place whose labels are not
    the taxonomy's has two: malignant, of the classes that are urgent or soon, and the rest. What
    two arms differ by in a class holds for all classes of a place and figure together: each such
    interval is of the level 1 - 0.05 / classes (Bonferroni).
    """
    figures: dict[str, Figure] = {}
    for where in dict.fromkeys(row.where for row in rows):
        here = [row for row in rows if row.where == where]
        figures |= {
            f"{where}_{key}": figure for key, figure in _place(here, taxonomy, mix_C, draws)
        }
    return figures


def _place(
    rows: Sequence[Row], taxonomy: Taxonomy, mix_C: Floats | None, draws: int
) -> Iterator[tuple[str, Figure]]:
    keys = list(taxonomy.keys)
    answers = {arm: np.array([row.answers[arm] for row in rows]) for arm in rows[0].answers}
    if "whole" in answers and "detector" in answers:
        answers["both"] = (answers["whole"] + answers["detector"]) / 2
    halves = any(row.label not in keys for row in rows)
    if halves:
        bad_C = np.array([one.urgency in _MALIGNANT for one in taxonomy.classes])
        answers = {arm: _halves(p_NC, bad_C) for arm, p_NC in answers.items()}
        mix_C = None if mix_C is None else _halves(mix_C[None], bad_C)[0]
        keys = ["benign", "malignant"]
    truth_N = np.array([keys.index(row.label) for row in rows])
    groups_N = np.array([row.group for row in rows])
    yield from _boxes(rows, groups_N)
    measures = {arm: _measures(p_NC, truth_N, keys, mix_C) for arm, p_NC in answers.items()}
    counts = {f"sensitivity_{key}": int((truth_N == c).sum()) for c, key in enumerate(keys)}
    if halves and min(counts.values()) < _FEWEST:
        for own in measures.values():
            del own["balanced"], own["auroc"]
    for arm in rows[0].refused:
        refused_N = np.array([row.refused[arm] for row in rows])
        measures[arm]["refused"] = (Statistic.share(refused_N), "%")
    for arm, own in measures.items():
        for key, (measure, unit) in own.items():
            found = confidence_interval(measure, groups_N, draws=draws)
            yield f"{arm}_{key}", Figure.of(found, unit, counts.get(key, len(rows)), _scale(unit))
    for arm, other in PAIRS:
        if arm not in measures or other not in measures:
            continue
        for key, (measure, unit) in measures[arm].items():
            if key not in measures[other]:  # what the check says of an arm
                continue
            level = 1 - 0.05 / _family(key, measures[arm])
            second = measures[other][key][0]
            found = paired_interval(measure, second, groups_N, draws=draws, level=level)
            text, n = "points" if unit == "%" else unit, counts.get(key, len(rows))
            yield f"{arm}_minus_{other}_{key}", Figure.of(found, text, n, _scale(unit))
    yield from _missed(rows, answers, truth_N, mix_C, groups_N)


def _family(key: str, keys: Iterable[str]) -> int:
    """Return the classes whose figures of a kind hold together; 1 for a figure of all classes."""
    kind, of_class, _ = key.partition("_")
    if key == "log_loss" or not of_class:
        return 1
    return sum(other.startswith(f"{kind}_") for other in keys)


def _scale(unit: str) -> float:
    return 100 if unit == "%" else 1


def _halves(p_NC: Floats, bad_C: NDArray[np.bool_]) -> Floats:
    bad_N = p_NC[:, bad_C].sum(axis=1)
    return np.column_stack([p_NC.sum(axis=1) - bad_N, bad_N])


def _ruled(p_NC: Floats, mix_C: Floats | None) -> Floats:
    return p_NC if mix_C is None else balanced_rule(p_NC, mix_C)


def _measures(
    p_NC: Floats, truth_N: NDArray[np.intp], keys: Sequence[str], mix_C: Floats | None
) -> dict[str, tuple[Measure, str]]:
    ruled_NC = _ruled(p_NC, mix_C)
    measures: dict[str, tuple[Measure, str]] = {
        "balanced": (FIGURES["balanced_accuracy"].make(ruled_NC, truth_N), "%"),
        "auroc": (FIGURES["auroc"].make(p_NC, truth_N), ""),
        "log_loss": (FIGURES["log_loss"].make(p_NC, truth_N), "nats"),
    }
    hits_N = ruled_NC.argmax(axis=1) == truth_N
    for c, key in enumerate(keys):
        count = int((truth_N == c).sum())
        if min(count, len(truth_N) - count) >= _FEWEST:
            measures[f"auroc_{key}"] = (Ranked.auroc(p_NC, truth_N, {c}), "")
        if count >= _FEWEST:
            measures[f"sensitivity_{key}"] = (_share_of(hits_N, truth_N == c), "%")
    return measures


def _share_of(hits_N: NDArray[np.bool_], of_N: NDArray[np.bool_]) -> Statistic:
    """Return the share of hits among some images, of which each draw has others."""
    features_NF = np.column_stack([hits_N & of_N, of_N]).astype(np.float64)

    def finish(totals_DF: Floats) -> Floats:
        share_D: Floats = np.divide(
            totals_DF[:, 0],
            totals_DF[:, 1],
            out=np.full(len(totals_DF), np.nan),
            where=totals_DF[:, 1] > 0,
        )
        return share_D

    # As strata the images of the class alone: the share that may be unseen is theirs.
    return Statistic(features_NF, finish, strata=of_N.astype(np.intp))


def _boxes(rows: Sequence[Row], groups_N: NDArray[np.str_]) -> Iterator[tuple[str, Figure]]:
    """Yield sizes, recall at IoU 0.5, images without a box, and boxes in decoys."""

    def share(hits: Sequence[bool], of: NDArray[np.str_] = groups_N) -> Figure:
        return Figure.of(share_interval(hits, of), "%", len(hits), 100)

    low, middle, high = np.quantile([row.share for row in rows], [0.05, 0.5, 0.95]).tolist()
    yield "share", Figure(100 * middle, "%", len(rows), (100 * low, 100 * high))
    yield "recall", share([(row.iou or 0) >= OVERLAP for row in rows])
    yield "no_box", share([row.iou is None for row in rows])
    decoyed = [n for n, row in enumerate(rows) if row.decoys]
    if decoyed:
        yield "in_decoy", share([rows[n].in_decoy for n in decoyed], groups_N[decoyed])


def _missed(
    rows: Sequence[Row],
    answers: Mapping[str, Floats],
    truth_N: NDArray[np.intp],
    mix_C: Floats | None,
    groups_N: NDArray[np.str_],
) -> Iterator[tuple[str, Figure]]:
    """Yield how often each arm is right where the box found the lesion, and where it did not."""
    found_N = np.array([(row.iou or 0) >= OVERLAP for row in rows])
    for name, some_N in (("found", found_N), ("missed", ~found_N)):
        if not some_N.any():
            continue
        for arm in ("whole", "detector", "drawn"):
            if arm in answers:
                hits_N = _ruled(answers[arm], mix_C).argmax(axis=1) == truth_N
                right: Interval = share_interval(hits_N[some_N], groups_N[some_N])
                yield f"{name}_{arm}_right", Figure.of(right, "%", int(some_N.sum()), 100)
