"""Adapt a bundle to local images, and measure by cross-fitting what that changes.

A local image is never judged by what was fitted on it: the figures come from folds of groups.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from skindx import __version__
from skindx.core.atomic_files import sha256_file
from skindx.core.errors import UserError
from skindx.core.text import counted
from skindx.core.untrusted import read_json
from skindx.data.layout import MANIFEST, TAXONOMY
from skindx.data.manifest import Record, Split, check_sample, count_images, counts_text
from skindx.data.origin import origin_of
from skindx.evaluation.answers import Floats, Part, leave_out
from skindx.evaluation.breakdown import Bools
from skindx.evaluation.elsewhere import TITLES, Called, Change, Judged, called_by, figures_of
from skindx.evaluation.evaluate import split_records
from skindx.evaluation.figures import figures_table
from skindx.evaluation.score import join_taxonomies
from skindx.metrics import Interval, difference_of
from skindx.models.adaptation import (
    FOLDS,
    LEAST_GROUPS,
    Adaptation,
    FittedRules,
    LocalFit,
    LocalImages,
    MeasuredFigure,
    folds,
)
from skindx.models.bundle.bundle import BUNDLE, Bundle, mix_of, open_bundle
from skindx.models.bundle.bundle_changes import write_adapted
from skindx.models.bundle.bundle_index import (
    CALIBRATION_CLASSES,
    EXPORTS,
    LEAST_SIDE_PX,
    MANIFEST_SHA256,
    calibration_side,
    provenance_value,
)
from skindx.models.combination import box_crops, log, pool
from skindx.models.ensemble import outputs_of_records
from skindx.models.exports.runtimes import SPEC
from skindx.models.fingerprints import Fingerprints, described
from skindx.models.ood.ood_check import OodCheck, features_of, p_values, rate_of
from skindx.models.ood.ood_features import Features
from skindx.models.ood.stored_check import OodImages, OodPart, OodRow
from skindx.models.urgent_risk import QUESTIONS
from skindx.taxonomy import Taxonomy

if TYPE_CHECKING:
    from rich.table import Table

# N = images, C = classes, K = detectors

DRAWS = 1000
_ENOUGH = 5
"""A class of fewer local images is in no mean over classes."""


@dataclass(frozen=True)
class Adapted:
    """A new bundle, and figures before and after of the same local images."""

    bundle: Bundle
    adaptation: Adaptation
    changes: tuple[Change, ...]
    seen: int
    """Local images that were left out, since the bundle was made from them or from copies."""


def adapt(
    path: Path,
    local: Path,
    out: Path,
    *,
    split: Part = "all",
    keep_mix: bool = False,
    expect: str | None = None,
    progress: Callable[[int, int], None] | None = None,
    draws: int = DRAWS,
) -> Adapted:
    """Write a bundle of the same networks whose answers are fitted to labelled local images.

    `keep_mix`: the local images were chosen by their class, so their mix says nothing. Raises
    UserError for fewer than 19 groups of local images that the bundle was not made from, for
    images of none of its classes, and for an `out` that holds anything but an earlier bundle.
    """
    bundle = open_bundle(path, expect)
    BUNDLE.check(out)
    if out.resolve() == path.resolve():
        raise UserError(
            f"--out {out} is the bundle itself, which must not be changed; give a new folder."
        )
    records = split_records(local, split)
    _check_kind(bundle, local, records)
    records, seen = usable(bundle, local, records)
    groups = len({record.group for record in records})
    if groups < LEAST_GROUPS:
        what = f"{counted(len(records), 'image')} in {counted(groups, 'group')}"
        left = f" besides {counted(seen, 'image')} that the bundle was made from" if seen else ""
        raise UserError(
            f"{local} has {what} of the bundle's classes{left}, but `skindx adapt` needs at least "
            f"{LEAST_GROUPS} groups (lesions or patients), because fewer would make it refuse "
            "over one local photo in twenty; label more images, or use the bundle without "
            "adapting it."
        )
    check_sample(local, records)
    images, features = look(bundle, local, records, progress)
    fit = LocalFit(bundle.taxonomy, rules_of(bundle), first_mix(bundle), keep_mix)
    rules = fit.fit(images)
    changes = cross_fitted(fit, images, bundle.ood(), draws=draws)
    ood, notes = _local_check(bundle, images, features)
    if bundle.spec.metadata and bundle.spec.metadata.head:
        notes.append(
            "age, sex and site no longer change an answer: what they change was fitted to the "
            "parent's answers"
        )
    parent, keys = bundle.spec.adapted, bundle.taxonomy.keys
    first_C = first_mix(bundle)
    confirmed = counts_text(count_images(images.records)["confirmed_by"])
    adaptation = Adaptation(
        parent=bundle.digest,
        earlier=(*parent.earlier, parent.parent) if parent else (),
        dataset=local.resolve().name,
        manifest_sha256=sha256_file(local / MANIFEST),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        images=len(images),
        groups=groups,
        images_by_class=dict(Counter(record.label for record in images.records)),
        log_shifts=tuple(map(float, rules.log_shifts_C)),
        first_mix={} if first_C is None else dict(zip(keys, map(float, first_C), strict=True)),
        mix={} if rules.mix_C is None else dict(zip(keys, map(float, rules.mix_C), strict=True)),
        figures={
            change.title: {
                "before": _measured(change.internal),
                "after": _measured(change.external),
            }
            for change in changes
        },
        notes=(f"labels confirmed by: {confirmed}", *rules.notes, *notes),
    )
    known: dict[str, Split] = dict(bundle.seen() or {})
    known |= dict.fromkeys((record.sha256 for record in images.records), "calibration")
    prints = bundle.fingerprints()
    if prints is not None:
        prints = prints.joined(Fingerprints.from_images(described(local, images.records)))
    provenance = bundle.spec.provenance
    images_of = bundle.images.joined(origin_of(local, images.records))
    side = calibration_side([replace(record, split="calibration") for record in records])
    provenance = {k: v for k, v in provenance.items() if k not in (CALIBRATION_CLASSES, *side)}
    done = write_adapted(
        bundle,
        out,
        change={
            "created": adaptation.date,
            "skindx": __version__,
            "temperature": rules.temperature,
            "metadata": None,
            "adapted": adaptation,
            "conformal": rules.conformal,
            "whole_conformal": rules.whole_conformal,
            **rules.risks,
            **({"ood": ood.spec, "novelty": None} if ood else {}),
            "provenance": provenance,
            **({"images": images_of} if images_of != bundle.images else {}),
        },
        facts=side if provenance_value(bundle.spec.provenance, LEAST_SIDE_PX) else {},
        ood=ood,
        seen=known if bundle.seen() is not None else None,
        fingerprints=prints,
        left_out=_calibrated_exports(bundle),
    )
    return Adapted(done, adaptation, changes, seen)


@dataclass(frozen=True)
class _Origin:
    """A bundle's images, as the search for contamination asks for them."""

    trained_on: str
    seen: Mapping[str, Split] | None
    fingerprints: Fingerprints | None


def _check_kind(bundle: Bundle, local: Path, records: Sequence[Record]) -> None:
    """Raise UserError for images of the other kind, whose photos the bundle would still refuse."""
    kinds = bundle.images.modality, origin_of(local, records).modality
    if set(kinds) == {"dermoscopic", "clinical"}:
        raise UserError(
            f"{bundle.path} was trained on {kinds[0]} images, but {local} has {kinds[1]} images, "
            "and new thresholds cannot correct this; give a bundle that was trained on "
            f"{kinds[1]} images."
        )


def usable(bundle: Bundle, local: Path, records: Sequence[Record]) -> tuple[list[Record], int]:
    """Return the images of its classes that a bundle was not made from, and how many it was."""
    trained_on = str(provenance_value(bundle.spec.provenance, MANIFEST_SHA256, ""))
    origin = _Origin(trained_on, bundle.seen(), bundle.fingerprints())
    manifest = sha256_file(local / MANIFEST)
    fresh, _ = leave_out(origin, local, records, "all", manifest=manifest, bundle=str(bundle.path))
    path = local / TAXONOMY
    theirs = Taxonomy.load(path) if path.exists() else None
    known, _ = join_taxonomies(fresh, theirs, bundle.taxonomy, str(bundle.path))
    return known, len(records) - len(fresh)


def look(
    bundle: Bundle,
    dataset: Path,
    records: Sequence[Record],
    progress: Callable[[int, int], None] | None = None,
) -> tuple[LocalImages, Features | None]:
    """Pass images through the networks once; features are those of the out-of-distribution check.

    Raises UserError for an image that cannot be read, and without the detector that answers need.
    """
    # A calibration by class is a factor of the logarithms here, and biases in `rules_of`.
    ensemble = replace(bundle.ensemble(), class_calibration=None)
    by_class = bundle.spec.class_calibration
    slope = by_class.slope if by_class else 1.0
    check, fusion = bundle.ood(), bundle.spec.fusion
    detector = bundle.detector() if fusion and fusion.weight else None
    whole, crops, features, scores = [], [], [], []
    done = 0
    for batch, photos, output in outputs_of_records(
        ensemble, dataset, records, bundle.spec.decoding
    ):
        whole.append(slope * log(pool(output.member_MNC, ensemble.combination)))
        if check:
            features.append(features_of(ensemble, photos, output))
            scores.append(check.scores(features[-1]))
        if fusion and detector:
            boxes = detector.detect(photos)
            cut = box_crops(photos, boxes, detector.spec.confidence, fusion.margin)
            crop_NC = np.full_like(whole[-1], np.nan)
            if cut:
                _, member_MNC = ensemble.probabilities(list(cut.values()))
                crop_NC[list(cut)] = slope * log(pool(member_MNC, ensemble.combination))
            crops.append(crop_NC)
        done += len(batch)
        if progress:
            progress(done, len(records))
    number = {key: c for c, key in enumerate(bundle.taxonomy.keys)}
    images = LocalImages(
        tuple(records),
        np.array([number[record.label] for record in records], dtype=np.intp),
        np.concatenate(whole),
        np.concatenate(crops) if crops else None,
        np.concatenate(scores) if scores else None,
    )
    return images, Features.join(features) if features else None


def rules_of(bundle: Bundle) -> FittedRules:
    spec, classes = bundle.spec, len(bundle.taxonomy.classes)
    counts = mix_of(bundle)
    return FittedRules(
        temperature=spec.temperature,
        log_shifts_C=np.array(spec.adapted.log_shifts if spec.adapted else [0.0] * classes),
        mix_C=_shares(counts),
        biases_C=np.array(spec.class_calibration.biases) if spec.class_calibration else 0.0,
        crop_weight=spec.fusion.weight if spec.fusion else 0.0,
        conformal=spec.conformal,
        whole_conformal=spec.whole_conformal,
        risks={
            f"{prefix}{question}": getattr(spec, f"{prefix}{question}")
            for prefix in ("", "whole_")
            for question in QUESTIONS
        },
    )


def first_mix(bundle: Bundle) -> Floats | None:
    """Return the mix for which probabilities without any shift hold; None: it is not known."""
    adapted = bundle.spec.adapted
    if adapted:
        return np.array([*adapted.first_mix.values()]) if adapted.first_mix else None
    return _shares(mix_of(bundle))


def _shares(counts: Mapping[str, int] | None) -> Floats | None:
    """Return shares of the classes; one image more than there was, since none is impossible."""
    if counts is None:
        return None
    counts_C = np.array([*counts.values()], dtype=np.float64) + 1
    shares_C: Floats = counts_C / counts_C.sum()
    return shares_C


def cross_fitted(
    fit: LocalFit, images: LocalImages, check: OodCheck | None, *, draws: int
) -> tuple[Change, ...]:
    """Return figures before (internal) and after (external), each image judged by other folds."""
    fold_N = folds(images)
    judged = [
        judge(fit.fit(images.select(fold_N != k)), images.select(fold_N == k), check,
              None if images.ood_NK is None else images.ood_NK[fold_N != k])
        for k in range(FOLDS)
    ]  # fmt: skip
    order = np.argsort(np.concatenate([np.flatnonzero(fold_N == k) for k in range(FOLDS)]))
    after = _joined(judged, order)
    before = judge(fit.parent, images, check)
    counts_C = np.bincount(images.truth_N, minlength=images.whole_NC.shape[1])
    enough = np.flatnonzero(counts_C >= _ENOUGH).tolist()
    one, other = (figures_of(each, enough, draws=draws) for each in (before, after))
    return tuple(
        Change(key, title, unit, one[key], other[key], difference_of(other[key], one[key]))
        for key, (title, unit) in TITLES.items()
        if key in one and key in other
    )


def judge(
    rules: FittedRules, images: LocalImages, check: OodCheck | None, local_NK: Floats | None = None
) -> Judged:
    """Decide of images by rules; `local_NK` are the scores of local images, for the check."""
    p_NC = rules.probabilities(images)
    types = [record.skin_type for record in images.records]
    refused_N = None
    if check is not None and images.ood_NK is not None:
        known_NK = check.scores_NK if local_NK is None else local_NK
        refused_N = p_values(known_NK, images.ood_NK) <= rate_of(len(known_NK))
    called: Called = {
        question: called_by(rule, None, p_NC, images.truth_N, types)
        for question in QUESTIONS
        if (rule := rules.risks.get(question))
    }
    sets_NC = rules.conformal.sets(p_NC, types) if rules.conformal else None
    return Judged(p_NC, images.truth_N, images.groups_N, sets_NC, called, refused_N)


def _joined(parts: Sequence[Judged], order: NDArray[np.intp]) -> Judged:
    """Return the answers of all parts; a question that a part has no rule for is left out."""

    def join(values: Sequence[Bools | None]) -> Bools | None:
        known = [value for value in values if value is not None]
        return np.concatenate(known)[order] if len(known) == len(parts) else None

    called: Called = {}
    for question in QUESTIONS:
        pairs = [part.called[question] for part in parts if question in part.called]
        if len(pairs) == len(parts):
            hit, true = zip(*pairs, strict=True)
            called[question] = (np.concatenate(hit)[order], np.concatenate(true)[order])
    p_NC, truth_N, groups_N = (
        np.concatenate(values)[order]
        for values in zip(
            *((part.probabilities_NC, part.truth_N, part.groups_N) for part in parts), strict=True
        )
    )
    sets_NC, refused_N = (
        join(list(values))
        for values in zip(*((part.sets_NC, part.refused_N) for part in parts), strict=True)
    )
    return Judged(p_NC, truth_N, groups_N, sets_NC, called, refused_N)


def _local_check(
    bundle: Bundle, images: LocalImages, features: Features | None
) -> tuple[OodPart | None, list[str]]:
    """Return the check with local images in the place of the calibration images, and a note.

    The detectors stay fitted on the training images; None where the bundle has no such check.
    """
    known, spec = bundle.ood_images(), bundle.spec.ood
    if known is None or spec is None or features is None:
        why = "of an older version" if bundle.spec.novelty else "missing"
        return None, [f"the out-of-distribution check is {why} and stays as it is"]
    local = tuple(
        OodRow(record.sha256, record.label, record.group, "calibration")
        for record in images.records
    )
    if known.sketch_NS is not None:
        check = bundle.ood()
        assert check is not None
        return OodPart(spec, check, known).calibrated_on(OodImages(local, features)), []
    train_N = np.array([row.split == "train" for row in known.rows])
    rows = tuple(row for row in known.rows if row.split == "train") + local
    of_train = known.features.select(train_N)
    parts = replace(known, rows=rows, features=Features.join([of_train, _like(features, of_train)]))
    return OodPart.fit(spec.detectors, parts), []


def _like(features: Features, other: Features) -> Features:
    """Return the parts of features that the others have too."""
    return Features(
        features.pooled_MND if other.pooled_MND else (),
        features.logits_MNC if other.logits_MNC else (),
        features.image_NF[:, : other.image_NF.shape[1]],
    )


def _calibrated_exports(bundle: Bundle) -> set[str]:
    """Return the files of exports with rules of their own, which are not fitted to local images."""
    folders = {
        name.removesuffix(SPEC)
        for name in bundle.spec.files
        if name.startswith(f"{EXPORTS}/")
        and name.endswith(f"/{SPEC}")
        and read_json(bundle.path / name, finite=False).get("calibration")
    }
    return {name for name in bundle.spec.files if name.startswith(tuple(folders) or ("\0",))}


def _measured(figure: Interval) -> MeasuredFigure:
    low, high = (end if math.isfinite(end) else figure.value for end in (figure.low, figure.high))
    return MeasuredFigure(value=figure.value, low=low, high=high)


def adapted_table(adapted: Adapted) -> "Table":
    """Return the figures before and after, as a table for the terminal."""
    from skindx.evaluation.evaluation_report import changed_cells

    adaptation = adapted.adaptation
    size = f"{adaptation.images} local images, {adaptation.groups} groups"
    rows = [(change.title, *changed_cells(change)[:2]) for change in adapted.changes]
    return figures_table(f"{size}; cross-fitted, 95 % intervals", ("", "before", "after"), rows)
