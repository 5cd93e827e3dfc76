"""Predictions of one network on images that it did not learn from, in a file that is kept.

A file takes some hundred kB, so that tables are made again in seconds, by anybody who has the
public image names, without an image and without a training.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from skindx.core.atomic_files import atomic_file, read_parquet, sha256_file
from skindx.core.errors import UserError
from skindx.core.measurement import hardware, versions
from skindx.data.layout import MANIFEST
from skindx.data.manifest import Record
from skindx_bench.train.ensemble_passes import FoldPasses, Seen

# N = images, C = classes, M = members

Floats = NDArray[np.float64]

_KEY = b"skindx-bench"
_STEPS = 2000
"""Steps of a nat: a loss is kept to 0.0003 nats."""
VALIDATION, TEST = -2, -1
"""The folds of a single split. Out of fold, an image has the fold that left it out."""


@dataclass(frozen=True)
class Kept:
    """One network's predictions; `facts` say what it is, how it was trained and what it costs."""

    name: str
    classes: tuple[str, ...]
    images_N: NDArray[np.str_]
    """The public names of the images, ascending."""
    groups_N: NDArray[np.str_]
    truth_N: NDArray[np.intp]
    fold_N: NDArray[np.int64]
    views: Mapping[int, Floats]
    """Number of views -> N x C."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    confirmed_N: NDArray[np.str_] | None = None
    """By what each label was confirmed, such as histopathology; None where it was not kept."""

    @classmethod
    def of(
        cls,
        name: str,
        classes: Sequence[str],
        records: Sequence[Record],
        folds: Sequence[int],
        *,
        views: Mapping[int, Floats],
        facts: Mapping[str, Any],
        confirmed: bool = False,
    ) -> Self:
        """Join predictions with the images of a manifest, in the same order.

        `confirmed`: keep too by what each label was confirmed.
        """
        number = {key: place for place, key in enumerate(classes)}
        names_N = np.array([image_name(record) for record in records])
        order_N = np.argsort(names_N, kind="stable")
        if len(set(names_N)) < len(names_N):
            raise UserError(
                "two images of the dataset have the same file name; give them different names."
            )
        return cls(
            name,
            tuple(classes),
            names_N[order_N],
            np.array([record.group for record in records])[order_N],
            np.array([number[record.label] for record in records], dtype=np.intp)[order_N],
            np.array(folds, dtype=np.int64)[order_N],
            {count: own_NC[order_N] for count, own_NC in views.items()},
            facts,
            np.array([record.confirmed_by for record in records])[order_N] if confirmed else None,
        )

    @property
    def flops(self) -> int:
        """Operations of one pass."""
        return int(self.facts.get("flops", 0))

    @property
    def out_of_fold(self) -> bool:
        """Whether every image was left out once; else it is one split into validation and test."""
        return bool((self.fold_N >= 0).all())


def costs_of(classifier: nn.Module, side: int) -> dict[str, int]:
    """Return a network's parameters, and the operations of one pass at a side in pixels."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        classifier(torch.zeros(1, side, side, 3, dtype=torch.uint8))
    parameters = sum(parameter.numel() for parameter in classifier.parameters())
    return {"parameters": parameters, "flops": int(counter.get_total_flops())}


def origin_of(dataset: Path) -> dict[str, Any]:
    """Return of what images and by what machine predictions are."""
    return {
        "manifest_sha256": sha256_file(dataset / MANIFEST),
        "hardware": hardware(),
        "versions": versions(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def image_name(record: Record) -> str:
    """Return an image's name in its source, such as ISIC_0024306; its hash where there is none."""
    return Path(record.source_url).stem or record.sha256


def write_kept(path: Path, kept: Kept) -> None:
    """Write a network's predictions atomically."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns: dict[str, Any] = {
        "image": pa.array(kept.images_N),
        "group": pa.array(kept.groups_N).dictionary_encode(),
        "label": pa.array(kept.truth_N, pa.int8()),
        "fold": pa.array(kept.fold_N, pa.int8()),
    }
    if kept.confirmed_N is not None:
        columns["confirmed"] = pa.array(kept.confirmed_N).dictionary_encode()
    for views, own_NC in kept.views.items():
        loss_NC = np.round(-np.log(np.maximum(own_NC, 1e-14)) * _STEPS)
        for place, key in enumerate(kept.classes):
            values = np.clip(loss_NC[:, place], 0, 65535)
            columns[f"loss{views}_{key}"] = pa.array(values, pa.uint16())
    metadata = {"name": kept.name, "classes": kept.classes, "facts": kept.facts}
    table = pa.table(columns).replace_schema_metadata({_KEY: json.dumps(metadata).encode()})
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as temporary:
        texts = [name for name in columns if not name.startswith("loss")]  # each loss is its own
        pq.write_table(
            table, temporary, compression="zstd", compression_level=19, use_dictionary=texts
        )


def read_kept(path: Path) -> Kept:
    """Read what `write_kept` wrote. Raises UserError for anything else."""
    import pyarrow as pa

    try:
        table = read_parquet(path)
        metadata = json.loads((table.schema.metadata or {})[_KEY])
        classes = tuple(map(str, metadata["classes"]))
        losses = [name for name in table.column_names if name.startswith("loss")]
        counts = sorted({int(name[4 : name.index("_")]) for name in losses})
        texts = {"image", "group", "confirmed"} & set(table.column_names)
        columns = {name: np.array(table.column(name).to_pylist()) for name in texts}
        return Kept(
            str(metadata["name"]),
            classes,
            columns["image"],
            columns["group"],
            table.column("label").to_numpy().astype(np.intp),
            table.column("fold").to_numpy().astype(np.int64),
            {views: _probabilities(table, views, classes) for views in counts},
            metadata["facts"],
            columns.get("confirmed"),
        )
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} holds no kept predictions ({type(error).__name__}); delete it and run the "
            "benchmark that wrote it again."
        ) from None


def _probabilities(table: Any, views: int, classes: Sequence[str]) -> Floats:
    columns = [table.column(f"loss{views}_{key}").to_numpy() for key in classes]
    loss_NC = np.column_stack(columns).astype(np.float64)  # a negative uint16 would wrap around
    own_NC = np.exp(-loss_NC / _STEPS)
    normal_NC: Floats = own_NC / own_NC.sum(axis=1, keepdims=True)
    return normal_NC


def read_all(folder: Path, pattern: str) -> list[Kept]:
    """Read the files of a dataset, by name. Raises UserError where there is none."""
    files = sorted(folder.glob(pattern))
    if not files:
        raise UserError(
            f"{folder} holds no {pattern}; train the networks first, or give the folder with "
            "`--set kept=…`."
        )
    return [read_kept(file) for file in files]


def judged_images(members: Sequence[Kept]) -> list[str]:
    """Return the names of the judged images of all folds, in the order of `passes_of`."""
    first = members[0]
    shared = set(first.images_N).intersection(*(set(member.images_N) for member in members))
    held_N = np.isin(first.images_N, sorted(shared))
    folds = sorted(set(first.fold_N.tolist())) if first.out_of_fold else [TEST]
    return [str(name) for fold in folds for name in first.images_N[held_N & (first.fold_N == fold)]]


def passes_of(members: Sequence[Kept]) -> list[FoldPasses]:
    """Return the folds of several networks, on the images that all of them judged.

    Out of fold, what is chosen for a fold is chosen by the images of all the others, which the
    networks of this fold did learn from, and its own images choose nothing. With a single split
    validation chooses for test. Raises UserError for members of different kinds or folds.
    """
    first = members[0]
    if len({member.out_of_fold for member in members}) > 1 or len({m.classes for m in members}) > 1:
        raise UserError("out-of-fold predictions and those of a single split do not go together.")
    shared = set(first.images_N).intersection(*(set(member.images_N) for member in members))
    rows = [np.flatnonzero(np.isin(member.images_N, sorted(shared))) for member in members]
    fold_N, truth_N = first.fold_N[rows[0]], first.truth_N[rows[0]]
    for member, own_N in zip(members, rows, strict=True):
        if (member.fold_N[own_N] != fold_N).any() or (member.truth_N[own_N] != truth_N).any():
            raise UserError(
                f"{member.name} has other folds or labels than {first.name}; keep predictions of "
                "one dataset and one way to fold it."
            )
    counts = set.intersection(*(set(member.views) for member in members))
    views = {
        count: np.stack([m.views[count][own_N] for m, own_N in zip(members, rows, strict=True)])
        for count in sorted(counts)
    }

    def seen(part_N: NDArray[np.bool_]) -> Seen:
        parts = {count: members_MNC[:, part_N] for count, members_MNC in views.items()}
        return Seen(truth_N[part_N], first.groups_N[rows[0]][part_N], parts)

    names, flops = tuple(m.name for m in members), tuple(m.flops for m in members)
    if not first.out_of_fold:
        return [FoldPasses(names, flops, seen(fold_N == VALIDATION), seen(fold_N == TEST))]
    return [
        FoldPasses(names, flops, seen(fold_N != fold), seen(fold_N == fold))
        for fold in sorted(set(fold_N.tolist()))
    ]
