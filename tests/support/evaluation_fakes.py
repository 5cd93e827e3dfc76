"""A predictor that answers from a table: each image's first pixel says which row is its own."""

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from skindx.data.box import Box
from skindx.data.manifest import Record, Split, write_manifest
from skindx.evaluation.answers import Answers
from skindx.evaluation.score import Evaluation, score, score_boxes
from skindx.models.bundle.use_limits import UseLimits
from skindx.models.conformal import Conformal
from skindx.models.ensemble import Prediction
from skindx.models.fingerprints import Fingerprints
from skindx.models.metadata_head import MetadataSpec
from skindx.models.urgent_risk import UrgentRiskRule
from skindx.taxonomy import SkinClass, Taxonomy, Urgency


def fake_class(key: str, name: str, urgency: Urgency = "routine") -> SkinClass:
    return SkinClass(key=key, name=name, urgency=urgency)


CLASSES = (
    fake_class("nevus", "Compound nevus"),
    fake_class("melanoma", "Melanoma", "urgent"),
    fake_class("scc", "Squamous cell carcinoma", "urgent"),
    fake_class("wart", "Common wart"),
)
TAXONOMY = Taxonomy(name="fake", title="Fake", classes=CLASSES)


@dataclass
class FakePredictor:
    decoding: ClassVar[str] = "srgb-1"
    table: Sequence[Prediction]
    members: tuple[str, ...] = ("alpha", "beta")
    taxonomy: Taxonomy = TAXONOMY
    conformal: Conformal | None = None
    urgent_risk: UrgentRiskRule | None = None
    soon_risk: UrgentRiskRule | None = None
    metadata: MetadataSpec | None = None
    miss_rate: float | None = None
    weights: tuple[float, ...] | None = None
    calibration_mix: dict[str, int] | None = None
    adapted: bool = False
    use: UseLimits | None = None
    trained_on: str = ""
    seen: dict[str, Split] | None = None
    fingerprints: Fingerprints | None = None
    batches: list[int] = field(default_factory=list)
    bundle: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(digest="0" * 64))

    def predict(
        self, images: Sequence[NDArray[np.uint8]], *, confidence: float | None = None
    ) -> list[Prediction]:
        self.batches.append(len(images))
        return [self.table[int(image[0, 0, 0])] for image in images]


def decode(data: bytes, decoding: str = "srgb-1") -> NDArray[np.uint8]:
    pixels: NDArray[np.uint8] = np.load(io.BytesIO(data))
    return pixels


def prediction(*members: tuple[float, ...], boxes: tuple[Box, ...] | None = None) -> Prediction:
    """Return members' probabilities and their mean."""
    member_MC = np.array(members, dtype=np.float64)
    return Prediction(member_MC.mean(axis=0), member_MC, boxes)


def simulate(n: int, seed: int = 0) -> tuple[list[str], list[Prediction]]:
    """Return labels of the first three classes and two members that err apart."""
    random = np.random.default_rng(seed)
    truth_N = random.integers(3, size=n)
    scores_NMC = random.normal(size=(n, 2, 4)) + 2 * np.eye(4)[truth_N][:, None]
    probabilities_NMC = np.exp(scores_NMC) / np.exp(scores_NMC).sum(axis=-1, keepdims=True)
    table = [Prediction(probability.mean(axis=0), probability) for probability in probabilities_NMC]
    return [CLASSES[i].key for i in truth_N], table


def records_of(
    labels: Sequence[str], groups: Sequence[str] | None = None, split: Split = "test"
) -> list[Record]:
    return [
        Record(
            path=f"pictures/{i}.npy",
            sha256=f"{i:064x}",
            perceptual_hash="0",
            width=8,
            height=6,
            label=label,
            group=groups[i] if groups else f"lesion {i}",
            split=split,
        )
        for i, label in enumerate(labels)
    ]


def write_dataset(folder: Path, records: Sequence[Record]) -> Path:
    """Write records and an image for each; the image's value is its place in the list."""
    (folder / "pictures").mkdir(parents=True)
    for i, record in enumerate(records):
        np.save(folder / record.path, np.full((6, 8, 3), i, np.uint8))
    write_manifest(folder, records)
    return folder


def scored(
    records: Sequence[Record],
    table: Sequence[Prediction],
    members: Sequence[str],
    *,
    classes: Sequence[SkinClass] = CLASSES,
    draws: int = 50,
) -> Evaluation:
    return score(
        Answers.join(records, table, classes, members),
        draws=draws,
        has_detector=any(answer.boxes is not None for answer in table),
        detector=score_boxes(records, table, draws=draws),
    )
