"""A training run from dataset to bundle: check everything, start the ranks, calibrate, pack."""

import os
from pathlib import Path

from skindx.data.manifest import Record, Split, read_manifest, split_of
from skindx.errors import JobError, UserError
from skindx.models.bundle import Bundle
from skindx.models.classifier import build_classifier, load_weights
from skindx.taxonomy import Taxonomy
from skindx.training.detection.assist import fit_fusion
from skindx.training.detection.store import is_trained
from skindx.training.detection.worker import check_detector
from skindx.training.engine import join, leave, resolve_accelerator, resolve_ranks
from skindx.training.folds import partition
from skindx.training.launch import launch
from skindx.training.member import fingerprint, is_finished
from skindx.training.pack import pack_run
from skindx.training.settings import TrainSettings
from skindx.training.sources import check_soup, is_there, sources, units
from skindx.training.worker import SETTINGS
from skindx.training.worker import train as train_members


def train(dataset: Path, settings: TrainSettings, run: Path) -> Bundle | None:
    """Train what is missing of a run and pack RUN/bundle.

    Starts the ranks itself with DeepSpeed's launcher; a process that `torchrun` or another
    launcher started (RANK is set) is one of the ranks instead, and only the first packs; the
    others return None. Raises UserError, before anything is written, for whatever can be known
    to fail.
    """
    records = read_manifest(dataset)
    taxonomy = Taxonomy.load(dataset / "taxonomy.yaml")
    check(settings, records, taxonomy, run)
    missing = unfinished(run, dataset, settings)
    _train_elsewhere(run, dataset, settings, records)
    if "RANK" in os.environ:
        if not _train_as_rank(run, dataset, settings):
            return None
    else:
        _train_by_launcher(run, dataset, settings, missing)
    bundle = pack_run(run, dataset, settings, taxonomy)
    if settings.fusion:
        return fit_fusion(bundle.path, dataset, settings.fusion.margin)
    return bundle


def _train_elsewhere(
    run: Path, dataset: Path, settings: TrainSettings, records: list[Record]
) -> None:
    """Let runs whose members are reused finish these first, by their own settings.

    Raises UserError for a member of another dataset, and for one that would have to be trained
    while this process is a rank among others.
    """
    needed = [
        source
        for source in sources(run, settings).values()
        if source.run != run and not is_there(source, dataset)
    ]
    for source in needed:
        name = source.member.name
        if "RANK" in os.environ:
            raise UserError(
                f"member {name} of {source.run} is not finished; train that run first, or start "
                "this one without torchrun."
            )
        if is_there(source, dataset):  # finished along with another one
            continue
        check(source.settings, records, Taxonomy.load(dataset / "taxonomy.yaml"), source.run)
        missing = unfinished(source.run, dataset, source.settings)
        _train_by_launcher(source.run, dataset, source.settings, missing)


def _train_as_rank(run: Path, dataset: Path, settings: TrainSettings) -> bool:
    cluster = join(settings.engine)
    if cluster.first:
        settings.save(run / SETTINGS)
    train_members(run, dataset, settings, cluster)
    leave()
    return cluster.first


def unfinished(run: Path, dataset: Path, settings: TrainSettings) -> list[str]:
    """Return the members that are still to be trained, and "the detector" if it is.

    Raises UserError when a member or the detector of the run was trained otherwise.
    """
    missing = [
        member.name
        for member in settings.members
        if not is_finished(run, member.name, fingerprint(settings, member, dataset))
    ]
    return missing if is_trained(run, settings, dataset) else [*missing, "the detector"]


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


def check(
    settings: TrainSettings, records: list[Record], taxonomy: Taxonomy, run: Path = Path()
) -> None:
    """Raise UserError for settings that do not fit the dataset, the machine or timm."""
    import torch

    needed: tuple[Split, ...] = ("train", "val")
    for split in needed:
        if not split_of(records, split):
            raise UserError(f"the dataset has no {split} pictures; build it with more pictures.")
    ranks = resolve_ranks(settings.engine)
    for member in settings.members:
        batch = settings.recipe_of(member).batch
        train, held = partition(records, member.fold, settings.folds)
        if not held:
            raise UserError(
                f"member {member.name}: fold {member.fold} is empty; folds={settings.folds} is "
                "more than the dataset has groups for."
            )
        if len(train) < batch or batch < 2 * ranks:
            raise UserError(
                f"member {member.name}: recipe.batch={batch} must be at least {2 * ranks} "
                f"(two a rank) and at most the {len(train)} training pictures."
            )
        with torch.device("meta"):
            classifier = build_classifier(member, len(taxonomy.classes))
        if member.weights:
            load_weights(classifier.to_empty(device="cpu"), member.weights)
    trained = sources(run, settings)
    for soup in settings.soups:
        check_soup(soup, trained)
    units(settings, trained, records)
    check_detector(settings, records)
