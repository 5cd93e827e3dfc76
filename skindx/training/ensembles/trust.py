"""Limits on settings of a run that another person made.

A run is passed around like a bundle: `reused` takes a finished member of it. Where such a member is
not finished, its training would go on by the run's own train.yaml, which may start processes on
other machines, write elsewhere, send figures to a server or read any file. That is right in a run
of one's own, so it takes the user's word: a `config` with the same settings, or a training of that
run by its own command.
"""

from pathlib import Path

from skindx.core.errors import UserError
from skindx.data.loader.settings import DiskCache
from skindx.training.config.run import MemberSettings, TrainSettings
from skindx.training.config.trackers import MlflowSettings, WandbSettings


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
    found = [
        f"{what} {path}"
        for what, path in files.items()
        if path and not any(_is_inside(path, folder) for folder in (run, dataset))
    ]
    if engine.hostfile:
        found.append(f"start processes on the hosts of {engine.hostfile}")
    for monitor in settings.monitors:
        if isinstance(monitor, WandbSettings) and monitor.mode == "online":
            found.append("send its figures to Weights & Biases")
        if isinstance(monitor, MlflowSettings) and monitor.uri:
            found.append(f"send its figures to {monitor.uri}")
    return found


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
