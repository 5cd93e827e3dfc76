"""Embeddings of a dataset's images: the features before the last layer of a frozen network."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from skindx.curation.sweep.stored_duplicates import stored_duplicates
from skindx.data.dedup.near import Embeddings, write_embeddings
from skindx.data.manifest import Record, read_manifest
from skindx.data.stored_image import read_image
from skindx.errors import UserError
from skindx.files import sha256_file
from skindx.models.classifier.classifier import (
    Classifier,
    ClassifierSettings,
    build_classifier,
    load_weights,
)
from skindx.models.classifier.preprocess import Preprocess, centre_square

if TYPE_CHECKING:
    import torch

# N = images, B = batch, S = side, D = dimensions

Progress = Callable[[int, int], None]
_BATCH = 32


class EmbedSettings(ClassifierSettings):
    """A network from given weights; random weights would embed nothing."""

    model: str = "mobilenetv2_100"
    weights: Path
    preprocess: Preprocess = Preprocess(crop=1.0)


def embed(
    dataset: Path, settings: EmbedSettings, out: Path, progress: Progress | None = None
) -> Embeddings:
    """Embed the manifest's images and its stored near duplicates; write `out`. Raises UserError.

    Features are the network's pooled ones (for a MobileNetV2 1,280 numbers), scaled to length 1.
    """
    classifier = build_classifier(settings, classes=1)
    load_weights(classifier, settings.weights)
    model = f"{settings.model} at {settings.preprocess.size}, {sha256_file(settings.weights)[:16]}"
    return _embed(dataset, classifier, settings.preprocess, model, out, progress=progress)


def embed_with_bundle(
    dataset: Path, bundle: Path, out: Path, progress: Progress | None = None
) -> Embeddings:
    """Embed them with a bundle's first member and write `out`. Raises UserError.

    The bundle has learned the labels of its training images, the wrong ones as well.
    """
    from skindx.models.bundle.bundle import open_bundle

    opened = open_bundle(bundle)
    member = opened.ensemble().members[0]
    digest = sha256_file(bundle / "members" / member.name / "model.safetensors")[:16]
    model = f"{member.name} of bundle {opened.spec.name}, {digest}"
    return _embed(dataset, member.classifier, member.preprocess, model, out, progress=progress)


def _embed(
    dataset: Path,
    classifier: Classifier,
    preprocess: Preprocess,
    model: str,
    out: Path,
    *,
    progress: Progress | None,
) -> Embeddings:
    records = read_manifest(dataset)
    records += stored_duplicates(dataset, records)
    net = classifier.eval()
    net.net.reset_classifier(0)  # type: ignore[operator]
    rows = []
    for start in range(0, len(records), _BATCH):
        rows.append(_features(net, preprocess, dataset, records[start : start + _BATCH]))
        if progress:
            progress(min(start + _BATCH, len(records)), len(records))
    vectors_ND = np.concatenate(rows)
    length_N1 = np.linalg.norm(vectors_ND, axis=1, keepdims=True)
    if not np.all(np.isfinite(length_N1) & (length_N1 > 0)):
        raise UserError(f"{model} gives no numbers for some images; use other weights.")
    sha256s = tuple(record.sha256 for record in records)
    embeddings = Embeddings(sha256s, vectors_ND / length_N1, model)
    write_embeddings(out, embeddings)
    return embeddings


def _features(
    net: "torch.nn.Module", preprocess: Preprocess, dataset: Path, records: Sequence[Record]
) -> NDArray[np.float32]:
    import torch

    squares = [centre_square(read_image(dataset, record), preprocess) for record in records]
    with torch.inference_mode():
        features_BD = net(torch.from_numpy(np.stack(squares)))
    array_BD: NDArray[np.float32] = features_BD.float().flatten(1).numpy()
    return array_BD
