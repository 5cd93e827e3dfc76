"""A plan for training settings and a dataset, and what a run that follows a plan keeps of it."""

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from skindx.core.atomic_files import sha256_file, write_json
from skindx.core.cost.pricing import Strategy
from skindx.core.cost.profile import Profile
from skindx.core.errors import UserError
from skindx.core.settings_base import read_yaml
from skindx.core.untrusted import MEGABYTE, read_json
from skindx.data.layout import MANIFEST
from skindx.data.loader.batches import partition, steps_of
from skindx.data.manifest import read_manifest
from skindx.training.checkpoint.finished import HISTORY, member_folder
from skindx.training.config.engine import EngineSettings
from skindx.training.config.run import SETTINGS, MemberSettings, TrainSettings
from skindx.training.parallel.mesh import resolve_ranks
from skindx.training.registry import PLANNED
from skindx_methods.plan.choices import Choice, PlannedMember, Workload
from skindx_methods.plan.cluster import Cluster
from skindx_methods.plan.estimate import Machine
from skindx_methods.plan.measure import NOTHING, measure
from skindx_methods.plan.measured_steps import variant_of
from skindx_methods.plan.plan import Plan, PlanRequest, machine_of, make, read_cluster
from skindx_methods.plan.profiles import Profiles
from skindx_methods.plan.recorded_step import timeline_file
from skindx_methods.plan.saved_plan import Happened, Predicted, happened_of, merged, read_fragment
from skindx_methods.plan.strategy_kinds import strategy_of

_NAMED = 5
"""Networks of a trace that a message names."""


def plan_of_config(settings: TrainSettings, dataset: Path, request: PlanRequest) -> Plan:
    """Plan the training of `settings` on a dataset; without a trace it is measured now.

    Raises UserError.
    """
    limits = dataclasses.replace(request.limits, side_by_side=True)
    profiles = Profiles.read(request.trace) if request.trace else measure(settings, dataset)
    known = read_cluster(request.cluster) if request.cluster else this_machine(profiles)
    machine = machine_of(profiles, known, request)
    workload = workload_of(settings, dataset, machine.profiles)
    return make(workload, machine, limits, given_choice(settings, machine))


def this_machine(profiles: Profiles) -> Cluster:
    """Return the one rank that a trace alone allows to plan for."""
    return Cluster(name=profiles.host or "this machine", source="measured", nodes=1)


def workload_of(settings: TrainSettings, dataset: Path, profiles: Profiles) -> Workload:
    """Return the members with their networks. Raises UserError for one that was never timed."""
    records = read_manifest(dataset)
    members = []
    frozen = [member.name for member in settings.members if member.trunk == "frozen"]
    for member in settings.members:
        if member.trunk == "frozen":
            continue
        recipe = settings.recipe_of(member)
        train, held = partition(records, member.fold, settings.folds)
        settings.exchange.check_epoch(f"member {member.name}", steps_of(len(train), recipe.batch))
        members.append(
            PlannedMember(
                member.name,
                profile_of(settings, member, profiles),
                recipe.batch,
                recipe.accumulate,
                recipe.epochs,
                len(train),
                len(held),
                recipe.preconditioner is not None,
                _needs_whole_layers(settings.engine),
                recipe.optimizer_kind.layerwise,
                recipe.optimizer_kind.matrices,
                settings.engine.lockstep,
            )
        )
    if not members:
        raise UserError(NOTHING)
    unpriced = []
    if frozen:
        unpriced.append(
            f"Members on a frozen trunk ({', '.join(frozen[:_NAMED])}) learn from features that "
            "are computed once: they are not in these figures."
        )
    if settings.detector and not settings.detector.from_run:
        unpriced.append("The detector is trained beside the members, and is not in these figures.")
    if any(settings.recipe_of(member).resize for member in settings.members):
        unpriced.append("recipe.resize begins with smaller images: it will be faster than this.")
    if any(member.preconditioned for member in members):
        unpriced.append(
            "recipe.preconditioner has no price: its steps take longer than this, and more memory."
        )
    if _mixed(settings):
        unpriced.append(
            f"engine.parallel with exchange.kind={settings.exchange.kind} has no price: the "
            "settings as they are stand not among the choices."
        )
    if profiles.dataset and profiles.dataset != sha256_file(dataset / MANIFEST):
        unpriced.append("The trace was measured on another dataset: reading may take otherwise.")
    return Workload(tuple(members), unpriced=tuple(unpriced))


def profile_of(settings: TrainSettings, member: MemberSettings, profiles: Profiles) -> Profile:
    """Return the profile of a member's network, at the batch that is next to the member's.

    A trace of an earlier version does not say which head and arguments its network has: it is taken
    where all members of that network have the same. Raises UserError where there is none.
    """
    size, precision = member.preprocess.size, settings.engine.precision
    wanted, variant = (member.model, size, precision), variant_of(settings, member)
    named = [
        profile
        for profile in profiles.networks
        if (profile.name, profile.size, profile.precision) == wanted
    ]
    alike = {
        variant_of(settings, other)
        for other in settings.members
        if (other.model, other.preprocess.size) == wanted[:2] and other.trunk != "frozen"
    }
    fitting = [
        profile
        for profile in named
        if profile.variant == variant or (profile.variant is None and len(alike) == 1)
    ]
    if fitting:
        recipe = settings.recipe_of(member)
        rank_batch = recipe.batch // (recipe.accumulate * profiles.ranks)
        return min(fitting, key=lambda profile: abs(profile.batch - rank_batch))
    timed = ", ".join(_described(network) for network in profiles.networks[:_NAMED])
    raise UserError(
        f"member {member.name} is {_words(member.model, size, precision, variant)}, but the trace "
        f"has only times of {timed}; measure this config with `skindx plan measure`."
    )


def _described(network: Profile) -> str:
    variant = "settings that it does not name" if network.variant is None else network.variant
    return _words(network.name, network.size, network.precision, variant)


def _words(name: str, size: int | None, precision: str, variant: str) -> str:
    return f"{name} at {size} px in {precision}{f' with {variant}' if variant else ''}"


def _needs_whole_layers(engine: EngineSettings) -> bool:
    """Tell whether settings do not go with layers that are split over ranks."""
    return engine.precision == "fp16" or engine.compile


def given_choice(settings: TrainSettings, machine: Machine) -> Choice | None:
    """Return the settings as they are as a choice; None where the cluster has fewer ranks."""
    cluster = machine.cluster
    nodes, per_node = cluster.nodes, cluster.ranks_per_node
    if settings.engine.ranks != "auto" and not settings.engine.hostfile:
        nodes, per_node = 1, settings.engine.ranks
    trained = [member for member in settings.members if member.trunk != "frozen"]
    if per_node > cluster.ranks_per_node or not trained or _mixed(settings):
        return None
    recipe = settings.recipe_of(trained[0])
    if nodes * per_node > 1 and recipe.batch < 2 * nodes * per_node * recipe.accumulate:
        return None
    return Choice(
        strategy_given(settings),
        nodes,
        per_node,
        recipe.batch,
        recipe.accumulate,
        settings.engine.activation_checkpointing,
    )


def strategy_given(settings: TrainSettings) -> Strategy:
    """Return the strategy of some settings."""
    options: dict[str, Any]
    if parallel := _parallel(settings):
        options = parallel.model_dump(mode="json", exclude_defaults=True, exclude={"kind"})
        if getattr(settings.exchange, "wire", None) == "bf16":
            options["wire"] = "bf16"
        return strategy_of(parallel.kind, options)
    if settings.engine.zero:
        return strategy_of(f"zero-{settings.engine.zero}")
    options = settings.exchange.model_dump(mode="json", exclude_defaults=True, exclude={"kind"})
    return strategy_of(settings.exchange.kind, options)


def _parallel(settings: TrainSettings) -> Any:
    """Return engine.parallel where it shares out layers; else None."""
    parallel = settings.engine.parallel
    return parallel if parallel.splits else None


def _mixed(settings: TrainSettings) -> bool:
    """Tell whether layers are shared out and what is left is exchanged as no plan prices it."""
    return bool(_parallel(settings)) and not settings.exchange.beside_parts


def settings_with_plan(
    config: Path | None, sets: list[str], plan: Path, dataset: Path
) -> tuple[TrainSettings, Predicted]:
    """Return the settings of a config under a plan; `sets` come last. Raises UserError.

    Refused: a plan of another dataset, and one for more ranks than this machine has.
    """
    fragment, predicted = read_fragment(plan)
    raw = read_yaml(config) if config else {}
    settings = TrainSettings.load(None, sets, start=merged(raw, fragment))
    digest = sha256_file(dataset / MANIFEST)
    if predicted.dataset and predicted.dataset != digest:
        raise UserError(
            f"{plan} was made for another dataset than {dataset}; make a plan for this dataset, "
            "or train without --plan."
        )
    names = {member.name for member in settings.members}
    if missing := [member.name for member in predicted.members if member.name not in names]:
        raise UserError(
            f"{plan} has the member {missing[0]}, but the settings do not; make a new plan with "
            "these settings."
        )
    if predicted.nodes == 1 and not settings.engine.hostfile:
        resolve_ranks(settings.engine)
    if predicted.nodes > 1 and not settings.engine.hostfile and not _started_by_launcher():
        raise UserError(
            f"{plan} is for {predicted.nodes} nodes, but no setting names them; set "
            "engine.hostfile, or start the ranks with torchrun or Slurm."
        )
    return settings, predicted


def follow(
    plan: Path, config: Path | None, sets: list[str], dataset: Path
) -> tuple[TrainSettings, Callable[[Path], None]]:
    """Return the settings of a config under a plan, and what keeps the prediction in a run."""
    settings, predicted = settings_with_plan(config, sets, plan, dataset)
    return settings, partial(keep, predicted=predicted)


def _started_by_launcher() -> bool:
    import os

    return "RANK" in os.environ


def keep(run: Path, predicted: Predicted) -> None:
    """Write what was predicted into the run."""
    run.mkdir(parents=True, exist_ok=True)
    write_json(run / PLANNED, predicted.model_dump(mode="json"))


def read_kept(run: Path) -> Predicted:
    """Return what was predicted of a run. Raises UserError where nothing was."""
    file = run / PLANNED
    if not file.exists():
        raise UserError(
            f"{run} has no {PLANNED}, so it was not trained with a plan; give a run of `skindx "
            "train --plan`."
        )
    return Predicted.parse(read_json(file, 16 * MEGABYTE), origin=str(file), expand=False)


def recorded_steps(run: Path) -> list[Path]:
    """Return the recorded steps of a run's members. Raises UserError where there is none."""
    names = [member.name for member in read_kept(run).members]
    result = [file for name in names if (file := timeline_file(run, name)).is_file()]
    if not result:
        raise UserError(
            f"{run} has no recorded step yet (the training records the fourth step of each "
            "member); train at least four steps with `skindx train --plan`."
        )
    return result


def happened(run: Path, dataset: Path) -> list[Happened]:
    """Return what the members' histories tell. Raises UserError for a history that is damaged."""
    settings = TrainSettings.load(run / SETTINGS)
    records = read_manifest(dataset)
    result = []
    for member in settings.members:
        file = member_folder(run, member.name) / HISTORY
        if not file.is_file():
            continue
        train, _ = partition(records, member.fold, settings.folds)
        batch = settings.recipe_of(member).batch
        try:
            rows = _rows(file)
            one = happened_of(member.name, rows, len(train), batch)
        except (ValueError, KeyError) as error:
            raise UserError(
                f"{file} is not the history of a training ({error}); give a run of `skindx train "
                "--plan`."
            ) from None
        if one:
            result.append(one)
    return result


def _rows(file: Path) -> list[dict[str, float]]:
    heading, *lines = file.read_text(encoding="utf-8").splitlines()
    keys = heading.split(",")
    return [
        {key: float(value) for key, value in zip(keys, line.split(","), strict=True) if value}
        for line in lines
    ]
