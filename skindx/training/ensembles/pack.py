"""Finished members and detector become RUN/bundle.

Everything is fitted on pictures that none of the members trained on, and never on calibration or
test. Without folds these are the validation split. The fold members of one kind together have a
word on every picture of train and val: of each picture the word of the member that did not see
it. Their weights and temperature are fitted to these words, as if one member spoke; the mean of
the folds, which is served, is less sure than that and never surer, so that the ensemble's
temperature errs towards doubt.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from rich.console import Console

from skindx.data.manifest import MANIFEST, Record, read_manifest, split_of
from skindx.files import sha256_file, write_json
from skindx.models.bundle.bundle import Bundle, pack
from skindx.models.bundle.least_side import calibration_side
from skindx.models.bundle.provenance import (
    FOLD_TRAINED_IMAGES,
    MANIFEST_SHA256,
    TRAINING_IMAGES,
)
from skindx.models.calibration.conformal import ALL, Conformal
from skindx.models.calibration.conformal_fit import fit_on_records
from skindx.models.calibration.urgent_risk import UrgentRisk
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
from skindx.training.ensembles.builder import Workshop
from skindx.training.ensembles.fitting import assemble, gather_evidence, print_ways
from skindx.training.ensembles.member_refs import Mask, sources, units
from skindx.training.feeding.pictures import class_numbers
from skindx.training.process_group import resolve_accelerator
from skindx.training.tasks.detector.store import packed_origin, packed_parts

REPORT = "ensemble.json"


def pack_run(run: Path, dataset: Path, settings: TrainSettings, taxonomy: Taxonomy) -> Bundle:
    """Make the soups, fit weights and temperatures, and pack members and detector.

    Writes RUN/ensemble.json, which says how each way of combining does on validation.
    """
    records = read_manifest(dataset)
    device = resolve_accelerator(settings.engine.accelerator)
    workshop = Workshop(run, dataset, settings, taxonomy, records, device)
    by_unit = units(settings, sources(run, settings), records)
    names = [name for unit in by_unit.values() for name in unit]
    parts = {part.name: part for part in workshop.parts(names)}
    judged = {
        name: workshop.judge(parts[name], held_P)
        for unit in by_unit.values()
        for name, held_P in unit.items()
    }
    pictures = workshop.pictures
    truth_P = class_numbers(pictures, taxonomy.keys)
    evidence = gather_evidence(by_unit, judged, truth_P, [each.group for each in pictures])
    assembly = assemble(
        settings.ensemble.combine, evidence, {key: tuple(unit) for key, unit in by_unit.items()}
    )
    write_json(run / REPORT, assembly.report())
    print_ways(assembly, Console(width=max(Console().width, 100)))
    learned = _learned_from(by_unit, assembly.members, pictures)
    folded = len(split_of(learned, "val"))
    packed = [
        (parts[name], t) for name, t in zip(assembly.members, assembly.temperatures, strict=True)
    ]
    ensemble = workshop.ensemble(packed, assembly.temperature, assembly.combination)
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
        [(workshop.spec(part, t), part.finished.state) for part, t in packed],
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
            **packed_origin(settings),
        },
        seen=records,
    )


def fit_on_calibration(
    ensemble: Ensemble,
    dataset: Path,
    records: Sequence[Record],
    taxonomy: Taxonomy,
    collector: Collector,
) -> tuple[Conformal | None, OodPart | None, UrgentRisk | None]:
    """Fit conformal sets, OOD check and urgent risk on the calibration split, in one pass over it.

    Nothing else looks at that split. None, and a line that says so, where it has too few pictures.
    """
    held = split_of(records, "calibration")
    if not held:
        print(
            "no conformal sets, no urgent-risk threshold and no out-of-distribution check: the "
            "dataset has no calibration images to fit them on"
        )
        return None, None, None
    said = []
    for batch, pictures, output in outputs_of_records(ensemble, dataset, held):
        said.append(output.probabilities_NC)
        collector.calibration(batch, pictures, output)
    ood = collector.part()
    if ood is None:
        print(
            f"no out-of-distribution check: it takes {FEWEST} calibration images (here "
            f"{len(held)}) and training images that differ"
        )
    said_NC = np.concatenate(said)
    urgent_risk = fit_risk_on_records(said_NC, held, taxonomy)
    print(_risk_shown(urgent_risk))
    return fit_on_records(said_NC, held, taxonomy), ood, urgent_risk


def _risk_shown(rule: UrgentRisk | None) -> str:
    if rule is None:
        return (
            "no urgent-risk threshold: it takes 9 calibration lesions with an urgent condition; "
            "the next step follows the conformal set"
        )
    rates = ", ".join(f"{level.miss_rate:.0%}" for level in rule.levels)
    return (
        f"urgent-risk thresholds for miss rates of {rates}, fitted on {rule.lesions[ALL]} "
        "calibration lesions with an urgent condition"
    )


def _shown(gallery: EmbeddingIndex) -> str:
    spec = gallery.spec
    return (
        f"gallery of {spec.pictures} training pictures; {spec.shown} may be shown by their "
        "licences and by what people decided on them"
    )


def _learned_from(
    by_unit: Mapping[str, Mapping[str, Mask]], packed: Sequence[str], pictures: Sequence[Record]
) -> list[Record]:
    """Return the pictures that at least one packed member trained on."""
    held = [mask_P for unit in by_unit.values() for name, mask_P in unit.items() if name in packed]
    return [pictures[index] for index in np.flatnonzero(~np.logical_and.reduce(held)).tolist()]
