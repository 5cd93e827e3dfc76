"""Everything about a run that can be known to fail before anything of it is written."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import nn

from skindx.core.errors import UserError
from skindx.data.labels import check_labels
from skindx.data.loader.batches import partition, steps_of
from skindx.data.manifest import Record, Split, box_labels, split_of
from skindx.models.classifier.classifier import build_classifier, load_weights
from skindx.models.classifier.network_setup import shapes_only
from skindx.taxonomy import Taxonomy
from skindx.training.callbacks import check_monitors
from skindx.training.checkpoint.finished import load_parts
from skindx.training.config.engine import EngineSettings
from skindx.training.config.optimizers import optimizer_kinds
from skindx.training.config.run import MemberSettings, TrainSettings
from skindx.training.deepspeed.extra_settings import check_extra
from skindx.training.deepspeed.ranks import ranks_on_hosts, read_hosts
from skindx.training.ensembles.member_refs import member_refs, units
from skindx.training.member_networks import probe_members
from skindx.training.method import RunMethod
from skindx.training.parallel.batch_norm import checkpoint_activations
from skindx.training.parallel.mesh import sizes_of, workers_of
from skindx.training.registry import run_method
from skindx.training.tasks.classifier_job import starting_weights
from skindx.training.tasks.detector_data import looked_at
from skindx.training.tasks.detector_job import build_network
from skindx.training.tasks.optimizer import layer_depths


def check_smallest_step(
    settings: TrainSettings,
    member: MemberSettings,
    classifier: nn.Module,
    learned: Sequence[Record],
    *,
    ranks: int = 1,
    least: Callable[[int], int] | None = None,
) -> None:
    """Raise UserError where a network would normalise one image alone, and cannot.

    `classifier` has no memory (`shapes_only`); it learns from the images `learned` on so many
    `ranks`. Steps differ by an image: one of 3, in a training with a batch of 4, leaves a single
    image to one of two ranks. `least` tells the fewest images of a step of a batch where they are
    not those of an even division.
    """
    recipe = settings.recipe_of(member)
    synchronised = settings.engine.sync_batch_norm and ranks > 1
    if member.trunk == "frozen" or synchronised:
        return

    def at_once(batch: int) -> int:
        if least:
            return least(batch) // recipe.accumulate
        return _least_at_once(settings, len(learned), batch, ranks, recipe.accumulate)

    if at_once(recipe.batch) > 1:
        return
    side = min(member.preprocess.size, recipe.resize.start if recipe.resize else 2**31)
    if takes_one_image(classifier, side):
        return
    larger = next(
        (size for size in range(recipe.batch + 1, len(learned) + 1) if at_once(size) > 1), 0
    )
    divided = {"engine.ranks": ranks, "recipe.accumulate": recipe.accumulate}
    lower = " or ".join(name for name, parts in divided.items() if parts > 1)
    advice = [f"set recipe.batch={larger}"] if larger else []
    advice += [f"lower {lower}"] if lower else []
    raise UserError(
        f"member {member.name}: with recipe.batch={recipe.batch} and {len(learned)} training "
        f"images, a rank sometimes gets only one image, but the batch norm of {member.model} "
        f"needs two; {', or '.join(advice)}."
    )


def _least_at_once(
    settings: TrainSettings, images: int, batch: int, ranks: int, pieces: int
) -> int:
    """Return the fewest images that a batch norm sees at once on `ranks` ranks."""
    steps = steps_of(images, batch)
    shares = sizes_of(images // steps, ranks)
    if settings.loader.sharded is True:
        shares = (images // ranks // steps,) * ranks
    return shares[-1] // pieces  # the last rank has the fewest


def takes_one_image(classifier: nn.Module, side: int) -> bool:
    """Tell whether a network without memory can be trained on one image of a side."""
    classifier.train()
    try:
        with torch.no_grad():
            classifier(torch.zeros(1, side, side, 3, dtype=torch.uint8, device="meta"))
    except ValueError as error:
        return "more than 1 value per channel" not in str(error)
    except Exception:
        return True
    return True


def check(
    settings: TrainSettings, records: list[Record], taxonomy: Taxonomy, run: Path = Path()
) -> None:
    """Raise UserError for settings that do not fit the dataset, the machine or timm."""
    needed: tuple[Split, ...] = ("train", "val")
    check_monitors(settings.monitors)
    for split in needed:
        if not split_of(records, split):
            raise UserError(f"the dataset has no {split} images; add images and build again.")
    check_labels({record.label for record in records}, taxonomy)
    _check_classes(settings, records, taxonomy)
    method = run_method(settings)
    method.check_machine()
    workers = workers_of(settings.engine)
    everywhere = _ranks_everywhere(settings.engine, workers)
    if not settings.engine.hostfile:
        settings.engine.parallel.check_ranks(everywhere)
    ranks = everywhere if settings.engine.schedule_kind.together else 1
    _check_started(settings.engine)
    if settings.engine.schedule_kind.together:
        settings.exchange.check_ranks(everywhere, _per_host(settings.engine, everywhere))
    check_extra(settings.engine)
    _check_layer_norms(settings)
    classes = len(taxonomy.classes)
    for member in settings.members:
        _check_member(settings, member, records, classes=classes, ranks=ranks, method=method)
    trained = member_refs(run, settings)
    units(trained, records)
    check_detector(settings, records, ranks)
    method.check_run(records, classes, run, workers=workers, everywhere=everywhere)
    probe_members(settings, len(taxonomy.classes))


def _ranks_everywhere(engine: EngineSettings, workers: int) -> int:
    """Return the ranks of all machines, if this one has `workers` of them."""
    if "RANK" in os.environ:
        return int(os.environ["WORLD_SIZE"])
    return ranks_on_hosts(engine, engine.hostfile) if engine.hostfile else workers


def _per_host(engine: EngineSettings, everywhere: int) -> int | None:
    """Return how many of all ranks are on this host; None: it is not known."""
    if "RANK" in os.environ:
        names = (name for name in ("LOCAL_WORLD_SIZE", "LOCAL_SIZE") if name in os.environ)
        return next((int(os.environ[name]) for name in names), 1 if everywhere == 1 else None)
    several = engine.hostfile and len(read_hosts(engine.hostfile)) > 1
    return None if several else everywhere


def _check_started(engine: EngineSettings) -> None:
    """Raise UserError where a launcher has started other ranks than the settings ask for."""
    if "RANK" not in os.environ or engine.ranks == "auto":
        return
    everywhere = int(os.environ["WORLD_SIZE"])
    here = _per_host(engine, everywhere)
    if engine.ranks > everywhere or (here and engine.ranks not in (here, everywhere)):
        started = f"{here} ranks on this machine" if here else f"{everywhere} ranks in all"
        raise UserError(
            f"engine.ranks is {engine.ranks}, but the launcher (Slurm's srun, torchrun) has "
            f"started {started}; set engine.ranks=auto, or start {engine.ranks} ranks."
        )


def _check_layer_norms(settings: TrainSettings) -> None:
    """Raise UserError where ZeRO would hand an optimizer flat pieces of all weights."""
    kinds = optimizer_kinds().items()
    for member in settings.members:
        recipe = settings.recipe_of(member)
        chosen = recipe.optimizer_kind
        if settings.engine.zero and (chosen.layerwise or chosen.matrices):
            alternatives = [n for n, kind in kinds if not (kind.layerwise or kind.matrices)]
            by = "the matrix" if chosen.matrices else "the norm"
            raise UserError(
                f"member {member.name}: recipe.optimizer={recipe.optimizer} needs {by} of each "
                f"layer, but engine.zero={settings.engine.zero} mixes layers; set engine.zero=0, "
                f"or recipe.optimizer to {' or '.join(reversed(alternatives))}."
            )


def _check_classes(settings: TrainSettings, records: list[Record], taxonomy: Taxonomy) -> None:
    """Raise UserError for a class that a member could not learn, or that nothing validates."""
    if len(taxonomy.classes) < 2:
        raise UserError(
            f"the dataset has only one class ({taxonomy.classes[0].name}), and a classifier needs "
            "two; add images of another class and build the dataset again."
        )
    parts = {
        f"training images of fold {member.fold}": partition(records, member.fold, settings.folds)[0]
        for member in settings.members
        if member.fold is not None
    }
    if len(parts) < len(settings.members):
        parts |= {f"{split} images": split_of(records, split) for split in ("train", "val")}
    for part, images in parts.items():
        labels = {record.label for record in images}
        if missing := [
            skin_class.name for skin_class in taxonomy.classes if skin_class.key not in labels
        ]:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise UserError(
                f"the {part} have no image of the class {missing[0]!r}{more}; add images of this "
                "class from other patients and build the dataset again, or remove the class from "
                "the taxonomy."
            )


def _check_member(
    settings: TrainSettings,
    member: MemberSettings,
    records: list[Record],
    *,
    classes: int,
    ranks: int,
    method: RunMethod,
) -> None:
    """Raise UserError for a member that cannot be trained."""
    recipe = settings.recipe_of(member)
    batch, pieces = recipe.batch, recipe.accumulate
    train, held = partition(records, member.fold, settings.folds)
    if not held:
        raise UserError(
            f"member {member.name}: fold {member.fold} has no images, because the dataset has "
            f"fewer groups than folds={settings.folds}; lower `folds`."
        )
    if len(train) < batch or batch < 2 * ranks * pieces:
        least = f"two a rank and each of {pieces} pieces" if pieces > 1 else "two a rank"
        raise UserError(
            f"member {member.name}: recipe.batch={batch} does not fit the dataset; set it from "
            f"{2 * ranks * pieces} ({least}) to {len(train)} (the number of training images)."
        )
    settings.exchange.check_epoch(f"member {member.name}", steps_of(len(train), batch))
    if member.trunk != "trained" and not (member.weights or member.pretrained):
        raise UserError(
            f"member {member.name}: trunk={member.trunk} never trains its weights, so they must "
            "not be random; set `pretrained: true` or `weights` for this member."
        )
    with shapes_only():
        classifier = build_classifier(member, classes)
    if not method.checks_steps:
        check_smallest_step(settings, member, classifier, train, ranks=ranks)
    method.check_member(member, classifier, train, ranks)
    if recipe.layer_decay < 1:
        layer_depths(classifier)
    if settings.engine.activation_checkpointing:
        checkpoint_activations(classifier)
    if weights := starting_weights(member):
        load_weights(classifier.to_empty(device="cpu"), weights)


def check_detector(settings: TrainSettings, records: list[Record], ranks: int) -> None:
    """Raise UserError for a detector that does not fit the dataset, the ranks or ultralytics."""
    detector = settings.detector
    if detector is None:
        return
    if detector.from_run:
        load_parts(detector.from_run)
        return
    labels = box_labels(split_of(records, "train"))
    if not labels:
        raise UserError(
            "the settings have a detector, but no training image has a box; build the dataset "
            "with boxes, or set detector=null to train no detector."
        )
    build_network(detector.model, len(labels))
    looked = len(looked_at(records, "train"))
    settings.exchange.check_epoch("the detector", steps_of(looked, detector.batch))
    if min(detector.batch, looked) < ranks:
        raise UserError(
            f"detector.batch={detector.batch} is too small: with {looked} annotated training "
            f"images some of the {ranks} ranks get no image; raise detector.batch, annotate more "
            "images, or start fewer ranks."
        )
