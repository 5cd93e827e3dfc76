"""How well a bundle's out-of-distribution (OOD) check separates photos of its own kind from others.

`python -m skindx_bench.honesty.gates_study FOLDER ... --bundle BUNDLE DATA` prints it: images of
the test split against photos of each FOLDER, against the painted atlas, and against painted images
of what is no skin; the area under the ROC curve of the check's score, and the share of each kind
that the check refuses, alone and together with the gates before it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from skindx.core.errors import UserError
from skindx.core.measurement import hardware, versions
from skindx.data.manifest import read_image, read_manifest, split_of
from skindx.data.synthetic.painter import CLASSES, paint
from skindx.diagnosis.predictor import Predictor
from skindx.evaluation.answers import leave_out_seen
from skindx.imaging.photo_gates import inspect
from skindx.metrics import Interval, Ranked, bootstrap_interval, share_interval
from skindx.models.ood.ood_check import OodCheck, features_of, p_values
from skindx.models.ood.ood_features import Features
from skindx_bench.honesty.no_skin_images import KINDS

PAINTED = 50
"""Images of each painted kind."""
_BATCH = 16

# N = photos, K = detectors of the check

Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class Checked:
    """How the check and the gates before it answer photos of one kind."""

    kind: str
    scores_N: NDArray[np.float64]
    """The check's score, higher for photos that are less like the training images."""
    out_N: NDArray[np.bool_]
    """Those that the check refuses."""
    out_by_KN: NDArray[np.bool_]
    """Those that each of its detectors would refuse alone."""
    gated_N: NDArray[np.bool_]
    """Those that a gate refuses."""
    groups_N: NDArray[np.str_]

    @classmethod
    def of(
        cls, predictor: Predictor, kind: str, photos: Sequence[Pixels], groups: Sequence[str] = ()
    ) -> Self:
        """Check photos; without `groups` each is one of its own."""
        check = check_of(predictor)
        features = measured(predictor, photos, check)
        asked_NK, rate = check.scores(features), check.rate
        alone = range(asked_NK.shape[1])
        return cls(
            kind,
            check.combined(features),
            p_values(check.scores_NK, asked_NK) <= rate,
            np.stack([p_values(check.scores_NK[:, [k]], asked_NK[:, [k]]) <= rate for k in alone]),
            np.array([any(found.fatal for _, found in inspect(photo)) for photo in photos]),
            np.array(groups or [f"{kind} {n}" for n in range(len(photos))]),
        )

    def refused(self) -> Interval:
        """Return the share that the check refuses; photos of one group count as one."""
        return share_interval(self.out_N, self.groups_N)

    def row(self, own: Self) -> dict[str, Any]:
        """Return this kind's figures; `own` are images of the bundle's own kind."""
        area, refused = separation(own, self), self.refused()
        return {
            "against": self.kind,
            "n": len(self.out_N),
            "sources": len(np.unique(self.groups_N)),
            "auroc": [area.value, area.low, area.high],
            "refused": [refused.value, refused.low, refused.high],
            "refused_by_detector": [float(out_N.mean()) for out_N in self.out_by_KN],
            "refused_or_gated": float((self.out_N | self.gated_N).mean()),
        }


def check_of(predictor: Predictor) -> OodCheck:
    """Return a bundle's check. Raises UserError for a bundle without one."""
    if predictor.ood is None:
        raise UserError(
            f"{predictor.bundle.path} has no out-of-distribution check, which takes at least 19 "
            "calibration images; train it on a dataset that has them."
        )
    return predictor.ood


def measured(predictor: Predictor, photos: Sequence[Pixels], check: OodCheck) -> Features:
    """Return the features of photos that the check reads."""
    parts = []
    for start in range(0, len(photos), _BATCH):
        batch = photos[start : start + _BATCH]
        output = predictor.ensemble.predict_with_features(batch)
        parts.append(features_of(predictor.ensemble, batch, output, check.needs))
    return Features.join(parts)


def separation(own: Checked, other: Checked) -> Interval:
    """Return the chance that a photo of another kind scores higher than one's own (AUROC)."""
    scores_N = np.concatenate([own.scores_N, other.scores_N])
    truth_N = np.repeat([0, 1], [len(own.scores_N), len(other.scores_N)])
    ranked = Ranked.auroc(np.stack([-scores_N, scores_N], axis=1), truth_N)
    return bootstrap_interval(ranked, np.concatenate([own.groups_N, other.groups_N]))


def own_images(predictor: Predictor, dataset: Path) -> Checked:
    """Check the images of a dataset's test split that a bundle was not made from."""
    records = leave_out_seen(
        split_of(read_manifest(dataset), "test"), predictor.seen, "test", str(dataset)
    )
    photos = [read_image(dataset, record) for record in records]
    return Checked.of(predictor, "test images", photos, [record.group for record in records])


def painted_images(count: int = PAINTED) -> Iterator[tuple[str, list[Pixels]]]:
    """Yield the painted kinds with `count` images of each."""
    yield "painted skin", [paint(CLASSES[n % len(CLASSES)], n).pixels for n in range(count)]
    for name, painter in KINDS.items():
        yield name, [painter(np.random.default_rng(seed)) for seed in range(count)]


def report(
    predictor: Predictor,
    dataset: Path,
    others: Sequence[tuple[str, Sequence[tuple[Pixels, str]]]],
    painted: int = PAINTED,
) -> dict[str, Any]:
    """Return the figures; `others` are kinds of photos, each photo with the name of its source."""
    check, own = check_of(predictor), own_images(predictor, dataset)
    checked = [
        Checked.of(predictor, name, [pixels for pixels, _ in photos], [of for _, of in photos])
        for name, photos in others
    ]
    checked += [Checked.of(predictor, *kind) for kind in painted_images(painted)]
    spec = predictor.bundle.spec.ood
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": hardware(),
        "versions": versions(),
        "bundle": f"{predictor.bundle.spec.name} of {predictor.bundle.spec.created}",
        "dataset": dataset.resolve().name,
        "detectors": [settings.kind for settings in spec.detectors] if spec else ["mahalanobis"],
        "calibration_images": check.images,
        "promised": check.rate,
        "own": own.row(own),
        "others": [found.row(own) for found in checked],
    }


def table(found: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a report."""
    own, names = found["own"], found["detectors"]
    value, low, high = own["refused"]
    yield (
        f"{own['n']} test images: {value:.1%} refused as out of distribution [{low:.1%}, "
        f"{high:.1%}]; promised: {found['promised']:.1%} ({found['calibration_images']} "
        "calibration images)"
    )
    heads = " ".join(f"{name:>12.12}" for name in names)
    yield f"{'against':16} {'n':>5} {'AUROC':>6} {'95 %':14} {'refused':24} {heads} or by a gate"
    for row in (own, *found["others"]):
        area, low, high = row["auroc"]
        share, least, most = row["refused"]
        alone = " ".join(f"{value:12.1%}" for value in row["refused_by_detector"])
        yield (
            f"{row['against']:16.16} {row['n']:5} {area:6.3f} [{low:.3f}, {high:.3f}] "
            f"{share:6.1%} [{least:6.1%}, {most:6.1%}] {alone} {row['refused_or_gated']:12.1%}"
        )
