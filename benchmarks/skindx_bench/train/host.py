"""Does a classifier read the host of a photo? Heads of one host are tested on another's photos.

Two hosts differ in resolution, compression and classes. If a network sees the host, a class that is
common on one of them can be guessed without the skin. So both hosts give the same number of images
of the same classes, and each head is tested within its host and across.
"""

import dataclasses
import io
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import Field

from skindx.core.errors import UserError
from skindx.core.settings_base import Settings
from skindx.data.layout import store_bytes
from skindx.data.manifest import Record, read_image, read_manifest
from skindx.metrics import Measure, Ranked, Statistic, confidence_interval, paired_interval
from skindx.models.classifier.preprocess import Preprocess
from skindx_bench.harness.result import MEANS, Figure, Result
from skindx_bench.honesty.ood import refold
from skindx_bench.train import frozen_heads
from skindx_bench.train.frozen_heads import calibrated_fold, network, pooled_features

# N = images of both hosts, T = test images of all folds, C = classes, D = features

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SMALLEST = ("head=random-32", "folds=2", "least=4")

_WITHIN, _ACROSS = "within", "across"


class Config(Settings):
    """Which dataset of several hosts, and the frozen network whose features the heads learn."""

    dataset: Path = Path("runs/fitzpatrick16/data")
    weights: Path = Path("weights")
    """The folder of the ImageNet weights."""
    head: str = "mobilenetv2-128"
    """The network and its side, NAME-SIDE."""
    folds: int = Field(5, ge=2)
    least: int = Field(30, ge=1)
    """A class is compared if each host has so many images of it."""
    level_px: int = Field(96, ge=8)
    """The shorter side to which all images are brought before they are compared again."""
    seed: int = 0
    out: Path = Path("runs/host")
    """Features, which a second call does not compute again."""


def run(settings: Config) -> Result:
    """Test heads within and across hosts, on the images as they are and on levelled ones."""
    hosts, records = comparable(read_manifest(settings.dataset), settings.least)
    plain = measure(records, hosts, settings.dataset, settings)
    folder = settings.out / "levelled"
    levelled = measure(
        level(settings.dataset, records, folder, settings.level_px), hosts, folder, settings
    )
    figures = {**plain.figures(), **{f"levelled_{k}": v for k, v in levelled.figures().items()}}
    difference = paired_interval(
        levelled.host_area, plain.host_area, plain.host_groups_N, seed=settings.seed
    )
    figures["levelled_minus_host_auroc"] = Figure.of(difference, "", settings.folds)
    counts = Counter((host_of(record), record.label) for record in records)
    rows = {
        host: {
            "shorter_side_px": _middle_px(records, host),
            "images": {label: counts[host, label] for label in plain.classes},
        }
        for host in hosts
    }
    note = (
        f"Classes of which both hosts have {settings.least} images; of lesions and copies on both "
        f"hosts only the images of the smaller one stay. Heads on {settings.head}, not fine-tuned; "
        f"{settings.folds} grouped folds. In each both hosts give the same number of training and "
        "validation images of each class, and every test image is judged by a head of each host. "
        f"Levelled images have a shorter side of {settings.level_px} px and one quality of JPEG. "
        "The head that tells the hosts apart sees the same number of images of each class from "
        "both. 95 % intervals over groups, paired for differences."
    )
    return Result("host", figures, notes=(note,), models=rows, headings=MEANS)


def host_of(record: Record) -> str:
    """Return the host that a record's source names, as in `files:index.csv @ www.example.org`."""
    return record.source.rpartition(" @ ")[2].removeprefix("www.").partition(".")[0]


def comparable(records: Sequence[Record], least: int) -> tuple[tuple[str, str], Sequence[Record]]:
    """Return the two largest hosts, the larger one first, and the images that can be compared.

    No group is on both. Raises UserError for one host, and for fewer than two shared classes.
    """
    largest = Counter(map(host_of, records)).most_common(2)
    if len(largest) < 2:
        raise UserError("the dataset has images of one host only; give one of several hosts.")
    large, small = largest[0][0], largest[1][0]
    of_small = {record.group for record in records if host_of(record) == small}
    alone = [
        record
        for record in records
        if host_of(record) == small or (host_of(record) == large and record.group not in of_small)
    ]
    counts = Counter((host_of(record), record.label) for record in alone)
    shared = {
        record.label
        for record in alone
        if min(counts[host, record.label] for host in (large, small)) >= least
    }
    if len(shared) < 2:
        raise UserError(
            f"{large} and {small} have {len(shared)} classes of {least} images or more in common, "
            "and a comparison needs two; lower `--set least=…`."
        )
    return (large, small), [record for record in alone if record.label in shared]


def level(dataset: Path, records: Sequence[Record], folder: Path, side_px: int) -> list[Record]:
    """Write the images with the same shorter side and compression; return their records."""
    levelled = []
    for record in records:
        image = Image.fromarray(read_image(dataset, record))
        scale = side_px / min(image.size)
        width, height = (max(1, round(side * scale)) for side in image.size)
        written = io.BytesIO()
        image.resize((width, height), Image.Resampling.LANCZOS).save(written, "JPEG", quality=85)
        sha256, path = store_bytes(folder, written.getvalue(), ".jpg")
        levelled.append(
            dataclasses.replace(record, path=path, sha256=sha256, width=width, height=height)
        )
    return levelled


class HostHeads(NamedTuple):
    """What heads of each host say of the test images of all folds, and a head that names hosts."""

    hosts: tuple[str, str]
    classes: tuple[str, ...]
    host_T: Ints
    truth_T: Ints
    groups_T: NDArray[np.str_]
    by_host_HTC: Floats
    """By heads of the first host and of the second."""
    host_area: Measure
    host_groups_N: NDArray[np.str_]
    folds: int
    seed: int

    def figures(self) -> dict[str, Figure]:
        """Return balanced accuracies, their differences, and how well the host is told."""
        area = confidence_interval(self.host_area, self.host_groups_N, seed=self.seed)
        figures = {"host_auroc": Figure.of(area, "", self.folds)}
        everything_T = np.ones(len(self.host_T), bool)
        parts = {"": everything_T}
        parts |= {f"_{name}": self.host_T == number for number, name in enumerate(self.hosts)}
        rows_T = np.arange(len(self.host_T))
        own = {
            _WITHIN: self.by_host_HTC[self.host_T, rows_T],
            _ACROSS: self.by_host_HTC[1 - self.host_T, rows_T],
        }
        for name, part_T in parts.items():
            groups_T = self.groups_T[part_T]
            made = {
                key: Statistic.balanced_accuracy(own_TC[part_T], self.truth_T[part_T])
                for key, own_TC in own.items()
            }
            for key, measure_ in made.items():
                interval = confidence_interval(measure_, groups_T, seed=self.seed)
                figures[f"{key}_balanced{name}"] = Figure.of(interval, "%", self.folds, 100)
            drop = paired_interval(made[_ACROSS], made[_WITHIN], groups_T, seed=self.seed)
            key = f"across_minus_within_balanced{name}"
            figures[key] = Figure.of(drop, "points", self.folds, 100)
        return figures


def measure(
    records: Sequence[Record], hosts: tuple[str, str], dataset: Path, settings: Config
) -> HostHeads:
    """Compute the features of all images, and test heads on them."""
    name, _, side = settings.head.rpartition("-")
    preprocess = Preprocess(size=int(side), mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    classifier = network(name, preprocess, settings.weights)
    out = settings.out / dataset.name
    places = frozen_heads.Config(dataset=dataset, weights=settings.weights, out=out)
    features_ND = pooled_features(settings.head, classifier, preprocess, records, places)
    return judge_heads(features_ND, records, hosts, settings)


def judge_heads(
    features_ND: NDArray[np.float32],
    records: Sequence[Record],
    hosts: tuple[str, str],
    settings: Config,
) -> HostHeads:
    """Fit heads of each host, and of the hosts themselves, out of fold."""
    classes = sorted({record.label for record in records})
    truth_N = np.array([classes.index(record.label) for record in records])
    host_N = np.array([hosts.index(host_of(record)) for record in records])
    groups_N = np.array([record.group for record in records])
    tests, by_host, told, told_rows = [], [], [], []
    for parts_N in matched_folds(records, host_N, truth_N, settings):
        test_N = parts_N == "test"
        tests.append(np.flatnonzero(test_N))
        heads = []
        for number in range(2):
            own_N = np.where(test_N | (host_N == number), parts_N, "")
            heads.append(calibrated_fold(features_ND, truth_N, own_N, len(classes)))
        by_host.append(np.stack(heads))
        even_N = parts_N.copy()
        even_N[test_N & ~_even(test_N, host_N, truth_N, settings.seed)] = ""
        told.append(calibrated_fold(features_ND, host_N, even_N, 2))
        told_rows.append(np.flatnonzero(even_N == "test"))
    tests_T, told_T = np.concatenate(tests), np.concatenate(told_rows)
    return HostHeads(
        hosts,
        tuple(classes),
        host_N[tests_T],
        truth_N[tests_T],
        groups_N[tests_T],
        np.concatenate(by_host, axis=1),
        Ranked.auroc(np.concatenate(told), host_N[told_T], [1]),
        groups_N[told_T],
        settings.folds,
        settings.seed,
    )


def matched_folds(
    records: Sequence[Record], host_N: Ints, truth_N: Ints, settings: Config
) -> Iterator[NDArray[np.str_]]:
    """Yield a fold's parts: train and val of the same size on both hosts, class by class; test.

    Images that would make one host larger have no part.
    """
    for fold in range(settings.folds):
        parts_N = np.full(len(records), "", dtype="<U5")
        for number in range(2):
            rows = np.flatnonzero(host_N == number)
            own = refold(
                [records[row] for row in rows.tolist()], fold, settings.folds, settings.seed
            )
            parts_N[rows] = [record.split for record in own]
        for part in ("train", "val"):
            own_N = parts_N == part
            parts_N[own_N & ~_even(own_N, host_N, truth_N, settings.seed)] = ""
        yield parts_N


def _even(own_N: NDArray[np.bool_], host_N: Ints, truth_N: Ints, seed: int) -> NDArray[np.bool_]:
    """Return as many of the images of each class on both hosts, drawn by `seed`."""
    rng = np.random.default_rng(seed)
    even_N = np.zeros(len(own_N), bool)
    for label in np.unique(truth_N[own_N]):
        rows = [np.flatnonzero(own_N & (truth_N == label) & (host_N == host)) for host in (0, 1)]
        for own in rows:
            even_N[rng.permutation(own)[: min(map(len, rows))]] = True
    return even_N


def _middle_px(records: Sequence[Record], host: str) -> int:
    sides = [min(record.width, record.height) for record in records if host_of(record) == host]
    return round(float(np.median(sides)))
