"""A real bundle with random weights: two small networks, a detector, eight classes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from skindx.core.machine import go_offline
from skindx.data.manifest import Record
from skindx.imaging.photo_gates import ModalityCheck
from skindx.imaging.resize import small_jpeg
from skindx.models.bundle.bundle import Bundle, DetectorParts, pack
from skindx.models.bundle.bundle_index import MemberSpec
from skindx.models.bundle.use_limits import UseLimits
from skindx.models.classifier.classifier import ClassifierSettings, build_classifier
from skindx.models.classifier.preprocess import Preprocess
from skindx.models.conformal import Conformal, fit_conformal
from skindx.models.detector import DetectorSpec
from skindx.models.embedding_index import EmbeddingIndex, IndexRow
from skindx.models.fingerprints import Fingerprints
from skindx.models.ood.ood_check import features_of
from skindx.models.ood.ood_detectors import DEFAULT
from skindx.models.ood.ood_features import Features, OodDetectorSettings
from skindx.models.ood.stored_check import OodImages, OodPart, OodRow
from skindx.models.urgent_risk import UrgentRiskRule, fit_urgent_risk
from skindx.taxonomy import SkinClass, Taxonomy, load_taxonomy

USE = UseLimits(
    licence="CC-BY-NC-4.0",
    commercial=False,
    learned_from="dermoscopic images of moles",
    not_for=("children", "nails", "mucosa"),
    citation="Painter A. Moles. 2018",
)
"""What a bundle says of its use in tests."""
SAYS = (
    "It is for research, not for commercial use. It learned from dermoscopic images of moles and "
    "knows nothing about children, nails or mucosa."
)
"""The sentence that each answer of such a bundle has."""

MODELS = {"resnet": "test_resnet", "vit": "test_vit"}


def measured(top1: float) -> dict[str, Any]:
    """Return an evaluation's figures as `skindx evaluate` writes them, all headlines the same."""
    figure = {"value": top1, "low": 0.25, "high": None}
    scores = dict.fromkeys(("top1", "top_k", "balanced_accuracy", "calibration_error"), figure)
    return {
        "pictures": 20,
        "groups": 15,
        "level": 0.95,
        "members": [{"name": "small", **scores}],
        "ensemble": {"name": "ensemble", **scores},
        "classes": [{"name": "A", "n": 20, "sensitivity": figure}],
        "detector": None,
    }


def pack_tiny(
    path: Path,
    *,
    taxonomy: Taxonomy | None = None,
    detector: bool = False,
    temperature: float = 0.5,
    broken: bool = False,
    conformal: Conformal | None = None,
    urgent_risk: UrgentRiskRule | None = None,
    gallery: EmbeddingIndex | None = None,
    ood: OodPart | None = None,
    seen: Sequence[Record] | None = None,
    fingerprints: Fingerprints | None = None,
    use: UseLimits | None = None,
    modality: ModalityCheck | None = None,
) -> Bundle:
    """Pack a bundle; its weights are random under one seed, or no numbers when `broken`."""
    torch.manual_seed(7)
    taxonomy = taxonomy or load_taxonomy("isic9")
    members = []
    for name, model in MODELS.items():
        settings = ClassifierSettings(model=model, preprocess=Preprocess(size=64))
        if model == "test_vit":
            settings = settings.model_copy(update={"model_args": {"img_size": 64}})
        state = build_classifier(settings, len(taxonomy.classes)).net.state_dict()
        if broken:
            state = {
                key: value * torch.nan if value.is_floating_point() else value
                for key, value in state.items()
            }
        members.append((MemberSpec(name=name, classifier=settings), state))
    parts = _detector() if detector else None
    return pack(
        path,
        "tiny",
        taxonomy,
        members,
        temperature=temperature,
        detector=parts,
        conformal=conformal,
        urgent_risk=urgent_risk,
        gallery=gallery,
        ood=ood,
        seen=seen,
        fingerprints=fingerprints,
        use=use,
        modality=modality,
    )


def pack_whole(
    path: Path, *, detector: bool = False, ood: Sequence[OodDetectorSettings] = DEFAULT
) -> Bundle:
    """Pack a bundle that has all parts: sets, urgent risk, gallery, OOD check; of painted noise.

    40 images in 20 groups of two; every other one may be shown.
    """
    bundle = pack_tiny(path)
    random, keys = np.random.default_rng(0), bundle.taxonomy.keys
    images = [random.integers(0, 256, (70, 90, 3), dtype=np.uint8) for _ in range(80)]
    ensemble = bundle.ensemble()
    output = ensemble.predict_with_features(images)
    rows = [
        IndexRow(f"{n:064x}", keys[n // 2 % len(keys)], n // 2, "CC BY 4.0", "A. Painter")
        for n in range(40)
    ]
    shown = [b"" if n % 2 else small_jpeg(images[n], 64) for n in range(40)]
    gallery = EmbeddingIndex.from_rows(rows, output.embeddings_ND[:40], shown)
    urgent_C = np.array([condition.urgency == "urgent" for condition in bundle.taxonomy.classes])
    truth_N = random.integers(0, len(keys), 40)
    return pack_tiny(
        path,
        detector=detector,
        urgent_risk=fit_urgent_risk(output.probabilities_NC[40:], truth_N, urgent_C=urgent_C),
        conformal=fit_conformal(output.probabilities_NC[40:], truth_N, urgent_C=urgent_C),
        gallery=gallery,
        ood=_ood(rows, features_of(ensemble, images, output), ood),
    )


def _ood(
    rows: Sequence[IndexRow], features: Features, detectors: Sequence[OodDetectorSettings]
) -> OodPart:
    """Fit the check: the gallery's images are for training, the others for calibration."""
    train = [OodRow(row.sha256, row.label, f"g{row.group}", "train") for row in rows]
    held = [OodRow(f"{n:064x}", "", f"c{n}", "calibration") for n in range(100, 140)]
    part = OodPart.fit(detectors, OodImages((*train, *held), features))
    assert part is not None
    return part


def _detector() -> DetectorParts:
    go_offline()
    from ultralytics import YOLO
    from ultralytics.nn.tasks import DetectionModel

    config = {**YOLO("yolo11n.yaml", task="detect").model.yaml, "nc": 1}
    # Untrained scores are tiny: this threshold lets a few boxes through.
    spec = DetectorSpec(size=64, confidence=1e-5, overlap=0.1)
    return DetectorParts(spec, config, DetectionModel(config, nc=1, verbose=False).state_dict())


def odd_taxonomy() -> Taxonomy:
    """Return classes whose names would be markup if anybody let them."""
    return Taxonomy(
        name="odd",
        title="<i>odd</i>",
        classes=(
            SkinClass(key="a", name="<script>alert(1)</script>", description="<b>bold</b>"),
            SkinClass(key="b", name="[red]brackets[/red]", urgency="routine"),
        ),
    )
