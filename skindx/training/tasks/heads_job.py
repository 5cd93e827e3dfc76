"""Heads of one trunk as jobs of a run, and the features of that trunk, computed once."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from skindx.core.atomic_files import atomic_file, only_writer
from skindx.core.errors import UserError
from skindx.data.loader.batches import learning, partition, steps_of
from skindx.data.loader.cache import cache_folder
from skindx.data.loader.settings import DiskCache
from skindx.data.manifest import Record
from skindx.models.classifier.preprocess import Preprocess, Views, framed_square, views_of
from skindx.models.classifier.pretrained import Trunk, open_trunk, pretrained_file
from skindx.models.ensemble import decoded
from skindx.training.callbacks import CallbackList, TrainingBar, member_callbacks
from skindx.training.checkpoint.fingerprints import fingerprint, fingerprint_of
from skindx.training.checkpoint.finished import FinishedMember, is_finished, save_member
from skindx.training.config.run import MemberSettings, TrainSettings
from skindx.training.parallel.mesh import Mesh
from skindx.training.state import Row, Training
from skindx.training.tasks.head_data import HeadData, solve
from skindx.training.tasks.heads_task import setup_heads
from skindx.training.tasks.open_sets import class_numbers
from skindx.training.trackers import TrainingInfo

PAPER = (
    "Shared features of frozen trunks | Nakandala and Kumar, Nautilus: An Optimized System for "
    "Deep Transfer Learning over Evolving Training Datasets, SIGMOD 2022 | "
    "tests/training/test_heads.py | docs/measured/heads.json"
)

# N = images, D = dimensions, V = views, B = batch, S = side

Halves = NDArray[np.float16]

_VERSION = 1
"""Version of the features; raise it when a trunk gives others, or the file's layout changes."""
_HEAD = 4096
"""Bytes before the first row: JSON, then spaces."""


@dataclass(frozen=True)
class FeatureFiles:
    """Files of the features of some images by one trunk, and how they are computed."""

    folder: Path
    dataset: Path
    records: Sequence[Record]
    trunk: Trunk
    preprocess: Preprocess
    views: Views

    def open(self, mesh: Mesh, say: Callable[[str], None]) -> list[Halves]:
        """Return the features, V x N x D; every rank calls this.

        What is missing is computed once, each rank a share of the images. Raises UserError for an
        image that is gone or damaged, and for a folder that cannot take the files.
        """
        missing = [view for view in range(self.views) if self._map(view) is None]
        wanted = sorted({view for views in mesh.gather(missing) for view in views})
        if wanted:
            passes = f"{len(self.records)} images" + (f" in {len(wanted)} views" * (self.views > 1))
            say(f"computing the features of {passes} by trunk {self.trunk.key}, once")
            local_rows = self._compute(wanted, mesh)
            parts = mesh.gather(local_rows)
            for view in wanted:
                whole_ND = np.empty((len(self.records), self.trunk.dimensions), np.float16)
                for rank, part in enumerate(parts):
                    whole_ND[rank :: mesh.data.size] = part[view]
                self._write(view, whole_ND)
        result = [self._map(view) for view in range(self.views)]
        assert all(part is not None for part in result)
        return [part for part in result if part is not None]

    def _compute(self, views: Sequence[int], mesh: Mesh) -> dict[int, Halves]:
        """Return this rank's rows of some views."""
        local_records = self.records[mesh.data.rank :: mesh.data.size]
        classifier = self.trunk.classifier.to(mesh.device)
        rows: dict[int, list[Halves]] = {view: [] for view in views}
        try:
            for squares_BSS3 in self._squares(local_records):
                seen = views_of(torch.from_numpy(squares_BSS3).to(mesh.device), self.views)
                for view in views:
                    with torch.inference_mode():
                        map_ = classifier.forward_features(seen[view])
                        pooled_BD = classifier.forward_pooled(map_)
                    rows[view].append(self._halved(pooled_BD.float().cpu().numpy()))
        finally:
            classifier.to("cpu")
        empty = np.empty((0, self.trunk.dimensions), np.float16)
        return {view: np.concatenate([empty, *parts]) for view, parts in rows.items()}

    def _squares(self, records: Sequence[Record]) -> Iterator[NDArray[np.uint8]]:
        if records:
            for images in decoded(self.dataset, records):
                yield np.stack([framed_square(image, self.preprocess) for image in images])

    def _halved(self, pooled_BD: NDArray[np.float32]) -> Halves:
        if not np.isfinite(pooled_BD).all() or np.abs(pooled_BD).max(initial=0) > 65000:
            raise UserError(
                f"trunk {self.trunk.key} computes invalid numbers, so its weights are damaged or "
                "belong to another network; copy the weights again."
            )
        return pooled_BD.astype(np.float16)

    def _parts(self, view: int) -> dict[str, Any]:
        shas = hashlib.sha256("\n".join(record.sha256 for record in self.records).encode())
        return {
            "skindx": "features",
            "version": _VERSION,
            "trunk": self.trunk.key,
            "preprocess": self.preprocess.model_dump(mode="json"),
            "view": view,
            "images": shas.hexdigest(),
            "shape": [len(self.records), self.trunk.dimensions],
        }

    def _file(self, view: int) -> Path:
        text = json.dumps(self._parts(view), sort_keys=True)
        return self.folder / f"features-{hashlib.sha256(text.encode()).hexdigest()[:16]}.f16"

    def _head(self, view: int) -> bytes:
        return json.dumps(self._parts(view), sort_keys=True).encode().ljust(_HEAD)

    def _map(self, view: int) -> Halves | None:
        """Return a file that is whole and of this trunk; None where there is none.

        Raises UserError for a file of another trunk, other images or another preprocessing.
        """
        file, shape = self._file(view), (len(self.records), self.trunk.dimensions)
        if not file.is_file():
            return None
        with file.open("rb") as opened:
            if os.fstat(opened.fileno()).st_size != _HEAD + 2 * shape[0] * shape[1]:
                return None  # cut off; it is written again
            if opened.read(_HEAD) != self._head(view):
                raise UserError(
                    f"the features in {file} belong to other weights, images or preprocessing "
                    "than its name says; delete this file and run the same command again, which "
                    "recomputes the features."
                )
        return np.memmap(file, np.float16, "r", _HEAD, shape)

    def _write(self, view: int, whole_ND: Halves) -> None:
        file = self._file(view)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            lock = file.with_suffix(".lock")
            lock.touch()
            with only_writer(lock):
                if self._map(view) is not None:  # another rank of this node wrote it
                    return
                with atomic_file(file) as temporary, temporary.open("wb") as out:
                    out.write(self._head(view))
                    out.write(whole_ND.data)
        except OSError as error:
            raise UserError(
                f"the features ({whole_ND.nbytes / 1e6:.3g} MB) cannot be written to "
                f"{file.parent} ({error.strerror or error}); set loader.cache.kind=disk and "
                "loader.cache.folder to a folder on another disk."
            ) from None


def load_trunk(member: MemberSettings) -> Trunk:
    """Return the trunk of a member that starts from given weights; loaded once in a process.

    Raises UserError for weights that do not fit, or cannot be had.
    """
    weights = pretrained_file(member) if member.pretrained else member.weights
    assert weights is not None  # `check` refused a frozen trunk without weights
    return open_trunk(member.network(), weights)


@dataclass(frozen=True)
class HeadsJob:
    """Members on one frozen trunk, trained or solved together and saved one by one."""

    run: Path
    dataset: Path
    settings: TrainSettings
    members: tuple[MemberSettings, ...]
    records: Sequence[Record]
    """Records of the whole dataset."""
    classes: tuple[str, ...]

    @property
    def label(self) -> str:
        names = [member.name for member in self.members]
        return f"member {names[0]}" if len(names) == 1 else f"heads {', '.join(names)}"

    @property
    def key(self) -> str:
        """The name of its folder among the run's checkpoints; no member's name begins so."""
        if len(self.members) == 1:
            return self.members[0].name
        return f"_heads-{self.fingerprint[:12]}"

    @cached_property
    def fingerprints(self) -> tuple[str, ...]:
        return tuple(fingerprint(self.settings, member, self.dataset) for member in self.members)

    @cached_property
    def fingerprint(self) -> str:
        if len(self.members) == 1:
            return self.fingerprints[0]
        return fingerprint_of({"heads": list(self.fingerprints)})

    def is_finished(self) -> bool:
        """True when all are in the run. Raises UserError when one was trained otherwise."""
        pairs = zip(self.members, self.fingerprints, strict=True)
        return all(is_finished(self.run, member.name, expected) for member, expected in pairs)

    def callbacks(self, *, shown: bool) -> CallbackList:
        """Return the bar; one head alone has its history and the trackers as well."""
        recipe = self.settings.recipe_of(self.members[0])
        member = self.members[0]
        images = len(_rows(self.records, member, self.settings.folds)[0])
        if len(self.members) == 1:
            return member_callbacks(self.run, self.settings, member, images, shown=shown)
        steps = steps_of(images, recipe.batch)
        values = {"members": [member.name for member in self.members]}
        info = TrainingInfo(self.run, self.run, self.settings.name, self.label, values, steps)
        bar = TrainingBar(self.label, recipe.epochs * steps, shown=shown, batch=recipe.batch)
        return CallbackList(info, bar, [])

    @cached_property
    def trunk(self) -> Trunk:
        """The trunk that all of them stand on."""
        return load_trunk(self.members[0])

    def data(self, mesh: Mesh, say: Callable[[str], None]) -> list[HeadData]:
        """Return what each head learns from; the features are computed if they are not there."""
        images = learning(self.records)
        first = self.members[0]
        cache = self.settings.loader.cache
        folder = cache_folder(self.dataset, cache if isinstance(cache, DiskCache) else DiskCache())
        files = FeatureFiles(
            folder, self.dataset, images, self.trunk, first.preprocess, first.views
        )
        features = files.open(mesh, say)
        labels_P = class_numbers(images, self.classes)
        result = []
        for member in self.members:
            train, val = _rows(self.records, member, self.settings.folds)
            result.append(
                HeadData(
                    member,
                    features,
                    labels_P,
                    np.array(train, np.int64),
                    np.array(val, np.int64),
                    len(self.classes),
                )
            )
        return result

    def setup(self, mesh: Mesh, say: Callable[[str], None]) -> Training[list[FinishedMember]]:
        """Return their training before the first step; every rank calls this."""
        heads = self.data(mesh, say)
        names = ", ".join(member.name for member in self.members)
        place = self.trunk.head
        return setup_heads(self.settings, heads, label=names, place=place, mesh=mesh, say=say)

    def solve(
        self, mesh: Mesh, say: Callable[[str], None]
    ) -> tuple[list[FinishedMember], list[Row]] | None:
        """Return heads that need no steps, solved on the main rank; None: they need steps."""
        if not self.members[0].head.solved:
            return None
        heads = self.data(mesh, say)
        recipe = self.settings.recipe_of(self.members[0])
        place = self.trunk.head

        def solved() -> list[tuple[Any, ...]]:
            every = [solve(head, recipe, place) for head in heads]
            return [
                (one.history, one.finished.state, one.finished.validation_NC, one.finished.truth_N)
                for one in every
            ]

        result = mesh.broadcast_from_main(solved)
        history = [{"heads": [rows for rows, *_ in result]}]
        return [FinishedMember(*finished) for _, *finished in result], history

    def save(self, result: list[FinishedMember], history: list[Row]) -> None:
        """Write RUN/members/NAME of each head, with the trunk that it stands on."""
        for number, (member, finished) in enumerate(zip(self.members, result, strict=True)):
            rows = _history_of(history, number, member.name, len(self.members))
            rows = [{**row, "trunk": self.trunk.key} for row in rows]
            save_member(self.run, member.name, finished, rows, self.fingerprints[number])


def heads_jobs(
    run: Path,
    dataset: Path,
    settings: TrainSettings,
    records: Sequence[Record],
    classes: tuple[str, ...],
    *,
    mesh: Mesh,
) -> Iterator[HeadsJob]:
    """Yield the members on frozen trunks that are not finished, those that fit together at once.

    Every rank calls this, and goes by what the main one finds in the run.
    """
    groups: dict[str, list[MemberSettings]] = {}
    frozen = [member for member in settings.members if member.trunk == "frozen"]
    if not frozen:
        return
    there: list[bool] = mesh.broadcast_from_main(
        lambda: [
            is_finished(run, member.name, fingerprint(settings, member, dataset))
            for member in frozen
        ]
    )
    for member, is_there in zip(frozen, there, strict=True):
        if not is_there:
            groups.setdefault(_group(settings, member, records), []).append(member)
    for members in groups.values():
        yield HeadsJob(run, dataset, settings, tuple(members), records, classes)


def _group(settings: TrainSettings, member: MemberSettings, records: Sequence[Record]) -> str:
    """Return what members have in common that are trained as one batched product."""
    recipe = settings.recipe_of(member)
    network = member.network().model_dump(mode="json")
    steps: Any = steps_of(len(_rows(records, member, settings.folds)[0]), recipe.batch)
    # Heads in one product would share the norm of all their layers.
    if recipe.optimizer_kind.layerwise and not member.head.solved:
        steps = member.name
    parts = [network, str(member.weights), member.pretrained, member.views]
    return json.dumps([*parts, recipe.model_dump(mode="json"), steps], sort_keys=True)


def _rows(
    records: Sequence[Record], member: MemberSettings, folds: int
) -> tuple[list[int], list[int]]:
    """Return where a member's training and validation images stand among train and val."""
    number = {record.path: row for row, record in enumerate(learning(records))}
    train, val = partition(records, member.fold, folds)
    return [number[record.path] for record in train], [number[record.path] for record in val]


def _history_of(history: list[Row], number: int, name: str, count: int) -> list[Row]:
    """Return the rows of one head among `count`."""
    if history and "heads" in history[-1]:
        rows: list[Row] = history[-1]["heads"][number]
        return rows
    if count == 1:
        return history
    return [
        {
            **{key: value for key, value in row.items() if "/" not in key},
            "loss": row["loss"] / count,
            "val_top1": row[f"{name}/val_top1"],
            "val_balanced": row[f"{name}/val_balanced"],
        }
        for row in history
    ]
