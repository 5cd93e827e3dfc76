"""Embeddings of a dataset's images: features of a frozen network, before its last layer or all."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from skindx.core.atomic_files import sha256_file
from skindx.core.errors import UserError
from skindx.curation.features import all_layers, join_parts, last_layer
from skindx.curation.sweep.stored_duplicates import stored_duplicates
from skindx.data.image_tables import Embeddings, write_embeddings
from skindx.data.manifest import Record, read_manifest
from skindx.data.stored_image import read_image
from skindx.models.classifier.classifier import (
    Classifier,
    ClassifierSettings,
    build_classifier,
    load_weights,
)
from skindx.models.classifier.preprocess import Preprocess, Views, centre_square

# N = images, B = batch, S = side, D = dimensions

Progress = Callable[[int, int], None]
_BATCH = 8
"""Images that fit the caches of a CPU with what the network makes of them: 32 took longer."""


class EmbedSettings(ClassifierSettings):
    """A network from given weights; random weights would embed nothing."""

    model: str = "mobilenetv2_100"
    weights: Path
    preprocess: Preprocess = Preprocess(crop=1.0)
    layers: Literal["last", "all"] = "last"
    """`all`: the channels of every stage and the colours as well, which the label review and no
    search for copies wants. They are standardised over the dataset's images."""
    views: Views = 1
    """Mirrored and turned views that are averaged."""


@dataclass(frozen=True, slots=True)
class _Frozen:
    """A network, what it sees, what is read of it, and its name."""

    classifier: Classifier
    preprocess: Preprocess
    features: Callable[[torch.Tensor], list[torch.Tensor]]
    model: str


def embed(
    dataset: Path, settings: EmbedSettings, out: Path, progress: Progress | None = None
) -> Embeddings:
    """Embed the manifest's images and its stored near duplicates; write `out`. Raises UserError.

    Features are the network's pooled ones (for a MobileNetV2 1,280 numbers), or those of all
    layers, scaled to length 1.
    """
    classifier = build_classifier(settings, classes=1)
    load_weights(classifier, settings.weights)
    model = f"{settings.model} at {settings.preprocess.size}, {sha256_file(settings.weights)[:16]}"
    if settings.layers == "all":
        model += ", all layers"
    if settings.views > 1:
        model += f", {settings.views} views"
    features = partial(FEATURES[settings.layers], classifier, views=settings.views)
    frozen = _Frozen(classifier, settings.preprocess, features, model)
    return _embed(dataset, frozen, out, progress)


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
    features = partial(last_layer, member.classifier, views=1)
    frozen = _Frozen(member.classifier, member.preprocess, features, model)
    return _embed(dataset, frozen, out, progress)


def _embed(dataset: Path, frozen: _Frozen, out: Path, progress: Progress | None) -> Embeddings:
    records = read_manifest(dataset)
    records += stored_duplicates(dataset, records)
    frozen.classifier.eval().to(memory_format=torch.channels_last)
    frozen.classifier.net.reset_classifier(0)  # type: ignore[operator]
    rows = []
    for start in range(0, len(records), _BATCH):
        squares = _squares(frozen.preprocess, dataset, records[start : start + _BATCH])
        with torch.inference_mode():
            rows.append([part_BF.float().numpy() for part_BF in frozen.features(squares)])
        if progress:
            progress(min(start + _BATCH, len(records)), len(records))
    vectors_ND = join_parts([np.concatenate(part) for part in zip(*rows, strict=True)])
    length_N1 = np.linalg.norm(vectors_ND, axis=1, keepdims=True)
    if not np.all(np.isfinite(length_N1) & (length_N1 > 0)):
        raise UserError(f"{frozen.model} gives no numbers for some images; use other weights.")
    sha256s = tuple(record.sha256 for record in records)
    embeddings = Embeddings(sha256s, vectors_ND / length_N1, frozen.model)
    write_embeddings(out, embeddings)
    return embeddings


def _squares(preprocess: Preprocess, dataset: Path, records: Sequence[Record]) -> torch.Tensor:
    squares = [centre_square(read_image(dataset, record), preprocess) for record in records]
    return torch.from_numpy(np.stack(squares))


FEATURES = {"last": last_layer, "all": all_layers}
"""Layers -> what reads them, as parts B x F."""
