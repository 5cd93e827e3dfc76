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

from skindx import __version__
from skindx.core.atomic_files import sha256_file, write_json
from skindx.core.errors import UserError
from skindx.data.layout import MANIFEST
from skindx.data.loader.source import Files
from skindx.data.manifest import Record, read_manifest, split_of
from skindx.models.bundle.bundle import (
    Bundle,
    open_bundle,
)
from skindx.models.bundle.bundle_changes import add_provenance, set_fusion
from skindx.models.bundle.bundle_index import (
    FOLD_TRAINED_IMAGES,
    PACKED_FROM,
    provenance_value,
)
from skindx.models.combination import FusionSpec, assist, box_crops, fit_weight
from skindx.models.detector import Detector
from skindx.models.metadata_head import (
    AnswerRules,
    with_rules,
)
from skindx.models.urgent_risk import (
    QUESTIONS,
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
from skindx.training.ensembles.combiners import assemble, gather_evidence
from skindx.training.ensembles.member_refs import Mask, MemberRef, member_refs, out_of_fold_P, units
from skindx.training.ensembles.ready_ensemble import ReadyEnsemble, fit_facts, pack_ensemble
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
                mode="json", exclude={"engine", "monitors", "checkpoint"}
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
    """Fit weights and temperatures, and pack members and detector.

    Writes RUN/ensemble.json, which says how the members are combined. With
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
    by_unit = units(member_refs(run, settings), records)
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
    learned = _learned_from(by_unit, assembly.members, images)
    folded = len(split_of(learned, "val"))
    packed = [
        (parts[name], t) for name, t in zip(assembly.members, assembly.temperatures, strict=True)
    ]
    ensemble = builder.ensemble(packed, assembly.temperature, assembly.combination)
    metadata = None
    if settings.ensemble.metadata == "auto":
        held = [images[n] for n in np.flatnonzero(out_of_fold_P(by_unit))]
        answers_NC = assembly.fitted.probabilities(evidence.log_UNC)
        metadata = fit_facts(answers_NC, held, taxonomy)
    ready = ReadyEnsemble(
        ensemble,
        [(builder.spec(part, t), part.finished.state) for part, t in packed],
        learned,
        metadata,
        builder.trunks([part for part, _ in packed]),
    )
    provenance = {
        **({FOLD_TRAINED_IMAGES: folded} if folded else {}),
        **packed_origin(settings),
    }
    return pack_ensemble(
        run / "bundle",
        dataset,
        records,
        taxonomy,
        ready,
        name=settings.name,
        detector=packed_parts(run, settings),
        provenance=provenance,
    )


def _learned_from(
    by_unit: Mapping[str, Mapping[str, Mask]], packed: Sequence[str], images: Sequence[Record]
) -> list[Record]:
    """Return the images that at least one packed member trained on."""
    held = [mask_P for unit in by_unit.values() for name, mask_P in unit.items() if name in packed]
    return [images[index] for index in np.flatnonzero(~np.logical_and.reduce(held)).tolist()]
