"""Whether an export may enter a bundle: its answers, accuracy and speed beside the networks'.

Temperatures, sets and urgent risk are fitted again for one whose answers differ a little.
"""

import math
import statistics
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from skindx.core.errors import UserError
from skindx.data.manifest import Record, split_of
from skindx.metrics import Statistic, paired_interval, share_interval
from skindx.models.bundle.bundle import Bundle
from skindx.models.bundle.bundle_index import rules_of
from skindx.models.combination import (
    Combination,
    apply_temperature,
    assist,
    box_crops,
    fit_temperature,
    log,
    pool,
)
from skindx.models.ensemble import Ensemble, Member, Memo, decoded, predict_members, predict_records
from skindx.models.exports.backend_choice import answering, processor_seconds
from skindx.models.exports.runtimes import (
    ExportCalibration,
    Gain,
    PairedAccuracy,
    Parity,
    Precision,
    Runtime,
    backend_of,
    make_body,
    unsupported,
    with_export,
)
from skindx.models.metadata_head import RULES
from skindx.taxonomy import Taxonomy

# M = members, N = images, C = classes

Floats = NDArray[np.float64]

LEAST_COSINE = 0.9999
LEAST_SHARE = 0.995
"""Least share of images whose first class stays the same in a format coarser than fp32."""


def measure_parity(
    eager: Sequence[Member], exported: Sequence[Member], dataset: Path, records: Sequence[Record]
) -> list[Parity]:
    """Compare each member's answers to the images with those of its export.

    An export must answer batches, and images one by one as a page sends them.
    """
    logs_MNC = predict_members([*eager, *exported, *_alone(exported)], dataset, records)
    count = len(eager)
    groups = [record.group for record in records]
    return [
        compare(member.name, logs_MNC[at], logs_MNC[at + count :: count], groups)
        for at, member in enumerate(eager)
    ]


def parity_with(
    eager_NC: Floats, exported: Member, dataset: Path, records: Sequence[Record]
) -> Parity:
    """Return the same of one member whose eager log-probabilities are known."""
    exported_2NC = predict_members([exported, *_alone([exported])], dataset, records)
    return compare(exported.name, eager_NC, exported_2NC, [record.group for record in records])


def _alone(members: Sequence[Member]) -> list[Member]:
    return [_OneByOne(**vars(member)) for member in members]


class _OneByOne(Member):
    def log_probabilities(
        self, images: Sequence[NDArray[np.uint8]], batch: int = 1, memo: Memo | None = None
    ) -> Floats:
        return super().log_probabilities(images, batch, memo)


def compare(
    member: str, eager_NC: Floats, exported: Iterable[Floats], groups: Sequence[str]
) -> Parity:
    """Return how far an export's tables of log-probabilities agree with the eager one.

    An image is the same where every table agrees on its class; `cosine` is the least of all tables.
    """
    exported = list(exported)
    first_N = eager_NC.argmax(axis=1)
    same_N = np.all([first_N == table_NC.argmax(axis=1) for table_NC in exported], axis=0)
    interval = share_interval(same_N, groups)
    return Parity(
        member=member,
        pictures=len(same_N),
        same=int(same_N.sum()),
        low=interval.low,
        high=interval.high,
        # An answer that is no number agrees with nothing.
        cosine=min(
            float(np.nan_to_num(_cosines(eager_NC, table_NC), nan=-1.0).min())
            for table_NC in exported
        ),
    )


def good_enough(parity: Parity, precision: Precision) -> bool:
    """Return whether an export answers as its network does."""
    if precision == "fp32":
        return parity.same == parity.pictures and parity.cosine >= LEAST_COSINE
    return parity.share >= LEAST_SHARE


def require_parity(parity: Parity, precision: Precision) -> None:
    """Raise UserError for an export that does not answer as its network does."""
    if precision == "fp32":
        target = f"all of them and a cosine of at least {LEAST_COSINE}"
    else:
        target = f"at least {LEAST_SHARE:.1%} of them"
    if not good_enough(parity, precision):
        raise UserError(
            f"the {precision} export of {parity.member} is not accurate enough: its most probable "
            f"class is the network's in {parity.same} of {parity.pictures} validation images "
            f"({parity.share:.1%}, 95 % interval {parity.low:.1%} to {parity.high:.1%}) at a "
            f"cosine of {parity.cosine:.6f} between their logits, but {target} are required. The "
            "bundle was not changed; try another --precision or --to."
        )


def _cosines(one_NC: Floats, other_NC: Floats) -> Floats:
    """Return cosines of logits around their mean, which log-probabilities give back exactly."""
    one_NC = one_NC - one_NC.mean(axis=1, keepdims=True)
    other_NC = other_NC - other_NC.mean(axis=1, keepdims=True)
    lengths_N = np.linalg.norm(one_NC, axis=1) * np.linalg.norm(other_NC, axis=1)
    # A network that gives all classes the same probability has no direction: compare for equality.
    still_N = (one_NC == other_NC).all(axis=1)
    products_N = (one_NC * other_NC).sum(axis=1)
    cosines_N: Floats = np.where(still_N, 1.0, products_N / np.maximum(lengths_N, 1e-300))
    return cosines_N


def known(records: Sequence[Record], taxonomy: Taxonomy) -> list[int]:
    """Return the places of the records whose label is a class of the bundle."""
    return [n for n, record in enumerate(records) if record.label in taxonomy.keys]


def truth(records: Sequence[Record], taxonomy: Taxonomy) -> NDArray[np.int64]:
    number = {key: index for index, key in enumerate(taxonomy.keys)}
    return np.array([number[record.label] for record in records], dtype=np.int64)


def refit_temperatures(
    ensemble: Ensemble, eager_MNC: Floats, exported_MNC: Floats, truth_N: NDArray[np.int64]
) -> tuple[tuple[float, ...], float]:
    """Return the members' temperatures and the ensemble's for the answers of an export.

    Both sides are raw log-probabilities of the same validation images. A temperature changes by
    the factor by which its best value on these images does: members of folds were fitted on other
    images than a new fit could use, and the factor cancels what they know of these.
    """
    members = tuple(
        member.temperature * _factor(eager_NC, exported_NC, truth_N)
        for member, eager_NC, exported_NC in zip(
            ensemble.members, eager_MNC, exported_MNC, strict=True
        )
    )
    before = [member.temperature for member in ensemble.members]
    eager_NC = _pooled(eager_MNC, before, ensemble.combination)
    exported_NC = _pooled(exported_MNC, members, ensemble.combination)
    return members, ensemble.temperature * _factor(eager_NC, exported_NC, truth_N)


def _pooled(log_MNC: Floats, temperatures: Sequence[float], combination: Combination) -> Floats:
    calibrated = [apply_temperature(*pair) for pair in zip(log_MNC, temperatures, strict=True)]
    return log(pool(np.stack(calibrated), combination))


def _factor(eager_NC: Floats, exported_NC: Floats, truth_N: NDArray[np.int64]) -> float:
    return fit_temperature(exported_NC, truth_N) / fit_temperature(eager_NC, truth_N)


def check_refittable(bundle: Bundle, records: Sequence[Record], dataset: Path) -> None:
    """Raise UserError where the bundle's rules could not be fitted on this dataset."""
    held = split_of(records, "calibration")
    if any(getattr(bundle.spec, rule) for rule in RULES) and not (
        held and len(known(held, bundle.taxonomy)) == len(held)
    ):
        raise UserError(
            f"{dataset} has no calibration images of the bundle's classes, which an int8 export "
            "needs for its thresholds; give the dataset that the bundle was trained on."
        )


def refit_rules(
    bundle: Bundle,
    exported: Ensemble,
    temperatures: tuple[tuple[float, ...], float],
    dataset: Path,
    records: Sequence[Record],
) -> ExportCalibration:
    """Fit what the bundle has of sets and urgent risk on the answers of its export.

    `exported` has the temperatures of the export already. The calibration split alone is read, as
    it was for the bundle. Raises UserError without the detector that fused answers need.
    """
    spec, held = bundle.spec, split_of(records, "calibration")
    rules = rules_of(spec)
    answers: dict[str, Floats] = {}
    if any(getattr(rules, name) for name in RULES):
        answers = dict(zip(("", "whole_"), _answers(bundle, exported, dataset, held), strict=True))
    fitted = dict(rules.refitted(answers, held, bundle.taxonomy))
    return ExportCalibration(members=temperatures[0], temperature=temperatures[1], **fitted)


def _answers(
    bundle: Bundle, ensemble: Ensemble, dataset: Path, held: Sequence[Record]
) -> tuple[Floats, Floats]:
    """Return the answers as served, with crops where the bundle looks at them, and without."""
    fusion = bundle.spec.fusion
    detector = bundle.detector() if fusion and fusion.weight else None
    fused, plain = [], []
    for images in decoded(dataset, held, bundle.spec.decoding):
        whole = ensemble.probabilities(images)
        plain.append(whole[0])
        if detector and fusion:
            crops = box_crops(
                images, detector.detect(images), detector.spec.confidence, fusion.margin
            )
            whole = assist(ensemble, crops, whole, fusion.weight)
        fused.append(whole[0])
    return np.concatenate(fused), np.concatenate(plain)


MOST_LOST = 0.005
"""Half a point of balanced accuracy."""


def measure_accuracy(
    eager: Ensemble,
    exported: Ensemble,
    taxonomy: Taxonomy,
    dataset: Path,
    records: Sequence[Record],
) -> PairedAccuracy | None:
    """Return both figures of images with known labels; None without such an image."""
    judged = [records[n] for n in known(records, taxonomy)]
    if not judged:
        return None
    truth_N = truth(judged, taxonomy)
    ours, before = (
        Statistic.balanced_accuracy(predict_records(predictor, dataset, judged)[0], truth_N)
        for predictor in (exported, eager)
    )
    difference = paired_interval(ours, before, [record.group for record in judged])
    low, high = (
        None if math.isnan(bound) else bound for bound in (difference.low, difference.high)
    )
    return PairedAccuracy(
        pictures=len(judged), eager=before.value, exported=ours.value, low=low, high=high
    )


def refuse_loss(accuracy: PairedAccuracy, name: str) -> None:
    """Raise UserError for an export that loses more than half a point."""
    lost = accuracy.eager - accuracy.exported
    # Rounded: half a point exactly is not more.
    if round(lost, 9) > MOST_LOST:
        raise UserError(
            f"the {name} export is not accurate enough: on {accuracy.pictures} test images its "
            f"balanced accuracy is {100 * accuracy.exported:.2f} %, and that of the original "
            f"networks {100 * accuracy.eager:.2f} % (largest loss allowed: {100 * MOST_LOST:.1f} "
            "points). The bundle was not changed; try a higher --precision, such as fp32."
        )


_HIGHER: tuple[Precision, ...] = ("fp32", "bf16")
_ROUNDS = 15


def measure_gain(members: Sequence[Member], exported: Sequence[Member], to: Runtime) -> Gain:
    """Time one image on one thread: the export, eager, and the runtime's higher precisions."""
    with tempfile.TemporaryDirectory(prefix="skindx-gain-") as folder:
        candidates = {"ours": _answering(exported), "eager": _answering(members)}
        for precision in _HIGHER:
            if not unsupported(to, precision):
                peers = [_made(member, to, precision, Path(folder)) for member in members]
                candidates[f"{to} {precision}"] = _answering(peers)
        seconds = processor_seconds(candidates, _ROUNDS)
    ours = seconds.pop("ours")
    best = min(seconds, key=lambda name: statistics.median(seconds[name]))
    ratios = [theirs / mine for mine, theirs in zip(ours, seconds[best], strict=True)]
    low, value, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return Gain(over=best, value=value, low=low, high=high)


def refuse_without_gain(gain: Gain, name: str) -> None:
    """Raise UserError for an export that is not faster in at least three of four rounds."""
    if gain.low <= 1:
        raise UserError(
            f"the {name} export is not faster on this machine: its speed is {gain.value:.2f} "
            f"times that of {gain.over} (25 % to 75 % of the rounds: {gain.low:.2f} to "
            f"{gain.high:.2f}); the bundle was not changed, so keep using {gain.over}."
        )


def _answering(members: Sequence[Member]) -> Callable[[], object]:
    return answering(Ensemble(tuple(members)))


def _made(member: Member, to: Runtime, precision: Precision, folder: Path) -> Member:
    file = folder / f"{member.name}-{precision}{backend_of(to).suffix}"
    make_body(file, member.classifier, member.preprocess, to=to, precision=precision)
    return with_export(member, file, to, precision)
