"""One evaluation with every part that a report can have, and its bundle and dataset."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from evaluation_fakes import CLASSES, FakePredictor, records_of, simulate

from skindx.core.atomic_files import sha256_file, write_json
from skindx.core.measurement import MeasurementOrigin
from skindx.data.box import Box
from skindx.data.manifest import SPLITS, Record, write_manifest
from skindx.data.origin import ImageOrigin
from skindx.data.summary import BuildSummary
from skindx.evaluation.answers import Answers, mix_of_classes
from skindx.evaluation.evaluate import METRICS, served_conclusions
from skindx.evaluation.image_table import write_image_table
from skindx.evaluation.score import measure
from skindx.models.bundle.bundle_index import (
    MANIFEST_SHA256,
    TRAINING_IMAGES,
    BundleSpec,
    MemberSpec,
)
from skindx.models.classifier.classifier import ClassifierSettings
from skindx.models.classifier.preprocess import Preprocess
from skindx.models.conformal import Conformal
from skindx.models.ensemble import OodResult
from skindx.models.urgent_risk import RiskLevel, UrgentRiskRule

N = 240
WITH_SOON = (*CLASSES[:2], CLASSES[2].model_copy(update={"urgency": "soon"}), CLASSES[3])


def write_whole_evaluation(folder: Path, draws: int = 60) -> None:
    """Write the figures and the tables of 240 images in 160 groups.

    FOLDER/data has the manifest and the summary of their dataset, FOLDER/bundle an index.
    """
    random = np.random.default_rng(5)
    labels, table = simulate(N, seed=5)
    groups = [f"lesion {i - i % 3 % 2}" for i in range(N)]
    facts: list[dict[str, Any]] = [
        {
            "skin_type": (None, 1, 3, 6)[i % 4],
            "source": f"=clinic {random.integers(3)}",
            "confirmed_by": ("histology", "", "consensus")[i % 3],
            "age": (None, 34.5, 71.0)[i // 3 % 3],
            "licence": "CC0 1.0",
            "sex": ("female", "male", "")[i % 3],
            "site": ("back", "", "=face")[i % 3],
        }
        for i in range(N)
    ]
    records = [
        replace(
            record,
            boxes=_boxes(random, i % 3, drawn=True) if i % 5 else None,
            **facts[i],
        )
        for i, record in enumerate(records_of(labels, groups))
    ]
    predictions = [
        replace(
            answer,
            boxes=_boxes(random, i % 4, near=records[i].boxes),
            whole_C=random.dirichlet(np.ones(4)) if i % 2 else None,
            ood=OodResult(float(random.integers(1, 101)) / 100, 0.02),
            known_C=random.dirichlet(2 * answer.probabilities_C + 0.2) if i % 3 else None,
            other_modality=i % 20 == 0,
        )
        for i, answer in enumerate(table)
    ]
    predictor = FakePredictor(
        predictions,
        conformal=Conformal(
            pictures=300,
            thresholds={"all": 0.3},
            urgent={"all": 0.15},
            urgent_columns=(1,),
            urgent_level=0.95,
        ),
        urgent_risk=_risk_rule((1,), {0.05: 0.2, 0.1: 0.35}),
        soon_risk=_risk_rule((1, 2), {0.05: 0.3}),
        calibration_mix={"nevus": 60, "melanoma": 20, "scc": 15, "wart": 5},
    )
    answers = Answers.join(records, predictions, WITH_SOON, predictor.members)
    assert predictor.conformal
    concluded = served_conclusions(predictor, records, predictions)
    answers = replace(
        answers.with_sets(predictor.conformal),
        urgent_risk=predictor.urgent_risk,
        soon_risk=predictor.soon_risk,
        mix_C=mix_of_classes(predictor.calibration_mix, WITH_SOON),
        calibration_images=predictor.calibration_mix,
        steps=tuple(answer.next_step.urgency for answer in concluded),
        abstained_N=np.array([bool(answer.abstained) for answer in concluded]),
    )
    measured = measure(records, predictions, answers, draws=draws).to_dict()
    write_json(folder / METRICS, {"origin": _origin(folder, records, predictor), **measured})
    write_image_table(folder, records, predictions, answers)


def _origin(folder: Path, records: list[Record], predictor: FakePredictor) -> dict[str, object]:
    """Write what is about the measurement, and return what metrics.json says of it."""
    others = [
        replace(record, sha256=f"{n:064x}", path=f"o/{n}", group=f"other {n}", split=split)
        for n, (record, split) in enumerate(zip(records, 20 * SPLITS[:3], strict=False), 900)
    ]
    data, bundle = folder / "data", folder / "bundle"
    write_manifest(data, [*records, *others])
    sha256 = sha256_file(data / "manifest.parquet")
    summary = BuildSummary("d", 400, 300, {"dead-link": 100}, {}, {}, (), 0, 0, 220, 2, 9)
    write_json(data / "summary.json", summary.as_json())
    preprocess = Preprocess(size=96, mean=(0.5, 0.5, 0.5), std=(0.2, 0.2, 0.2))
    spec = BundleSpec(
        name="b",
        created="2026-01-01",
        skindx="0.2",
        members=tuple(
            MemberSpec(name=name, classifier=ClassifierSettings(model="m", preprocess=preprocess))
            for name in predictor.members
        ),
        conformal=predictor.conformal,
        urgent_risk=predictor.urgent_risk,
        soon_risk=predictor.soon_risk,
        images=ImageOrigin(painted="none", modality="dermoscopic"),
        provenance={MANIFEST_SHA256: sha256, TRAINING_IMAGES: 20},
    )
    write_json(bundle / "bundle.json", spec.model_dump(mode="json"))
    return asdict(
        MeasurementOrigin(
            bundle=str(bundle),
            dataset=str(data),
            manifest_sha256=sha256,
            split="test",
            seed=0,
            date="2026-01-01T00:00:00+00:00",
            hardware="h",
            versions={"skindx": "0.2"},
            taxonomy_review="not reviewed",
            bundle_digest="ab" * 32,
        )
    )


def _risk_rule(columns: tuple[int, ...], levels: dict[float, float]) -> UrgentRiskRule:
    """The rule of miss rates and their thresholds, half as great for skin type VI."""
    return UrgentRiskRule(
        urgent_columns=columns,
        lesions={"all": 57, "skin type 6": 20},
        levels=tuple(
            RiskLevel(miss_rate=rate, thresholds={"all": least, "skin type 6": least / 2})
            for rate, least in levels.items()
        ),
    )


def _boxes(
    random: np.random.Generator, n: int, *, near: tuple[Box, ...] | None = None, drawn: bool = False
) -> tuple[Box, ...]:
    corners = [(box.x1, box.y1) for box in near or ()] or [tuple(random.uniform(0, 60, 2))] * 3
    return tuple(
        Box(
            *(corner + random.normal(0, 5, 2)).tolist(),
            *(corner + random.normal(40, 5, 2)).tolist(),
            score=None if drawn else float(random.uniform()),
        )
        for corner in np.array(corners)[:n]
    )
