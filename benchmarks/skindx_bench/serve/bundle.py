"""The bundle and the photo that serving is timed on: real sizes, random weights."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from skindx.core.machine import go_offline
from skindx.models.bundle.bundle import Bundle, DetectorParts, pack
from skindx.models.bundle.bundle_index import MemberSpec
from skindx.models.classifier.classifier import ClassifierSettings, build_classifier
from skindx.models.classifier.preprocess import Preprocess
from skindx.models.detector import DetectorSpec
from skindx.models.embedding_index import EmbeddingIndex, IndexRow
from skindx.taxonomy import load_taxonomy

QUALITY = 90
_THUMBNAIL = 160


def random_bundle(
    path: Path, models: Sequence[str], *, side: int, detector_side: int, gallery: int
) -> Bundle:
    """Pack an untrained ensemble with a detector and a gallery of `gallery` images."""
    torch.manual_seed(0)
    taxonomy = load_taxonomy("isic9")
    members, width = [], 0
    for model in models:
        settings = ClassifierSettings(model=model, preprocess=Preprocess(size=side))
        classifier = build_classifier(settings, len(taxonomy.classes)).eval()
        with torch.inference_mode():
            square = torch.zeros((1, side, side, 3), dtype=torch.uint8)
            width += classifier.forward_pooled(classifier.forward_features(square)).shape[1]
        members.append((MemberSpec(name=model, classifier=settings), classifier.net.state_dict()))
    return pack(
        path,
        "bench-serve",
        taxonomy,
        members,
        detector=_detector(detector_side),
        gallery=_gallery(gallery, width, taxonomy.keys),
    )


def photo_jpeg(width: int, height: int, seed: int) -> bytes:
    """Return a photo of a lesion on skin, with a camera's grain; another one for each seed."""
    import cv2
    import simplejpeg

    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[0:height, 0:width].astype(np.float32)
    centre_x, centre_y = rng.uniform(0.4, 0.6, 2) * (width, height)
    distance = np.hypot(columns - centre_x, rows - centre_y) / (0.18 * min(width, height))
    coarse = rng.normal(0, 1, (24, 32, 1)).astype(np.float32)
    shade = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)[..., None]
    lesion = 1 / (1 + np.exp(12 * (distance[..., None] + 0.12 * shade - 1)))
    skin = np.array([206, 160, 136], np.float32) + 7 * shade
    spot = np.array([104, 66, 54], np.float32) + 16 * shade
    # A gate recognises a sharp photo by the lines of the skin, also at a fraction of its size.
    fine = rng.normal(0, 12, (max(2, height // 8), max(2, width // 8))).astype(np.float32)
    lines = cv2.resize(fine, (width, height), interpolation=cv2.INTER_LINEAR)[..., None]
    grain = lines + rng.standard_normal((height, width, 1), dtype=np.float32) * 4
    pixels = (skin + lesion * (spot - skin) + grain).clip(0, 255).astype(np.uint8)
    jpeg: bytes = simplejpeg.encode_jpeg(pixels, quality=QUALITY, colorsubsampling="420")
    return jpeg


def _detector(side: int) -> DetectorParts:
    go_offline()
    from ultralytics import YOLO
    from ultralytics.nn.tasks import DetectionModel

    config = {**YOLO("yolo11n.yaml", task="detect").model.yaml, "nc": 1}
    # Untrained scores are tiny: with this threshold there is something to outline.
    spec = DetectorSpec(size=side, confidence=1e-5, overlap=0.1)
    return DetectorParts(spec, config, DetectionModel(config, nc=1, verbose=False).state_dict())


def _gallery(images: int, width: int, keys: Sequence[str]) -> EmbeddingIndex:
    rng = np.random.default_rng(0)
    embeddings_ND = rng.standard_normal((images, width), dtype=np.float32)
    embeddings_ND /= np.linalg.norm(embeddings_ND, axis=1, keepdims=True)
    small = [photo_jpeg(_THUMBNAIL, _THUMBNAIL, seed) for seed in range(32)]
    rows = [
        IndexRow(f"{n:064x}", keys[n % len(keys)], n, "CC0-1.0", "bench") for n in range(images)
    ]
    return EmbeddingIndex.of(rows, embeddings_ND, [small[n % len(small)] for n in range(images)])
