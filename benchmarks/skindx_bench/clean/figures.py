"""The figures of the bench under their keys, and every method's values for the JSON."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from skindx.metrics import Interval, Ranked, bootstrap_interval
from skindx_bench.clean.methods import OURS, OWN
from skindx_bench.clean.score import OFTEN, Scored
from skindx_bench.harness.clock import Figure

# R = roots, D = draws


def figures_of(scored: Mapping[str, Scored], kinds: Sequence[str], draws: int) -> dict[str, Figure]:
    """Return ours by kind (or the first method's), then what all methods are compared by."""
    first = OURS if OURS in scored else next(iter(scored))
    ours = scored[first]
    figures: dict[str, Figure] = {}
    for kind in kinds:
        figures[f"copies_recall_{kind}"] = _share(*ours.recall(kind))
    for kind in kinds:
        figures[f"families_across_splits_{kind}"] = _count(*ours.torn(kind), "families")
    figures["false_links"] = _count(*ours.false_links(), "links")
    figures["images_misled_by_overlays"] = _count(*ours.misled(), "images")
    largest, images = ours.largest_group(), len(ours.planted.names)
    figures["largest_group"] = Figure(largest, "images", images, (largest, largest))
    precision = {name: _copies_ap(one, draws) for name, one in scored.items()}
    for name, figure in precision.items():
        figures[f"copies_ap_{name}"] = figure
    for name, one in scored.items():
        figures[f"recall_at_no_false_{name}"] = _share(
            one.recall_at_no_false(), int(one.pairs.hits_U.sum())
        )
    for name, one in scored.items():
        if len(one.answer.strange_S):
            figures[f"off_topic_ap_{name}"] = _off_topic_ap(one, draws)
    if f"off_topic_ap_{first}" in figures:
        figures["off_topic_ap"] = figures[f"off_topic_ap_{first}"]
    for name in scored:
        if name != first and precision[name].value > 0:
            figures[f"copies_over_{name}"] = _ratio(ours, scored[name], draws)
    peers = [name for name in scored if name not in (first, *_OURS_TOO) and precision[name].value]
    if peers:
        best = max(peers, key=lambda name: precision[name].value)
        figures["copies_over_best_peer"] = figures[f"copies_over_{best}"]
    for name, one in scored.items():
        took_s, memory_mb = one.answer.cpu_s, one.answer.memory_mb
        figures[f"seconds_{name}"] = Figure(took_s, "s", 1, (took_s, took_s))
        figures[f"memory_{name}"] = Figure(memory_mb, "MB", 1, (memory_mb, memory_mb))
    return figures


_OURS_TOO = (OWN[1],)
"""The project's own hashes are no peer."""


def plain_values(one: Scored, kinds: Sequence[str], draws: int) -> dict[str, Any]:
    """Return a method's values for the JSON; an interval is [value, low, high]."""
    images = len(one.planted.names)
    precision, recall = map(_plain, one.pairs.among_first(OFTEN))
    values: dict[str, Any] = {
        "copies": {
            "average_precision": _listed(_copies_ap(one, draws)),
            "auroc": _plain(one.pairs.auroc(images * (images - 1) // 2)),
            f"precision_at_{OFTEN}": precision,
            f"recall_at_{OFTEN}": recall,
            "recall_at_no_false": _bounds(one.recall_at_no_false()),
            "links": int(one.answer.accepted_P.sum()),
            "false_links": int((one.answer.accepted_P & ~one.same).sum()),
            "false_links_between": one.false_between(),
            "false_share": _bounds(one.false_links()[0]),
            "largest_group": one.largest_group(),
            "misled_by_overlays": _bounds(one.misled()[0]),
        },
        "recall": {kind: _bounds(one.recall(kind)[0]) for kind in kinds},
        "families_across_splits": {kind: _bounds(one.torn(kind)[0]) for kind in kinds},
        "processor_seconds": one.answer.cpu_s,
        "wall_seconds": one.answer.wall_s,
        "memory_mb": one.answer.memory_mb,
        "version": one.answer.version,
    }
    if len(one.answer.strange_S):
        precision, recall = map(_plain, one.off_topic.among_first(OFTEN))
        values["off_topic"] = {
            "average_precision": _listed(_off_topic_ap(one, draws)),
            "auroc": _plain(one.off_topic.auroc(images)),
            f"precision_at_{OFTEN}": precision,
            f"recall_at_{OFTEN}": recall,
        }
    return values


def _copies_ap(one: Scored, draws: int) -> Figure:
    measure = one.pairs.average_precision()
    interval = bootstrap_interval(measure, np.arange(measure.images), draws=draws)
    return _share(interval, int(one.pairs.hits_U.sum()))


def _off_topic_ap(one: Scored, draws: int) -> Figure:
    measure = one.off_topic.average_precision()
    interval = bootstrap_interval(measure, np.arange(measure.images), draws=draws)
    return _share(interval, int(one.off_topic.hits_U.sum()))


def _ratio(ours: Scored, other: Scored, draws: int) -> Figure:
    """Return how many times the other's average precision ours is, on the same draws of roots."""
    top, below = ours.pairs.average_precision(), other.pairs.average_precision()
    most = 1 / below.value
    measure = Ranked(
        lambda weights_DR: top.weigh(weights_DR) / np.maximum(below.weigh(weights_DR), 1e-9),
        top.images,
        high=most,
    )
    interval = bootstrap_interval(measure, np.arange(top.images), draws=draws)
    return Figure(interval.value, "×", top.images, (interval.low, interval.high))


def _share(share: Interval, n: int) -> Figure:
    return Figure(share.value, "", n, (share.low, share.high))


def _count(share: Interval, n: int, unit: str) -> Figure:
    """Return a share of n as a number with its bounds; nothing of nothing is nought."""
    if n == 0:
        return Figure(0.0, unit, 0, (0.0, 0.0))
    return Figure(round(share.value * n), unit, n, (share.low * n, share.high * n))


def _bounds(share: Interval) -> list[float | None]:
    return [_plain(value) for value in (share.value, share.low, share.high)]


def _plain(value: float) -> float | None:
    """Return None for what is not defined: JSON has no word for it."""
    return None if math.isnan(value) else value


def _listed(figure: Figure) -> list[float | None]:
    return _bounds(Interval(figure.value, *figure.spread))
