"""Linear heads on the features of untouched ImageNet networks, out of fold, kept as files."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from skindx.core.atomic_files import atomic_file
from skindx.core.errors import UserError
from skindx.core.settings_base import Settings
from skindx.data.layout import TAXONOMY
from skindx.data.manifest import Record, read_manifest
from skindx.metrics import Statistic, confidence_interval
from skindx.models.classifier.classifier import (
    Classifier,
    ClassifierSettings,
    build_classifier,
    load_weights,
)
from skindx.models.classifier.head_kinds import LinearHead
from skindx.models.classifier.preprocess import Preprocess, Views, framed_square, views_of
from skindx.models.combination import apply_temperature, fit_temperature
from skindx.models.embedded import EMBEDDINGS, PLACE
from skindx.models.ensemble import decoded
from skindx.taxonomy import Taxonomy
from skindx.training.checkpoint.fingerprints import fingerprint_of
from skindx.training.config.recipe import Recipe
from skindx.training.config.run import MemberSettings
from skindx.training.tasks.head_data import HeadData, predict_rows, solve
from skindx_bench.harness.result import MEANS, Figure, Result
from skindx_bench.honesty.ood import refold
from skindx_bench.train.ensemble_passes import VIEWS
from skindx_bench.train.kept_predictions import Kept, costs_of, origin_of, read_kept, write_kept

# N = images, D = features, C = classes, S = side

Floats = NDArray[np.float64]

_MEMBER = MemberSettings(
    name="linear", model=EMBEDDINGS, trunk="frozen", head=LinearHead(solver="exact")
)


class Network(NamedTuple):
    """A network of timm, the arguments that its weights need, and their file."""

    model: str
    arguments: dict[str, Any]
    weights: str


_TENSORFLOW = {"pad_type": "same", "bn_eps": 1e-3}
NETWORKS = {
    "mobilenetv1-025": Network(
        "mobilenetv1_100", {**_TENSORFLOW, "channel_multiplier": 0.25}, "mobilenetv1_025.pth"
    ),
    "mobilenetv2": Network("mobilenetv2_100", _TENSORFLOW, "mobilenetv2_100_qat.pth"),
    **{
        f"efficientnet-lite{number}": Network(
            f"tf_efficientnet_lite{number}", {}, f"tf_efficientnet_lite{number}.fp16.safetensors"
        )
        for number in range(3)
    },
}
"""The networks whose ImageNet weights are at hand, by the names of the table."""

SMALLEST = ("heads=[random-32]", "folds=2", "views=1")


class Config(Settings):
    """Which networks at which side, NAME-SIDE, and where the files go."""

    dataset: Path = Path("runs/ham10000/data")
    weights: Path = Path("weights")
    """The folder of the ImageNet weights."""
    heads: tuple[str, ...] = (
        "mobilenetv1-025-128", "mobilenetv2-128", "efficientnet-lite0-128",
        "efficientnet-lite1-128", "efficientnet-lite2-128", "mobilenetv2-96", "mobilenetv2-192",
    )  # fmt: skip
    folds: int = Field(5, ge=2)
    views: Views = 2
    """As many views of each image are judged, for single networks of an ensemble's cost."""
    out: Path = Path("runs/frozen")
    """Features of each network, which a second call does not compute again."""
    kept: Path = Path("docs/measured/predictions")
    """The predictions, DATASET-frozen-NAME.parquet; a file that exists stays."""


def run(settings: Config) -> Result:
    """Compute each network's features once and fit a head a fold; files that exist are read."""
    dataset = settings.dataset.resolve().parent.name
    records = read_manifest(settings.dataset)
    classes = Taxonomy.load(settings.dataset / TAXONOMY).keys
    figures = {}
    for head in settings.heads:
        path = settings.kept / f"{dataset}-frozen-{head}.parquet"
        if not path.exists():
            write_kept(path, out_of_fold(head, records, classes, settings))
        kept = read_kept(path)
        balanced = Statistic.balanced_accuracy(kept.views[1], kept.truth_N)
        figures[f"{head}_balanced"] = Figure.of(
            confidence_interval(balanced, kept.groups_N), "%", settings.folds, 100
        )
    note = (
        f"{dataset}: logistic regression on the features of frozen ImageNet networks, "
        f"{settings.folds} grouped folds of {len(records)} images; the regularisation and the "
        "temperature of a fold are chosen on a tenth of the images that its head did not learn "
        "from."
    )
    return Result("frozen-heads", figures, notes=(note,), headings=MEANS)


def out_of_fold(
    head: str, records: Sequence[Record], classes: Sequence[str], settings: Config
) -> Kept:
    """Return the predictions of a head for each image, by the fold that left it out."""
    name, _, side = head.rpartition("-")
    preprocess = Preprocess(size=int(side), mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    classifier = network(name, preprocess, settings.weights)
    features_VND = np.stack(
        [
            pooled_features(head, classifier, preprocess, records, settings, view=view)
            for view in range(settings.views)
        ]
    )
    number = {key: place for place, key in enumerate(classes)}
    truth_N = np.array([number[record.label] for record in records])
    left_out_VNC = np.zeros((settings.views, len(records), len(classes)))
    fold_N = np.zeros(len(records), int)
    for fold in range(settings.folds):
        parts_N = np.array([record.split for record in refold(records, fold, settings.folds)])
        test_N = parts_N == "test"
        # A head learns from images as they are, and judges every view of the others.
        views_N = np.where(test_N, "test", "")
        parts = np.concatenate([parts_N, np.tile(views_N, settings.views - 1)])
        judged_NC = calibrated_fold(
            np.concatenate(features_VND), np.tile(truth_N, settings.views), parts, len(classes)
        )
        left_out_VNC[:, test_N] = judged_NC.reshape(settings.views, -1, len(classes))
        fold_N[test_N] = fold
    facts = {
        "model": name,
        "size": int(side),
        "trained": "a linear head on frozen features",
        **costs_of(classifier, int(side)),
        **origin_of(settings.dataset),
    }
    views = {
        int(count): left_out_VNC[:count].mean(axis=0) for count in VIEWS if count <= settings.views
    }
    return Kept.of(f"frozen-{head}", classes, records, fold_N.tolist(), views=views, facts=facts)


def network(name: str, preprocess: Preprocess, weights: Path | None) -> Classifier:
    """Return a network of the table with its ImageNet weights; none: random ones.

    `random` is a tiny network without weights. Raises UserError for another name.
    """
    if name == "random":
        torch.manual_seed(1)  # some random ones answer all images alike
        return build_classifier(ClassifierSettings(model="test_resnet", preprocess=preprocess), 1)
    if name not in NETWORKS:
        raise UserError(f"there is no network {name!r}; the names are {', '.join(NETWORKS)}.")
    model, arguments, file = NETWORKS[name]
    if "channel_multiplier" in arguments:
        from timm.models import efficientnet

        # timm names no MobileNetV1 of this width.
        net = efficientnet._gen_mobilenet_v1(model, num_classes=1, **arguments)
        classifier = Classifier(net, preprocess)
    else:
        classifier = build_classifier(
            ClassifierSettings(model=model, model_args=arguments, preprocess=preprocess), 1
        )
    if weights:
        load_weights(classifier, weights / file)
    return classifier


def pooled_features(
    head: str,
    classifier: Classifier,
    preprocess: Preprocess,
    records: Sequence[Record],
    settings: Config,
    *,
    view: int = 0,
) -> NDArray[np.float32]:
    """Return the pooled features of one view of all images, N x D."""
    key = fingerprint_of({"head": head, "images": [record.sha256 for record in records]})
    file = settings.out / (f"{head}-view{view}.npz" if view else f"{head}.npz")
    if file.exists():
        with np.load(file, allow_pickle=False) as kept:
            if str(kept["key"]) == key:
                features_ND: NDArray[np.float32] = kept["features"].astype(np.float32)
                return features_ND
    classifier.eval().to(memory_format=torch.channels_last)
    parts = []
    with torch.inference_mode():
        for images in decoded(settings.dataset, records):
            squares = [framed_square(image, preprocess) for image in images]
            batch_BSS3 = views_of(torch.from_numpy(np.stack(squares)), settings.views)[view]
            map_ = classifier.forward_features(batch_BSS3)
            parts.append(classifier.forward_pooled(map_).float().numpy())
    features_ND = np.concatenate(parts)
    settings.out.mkdir(parents=True, exist_ok=True)
    with atomic_file(file) as temporary, temporary.open("wb") as written:
        np.savez(written, key=np.array(key), features=features_ND.astype(np.float16))
    return features_ND


def calibrated_fold(
    features_ND: NDArray[np.float32],
    truth_N: NDArray[np.int64],
    parts_N: NDArray[np.str_],
    classes: int,
) -> Floats:
    """Return calibrated probabilities of the test images by the head of least validation loss."""
    train_N, val_N, test_N = (np.flatnonzero(parts_N == part) for part in ("train", "val", "test"))
    data = HeadData(_MEMBER, [features_ND], truth_N, train_N, val_N, classes)
    finished = solve(data, Recipe(class_weights="sqrt"), PLACE).finished
    state = {name.removeprefix(f"{PLACE}."): value for name, value in finished.state.items()}
    temperature = fit_temperature(finished.validation_NC, finished.truth_N)
    return apply_temperature(predict_rows(replace(data, val_N=test_N), state), temperature)
