"""Finished members and detector become RUN/bundle.

Everything is fitted on images that none of the members trained on, and never on calibration or
test. Without folds these are the validation split. The fold members of one kind together have
out-of-fold predictions for every image of train and val: each image is predicted by the member
that did not see it. Weights and temperature are fitted to these predictions as if they came from
one member. The bundle serves the mean of the folds, which is never more confident than that, so
the ensemble's temperature errs towards doubt.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from skindx import __version__
from skindx.core.atomic_files import sha256_file, write_json
from skindx.core.errors import UserError
from skindx.data.image_counts import COUNTED, count_images
from skindx.data.layout import MANIFEST
from skindx.data.loader.source import Files
from skindx.data.manifest import Record, read_image, read_manifest, split_of
from skindx.data.origin import origin_of
from skindx.imaging.modality import ModalityCheck, modality_features
from skindx.models.bundle.bundle import Bundle, calibration_classes, open_bundle, pack
from skindx.models.bundle.bundle_changes import add_provenance, set_fusion
from skindx.models.bundle.bundle_index import (
    FOLD_TRAINED_IMAGES,
    MANIFEST_SHA256,
    PACKED_FROM,
    TRAINING_COUNTS,
    TRAINING_IMAGES,
    calibration_side,
    provenance_value,
)
from skindx.models.bundle.model_card import metadata_words
from skindx.models.combination import FusionSpec, assist, box_crops, fit_weight
from skindx.models.conformal import ALL, Conformal, fit_on_records
from skindx.models.detector import Detector
from skindx.models.embedding_index import EmbeddingIndex, make_embedding_index, stratified
from skindx.models.ensemble import Ensemble, outputs_of_records
from skindx.models.fingerprints import Fingerprints, described
from skindx.models.metadata_head import (
    AnswerRules,
    Facts,
    MetadataSpec,
    fit_metadata,
    with_rules,
)
from skindx.models.ood.feature_extraction import CAP, OodCollector
from skindx.models.ood.ood_check import FEWEST
from skindx.models.ood.stored_check import OodPart
from skindx.models.urgent_risk import (
    QUESTIONS,
    UrgentRiskRule,
    fit_risk_on_records,
    why_no_threshold,
)
from skindx.taxonomy import Taxonomy
from skindx.training.checkpoint.fingerprints import fingerprint_of
from skindx.training.checkpoint.finished import (
    WEIGHTS,
    member_folder,
    packed_origin,
    packed_parts,
    weights_file,
)
from skindx.training.config.run import TrainSettings
from skindx.training.ensembles.builder import EnsembleBuilder
from skindx.training.ensembles.combiners import assemble, gather_evidence, print_combiners
from skindx.training.ensembles.member_refs import Mask, MemberRef, member_refs, out_of_fold_P, units
from skindx.training.parallel.mesh import resolve_accelerator
from skindx.training.tasks.image_sets import class_numbers

# Finds out whether a run's bundle was packed from the members that the run has now.
#
# Packing again would give the same predictions, and would drop what was added to the bundle since:
# the figures of an evaluation, a fused crop, rules that were fitted again.


def packing_fingerprint(
    run: Path, dataset: Path, settings: TrainSettings, members: Mapping[str, MemberRef]
) -> str:
    """Return the hash of all that decides a bundle: settings, weights, manifest, version."""
    weights = {
        name: member_folder(ref.run, ref.member.name) / WEIGHTS for name, ref in members.items()
    }
    if settings.detector:
        weights["the detector"] = weights_file(settings.detector.from_run or run)
    return fingerprint_of(
        {
            "settings": settings.model_dump(
                mode="json", exclude={"engine", "monitors", "checkpoint", "distil"}
            ),
            "weights": {name: sha256_file(file) for name, file in weights.items()},
            "manifest": sha256_file(dataset / MANIFEST),
            "skindx": __version__,
        }
    )


def packed_bundle(run: Path, packed_from: str) -> Bundle | None:
    """Return RUN/bundle where it was packed from this; None where it is to be packed."""
    try:
        bundle = open_bundle(run / "bundle")
    except UserError:  # none, or one that is damaged
        return None
    return bundle if provenance_value(bundle.spec.provenance, PACKED_FROM) == packed_from else None


_BATCH = 32

Images = list[NDArray[np.uint8]]
Crops = Mapping[int, NDArray[np.uint8]]


def fit_fusion(path: Path, dataset: Path, margin: float) -> Bundle:
    """Fit the weight on the validation images in which the bundle's detector is sure of a box.

    Conformal sets and thresholds of the urgent risk are fitted again, on calibration alone, since
    they must fit what is served; those of the whole image stay beside them, for answers
    without the detector.
    Raises UserError for an image that cannot be read, and without ultralytics.
    """
    bundle = open_bundle(path)
    if provenance_value(bundle.spec.provenance, FOLD_TRAINED_IMAGES):
        print("no fusion: members learned from validation images, which its weight is fitted on")
        return bundle
    ensemble, detector = bundle.ensemble(), bundle.detector()
    assert detector is not None
    records, classes = read_manifest(dataset), bundle.taxonomy.keys
    val = split_of(records, "val")
    truth_N = class_numbers(val, classes)
    whole, crop, seen = [], [], []
    for first, images, crops in _looked(detector, dataset, val, margin):
        if crops:
            whole.append(ensemble.probabilities([images[index] for index in crops])[0])
            crop.append(ensemble.probabilities(list(crops.values()))[0])
            seen += [first + index for index in crops]
    weight = 0.0
    if seen:
        weight = fit_weight(np.concatenate(whole), np.concatenate(crop), truth_N[seen])
    print(
        f"the crop around the best box counts {weight:.2f}, fitted on {len(seen)} of {len(val)} "
        "validation images; the others have no sure box that shows less than the whole"
    )
    fusion = FusionSpec(weight=weight, margin=margin)
    spec, kinds = bundle.spec, ("conformal", *QUESTIONS)
    plain: dict[str, Any] = {
        kind: getattr(spec, f"whole_{kind}") or getattr(spec, kind) for kind in kinds
    }
    if not (plain["conformal"] and weight):
        return set_fusion(path, fusion, **plain)
    held = split_of(records, "calibration")
    whole_NC, fused_NC = [], []
    for _, pixels, crops in _looked(detector, dataset, held, margin):
        answers = ensemble.probabilities(pixels)
        whole_NC.append(answers[0])
        fused_NC.append(assist(ensemble, crops, answers, weight)[0])
    served = {"": np.concatenate(fused_NC), "whole_": np.concatenate(whole_NC)}
    fused = AnswerRules(**plain).refitted({"": served[""]}, held, bundle.taxonomy)
    rules = fused.model_copy(update={f"whole_{kind}": rule for kind, rule in plain.items()})
    metadata = spec.metadata and with_rules(spec.metadata, held, bundle.taxonomy, served, rules)
    return set_fusion(path, fusion, **dict(rules), metadata=metadata)


def _looked(
    detector: Detector, dataset: Path, records: Sequence[Record], margin: float
) -> Iterator[tuple[int, Images, Crops]]:
    """Yield batches: the number of the first image, the images, the crops of those with one."""
    files = Files(dataset, records)
    for first in range(0, len(records), _BATCH):
        last = min(first + _BATCH, len(records))
        images = [files.image(number) for number in range(first, last)]
        boxes = detector.detect(images)
        yield first, images, box_crops(images, boxes, detector.spec.confidence, margin)


REPORT = "ensemble.json"


def pack_run(run: Path, dataset: Path, settings: TrainSettings, taxonomy: Taxonomy) -> Bundle:
    """Make the soups, fit weights and temperatures, and pack members and detector.

    Writes RUN/ensemble.json, which says how each combiner does on validation. With
    `fusion` the crop's weight is fitted too. A bundle that was packed from the same
    members, settings and data is left as it is.
    """
    packed_from = packing_fingerprint(run, dataset, settings, member_refs(run, settings))
    if there := packed_bundle(run, packed_from):
        print(f"{there.path} is packed from these members already; remove it to pack it again")
        return there
    bundle = _pack(run, dataset, settings, taxonomy)
    if settings.fusion:
        bundle = fit_fusion(bundle.path, dataset, settings.fusion.margin)
    # Last, so that a bundle with it is complete.
    add_provenance(bundle.path, {PACKED_FROM: packed_from})
    return open_bundle(bundle.path)


def _pack(run: Path, dataset: Path, settings: TrainSettings, taxonomy: Taxonomy) -> Bundle:
    """Write RUN/ensemble.json and a new RUN/bundle, without `fusion`."""
    records = read_manifest(dataset)
    device = resolve_accelerator(settings.engine.accelerator)
    builder = EnsembleBuilder(run, dataset, settings, taxonomy, records, device)
    by_unit = units(settings, member_refs(run, settings), records)
    names = [name for unit in by_unit.values() for name in unit]
    parts = {part.name: part for part in builder.parts(names)}
    predicted = {
        name: builder.predict(parts[name], held_P)
        for unit in by_unit.values()
        for name, held_P in unit.items()
    }
    images = builder.images
    truth_P = class_numbers(images, taxonomy.keys)
    evidence = gather_evidence(by_unit, predicted, truth_P, [record.group for record in images])
    assembly = assemble(
        settings.ensemble.combine, evidence, {key: tuple(unit) for key, unit in by_unit.items()}
    )
    write_json(run / REPORT, assembly.report())
    print_combiners(assembly, Console(width=max(Console().width, 100)))
    learned = _learned_from(by_unit, assembly.members, images)
    folded = len(split_of(learned, "val"))
    packed = [
        (parts[name], t) for name, t in zip(assembly.members, assembly.temperatures, strict=True)
    ]
    ensemble = builder.ensemble(packed, assembly.temperature, assembly.combination)
    metadata = None
    if settings.ensemble.metadata == "auto":
        facts = [Facts.of(images[n]) for n in np.flatnonzero(out_of_fold_P(by_unit))]
        answers_NC = assembly.fitted.probabilities(evidence.log_UNC)
        urgent_C = np.array([one.urgency == "urgent" for one in taxonomy.classes])
        metadata = fit_metadata(
            answers_NC, evidence.truth_N, facts, evidence.groups, urgent_C=urgent_C
        )
    collector = OodCollector(ensemble, {record.sha256 for record in stratified(learned, CAP)})
    gallery = make_embedding_index(ensemble, dataset, learned, also=collector.train)
    print(_shown(gallery))
    conformal, ood, rules = fit_on_calibration(
        ensemble, dataset, records, taxonomy, collector, metadata=metadata
    )
    print(f"age, sex and place on the body: {metadata_words(rules.get('metadata'))}")
    return pack(
        run / "bundle",
        settings.name,
        taxonomy,
        [(builder.spec(part, t), part.finished.state) for part, t in packed],
        temperature=assembly.temperature,
        combination=assembly.combination,
        detector=packed_parts(run, settings),
        conformal=conformal,
        **rules,
        gallery=gallery,
        ood=ood,
        modality=fit_modality(dataset, records),
        provenance={
            "dataset": dataset.resolve().name,
            MANIFEST_SHA256: sha256_file(dataset / MANIFEST),
            TRAINING_IMAGES: len(learned),
            TRAINING_COUNTS: {
                field: counts for field, counts in count_images(learned).items() if field in COUNTED
            },
            **({FOLD_TRAINED_IMAGES: folded} if folded else {}),
            **calibration_side(records),
            **calibration_classes(records),
            **packed_origin(settings),
        },
        seen=records,
        fingerprints=_fingerprints(dataset, records),
        images=origin_of(dataset, learned),
        trunks=builder.trunks([part for part, _ in packed]),
    )


def _fingerprints(dataset: Path, records: Sequence[Record]) -> Fingerprints:
    """Return what recognises copies of the images that a bundle is made from."""
    made_from = [record for record in records if record.split != "test"]
    return Fingerprints.of(described(dataset, made_from))


def fit_on_calibration(
    ensemble: Ensemble,
    dataset: Path,
    records: Sequence[Record],
    taxonomy: Taxonomy,
    collector: OodCollector,
    *,
    metadata: MetadataSpec | None = None,
) -> tuple[Conformal | None, OodPart | None, dict[str, Any]]:
    """Fit conformal sets, OOD check and urgent risk on the calibration split, in one pass over it.

    Nothing else looks at that split. No part, and a line that says so, where it has too few images.
    The rules of answers with age, sex and place are fitted too, where there is `metadata`.
    """
    held = split_of(records, "calibration")
    if not held:
        print(
            "no conformal sets, no urgent-risk threshold and no out-of-distribution check: the "
            "dataset has no calibration images to fit them on"
        )
        bare = metadata and with_rules(metadata, [], taxonomy, {}, AnswerRules())
        return None, None, {"metadata": bare} if bare else {}
    batches = []
    for batch, images, output in outputs_of_records(ensemble, dataset, held):
        batches.append(output.probabilities_NC)
        collector.calibration(batch, images, output)
    ood = collector.part()
    if ood is None:
        print(
            f"no out-of-distribution check: it takes {FEWEST} calibration images (here "
            f"{len(held)}) and training images that differ"
        )
    probabilities_NC = np.concatenate(batches)
    rules: dict[str, Any] = {
        question: fit_risk_on_records(probabilities_NC, held, taxonomy, question)
        for question in QUESTIONS
    }
    print(_risk_shown(rules["urgent_risk"], taxonomy))
    conformal = fit_on_records(probabilities_NC, held, taxonomy)
    if metadata:
        plain, answers = AnswerRules(conformal=conformal, **rules), {"": probabilities_NC}
        rules["metadata"] = with_rules(metadata, held, taxonomy, answers, plain)
    return conformal, ood, rules


def fit_modality(dataset: Path, records: Sequence[Record]) -> ModalityCheck | None:
    """Fit the check for photos of the other modality on the calibration split.

    None, and a line where that is no matter of course, for a dataset without one modality.
    """
    held = split_of(records, "calibration")
    kind = origin_of(dataset, held).modality
    if kind in {"", "mixed"} or not held:
        return None
    features_NF = np.stack([modality_features(read_image(dataset, record)) for record in held])
    check = ModalityCheck.fit(kind, features_NF)
    if check is None:
        print(
            f"no check for photos that are not {kind}: these {len(held)} calibration images are "
            "too few, or look too much like the others"
        )
    return check


def _risk_shown(rule: UrgentRiskRule | None, taxonomy: Taxonomy) -> str:
    if rule is None:
        return (
            f"no urgent-risk threshold: {why_no_threshold(taxonomy.classes)}; the next step "
            "follows the conformal set"
        )
    rates = ", ".join(f"{level.miss_rate:.0%}" for level in rule.levels)
    return (
        f"urgent-risk thresholds for miss rates of {rates}, fitted on {rule.lesions[ALL]} "
        "calibration lesions with an urgent condition"
    )


def _shown(gallery: EmbeddingIndex) -> str:
    spec = gallery.spec
    return (
        f"gallery of {spec.pictures} training images; {spec.shown} may be shown by their "
        "licences and by what people decided on them"
    )


def _learned_from(
    by_unit: Mapping[str, Mapping[str, Mask]], packed: Sequence[str], images: Sequence[Record]
) -> list[Record]:
    """Return the images that at least one packed member trained on."""
    held = [mask_P for unit in by_unit.values() for name, mask_P in unit.items() if name in packed]
    return [images[index] for index in np.flatnonzero(~np.logical_and.reduce(held)).tolist()]
