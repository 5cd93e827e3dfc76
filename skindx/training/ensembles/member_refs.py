"""Members of this run and of others, and the student that learns from all of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from skindx.core.atomic_files import atomic_file
from skindx.core.errors import UserError
from skindx.core.settings_base import read_yaml
from skindx.core.untrusted import read_json
from skindx.data.loader.batches import learning, partition
from skindx.data.loader.settings import DiskCache
from skindx.data.manifest import Record, read_manifest, split_of
from skindx.models.bounded_files import save_tensors
from skindx.models.bundle.bundle import Bundle
from skindx.models.bundle.bundle_index import MANIFEST_SHA256, provenance_value
from skindx.models.combination import log
from skindx.models.ensemble import predict_records
from skindx.models.probability_correction import apply_temperature
from skindx.training.checkpoint.fingerprints import fingerprint, fingerprint_of
from skindx.training.checkpoint.finished import member_folder
from skindx.training.config.ensemble import EnsembleSettings, ReusedSettings, SoupSettings
from skindx.training.config.run import (
    SETTINGS,
    MemberSettings,
    MlflowSettings,
    TrainSettings,
    WandbSettings,
)
from skindx.training.parallel.mesh import resolve_accelerator
from skindx.training.registry import resolve
from skindx.training.tasks.image_sets import class_numbers

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
            f"a member of {run} is not finished, and {file} would {reasons[0]}; look at that file, "
            f"and if you trust it run `skindx train {dataset} --config {file} --out {run}` first, "
            "or give it as the `config` of the reused member."
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
        files |= {f"teach {member.name} the targets": member.targets}
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
    for path in (member.weights, member.targets, settings.engine.deepspeed):
        if path and path.exists() and not path.is_file():
            raise UserError(f"{file} names {path}, which is no plain file; do not use that run.")


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
        parts = self.member.model_dump(mode="json", exclude={"name", "fold", "snapshots"})
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
                f"reused member {reused.member}: {reused.run} is no run (it has no {SETTINGS}); "
                "give its config to train it by, or correct the path."
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
            f"run {reused.run} trains no member {reused.member!r}; it has {', '.join(members)}."
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
    if read_json(file, finite=False).get("fingerprint") != expected:
        raise UserError(
            f"member {ref.member.name} of {ref.run} was trained on other data than {dataset} "
            f"or with other settings than that run's {SETTINGS}; train it again, or leave it out."
        )
    return True


def units(
    settings: TrainSettings, trained: dict[str, MemberRef], records: Sequence[Record]
) -> dict[str, dict[str, Mask]]:
    """Return the ensemble's members by unit, each with the images that it did not train on.

    A unit is a member, or all fold members of one kind: together these have out-of-fold predictions
    for every image. For a soup these are the images that no ingredient trained on. Raises UserError
    when the units share no image to be fitted on.
    """
    held = {name: ref.held_P(records) for name, ref in trained.items()}
    left_out = {name for soup in settings.soups if soup.instead for name in soup.of}
    result: dict[str, dict[str, Mask]] = {}
    for name, ref in trained.items():
        if name not in left_out:
            result.setdefault(ref.family, {})[name] = held[name]
    for soup in settings.soups:
        mask_P = np.logical_and.reduce([held[name] for name in soup.of])
        if not mask_P.any():
            raise UserError(
                f"soup {soup.name}: its ingredients leave out different folds, so that together "
                "they trained on every image; take ingredients of one fold, or none with a fold."
            )
        result[soup.name] = {soup.name: mask_P}
    if not out_of_fold_P(result).any():
        names = ", ".join(name for unit in result.values() for name in unit)
        raise UserError(
            f"there is no image that none of {names} trained on, so their weights and "
            "temperature cannot be fitted; train all folds (fold: each), or leave some out."
        )
    return result


def out_of_fold_P(units: Mapping[str, Mapping[str, Mask]]) -> Mask:  # noqa: N802
    """Return the images on which every unit has a member that did not train on them."""
    every: Mask = np.logical_and.reduce(
        [np.logical_or.reduce(list(unit.values())) for unit in units.values()]
    )
    return every


def check_soup(soup: SoupSettings, trained: dict[str, MemberRef]) -> None:
    """Raise UserError for ingredients whose weights cannot be averaged."""
    first, *rest = [trained[name] for name in soup.of]
    given = first.member.weights or first.member.pretrained
    for other in rest:
        for key in ("model", "model_args", "preprocess", "weights", "pretrained", "seed"):
            ours, theirs = getattr(first.member, key), getattr(other.member, key)
            # From given weights all start alike but for the head, which starts near zero.
            if ours != theirs and not (key == "seed" and given):
                raise UserError(
                    f"soup {soup.name}: {first.name} has {key} {ours} and {other.name} {theirs}; "
                    "only members of one model that started from the same weights can be averaged."
                )
    if not rest and not first.member.snapshots:
        raise UserError(
            f"soup {soup.name} has one ingredient, {first.name}, which keeps no snapshots; "
            "set its snapshots, or name more members."
        )


# A single student that learns from the whole ensemble (Hinton et al. 2015), for CPU serving.
#
# The teacher predicts each training image once, on the central square and in its own views, and not
# each crop of each epoch: the same crop for both teaches somewhat better (Beyer et al. 2022), but
# makes every step of a small network as dear as a step of all large ones. Crops and mixtures of the
# student's recipe go on as ever; only the label of an image becomes soft.

STUDENT, TARGETS = "student", "targets.safetensors"

# N = training images, C = classes


def student_settings(run: Path, settings: TrainSettings) -> TrainSettings:
    """Return the training of the student in RUN/student."""
    assert settings.distil is not None
    student = settings.distil.student.model_copy(update={"targets": run / STUDENT / TARGETS})
    return settings.model_copy(
        update={
            "name": f"{settings.name}-student",
            "members": (student,),
            "reused": (),
            "soups": (),
            "ensemble": EnsembleSettings(),
            "detector": None,
            "fusion": None,
            "distil": None,
        }
    )


def write_targets(run: Path, dataset: Path, settings: TrainSettings, teacher: Bundle) -> None:
    """Write what the student is to learn of each training image, unless it is there already."""
    assert settings.distil is not None
    distil, spec = settings.distil, teacher.spec
    expected = fingerprint_of(
        {
            "weights": {k: v for k, v in spec.files.items() if k.startswith("members/")},
            "members": [member.model_dump(mode="json") for member in spec.members],
            "combination": spec.combination.model_dump(mode="json"),
            "temperatures": [spec.temperature, distil.temperature],
            "share": distil.share,
            "manifest": provenance_value(spec.provenance, MANIFEST_SHA256),
        }
    )
    file = run / STUDENT / TARGETS
    if file.is_file() and _fingerprint(file) == expected:
        return
    records = split_of(read_manifest(dataset), "train")
    ensemble = teacher.ensemble(resolve_accelerator(settings.engine.accelerator))
    teacher_NC, _ = predict_records(ensemble, dataset, records)
    truth_N = class_numbers(records, teacher.taxonomy.keys)
    targets_NC = soft_targets(teacher_NC, truth_N, distil.temperature, distil.share)
    with atomic_file(file) as temporary:
        tensors = {"targets": torch.from_numpy(targets_NC).float()}
        save_tensors(tensors, temporary, {"mark": expected})


def soft_targets(
    teacher_NC: NDArray[np.float64], truth_N: NDArray[np.int64], temperature: float, share: float
) -> NDArray[np.float64]:
    """Return what the student learns: `share` of the softened teacher, the rest of the label."""
    soft_NC = apply_temperature(log(teacher_NC), temperature)
    label_NC: NDArray[np.float64] = np.eye(teacher_NC.shape[1])[truth_N]
    return share * soft_NC + (1 - share) * label_NC


def _fingerprint(file: Path) -> str | None:
    """Return the fingerprint of the targets; None for a file that is not ours: it is replaced."""
    try:
        with safe_open(file, framework="numpy") as opened:
            result: str | None = (opened.metadata() or {}).get("mark")
    except (OSError, SafetensorError):
        return None
    return result
