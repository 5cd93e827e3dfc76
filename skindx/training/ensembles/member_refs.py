"""Members of this run and of others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from skindx import __version__
from skindx.core.atomic_files import sha256_file
from skindx.core.errors import UserError
from skindx.core.settings_base import read_yaml
from skindx.core.untrusted import read_json
from skindx.data.layout import MANIFEST
from skindx.data.loader.batches import learning, partition
from skindx.data.loader.settings import DiskCache
from skindx.data.manifest import Record
from skindx.models.bundle.bundle import Bundle, open_bundle
from skindx.models.bundle.bundle_index import PACKED_FROM, provenance_value
from skindx.training.checkpoint.fingerprints import fingerprint, fingerprint_of, is_same
from skindx.training.checkpoint.finished import WEIGHTS, member_folder, weights_file
from skindx.training.config.ensemble import ReusedSettings
from skindx.training.config.run import (
    SETTINGS,
    MemberSettings,
    MlflowSettings,
    TrainSettings,
    WandbSettings,
)
from skindx.training.registry import resolve

# Limits on settings of a run that another person made.
#
# A run is passed around like a bundle: `reused` takes a finished member of it. Where such a member
# is not finished, its training would go on by the run's own train.yaml, which may start processes
# on other machines, write elsewhere, send figures to a server or read any file. That is right in a
# run of one's own, so it takes the user's word: a `config` with the same settings, or a training of
# that run by its own command.


def refuse_reaching_out(run: Path, settings: TrainSettings, dataset: Path, file: Path) -> None:
    """Raise UserError where training a run by its own settings reaches beyond run and dataset."""
    if reasons := reaches(run, settings, dataset):
        raise UserError(
            f"a member of {run} is not trained to the end, and its settings {file} would "
            f"{reasons[0]}; read this file, and if you trust it run `skindx train {dataset} "
            f"--config {file} --out {run}` first, or set it as the `config` of the reused member."
        )


def reaches(run: Path, settings: TrainSettings, dataset: Path) -> list[str]:
    """Return what a training by these settings does beyond its run and its dataset."""
    engine, cache = settings.engine, settings.loader.cache
    detector = settings.detector
    files = {
        "read the DeepSpeed settings": engine.deepspeed,
        "take the detector of": detector.from_run if detector else None,
        "read the detector's layers from": _yaml_of(detector.model) if detector else None,
        "keep its cache in": cache.folder if isinstance(cache, DiskCache) else None,
    }
    for member in settings.members:
        files |= {f"start {member.name} from": member.weights}
    result = [
        f"{what} {path}"
        for what, path in files.items()
        if path and not any(_is_inside(path, folder) for folder in (run, dataset))
    ]
    if engine.hostfile:
        result.append(f"start processes on the hosts of {engine.hostfile}")
    for monitor in settings.monitors:
        if isinstance(monitor, WandbSettings) and monitor.mode == "online":
            result.append("send its figures to Weights & Biases")
        if isinstance(monitor, MlflowSettings) and monitor.uri:
            result.append(f"send its figures to {monitor.uri}")
    return result


def refuse_special_files(settings: TrainSettings, member: MemberSettings, file: Path) -> None:
    """Raise UserError for a device or a pipe in what decides the weights: reading it may not end.

    What `file` names is read for the member's fingerprint; its author does not matter.
    """
    for path in (member.weights, settings.engine.deepspeed):
        if path and path.exists() and not path.is_file():
            raise UserError(f"{file} names {path}, which is not a plain file; do not use this run.")


def _yaml_of(model: str) -> Path | None:
    """Return the file that a detector's model names, None for one that ultralytics brings along."""
    path = Path(model)
    return path if path.parent != Path() or path.is_file() else None


def _is_inside(path: Path, folder: Path) -> bool:
    return path.resolve().is_relative_to(folder.resolve())


# P = images of train and val, in manifest order

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class MemberRef:
    """A trained member: the run it lies in, that run's settings, its own."""

    name: str
    run: Path
    settings: TrainSettings
    member: MemberSettings
    vouched: bool = True
    """The user gave the settings; else the run's own train.yaml did, which may be of others."""

    @property
    def family(self) -> str:
        """Key that all fold members of one kind share; a member without a fold has its own."""
        if self.member.fold is None:
            return self.name
        parts = self.member.model_dump(mode="json", exclude={"name", "fold"})
        recipe = self.settings.recipe_of(self.member).model_dump(mode="json")
        return fingerprint_of({**parts, "recipe": recipe, "folds": self.settings.folds})

    def held_P(self, records: Sequence[Record]) -> Mask:  # noqa: N802
        """True for the images that it was validated on and did not train on."""
        _, held = partition(records, self.member.fold, self.settings.folds)
        names = {record.path for record in held}
        return np.array([record.path in names for record in learning(records)])


def member_refs(run: Path, settings: TrainSettings) -> dict[str, MemberRef]:
    """Return the trained members by name, those of other runs last. Raises UserError."""
    local = [MemberRef(member.name, run, settings, member) for member in settings.members]
    return {ref.name: ref for ref in [*local, *(_reused(ref) for ref in settings.reused)]}


def _reused(reused: ReusedSettings) -> MemberRef:
    file = reused.run / SETTINGS
    if not file.is_file():
        if reused.config is None:
            raise UserError(
                f"reused member {reused.member}: {reused.run} is not a run, because it has no "
                f"{SETTINGS}; correct `run`, or set `config` to train this member."
            )
        file = reused.config
        settings = resolve(TrainSettings.load(file))
        vouched_for: TrainSettings | None = settings
    else:
        # What a training wrote has no variables left to expand.
        settings = TrainSettings.parse(read_yaml(file), str(file), expand=False)
        vouched_for = resolve(TrainSettings.load(reused.config)) if reused.config else None
    members = {member.name: member for member in settings.members}
    if reused.member not in members:
        raise UserError(
            f"the run {reused.run} has no member {reused.member!r}; set reused.member to one of "
            f"{', '.join(members)}."
        )
    member = members[reused.member]
    refuse_special_files(settings, member, file)
    return MemberRef(reused.known_as, reused.run, settings, member, vouched_for == settings)


def is_there(ref: MemberRef, dataset: Path) -> bool:
    """True when a reused member is finished. Raises UserError when it is not of this dataset."""
    file = member_folder(ref.run, ref.member.name) / "member.json"
    if not file.is_file():
        return False
    expected = fingerprint(ref.settings, ref.member, dataset)
    if not is_same(read_json(file, finite=False), expected):
        raise UserError(
            f"member {ref.member.name} of {ref.run} was trained on other data than {dataset} or "
            f"with other settings than {ref.run / SETTINGS}; train it again, or remove it from "
            "`reused`."
        )
    return True


def units(trained: dict[str, MemberRef], records: Sequence[Record]) -> dict[str, dict[str, Mask]]:
    """Return the ensemble's members by unit, each with the images that it did not train on.

    A unit is a member, or all fold members of one kind: together these have out-of-fold predictions
    for every image. Raises UserError when the units share no image to be fitted on.
    """
    held = {name: ref.held_P(records) for name, ref in trained.items()}
    result: dict[str, dict[str, Mask]] = {}
    for name, ref in trained.items():
        result.setdefault(ref.family, {})[name] = held[name]
    if not out_of_fold_P(result).any():
        names = ", ".join(name for unit in result.values() for name in unit)
        raise UserError(
            f"no image is left on which the weights and temperature of the members {names} can be "
            "fitted, because each image trained one of them; train all folds (fold: each), or "
            "remove some members."
        )
    return result


def out_of_fold_P(units: Mapping[str, Mapping[str, Mask]]) -> Mask:  # noqa: N802
    """Return the images on which every unit has a member that did not train on them."""
    every: Mask = np.logical_and.reduce(
        [np.logical_or.reduce(list(unit.values())) for unit in units.values()]
    )
    return every


# Finds out whether a run's bundle was packed from the members that the run has now.
#
# Packing again would give the same predictions, and would drop what was added to the bundle since:
# the figures of an evaluation, a fused crop, rules that were fitted again.


def packing_fingerprint(
    run: Path, dataset: Path, settings: TrainSettings, members: Mapping[str, MemberRef]
) -> str:
    """Return the hash of all that decides a bundle: settings, weights, manifest, version."""
    weights = {
        name: member_folder(ref.run, ref.member.name) / WEIGHTS for name, ref in members.items()
    }
    if settings.detector:
        weights["the detector"] = weights_file(settings.detector.from_run or run)
    return fingerprint_of(
        {
            "settings": settings.model_dump(
                mode="json", exclude={"engine", "monitors", "checkpoint"}
            ),
            "weights": {name: sha256_file(file) for name, file in weights.items()},
            "manifest": sha256_file(dataset / MANIFEST),
            "skindx": __version__,
        }
    )


def packed_bundle(run: Path, packed_from: str) -> Bundle | None:
    """Return RUN/bundle where it was packed from this; None where it is to be packed."""
    try:
        bundle = open_bundle(run / "bundle")
    except UserError:  # none, or one that is damaged
        return None
    return bundle if provenance_value(bundle.spec.provenance, PACKED_FROM) == packed_from else None
