"""A run that follows a plan keeps what was predicted: RUN/plan.json."""

from pathlib import Path

from skindx.core.atomic_files import sha256_file, write_json
from skindx.core.errors import UserError
from skindx.core.settings_base import read_yaml
from skindx.core.untrusted import MEGABYTE, read_json
from skindx.data.layout import MANIFEST
from skindx.data.manifest import read_manifest
from skindx.planning.fragment import Predicted, merged, read_fragment
from skindx.planning.review import Happened, happened_of
from skindx.training.config.run import SETTINGS, TrainSettings
from skindx.training.feeding.folds import partition
from skindx.training.finished.member import HISTORY, member_folder
from skindx.training.parallel.devices import resolve_ranks
from skindx.training.recorded_step import PLANNED, timeline_file


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
            f"{plan} is a plan of another dataset than {dataset}; make one of this dataset, or "
            "train without --plan."
        )
    names = {member.name for member in settings.members}
    if missing := [member.name for member in predicted.members if member.name not in names]:
        raise UserError(
            f"{plan} plans a member {missing[0]}, which the settings do not have; make the plan "
            "of these settings."
        )
    if predicted.nodes == 1 and not settings.engine.hostfile:
        resolve_ranks(settings.engine)
    if predicted.nodes > 1 and not settings.engine.hostfile and not _started_by_others():
        raise UserError(
            f"{plan} is for {predicted.nodes} nodes, and nothing says where they are; set "
            "engine.hostfile, or start the ranks with torchrun or Slurm."
        )
    return settings, predicted


def _started_by_others() -> bool:
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
            f"{run} has no {PLANNED}: it was not trained by a plan; `skindx train --plan` keeps "
            "one."
        )
    return Predicted.parse(read_json(file, 16 * MEGABYTE), origin=str(file), expand=False)


def recorded_steps(run: Path) -> list[Path]:
    """Return the recorded steps of a run's members. Raises UserError where there is none."""
    names = [member.name for member in read_kept(run).members]
    found = [file for name in names if (file := timeline_file(run, name)).is_file()]
    if not found:
        raise UserError(
            f"{run} has no recorded step: a training that follows a plan records its fourth one; "
            "train some steps with `skindx train --plan`."
        )
    return found


def happened(run: Path, dataset: Path) -> list[Happened]:
    """Return what the members' histories tell. Raises UserError for a history that is damaged."""
    settings = TrainSettings.load(run / SETTINGS)
    records = read_manifest(dataset)
    found = []
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
            raise UserError(f"{file} is no history of a training ({error}).") from None
        if one:
            found.append(one)
    return found


def _rows(file: Path) -> list[dict[str, float]]:
    heading, *lines = file.read_text(encoding="utf-8").splitlines()
    keys = heading.split(",")
    return [
        {key: float(value) for key, value in zip(keys, line.split(","), strict=True) if value}
        for line in lines
    ]
