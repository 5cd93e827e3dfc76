"""A training run from dataset to bundle: check everything, start the ranks, calibrate, pack."""

import os
from pathlib import Path

from skindx.data.manifest import Record, Split, read_manifest, split_of
from skindx.errors import JobError, UserError
from skindx.models.bundle.bundle import Bundle
from skindx.models.classifier.classifier import build_classifier, load_weights
from skindx.taxonomy import Taxonomy
from skindx.training.callbacks.callback_list import check_monitors
from skindx.training.config.run import MemberSettings, TrainSettings
from skindx.training.deepspeed.joining import is_lost, join, leave
from skindx.training.deepspeed.launch import launch
from skindx.training.ensembles.distil import STUDENT, student_settings, write_targets
from skindx.training.ensembles.fusion import fit_fusion
from skindx.training.ensembles.member_refs import check_soup, is_there, sources, units
from skindx.training.ensembles.pack import pack_run
from skindx.training.feeding.folds import partition
from skindx.training.finished.detector import is_trained
from skindx.training.finished.member import fingerprint, is_finished
from skindx.training.launching.notes import RANKS
from skindx.training.launching.stopping import StoppedError, StopRequest, end_with_parent
from skindx.training.parallel.mesh import resolve_accelerator, resolve_ranks
from skindx.training.parallel.preparing import checkpoint_activations
from skindx.training.probing import probe_members
from skindx.training.recipes.optimizer import layer_depths
from skindx.training.recipes.starting import starting_weights
from skindx.training.tasks.detector.job import check_detector
from skindx.training.worker import SETTINGS
from skindx.training.worker import train as train_members


def train(dataset: Path, settings: TrainSettings, run: Path) -> Bundle | None:
    """Train what is missing of a run and pack RUN/bundle.

    Starts the ranks itself with DeepSpeed's launcher; a process that `torchrun` or another
    launcher started (RANK is set) is one of the ranks instead, and only the first packs; the
    others return None. Raises UserError, before anything is written, for whatever can be known
    to fail, and StoppedError when SIGTERM ended it; the same call goes on from there. With
    `distil` a student is trained as well and packed as RUN/student/bundle.
    """
    records = read_manifest(dataset)
    taxonomy = Taxonomy.load(dataset / "taxonomy.yaml")
    check(settings, records, taxonomy, run)
    if settings.distil:
        if "RANK" in os.environ:
            raise UserError("distil starts ranks of its own; run `skindx train` without torchrun.")
        check(student_settings(run, settings), records, taxonomy, run / STUDENT)
    missing = unfinished(run, dataset, settings)
    _train_elsewhere(run, dataset, settings, records)
    if "RANK" in os.environ:
        if not _train_as_rank(run, dataset, settings):
            return None
    else:
        _train_by_launcher(run, dataset, settings, missing)
    bundle = pack_run(run, dataset, settings, taxonomy)
    if settings.fusion:
        bundle = fit_fusion(bundle.path, dataset, settings.fusion.margin)
    if settings.distil:
        write_targets(run, dataset, settings, bundle)
        train(dataset, student_settings(run, settings), run / STUDENT)
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
    end_with_parent()
    with StopRequest(settings.checkpoint.grace_s) as stop:
        cluster = join(settings.engine)
        if cluster.first:
            settings.save(run / SETTINGS)
        try:
            train_members(run, dataset, settings, cluster, stop)
        except StoppedError as stopped:
            leave()
            raise StoppedError(str(stopped) if cluster.first else "") from None
        except RuntimeError as error:
            if not is_lost(error):
                raise
            raise JobError(
                f"rank {cluster.rank} lost another rank; run the same command again to go on "
                "from the last checkpoint"
            ) from None
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
    launch(
        settings.engine,
        accelerator,
        "skindx.training.rank",
        arguments,
        notes=run / RANKS,
        grace_s=settings.checkpoint.grace_s,
    )
    # The launcher's exit code is 0 when a signal ended it: believe the files alone.
    if left := unfinished(run, dataset, settings):
        raise JobError(f"training ended without finishing {', '.join(left)}; run it again")


def check(
    settings: TrainSettings, records: list[Record], taxonomy: Taxonomy, run: Path = Path()
) -> None:
    """Raise UserError for settings that do not fit the dataset, the machine or timm."""
    needed: tuple[Split, ...] = ("train", "val")
    check_monitors(settings.monitors)
    for split in needed:
        if not split_of(records, split):
            raise UserError(f"the dataset has no {split} pictures; build it with more pictures.")
    _check_classes(settings, records, taxonomy)
    ranks = resolve_ranks(settings.engine)
    for member in settings.members:
        _check_member(settings, member, records, len(taxonomy.classes), ranks)
    trained = sources(run, settings)
    for soup in settings.soups:
        check_soup(soup, trained)
    units(settings, trained, records)
    check_detector(settings, records)
    probe_members(settings, len(taxonomy.classes))


def _check_classes(settings: TrainSettings, records: list[Record], taxonomy: Taxonomy) -> None:
    """Raise UserError for a class that a member could not learn, or that nothing validates."""
    parts = {
        f"training images of fold {member.fold}": partition(records, member.fold, settings.folds)[0]
        for member in settings.members
        if member.fold is not None
    }
    if len(parts) < len(settings.members):
        parts |= {f"{split} images": split_of(records, split) for split in ("train", "val")}
    for part, images in parts.items():
        labels = {record.label for record in images}
        if missing := [each.name for each in taxonomy.classes if each.key not in labels]:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise UserError(
                f"the {part} show nothing of the class {missing[0]!r}{more}; add images of it from "
                "other patients and build the dataset again, or take the class out of the taxonomy."
            )


def _check_member(
    settings: TrainSettings,
    member: MemberSettings,
    records: list[Record],
    classes: int,
    ranks: int,
) -> None:
    import torch

    recipe = settings.recipe_of(member)
    batch, pieces = recipe.batch, recipe.accumulate
    train, held = partition(records, member.fold, settings.folds)
    if not held:
        raise UserError(
            f"member {member.name}: fold {member.fold} is empty; folds={settings.folds} is "
            "more than the dataset has groups for."
        )
    if len(train) < batch or batch < 2 * ranks * pieces:
        each = f"two a rank and each of {pieces} pieces" if pieces > 1 else "two a rank"
        raise UserError(
            f"member {member.name}: recipe.batch={batch} must be at least {2 * ranks * pieces} "
            f"({each}) and at most the {len(train)} training pictures."
        )
    with torch.device("meta"):
        classifier = build_classifier(member, classes)
    if recipe.layer_decay < 1:
        layer_depths(classifier)
    if settings.engine.activation_checkpointing:
        checkpoint_activations(classifier)
    if weights := starting_weights(member):
        load_weights(classifier.to_empty(device="cpu"), weights)
