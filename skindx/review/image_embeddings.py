"""Embeddings of a dataset's images: features of a frozen network, of its last layer or of all.

A last layer trained on objects treats alike what differs in colour and texture. The mean and
standard deviation of each channel over the positions of a feature map (Gatys, Ecker, Bethge 2015,
arXiv 1505.07376, describe textures by such sums) tell them apart.

N = images, B = batch, S = side, D = channels or dimensions, P = positions, F = numbers of one part
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from skindx.core.atomic_files import sha256_file
from skindx.core.errors import UserError
from skindx.data.decisions import Flag, write_flags
from skindx.data.embedding_files import Embeddings, write_embeddings
from skindx.data.layout import store_files
from skindx.data.manifest import Record, read_image, read_issues, read_manifest
from skindx.models.classifier.classifier import (
    Classifier,
    ClassifierSettings,
    build_classifier,
    load_weights,
)
from skindx.models.classifier.preprocess import Preprocess, Views, framed_square, views_of
from skindx.models.ood.ood_detectors import unusual_scores

_QUANTILES = (0.02, 0.1, 0.25, 0.5, 0.75, 0.9, 0.98)
_LEAST = 1e-6


def last_layer(net: Classifier, squares_BSS3: Tensor, views: Views) -> list[Tensor]:
    """Return one part: the network's output, the mean over views."""
    return [torch.stack([net(view) for view in views_of(squares_BSS3, views)]).mean(0).flatten(1)]


def all_layers(net: Classifier, squares_BSS3: Tensor, views: Views) -> list[Tensor]:
    """Return the parts B x F: colours, each stage's channels, the last layer; the mean over views.

    Raises UserError for a network without stages.
    """
    if not hasattr(net.net, "forward_intermediates"):
        raise UserError(
            f"the network {type(net.net).__name__} has no stages, so only its last layer can be "
            "read; set `layers: last`, or use another model."
        )
    by_view = []
    for view in views_of(squares_BSS3, views):
        pooled_BD, maps = net.forward_stages(view)
        by_view.append([*map(channel_statistics, maps), pooled_BD])
    parts = [torch.stack(same).mean(0) for same in zip(*by_view, strict=True)]
    return [colour_statistics(squares_BSS3), *parts]


def channel_statistics(map_BDhw: Tensor) -> Tensor:
    """Return the mean, then the standard deviation, of each channel over positions: B x 2D."""
    flat_BDP = map_BDhw.flatten(2)
    return torch.cat([flat_BDP.mean(2), flat_BDP.std(2, correction=0)], 1)


def colour_statistics(squares_BSS3: Tensor) -> Tensor:
    """Return quantiles, mean and standard deviation of colours: B x 126, on the 0..1 scale.

    Of red, green, blue, their largest, saturation, red - green and green - blue, over the square
    and over its central half.
    """
    rgb = squares_BSS3.float() / 255
    red, green, blue = rgb.unbind(-1)
    largest, smallest = rgb.amax(-1), rgb.amin(-1)
    saturation = (largest - smallest) / largest.clamp(min=1 / 255)
    colours = (red, green, blue, largest, saturation, red - green, green - blue)
    all_BSS7 = torch.stack(colours, -1)
    quarter = all_BSS7.shape[1] // 4
    inside = slice(quarter, all_BSS7.shape[1] - quarter)
    parts = []
    for part in (all_BSS7, all_BSS7[:, inside, inside]):
        flat_BP7 = part.flatten(1, 2)
        quantiles = torch.quantile(flat_BP7, torch.tensor(_QUANTILES), dim=1)
        parts += [*quantiles, flat_BP7.mean(1), flat_BP7.std(1, correction=0)]
    return torch.cat(parts, 1)


def join_parts(parts: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """Return the parts N x F side by side, standardised over the images, all of equal weight.

    A single part stays as it is.
    """
    if len(parts) == 1:
        return parts[0]
    joined = []
    for part_NF in parts:
        spread_F = part_NF.std(axis=0)
        scaled_NF = (part_NF - part_NF.mean(axis=0)) / np.where(spread_F > _LEAST, spread_F, 1)
        joined.append(scaled_NF / part_NF.shape[1] ** 0.5)
    return np.concatenate(joined, axis=1)


def stored_duplicates(dataset: Path, records: Sequence[Record]) -> list[Record]:
    """Return their records, each in the group and split of the image that stayed in its place."""
    kept = {record.sha256: record for record in records}
    records_by_sha: dict[str, Record] = {}
    for issue in read_issues(dataset):
        stays = kept.get(issue.kept_sha256)
        if issue.reason != "near-duplicate" or stays is None or issue.sha256 in kept:
            continue
        for file in sorted(store_files(dataset, issue.sha256)):
            path = file.relative_to(dataset).as_posix()
            record = replace(
                stays, path=path, sha256=issue.sha256, label=issue.label, source_url=issue.url
            )
            height, width = read_image(dataset, record).shape[:2]
            records_by_sha[issue.sha256] = replace(record, width=width, height=height)
    return [records_by_sha[sha256] for sha256 in sorted(records_by_sha)]


_Done = Callable[[int, int], None]
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
    dataset: Path, settings: EmbedSettings, out: Path, progress: _Done | None = None
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
    dataset: Path, bundle: Path, out: Path, progress: _Done | None = None
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


def _embed(dataset: Path, frozen: _Frozen, out: Path, progress: _Done | None) -> Embeddings:
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
        raise UserError(
            f"{frozen.model} computes invalid values (NaN or zeros); give other weights."
        )
    sha256s = tuple(record.sha256 for record in records)
    embeddings = Embeddings(sha256s, vectors_ND / length_N1, frozen.model)
    write_embeddings(out, embeddings)
    return embeddings


def _squares(preprocess: Preprocess, dataset: Path, records: Sequence[Record]) -> torch.Tensor:
    squares = [framed_square(read_image(dataset, record), preprocess) for record in records]
    return torch.from_numpy(np.stack(squares))


FEATURES = {"last": last_layer, "all": all_layers}
"""Layers -> what reads them, as parts B x F."""


FEWEST = 40
"""Fewest images that show what is usual."""


THRESHOLD = 3.0
"""Robust standard deviations above the median image from which a person must look."""


def off_topic(dataset: Path, embeddings: Embeddings, threshold: float) -> tuple[int, int]:
    """Flag images that score `threshold` or more (`off-topic`); return how many of how many.

    Raises UserError for too few images with an embedding.
    """
    sha256s = [record.sha256 for record in read_manifest(dataset)]
    known_N, vectors_ND = embeddings.select(sha256s)
    if len(sha256s) < FEWEST:
        raise UserError(
            f"{dataset} has {len(sha256s)} images, and at least {FEWEST} show which are unusual; "
            "give a larger dataset."
        )
    if len(known_N) < FEWEST:
        raise UserError(
            f"only {len(known_N)} of the {len(sha256s)} images of {dataset} have an embedding, "
            f"but {FEWEST} are needed; run `skindx dedup embed {dataset}` again."
        )
    flags = [
        Flag(
            sha256s[i],
            "off-topic",
            score / (score + threshold),
            f"unusual: {score:.1f} by {embeddings.model}",
        )
        for i, score in zip(known_N.tolist(), unusual_scores(vectors_ND).tolist(), strict=True)
        if score >= threshold
    ]
    write_flags(dataset, flags, ["off-topic"])
    return len(flags), len(known_N)
