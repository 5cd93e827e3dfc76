"""How many of so many planted wrong labels stand among as many first doubts."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from skindx.core.settings_base import Settings
from skindx.data.image_tables import label_table, read_embeddings
from skindx.data.manifest import read_manifest
from skindx_bench.harness.clock import Figure
from skindx_bench.harness.result import MEANS, Result

SMALLEST = ("images=120", "seeds=2")

KINDS = {"": 1.0, "_confusable": 0.0}
"""Suffix of a figure's key -> which part of the errors goes to any class alike."""

Floats = NDArray[np.float64]


class Config(Settings):
    """Without a dataset: made-up vectors of four classes, which only show that the bench runs."""

    dataset: Path | None = None
    embeddings: Path | None = None
    """A table of `skindx dedup embed`; none: the dataset's, of all layers if it has it."""
    share: float = Field(0.05, gt=0, le=0.3)
    seeds: int = Field(5, ge=2)
    images: int = Field(400, ge=40)
    """How many are made up."""


def run(settings: Config) -> Result:
    """Plant errors under several seeds and let each ranking find them."""
    from skindx_bench.labels.rankings import RANKINGS, found_shares

    vectors_ND, labels_N, groups_N, note = _images(settings)
    figures: dict[str, Figure] = {}
    baselines: dict[str, Figure] = {}
    for suffix, even in KINDS.items():
        by_name = found_shares(
            vectors_ND, labels_N, groups_N, share=settings.share, even=even, seeds=settings.seeds
        )
        assert by_name.keys() == RANKINGS.keys()
        for name, shares in by_name.items():
            key = f"label_precision_at_n{suffix}"
            if name == "combined":
                figures[key] = _mean(shares)
            else:
                baselines[f"{name}, {key}"] = _mean(shares)
    return Result("labels", {**figures, **baselines}, notes=(note,), headings=MEANS)


def _mean(shares: list[float]) -> Figure:
    """Return the mean over seeds with its 95 % interval by Student's t."""
    from scipy.stats import t

    mean, error = float(np.mean(shares)), float(np.std(shares, ddof=1) / len(shares) ** 0.5)
    half = float(t.ppf(0.975, len(shares) - 1)) * error
    return Figure(mean, "of the planted", len(shares), (mean - half, mean + half))


def _images(
    settings: Config,
) -> tuple[NDArray[np.float32], NDArray[np.intp], NDArray[np.str_], str]:
    if settings.dataset is None:
        random = np.random.default_rng(0)
        labels_N = np.arange(settings.images // 2).repeat(2) % 4
        centres = random.normal(0, 1, (4, 16))
        made = centres[labels_N] + random.normal(0, 1.0, (len(labels_N), 16))
        made /= np.linalg.norm(made, axis=1, keepdims=True)
        groups_N = np.array([f"g{n // 2}" for n in range(len(labels_N))])
        note = f"{len(labels_N)} made-up vectors of 4 classes in pairs."
        return made.astype(np.float32), labels_N, groups_N, note
    records = read_manifest(settings.dataset)
    table = read_embeddings(settings.embeddings or label_table(settings.dataset))
    known_N, vectors_ND = table.of([record.sha256 for record in records])
    records = [records[at] for at in known_N]
    classes, labels_N = np.unique([record.label for record in records], return_inverse=True)
    groups_N = np.array([record.group for record in records])
    note = (
        f"{len(records)} images of {len(classes)} classes of {settings.dataset.name}, embedded by "
        f"{table.model}; {settings.share:.0%} of the labels swapped. The labels' own errors count "
        "as false alarms."
    )
    return vectors_ND, labels_N, groups_N, note
