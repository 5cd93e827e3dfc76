"""What each member of a fold says of validation and test images, in one view and in several."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import logsumexp

from skindx.core.atomic_files import atomic_file, sha256_file
from skindx.data.layout import MANIFEST
from skindx.data.manifest import Record, Split, read_manifest, split_of
from skindx.evaluation.answers import Answers
from skindx.models.bundle.bundle import Bundle, trunk_file
from skindx.models.classifier.preprocess import Views, framed_square, views_of
from skindx.models.combination import apply_temperature
from skindx.models.ensemble import Member, decoded
from skindx.training.checkpoint.fingerprints import fingerprint_of
from skindx.training.checkpoint.finished import load_member

# V = single views, M = members, N = images, C = classes, B = batch, S = side

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

VIEWS: tuple[Views, ...] = get_args(Views)
_SPLITS: tuple[Split, ...] = ("val", "test")


@dataclass(frozen=True)
class Seen:
    """Labelled images, and each member's calibrated probabilities of them."""

    truth_N: Ints
    groups_N: NDArray[np.str_]
    members: Mapping[int, Floats]
    """Number of views -> M x N x C: the mean probability over so many views."""


@dataclass(frozen=True)
class FoldPasses:
    """The members of one fold on images that they did not train on."""

    names: tuple[str, ...]
    flops_M: tuple[int, ...]
    """Operations of one pass of each member: one image in one view."""
    validation: Seen
    test: Seen


def fold_passes(
    home: Path, bundle: Bundle, flops: Mapping[str, int], views: Views, device: str
) -> FoldPasses:
    """Return the predictions of a fold's bundle in up to `views` views.

    They are kept in HOME/passes, and a member predicts again only with other weights, images or
    views.
    """
    members = bundle.ensemble(device).members
    records = {split: split_of(read_manifest(home / "data"), split) for split in _SPLITS}
    logs = [_member_logs(home, bundle, member, records, views) for member in members]
    number = {kind.key: place for place, kind in enumerate(bundle.taxonomy.classes)}
    validation, test = (
        Seen(
            np.array([number[record.label] for record in records[split]], dtype=np.intp),
            np.array([record.group for record in records[split]]),
            mean_of_views(
                np.stack([own[split] for own in logs], axis=1),
                [member.temperature for member in members],
            ),
        )
        for split in _SPLITS
    )
    names = tuple(member.name for member in members)
    # A fold that left a member out, or has another one, is not compared: its cost is not asked.
    return FoldPasses(names, tuple(flops.get(name, 0) for name in names), validation, test)


def served_passes(
    home: Path, bundle: Bundle, flops: Mapping[str, int], answers: Answers
) -> FoldPasses:
    """Return the predictions of members of one view, without predicting anything again.

    Those of validation images stand beside each member's weights, those of test images are the
    evaluation's.
    """
    place = {name: number for number, name in enumerate(answers.members)}
    names = tuple(member.name for member in bundle.spec.members)
    records = split_of(read_manifest(home / "data"), "val")
    finished = [load_member(home / "run", name) for name in names]
    said_MNC = np.stack(
        [
            apply_temperature(own.validation_NC, member.temperature)
            for own, member in zip(finished, bundle.spec.members, strict=True)
        ]
    )
    groups_N = np.array([record.group for record in records])
    test_MNC = answers.members_NMC[:, [place[name] for name in names]].swapaxes(0, 1)
    return FoldPasses(
        names,
        tuple(flops.get(name, 0) for name in names),
        Seen(finished[0].truth_N.astype(np.intp), groups_N, {1: said_MNC}),
        Seen(answers.truth_N, answers.groups_N, {1: test_MNC}),
    )


def _member_logs(
    home: Path,
    bundle: Bundle,
    member: Member,
    records: Mapping[Split, Sequence[Record]],
    views: Views,
) -> dict[Split, Floats]:
    """Return log-probabilities V x N x C of each split, kept or predicted."""
    files = bundle.spec.files
    own = [f"members/{member.name}/model.safetensors", trunk_file(member.trunk)]
    key = fingerprint_of(
        {
            "weights": [files.get(name) for name in own],
            "preprocess": member.preprocess.model_dump(mode="json"),
            "manifest": sha256_file(home / "data" / MANIFEST),
            "views": views,
        }
    )
    file = home / "passes" / f"{member.name}.npz"
    if file.exists():
        with np.load(file, allow_pickle=False) as kept:
            if str(kept["key"]) == key:
                return {split: kept[split] for split in _SPLITS}
    logs = {
        split: predict_views(member, home / "data", listed, views)
        for split, listed in records.items()
    }
    with atomic_file(file) as temporary, temporary.open("wb") as written:
        np.savez(written, key=np.array(key), val=logs["val"], test=logs["test"])
    return logs


def predict_views(member: Member, dataset: Path, records: Sequence[Record], views: Views) -> Floats:
    """Return uncalibrated log-probabilities V x N x C, each of one view alone.

    Raises UserError for an image that is gone or damaged.
    """
    single = replace(member, views=1)
    parts = [_views_of_one(single, images, views) for images in decoded(dataset, records)]
    return np.concatenate(parts, axis=1)


def _views_of_one(member: Member, images: Sequence[NDArray[np.uint8]], views: Views) -> Floats:
    squares_BSS3 = np.stack([framed_square(image, member.preprocess) for image in images])
    seen = views_of(torch.from_numpy(squares_BSS3), views)
    return np.stack(
        [member.log_probabilities_of_squares([view.contiguous().numpy()]) for view in seen]
    )


def mean_of_views(log_VMNC: Floats, temperatures_M: Sequence[float]) -> dict[int, Floats]:
    """Return calibrated probabilities M x N x C by the number of views, as a member serves them."""
    found = {}
    for views in VIEWS:
        if views <= len(log_VMNC):
            log_MNC = logsumexp(log_VMNC[:views], axis=0) - np.log(views)
            found[int(views)] = np.stack(
                [
                    apply_temperature(log_NC, temperature)
                    for log_NC, temperature in zip(log_MNC, temperatures_M, strict=True)
                ]
            )
    return found
