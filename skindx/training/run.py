"""A training run from dataset to bundle: check everything, start the ranks, calibrate, pack."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from skindx.data.boxes.exporting import box_labels
from skindx.data.manifest import MANIFEST, Record, Split, read_manifest, split_of
from skindx.errors import JobError, UserError
from skindx.files import sha256_file
from skindx.models.bundle import Bundle, pack
from skindx.models.bundle_spec import MemberSpec
from skindx.models.calibration import apply_temperature, fit_temperature
from skindx.models.classifier import ClassifierSettings, build_classifier, load_weights
from skindx.models.ensemble import combine, log
from skindx.taxonomy import Taxonomy
from skindx.training.detector import detector_fingerprint, is_trained, load_parts
from skindx.training.engine import join, leave, resolve_accelerator, resolve_ranks
from skindx.training.launch import launch
from skindx.training.member import fingerprint, is_finished, load_member
from skindx.training.settings import TrainSettings
from skindx.training.starting import starting_weights
from skindx.training.worker import SETTINGS
from skindx.training.worker import train as train_members

_RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK")


def train(dataset: Path, settings: TrainSettings, run: Path) -> Bundle | None:
    """Train what is missing of a run and pack RUN/bundle.

    Starts the ranks itself with DeepSpeed's launcher; a process that `torchrun` or another
    launcher started (RANK is set) is one of the ranks instead, and only the first packs; the
    others return None. Raises UserError, before anything is written, for whatever can be known
    to fail.
    """
    records = read_manifest(dataset)
    taxonomy = Taxonomy.load(dataset / "taxonomy.yaml")
    check(settings, records, taxonomy)
    missing = unfinished(run, dataset, settings)
    if "RANK" in os.environ:
        if not _train_as_rank(run, dataset, settings):
            return None
    else:
        _train_by_launcher(run, dataset, settings, missing)
    if settings.detector:
        _train_detector(run, dataset, settings)
    return pack_run(run, dataset, settings, taxonomy)


def _train_as_rank(run: Path, dataset: Path, settings: TrainSettings) -> bool:
    cluster = join(settings.engine)
    if cluster.first:
        settings.save(run / SETTINGS)
    train_members(run, dataset, settings, cluster)
    leave()
    return cluster.first


def unfinished(run: Path, dataset: Path, settings: TrainSettings) -> list[str]:
    """Return the members that are still to be trained.

    Raises UserError when a member or the detector of the run was trained otherwise.
    """
    if settings.detector:
        is_trained(run, detector_fingerprint(settings, dataset))
    return [
        member.name
        for member in settings.members
        if not is_finished(run, member.name, fingerprint(settings, member, dataset))
    ]


def _train_by_launcher(
    run: Path, dataset: Path, settings: TrainSettings, missing: list[str]
) -> None:
    settings.save(run / SETTINGS)
    if not missing:
        return
    accelerator = resolve_accelerator(settings.engine.accelerator)
    arguments = [str(run.resolve()), str(dataset.resolve())]
    launch(settings.engine, accelerator, "skindx.training.worker", arguments)
    # The launcher's exit code is 0 when a signal ended it: believe the files alone.
    if left := unfinished(run, dataset, settings):
        raise JobError(f"training ended without finishing {', '.join(left)}; run it again")


def _train_detector(run: Path, dataset: Path, settings: TrainSettings) -> None:
    mark = detector_fingerprint(settings, dataset)
    if is_trained(run, mark):
        return
    command = [sys.executable, "-m", "skindx.training.detector", str(run), str(dataset), mark]
    # Under torchrun this process is a rank; ultralytics would take that for its own business.
    alone = {key: value for key, value in os.environ.items() if key not in _RANK_VARIABLES}
    finished = subprocess.run(command, check=False, env=alone)
    if finished.returncode == 2:
        raise UserError("the detector's training stopped; the sentence above says why.")
    if finished.returncode:
        raise JobError(f"the detector's training ended with code {finished.returncode}")


def check(settings: TrainSettings, records: list[Record], taxonomy: Taxonomy) -> None:
    """Raise UserError for settings that do not fit the dataset, the machine or timm."""
    import torch

    needed: tuple[Split, ...] = ("train", "val")
    counts = {split: len(split_of(records, split)) for split in needed}
    for split, count in counts.items():
        if not count:
            raise UserError(f"the dataset has no {split} pictures; build it with more pictures.")
    ranks = resolve_ranks(settings.engine)
    for member in settings.members:
        recipe = settings.recipe_of(member)
        batch, pieces = recipe.batch, recipe.accumulate
        if counts["train"] < batch or batch < 2 * ranks * pieces:
            each = f"two a rank and each of {pieces} pieces" if pieces > 1 else "two a rank"
            raise UserError(
                f"member {member.name}: recipe.batch={batch} must be at least "
                f"{2 * ranks * pieces} ({each}) and at most the {counts['train']} training "
                "pictures."
            )
        with torch.device("meta"):
            classifier = build_classifier(member, len(taxonomy.classes))
        if weights := starting_weights(member):
            load_weights(classifier.to_empty(device="cpu"), weights)
    if settings.detector and not box_labels(split_of(records, "train")):
        raise UserError(
            "a detector was asked for, but no training picture has a box; "
            "build the dataset with boxes, or set detector=null."
        )


def pack_run(run: Path, dataset: Path, settings: TrainSettings, taxonomy: Taxonomy) -> Bundle:
    """Fit the temperatures on validation, then pack members and detector into RUN/bundle."""
    members, softened = [], []
    for member in settings.members:
        finished = load_member(run, member.name)
        temperature = fit_temperature(finished.validation_NC, finished.truth_N)
        classifier = ClassifierSettings(
            model=member.model, model_args=member.model_args, preprocess=member.preprocess
        )
        spec = MemberSpec(name=member.name, classifier=classifier, temperature=temperature)
        members.append((spec, finished.state))
        softened.append(apply_temperature(finished.validation_NC, temperature))
    mean_NC = log(combine(np.stack(softened), 1.0))
    return pack(
        run / "bundle",
        settings.name,
        taxonomy,
        members,
        temperature=fit_temperature(mean_NC, finished.truth_N),
        detector=load_parts(run) if settings.detector else None,
        provenance={
            "dataset": dataset.resolve().name,
            "manifest sha256": sha256_file(dataset / MANIFEST),
            "training pictures": len(split_of(read_manifest(dataset), "train")),
        },
    )
