"""Finished members and detector become RUN/bundle.

Everything is fitted on images that none of the members trained on, and never on calibration or
test. Without folds these are the validation split. The fold members of one kind together have
out-of-fold predictions for every image of train and val: each image is predicted by the member
that did not see it. Weights and temperature are fitted to these predictions as if they came from
one member. The bundle serves the mean of the folds, which is never more confident than that, so
the ensemble's temperature errs towards doubt.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from rich.console import Console

from skindx.core.atomic_files import sha256_file, write_json
from skindx.data.layout import MANIFEST
from skindx.data.manifest import Record, read_manifest, split_of
from skindx.data.origin import origin_of
from skindx.models.bundle.bundle import Bundle, open_bundle, pack
from skindx.models.bundle.change import add_provenance
from skindx.models.bundle.least_side import calibration_side
from skindx.models.bundle.mix import calibration_classes
from skindx.models.bundle.provenance import (
    FOLD_TRAINED_IMAGES,
    MANIFEST_SHA256,
    PACKED_FROM,
    TRAINING_IMAGES,
)
from skindx.models.calibration.conformal import ALL, Conformal
from skindx.models.calibration.conformal_fit import fit_on_records
from skindx.models.calibration.urgent_risk import UrgentRisk, why_no_threshold
from skindx.models.calibration.urgent_risk_fit import fit_risk_on_records
from skindx.models.embedding_index.index import EmbeddingIndex
from skindx.models.embedding_index.making import make_embedding_index, stratified
from skindx.models.ensemble.ensemble import Ensemble
from skindx.models.ensemble.predicting import outputs_of_records
from skindx.models.ood.check import FEWEST
from skindx.models.ood.collector import CAP, Collector
from skindx.models.ood.stored import OodPart
from skindx.taxonomy import Taxonomy
from skindx.training.config.run import TrainSettings
from skindx.training.ensembles.already_packed import packed_bundle, packing_fingerprint
from skindx.training.ensembles.builder import EnsembleBuilder
from skindx.training.ensembles.fitting import assemble, gather_evidence, print_combiners
from skindx.training.ensembles.fusion import fit_fusion
from skindx.training.ensembles.member_refs import Mask, member_refs, units
from skindx.training.feeding.images import class_numbers
from skindx.training.finished.detector import packed_origin, packed_parts
from skindx.training.parallel.devices import resolve_accelerator

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
    collector = Collector(ensemble, {record.sha256 for record in stratified(learned, CAP)})
    gallery = make_embedding_index(ensemble, dataset, learned, also=collector.train)
    print(_shown(gallery))
    conformal, ood, urgent_risk = fit_on_calibration(
        ensemble, dataset, records, taxonomy, collector
    )
    return pack(
        run / "bundle",
        settings.name,
        taxonomy,
        [(builder.spec(part, t), part.finished.state) for part, t in packed],
        temperature=assembly.temperature,
        combination=assembly.combination,
        detector=packed_parts(run, settings),
        conformal=conformal,
        urgent_risk=urgent_risk,
        gallery=gallery,
        ood=ood,
        provenance={
            "dataset": dataset.resolve().name,
            MANIFEST_SHA256: sha256_file(dataset / MANIFEST),
            TRAINING_IMAGES: len(learned),
            **({FOLD_TRAINED_IMAGES: folded} if folded else {}),
            **calibration_side(records),
            **calibration_classes(records),
            **packed_origin(settings),
        },
        seen=records,
        images=origin_of(dataset, learned),
        trunks=builder.trunks([part for part, _ in packed]),
    )


def fit_on_calibration(
    ensemble: Ensemble,
    dataset: Path,
    records: Sequence[Record],
    taxonomy: Taxonomy,
    collector: Collector,
) -> tuple[Conformal | None, OodPart | None, UrgentRisk | None]:
    """Fit conformal sets, OOD check and urgent risk on the calibration split, in one pass over it.

    Nothing else looks at that split. None, and a line that says so, where it has too few images.
    """
    held = split_of(records, "calibration")
    if not held:
        print(
            "no conformal sets, no urgent-risk threshold and no out-of-distribution check: the "
            "dataset has no calibration images to fit them on"
        )
        return None, None, None
    said = []
    for batch, images, output in outputs_of_records(ensemble, dataset, held):
        said.append(output.probabilities_NC)
        collector.calibration(batch, images, output)
    ood = collector.part()
    if ood is None:
        print(
            f"no out-of-distribution check: it takes {FEWEST} calibration images (here "
            f"{len(held)}) and training images that differ"
        )
    said_NC = np.concatenate(said)
    urgent_risk = fit_risk_on_records(said_NC, held, taxonomy)
    print(_risk_shown(urgent_risk, taxonomy))
    return fit_on_records(said_NC, held, taxonomy), ood, urgent_risk


def _risk_shown(rule: UrgentRisk | None, taxonomy: Taxonomy) -> str:
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
