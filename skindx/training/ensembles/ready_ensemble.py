"""An ensemble that is ready to be packed, and what its bundle is fitted on beyond validation.

Calibration fits the conformal sets, the thresholds of the urgent risk and the checks of photos;
the gallery, the fingerprints and the provenance say what it learned from.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from skindx.core.atomic_files import sha256_file
from skindx.data.layout import MANIFEST
from skindx.data.manifest import COUNTED, Record, count_images, decoding_of, read_image, split_of
from skindx.data.origin import ImageOrigin, origin_of
from skindx.imaging.photo_gates import ModalityCheck, modality_features
from skindx.models.bundle.bundle import Bundle, DetectorParts, calibration_classes, pack
from skindx.models.bundle.bundle_index import (
    MANIFEST_SHA256,
    TRAINING_COUNTS,
    TRAINING_IMAGES,
    MemberSpec,
    calibration_side,
)
from skindx.models.bundle.model_card import metadata_words
from skindx.models.conformal import ALL, Conformal, fit_on_records
from skindx.models.embedded import EmbeddingsSpec
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
from skindx.models.ood.stored_check import OodPart
from skindx.models.urgent_risk import (
    QUESTIONS,
    fit_risk_on_records,
)
from skindx.taxonomy import Taxonomy
from skindx.training.checkpoint.finished import State
from skindx.training.tasks.image_sets import class_numbers

# N = images, C = classes


def fit_facts(
    answers_NC: NDArray[np.float64], held: Sequence[Record], taxonomy: Taxonomy
) -> MetadataSpec | None:
    """Fit what age, sex and place change, on answers to images that nothing was trained on."""
    truth_N = class_numbers(held, taxonomy.keys)
    urgent_C = np.array([one.urgency == "urgent" for one in taxonomy.classes])
    groups = tuple(record.group for record in held)
    facts = [Facts.of(record) for record in held]
    return fit_metadata(answers_NC, truth_N, facts, groups, urgent_C=urgent_C)


@dataclass(frozen=True)
class ReadyEnsemble:
    """An ensemble before it is packed."""

    ensemble: Ensemble
    """As it will be served."""
    members: Sequence[tuple[MemberSpec, State]]
    learned: Sequence[Record]
    """The images that at least one member trained on."""
    metadata: MetadataSpec | None
    trunks: Mapping[str, Mapping[str, Tensor]]
    """Weights that members share, by their key."""
    started_from: Sequence[ImageOrigin] = ()
    """What the networks learned from whose weights members started from."""


def pack_ensemble(
    path: Path,
    dataset: Path,
    records: Sequence[Record],
    taxonomy: Taxonomy,
    ready: ReadyEnsemble,
    *,
    name: str,
    provenance: Mapping[str, Any],
    detector: DetectorParts | None = None,
    embeddings: EmbeddingsSpec | None = None,
) -> Bundle:
    """Fit what needs the calibration split, and pack it all with what is known of the images."""
    ensemble, learned, metadata = ready.ensemble, ready.learned, ready.metadata
    collector = OodCollector(ensemble, {record.sha256 for record in stratified(learned, CAP)})
    gallery = make_embedding_index(ensemble, dataset, learned, also=collector.train)
    print(_shown(gallery))
    conformal, ood, rules = fit_on_calibration(
        ensemble, dataset, records, taxonomy, collector, metadata=metadata
    )
    print(f"age, sex and place on the body: {metadata_words(rules.get('metadata'))}")
    return pack(
        path,
        name,
        taxonomy,
        ready.members,
        temperature=ensemble.temperature,
        combination=ensemble.combination,
        detector=detector,
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
            **calibration_side(records),
            **calibration_classes(records),
            **provenance,
        },
        seen=records,
        fingerprints=_fingerprints(dataset, records),
        images=reduce(ImageOrigin.joined, ready.started_from, origin_of(dataset, learned)),
        decoding=decoding_of(dataset),
        embeddings=embeddings,
        trunks=ready.trunks,
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
    ood = collector.part()  # what could not be fitted is said at the end
    probabilities_NC = np.concatenate(batches)
    rules: dict[str, Any] = {
        question: fit_risk_on_records(probabilities_NC, held, taxonomy, question)
        for question in QUESTIONS
    }
    if risk := rules["urgent_risk"]:
        rates = ", ".join(f"{level.miss_rate:.0%}" for level in risk.levels)
        print(
            f"urgent-risk thresholds for miss rates of {rates}, fitted on {risk.lesions[ALL]} "
            "calibration lesions with an urgent condition"
        )
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


def _shown(gallery: EmbeddingIndex) -> str:
    spec = gallery.spec
    return (
        f"gallery of {spec.pictures} training images; {spec.shown} may be shown by their "
        "licences and by what people decided on them"
    )
