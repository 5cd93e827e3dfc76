"""Dataset size and accuracy against the de-duplication threshold (CE-Dedup's curve).

Li, Chang, Liu 2021, arXiv 2109.00899. Only the training images are thinned; the test split stays
as it is, and is never used to choose anything but the threshold that this curve is about.

N = images, C = classes, D = dimensions, K = kinds of hash, O = orientations, S = thumbnail side
"""

import csv
import dataclasses
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from skindx.core.atomic_files import atomic_file, write_json, write_text
from skindx.core.errors import UserError
from skindx.core.progress import Progress, silent
from skindx.core.settings_base import Settings
from skindx.data.copies.deduplicate import LabelledImage, deduplicate, distinct
from skindx.data.copies.hash_links import near_links
from skindx.data.image_tables import Embeddings
from skindx.data.layout import stored_file
from skindx.data.ledger import LedgerRow
from skindx.data.manifest import Record, read_image, read_manifest, split_of
from skindx.data.screening.screen import Screened
from skindx.evaluation.figures import bounds, percent, points
from skindx.imaging.hashes import HashKind, hash_thumbnails, thumbnail
from skindx.metrics import Interval, Statistic, confidence_interval, paired_interval
from skindx.review.image_embeddings import stored_duplicates
from skindx.review.label_doubts import Floats, Ints, classifier, vectors_of

if TYPE_CHECKING:
    from rich.console import Console


EVERY: tuple[tuple[HashKind, ...], ...] = (
    ("perceptual", "difference"),
    ("perceptual",),
    ("difference",),
    ("average",),
    ("wavelet",),
)


class SweepSettings(Settings):
    """Thresholds and hashes to try; kinds in one entry must agree together."""

    radii: tuple[int, ...] = Field(default=(0, 2, 4, 6, 8, 10, 12, 14, 16), min_length=1)
    hashes: tuple[tuple[HashKind, ...], ...] = Field(default=EVERY, min_length=1)
    seeds: int = Field(default=5, ge=1, le=10_000)
    """Random subsets of the same size that each point is compared with."""
    loss: float = Field(default=0.01, ge=0, lt=1)
    """Acceptable loss of accuracy."""
    draws: int = Field(default=1000, ge=1, le=1_000_000)

    @field_validator("radii")
    @classmethod
    def _in_order(cls, radii: tuple[int, ...]) -> tuple[int, ...]:
        if min(radii) < 0 or max(radii) > 32:
            raise ValueError("each radius must be from 0 to 32 bits")
        return tuple(sorted(set(radii)))


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One threshold: what is left of the training images, and what a classifier makes of it."""

    hashes: str
    radius: int
    kept: int
    duplicates: int
    contradicted: int
    """Images dropped because a near duplicate bears another label."""
    accuracy: Interval
    loss: Interval
    """Accuracy with all training images minus this one, on the same resampled test groups."""
    random: tuple[float, ...]
    """Accuracies when as many training images are taken at random, one a seed."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """The curve; `chosen` is None when every thinning loses more than is accepted."""

    train: int
    test: int
    accuracy: Interval
    """With all training images."""
    points: tuple[SweepPoint, ...]
    chosen: SweepPoint | None
    loss: float
    model: str


def sweep(
    dataset: Path, embeddings: Embeddings, settings: SweepSettings, progress: Progress = silent
) -> Sweep:
    """Thin the training images at each radius, train at each, test on the same images.

    The classifier is a logistic regression on embeddings: it trains in a second, and always gives
    the same. Raises UserError for a dataset without a test split or without embeddings.
    """
    records = read_manifest(dataset)
    train = split_of([*records, *stored_duplicates(dataset, records)], "train")
    test = split_of(records, "test")
    if not train or not test:
        raise UserError(f"{dataset} needs images in train and in test for a sweep.")
    trial = _Trial(train, test, embeddings)
    everything_NC = trial.probabilities(np.arange(len(train)))
    reference = Statistic.top_k(everything_NC, trial.truth_N, 1)
    thumbs_NSS = _thumbnails(dataset, train, progress)
    points = []
    steps = len(settings.hashes) * len(settings.radii)
    for kinds, radius, kept, contradicted in _thinnings(dataset, train, thumbs_NSS, settings):
        accuracy = Statistic.top_k(trial.probabilities(kept), trial.truth_N, 1)
        points.append(
            SweepPoint(
                "+".join(kinds),
                radius,
                len(kept),
                len(train) - len(kept) - contradicted,
                contradicted,
                confidence_interval(accuracy, trial.groups_N, draws=settings.draws),
                paired_interval(reference, accuracy, trial.groups_N, draws=settings.draws),
                tuple(trial.at_random(len(kept), seed) for seed in range(settings.seeds)),
            )
        )
        progress("train", len(points), steps)
    return Sweep(
        len(train),
        len(test),
        confidence_interval(reference, trial.groups_N, draws=settings.draws),
        tuple(points),
        choose(points, settings.loss),
        settings.loss,
        embeddings.model,
    )


def choose(points: Sequence[SweepPoint], loss: float) -> SweepPoint | None:
    """Return the smallest set that loses at most `loss`; of equal ones the more accurate."""
    fit = [point for point in points if point.loss.value <= loss]
    return min(fit, key=lambda p: (p.kept, -p.accuracy.value, p.radius), default=None)


class _Trial:
    """One classifier after another, on the same test images."""

    def __init__(
        self, train: Sequence[Record], test: Sequence[Record], embeddings: Embeddings
    ) -> None:
        self._train_ND = vectors_of(train, embeddings)
        self._test_ND = vectors_of(test, embeddings)
        names = sorted({record.label for record in [*train, *test]})
        number = {name: index for index, name in enumerate(names)}
        self._labels_N = np.array([number[record.label] for record in train], dtype=np.intp)
        self.truth_N: Ints = np.array([number[record.label] for record in test], dtype=np.intp)
        self.groups_N = np.array([record.group for record in test])
        self._classes = len(names)

    def probabilities(self, rows: NDArray[np.intp]) -> Floats:
        """Train on these training images; return probabilities_NC of the test images."""
        labels = self._labels_N[rows]
        filled_NC = np.zeros((len(self.truth_N), self._classes))
        if len(np.unique(labels)) < 2:
            filled_NC[:, labels[:1]] = 1
            return filled_NC
        model = classifier().fit(self._train_ND[rows], labels)
        filled_NC[:, model.classes_] = model.predict_proba(self._test_ND)
        return filled_NC

    def at_random(self, count: int, seed: int) -> float:
        """Return the accuracy with `count` training images drawn at random."""
        random = np.random.default_rng(seed)
        rows = random.choice(len(self._labels_N), count, replace=False)
        return Statistic.top_k(self.probabilities(rows), self.truth_N, 1).value


def _thumbnails(dataset: Path, train: Sequence[Record], progress: Progress) -> NDArray[np.float32]:
    thumbs = []
    for record in train:
        thumbs.append(thumbnail(read_image(dataset, record)))
        progress("hash", len(thumbs), len(train))
    return np.stack(thumbs)


def _thinnings(
    dataset: Path, train: Sequence[Record], thumbs_NSS: NDArray[np.float32], settings: SweepSettings
) -> Iterator[tuple[tuple[HashKind, ...], int, NDArray[np.intp], int]]:
    """Yield (kinds, radius, positions kept, images dropped as contradictions) as a build would.

    Clusters and contradictions are those of `deduplicate`, so that the curve is the build's own.
    """
    for kinds in settings.hashes:
        codes_NKO = hash_thumbnails(thumbs_NSS, kinds)
        images = distinct([_picture(dataset, *pair) for pair in zip(train, codes_NKO, strict=True)])
        # `distinct` orders by SHA-256: the codes must stand in the same order.
        codes_NKO = np.stack([same[0].screened.codes_KO for same in images])
        links_L3 = near_links(codes_NKO, max(settings.radii))
        position = {record.sha256: i for i, record in enumerate(train)}
        for radius in settings.radii:
            cleaned = deduplicate(images, links_L3, radius)
            kept = np.array(sorted(position[p.row.sha256] for p in cleaned.kept), dtype=np.intp)
            contradicted = sum(i.reason == "conflicting-duplicate" for i in cleaned.issues)
            if len(kept):
                yield kinds, radius, kept, contradicted


def _picture(dataset: Path, record: Record, codes_KO: NDArray[np.uint64]) -> LabelledImage:
    row = LedgerRow(
        record.source_url,
        record.label,
        "stored",
        sha256=record.sha256,
        path=record.path,
        size_bytes=stored_file(dataset, record.path).stat().st_size,
    )
    screened = Screened(None, "", record.width, record.height, codes_KO)
    return LabelledImage(row, record.label, screened)


JSON, TABLE, PLOT = "sweep.json", "sweep.csv", "sweep.png"

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Okabe and Ito 2008: they differ for every kind of colour vision."""


def write_sweep(folder: Path, sweep: Sweep) -> None:
    """Write sweep.json, sweep.csv and sweep.png; other files in the folder stay."""
    write_text(folder / TABLE, table(sweep))
    with atomic_file(folder / PLOT) as temporary:
        plot(sweep, temporary)
    write_json(folder / JSON, dataclasses.asdict(sweep))


def table(sweep: Sweep) -> str:
    """Return one line a point as CSV; accuracies and losses are shares."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    head = ["hashes", "radius", "kept", "duplicates", "contradicted"]
    head += [f"{name}{end}" for name in ("accuracy", "loss") for end in ("", "_low", "_high")]
    writer.writerow([*head, "random_mean"])
    for point in sweep.points:
        figures = [point.accuracy, point.loss]
        shares = [value for f in figures for value in (f.value, f.low, f.high)]
        counts = [point.kept, point.duplicates, point.contradicted]
        rounded = [f"{share:.4f}" for share in [*shares, np.mean(point.random)]]
        writer.writerow([point.hashes, point.radius, *counts, *rounded])
    return buffer.getvalue()


def print_sweep(sweep: Sweep, console: "Console") -> None:
    """Print the points as a table, and what they mean in plain sentences."""
    from rich.table import Table

    out = Table("hashes", "bits", "kept", "duplicates", "contradicted", "top-1", "loss", "random")
    for column in out.columns[1:]:
        column.justify = "right"
    for point in sweep.points:
        out.add_row(
            point.hashes,
            str(point.radius),
            str(point.kept),
            str(point.duplicates),
            str(point.contradicted),
            percent(point.accuracy),
            f"{points(point.loss.value)} {bounds(point.loss, 'points')}",
            percent(float(np.mean(point.random))),
        )
    console.print(out)
    for line in lines(sweep):
        console.print(line, markup=False, highlight=False)


def lines(sweep: Sweep) -> Iterator[str]:
    """Tell what was found, the choice last."""
    yield (
        f"{sweep.train} training images, {sweep.test} test images; top-1 with all of them "
        f"{percent(sweep.accuracy)} {bounds(sweep.accuracy)}."
    )
    chosen = sweep.chosen
    if chosen is None:
        yield f"Every threshold loses more than {100 * sweep.loss:.1f} points: keep all images."
        return
    yield (
        f"Smallest set that loses at most {100 * sweep.loss:.1f} points: {chosen.hashes} within "
        f"{chosen.radius} bits, {chosen.kept} of {sweep.train} images, loss "
        f"{points(chosen.loss.value)} {bounds(chosen.loss, 'points')}."
    )
    if chosen.loss.high > sweep.loss:
        yield "The interval reaches beyond what is accepted: this test split cannot promise it."
    if chosen.accuracy.value <= max(chosen.random):
        yield "As many images taken at random can do as well: the gain is not the hash's."
    if chosen.contradicted > chosen.duplicates:
        yield (
            "Most of what goes are look-alikes with different labels: at this threshold the hash "
            "no longer finds duplicates."
        )


def plot(sweep: Sweep, path: Path) -> None:
    """Draw size against threshold, and accuracy against size with its interval, as PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.6), layout="constrained", dpi=120)
    size, accuracy = figure.subplots(1, 2)
    for index, name in enumerate(dict.fromkeys(point.hashes for point in sweep.points)):
        ours = [point for point in sweep.points if point.hashes == name]
        kept = [point.kept / sweep.train for point in ours]
        style = {"color": _COLOURS[index % len(_COLOURS)], "marker": "o", "markersize": 4}
        size.plot([point.radius for point in ours], kept, label=name, **style)
        accuracy.plot(kept, [point.accuracy.value for point in ours], label=name, **style)
    every = sorted(sweep.points, key=lambda point: point.kept)
    x = [point.kept / sweep.train for point in every]
    at_random = np.array([point.random for point in every])
    accuracy.plot(x, at_random.mean(axis=1), color="#888888", label="as many at random")
    accuracy.fill_between(
        x, at_random.min(axis=1), at_random.max(axis=1), color="#888888", alpha=0.25, linewidth=0
    )
    all_of_them = sweep.accuracy
    accuracy.axhline(all_of_them.value, color="#000000", linewidth=0.8, linestyle="--")
    accuracy.axhspan(all_of_them.low, all_of_them.high, color="#000000", alpha=0.06, linewidth=0)
    size.set(xlabel="threshold (bits of 64)", ylabel="share of training images kept")
    size.set_ylim(bottom=0)
    accuracy.set(xlabel="share of training images kept", ylabel="top-1 on the test split")
    accuracy.set_title("dashed: all images, with their 95 % interval", fontsize=9)
    for axis in (size, accuracy):
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    figure.savefig(path, format="png")
