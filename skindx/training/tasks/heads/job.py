"""Heads of one trunk as jobs of a run: those of one shape and recipe are trained at once."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from skindx.data.loader.settings import DiskCache
from skindx.data.manifest import Record
from skindx.models.classifier.trunk import Trunk
from skindx.training.callbacks.bar import TrainingBar
from skindx.training.callbacks.callback import TrainingInfo
from skindx.training.callbacks.callback_list import CallbackList, member_callbacks
from skindx.training.config.run import MemberSettings, TrainSettings
from skindx.training.features.store import FeatureFiles
from skindx.training.features.trunk import load_trunk
from skindx.training.feeding.batches import steps_of
from skindx.training.feeding.cache_policy import cache_folder
from skindx.training.feeding.folds import learning, partition
from skindx.training.feeding.images import class_numbers
from skindx.training.feeding.reading import load_targets
from skindx.training.finished.fingerprint import fingerprint
from skindx.training.finished.member import FinishedMember, is_finished, save_member
from skindx.training.made_from import fingerprint_of
from skindx.training.parallel.mesh import Mesh
from skindx.training.recipes.optimizer import LAYERWISE
from skindx.training.state import Training
from skindx.training.task import Row
from skindx.training.tasks.heads.data import HeadData
from skindx.training.tasks.heads.setting_up import setup_heads
from skindx.training.tasks.heads.solved import Solved, is_solved, solve


@dataclass(frozen=True)
class HeadsJob:
    """Members on one frozen trunk, trained or solved together and saved one by one."""

    run: Path
    dataset: Path
    settings: TrainSettings
    members: tuple[MemberSettings, ...]
    records: Sequence[Record]
    """Of the whole dataset."""
    classes: tuple[str, ...]

    @property
    def label(self) -> str:
        """Its name in messages."""
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
        """Of the members."""
        return tuple(fingerprint(self.settings, own, self.dataset) for own in self.members)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of everything that decides the heads."""
        if len(self.members) == 1:
            return self.fingerprints[0]
        return fingerprint_of({"heads": list(self.fingerprints)})

    def is_finished(self) -> bool:
        """True when all are in the run. Raises UserError when one was trained otherwise."""
        own = zip(self.members, self.fingerprints, strict=True)
        return all(is_finished(self.run, member.name, expected) for member, expected in own)

    def callbacks(self, *, shown: bool) -> CallbackList:
        """Return the bar; one head alone has its history and the trackers as well."""
        recipe = self.settings.recipe_of(self.members[0])
        images = len(self.train_rows(self.members[0]))
        if len(self.members) == 1:
            member = self.members[0]
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

    def train_rows(self, member: MemberSettings) -> list[int]:
        """Return which images of train and val a member learns from."""
        return _rows(self.records, member, self.settings.folds)[0]

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
        found = []
        for member in self.members:
            train, val = _rows(self.records, member, self.settings.folds)
            targets = None
            if member.targets:
                learned = [images[row] for row in train]
                targets = load_targets(member.targets, learned, len(self.classes))
            found.append(
                HeadData(
                    member,
                    features,
                    labels_P,
                    np.array(train, np.int64),
                    np.array(val, np.int64),
                    len(self.classes),
                    targets,
                )
            )
        return found

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
        if not is_solved(self.members[0].head):
            return None
        heads = self.data(mesh, say)
        recipe = self.settings.recipe_of(self.members[0])
        place = self.trunk.head
        found: list[Solved] = mesh.broadcast_from_main(
            lambda: [solve(head, recipe, place) for head in heads]
        )
        history = [{"heads": [one.history for one in found]}]
        return [one.finished for one in found], history

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
    if recipe.optimizer in LAYERWISE and not is_solved(member.head):
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
