"""What de-duplication costs and saves: size and accuracy against its threshold (CE-Dedup's curve).

Li, Chang, Liu 2021, arXiv 2109.00899. Only the training images are thinned; the test split stays
as it is, and is never used to choose anything but the threshold that this curve is about.

N = images, C = classes, D = dimensions, K = kinds of hash, O = orientations, S = thumbnail side
"""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from skindx.core.errors import UserError
from skindx.core.settings_base import Settings
from skindx.data.copies.deduplicate import LabelledImage, deduplicate, distinct
from skindx.data.copies.hash_links import near_links
from skindx.data.embedding_files import EMBEDDINGS, Embeddings, read_embeddings
from skindx.data.layout import stored_file
from skindx.data.ledger import LedgerRow
from skindx.data.manifest import Record, read_image, read_manifest, split_of
from skindx.data.screening.screen import Screened
from skindx.evaluation.figures import bounds, percent, points
from skindx.imaging.hashes import HashKind, hash_thumbnails, thumbnail
from skindx.metrics import Interval, Statistic, confidence_interval, paired_interval
from skindx.review.image_embeddings import stored_duplicates
from skindx.review.label_doubts import Floats, Ints, vectors_of
from skindx_bench.harness.result import MEANS, Figure, Result
from skindx_bench.honesty.labels import classifier

EVERY: tuple[tuple[HashKind, ...], ...] = (
    ("perceptual", "difference"),
    ("perceptual",),
    ("difference",),
    ("average",),
    ("wavelet",),
)


SMALLEST = ("radii=[0, 4]", "hashes=[[perceptual]]", "seeds=1", "draws=50")


class Config(Settings):
    """Thresholds and hashes to try; kinds in one entry must agree together."""

    dataset: Path = Path("runs/mine/data")
    """With a table of `skindx dedup embed`."""
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


def run(settings: Config) -> Result:
    """Return the smallest training set that loses no more than is accepted, and every point."""
    table = read_embeddings(settings.dataset / EMBEDDINGS)
    curve = sweep(settings.dataset, table, settings)
    figures = {"accuracy": Figure.of(curve.accuracy, "share", curve.test)}
    if curve.chosen:
        figures["chosen_accuracy"] = Figure.of(curve.chosen.accuracy, "share", curve.test)
        figures["chosen_loss"] = Figure.of(curve.chosen.loss, "share", curve.test)
    models = {f"{at.hashes} within {at.radius}": dataclasses.asdict(at) for at in curve.points}
    return Result("threshold", figures, notes=tuple(lines(curve)), models=models, headings=MEANS)


def sweep(dataset: Path, embeddings: Embeddings, settings: Config) -> Sweep:
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
    thumbs_NSS = np.stack([thumbnail(read_image(dataset, r)) for r in train])
    points = []
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


def _thinnings(
    dataset: Path, train: Sequence[Record], thumbs_NSS: NDArray[np.float32], settings: Config
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
