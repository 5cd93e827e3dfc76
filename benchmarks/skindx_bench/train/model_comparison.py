"""Compare CNNs on the same grouped folds, and their ensembles by the number of members."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from pydantic import Field

from skindx import __version__
from skindx.core.atomic_files import sha256_file, write_json
from skindx.core.errors import JobError, UserError
from skindx.core.measurement import interleave
from skindx.core.settings_base import Settings
from skindx.data.layout import MANIFEST
from skindx.data.manifest import read_manifest, split_of
from skindx.energy import EnergyMeter
from skindx.evaluation.answers import Answers, read_predictions
from skindx.models.bundle.bundle import Bundle, open_bundle
from skindx.models.classifier.preprocess import Views
from skindx.training.checkpoint.fingerprints import fingerprint_of
from skindx.training.checkpoint.finished import member_folder
from skindx.training.config.run import MemberSettings, TrainSettings
from skindx_bench.harness.pooled_folds import pool_answers
from skindx_bench.harness.result import MEANS, Figure, Result, median
from skindx_bench.harness.training import end_on_sigterm, preset, read_history, run_skindx
from skindx_bench.honesty.ood import fold_view
from skindx_bench.train.comparison_table import (
    ENSEMBLE,
    ModelRow,
    alone_in,
    figures_of,
    write_tables,
)
from skindx_bench.train.ensemble_curve import curve
from skindx_bench.train.ensemble_curve_figures import (
    choice_figures,
    curve_figures,
    curve_notes,
    write_curve,
)
from skindx_bench.train.ensemble_passes import FoldPasses, fold_passes, served_passes
from skindx_bench.train.kept_predictions import Kept, origin_of, write_kept

# S = side

SMALLEST = ("folds=3", "use=[0]", "rounds=3", "batch=1", "views=2", "subsets=2")


class Config(Settings):
    """Models, data and folds; finished trainings in `out` are reused."""

    dataset: Path = Path("runs/isic9/data")
    config: Path = preset("zoo-isic9")
    """Training settings: every member is a row of the table, with its own or the run's recipe."""
    out: Path = Path("runs/zoo")
    folds: int = Field(5, ge=2)
    use: tuple[int, ...] = Field((0, 1, 2), min_length=1)
    """Folds to train on, of 0 .. folds - 1."""
    rounds: int = Field(5, ge=3)
    batch: int = Field(16, ge=1)
    """Images at once where inference is timed."""
    views: Views = 8
    """Most views in which the members are predicted, for single networks of an ensemble's cost. 1:
    nothing is predicted that training and evaluation did not predict already."""
    subsets: int = Field(200, ge=1)
    """Most subsets of members of one size that the curve is the mean of; drawn where there are
    more."""
    keep: Path | None = None
    """Folder for each member's predictions of the images that its fold left out, as
    DATASET-folds-NAME.parquet (see `real-skin`); needs all folds in `use`."""
    together: bool = False
    """Each rank trains a member of its own, several at the same time: sooner on a machine where
    ranks wait for each other, but energy is then no member's own."""


def run(settings: Config) -> Result:
    """Train every member on every fold, evaluate, and write OUT/zoo.md, zoo.csv and zoo.png.

    Of several members also OUT/curve.csv and curve.png: what ensembles of them gain.
    """
    end_on_sigterm()
    training = TrainSettings.load(settings.config).model_copy(update={"detector": None})
    if not training.members:
        raise UserError(f"{settings.config} has no members to train; list them under `members`.")
    homes = [settings.out / f"fold-{fold}" for fold in settings.use]
    for home, fold in zip(homes, settings.use, strict=True):
        fold_view(settings.dataset, home / "data", fold, settings.folds)
        _train_and_evaluate(home, training, together=settings.together)
    answers = [read_predictions(home / "evaluation") for home in homes]
    rows = _rows(settings, training, homes, answers)
    if settings.keep:
        _keep(settings.keep, settings, rows, homes, answers)
    figures, notes = figures_of(rows, answers), _notes(settings, training, homes)
    passes = _passes(settings, homes, answers)
    if len(passes[0].names) > 1 and len({fold.names for fold in passes}) == 1:
        points = curve(passes, settings.subsets)
        figures = figures | curve_figures(passes, points) | choice_figures(passes)
        notes += curve_notes(passes, points)
        write_curve(settings.out, passes, points, figures)
    result = Result(
        "model-comparison",
        figures,
        notes=notes,
        models={row.name: row.to_dict() for row in rows},
        headings=MEANS,
    )
    write_tables(settings.out, rows)
    return result


def _keep(
    folder: Path,
    settings: Config,
    rows: Sequence[ModelRow],
    homes: Sequence[Path],
    answers: Sequence[Answers],
) -> None:
    """Write what each member says of the images that its fold left out. Raises UserError."""
    if sorted(settings.use) != list(range(settings.folds)):
        raise UserError("keep needs every fold: leave out `use`, or name them all.")
    by_sha256 = {record.sha256: record for record in read_manifest(settings.dataset)}
    dataset = settings.dataset.resolve().parent.name
    bundle = open_bundle(homes[0] / "run" / "bundle")
    records = [by_sha256[sha256] for fold in answers for sha256 in fold.sha256_N]
    folds = [number for number, fold in enumerate(answers) for _ in range(len(fold))]
    for row in rows:
        if row.name == ENSEMBLE:
            continue
        alone = [alone_in(fold, row.name) for fold in answers]
        spec = next(member for member in bundle.spec.members if member.name == row.name)
        facts = {
            **{key: row.to_dict()[key] for key in ("model", "size", "parameters", "flops")},
            "images_per_s": row.infer_per_s.value if row.infer_per_s else None,
            "joules_per_image": row.joules_per_picture,
            "trained": "all layers",
            "views": spec.views,
            **origin_of(settings.dataset),
        }
        own_NC = np.concatenate([fold.ensemble_NC for fold in alone])
        kept = Kept.of(
            row.name, bundle.taxonomy.keys, records, folds, views={1: own_NC}, facts=facts
        )
        write_kept(folder / f"{dataset}-folds-{row.name}.parquet", kept)


def _train_and_evaluate(home: Path, training: TrainSettings, *, together: bool) -> None:
    """Finish a fold; one that an earlier call finished with the same settings stays as it is."""
    finished = {
        "settings": training.model_dump(mode="json"),
        "manifest": sha256_file(home / "data" / MANIFEST),
        "version": __version__,
    }
    key, file = {"finished": fingerprint_of(finished)}, home / "finished.json"
    if file.exists() and json.loads(file.read_text()) == key:
        return
    if together:
        _train_at_once(home, training)
    _train(home, training)
    run_skindx("evaluate", home / "run" / "bundle", home / "data", "--out", home / "evaluation")
    write_json(file, key)


def _train(home: Path, training: TrainSettings) -> None:
    """Train one member after the other into one run, so that time and memory are each one's own."""
    for count, member in enumerate(training.members, start=1):
        trained = _is_trained(home, member)
        begun = (home / "run" / "checkpoints" / member.name).exists()
        if trained and count < len(training.members):
            continue
        members = training.members[:count]
        # Soups and the like are made of all members: they come with the last one.
        settings = training if count == len(training.members) else _alone(training, members)
        settings.save(home / "zoo.yaml")
        with EnergyMeter() as meter:
            run_skindx("train", home / "data", "--config", home / "zoo.yaml", "--out", home / "run")
        _check_trained(home, member)
        if not (trained or begun):
            write_json(home / "cost" / f"{member.name}.json", meter.energy.as_dict())


def _train_at_once(home: Path, training: TrainSettings) -> None:
    """Train all but heads on frozen trunks, a member a rank; finished ones are reused."""
    members = tuple(member for member in training.members if member.trunk != "frozen")
    if all(_is_trained(home, member) for member in members):
        return
    engine = training.engine.model_copy(update={"schedule": "members"})
    settings = _alone(training, members).model_copy(update={"engine": engine})
    settings.save(home / "zoo.yaml")
    run_skindx("train", home / "data", "--config", home / "zoo.yaml", "--out", home / "run")
    for member in members:
        _check_trained(home, member)


def _is_trained(home: Path, member: MemberSettings) -> bool:
    return (member_folder(home / "run", member.name) / "member.json").exists()


def _check_trained(home: Path, member: MemberSettings) -> None:
    """Raise JobError for a training that was asked to stop, which saves and ends well."""
    if not _is_trained(home, member):
        raise JobError(f"{member.name} was stopped; run the same command again to go on")


def _alone(training: TrainSettings, members: tuple[MemberSettings, ...]) -> TrainSettings:
    return TrainSettings(
        name=training.name,
        members=members,
        folds=training.folds,
        recipe=training.recipe,
        engine=training.engine,
        loader=training.loader,
    )


def _rows(
    settings: Config, training: TrainSettings, homes: Sequence[Path], answers: Sequence[Answers]
) -> list[ModelRow]:
    bundle = open_bundle(homes[0] / "run" / "bundle")
    speed = _inference(bundle, settings)
    rows = []
    for member in training.members:
        histories = [read_history(home / "run", member.name) for home in homes]
        facts = _facts(bundle, member.name)
        rows.append(
            ModelRow(
                name=member.name,
                model=member.model,
                size=member.preprocess.size,
                parameters=facts[0],
                flops=facts[1],
                scores=pool_answers([alone_in(fold, member.name) for fold in answers], homes),
                validation=float(np.mean([history[-1]["val_balanced"] for history in histories])),
                train_per_s=_training_speed(histories),
                infer_per_s=speed[member.name],
                minutes=_minutes(homes, histories),
                memory_gb=max(row.get("memory_gb", 0.0) for h in histories for row in h) or None,
                joules_per_picture=_joules(homes, member.name, histories),
            )
        )
    rows.append(ModelRow(name=ENSEMBLE, scores=pool_answers(answers, homes)))
    return rows


def _training_speed(histories: Sequence[Sequence[dict[str, float]]]) -> Figure | None:
    """Return the speed of the last epochs; None for a head, which learns features."""
    last = [row for history in histories for row in history[-3:]]
    if any("pictures_per_s" not in row for row in last) or len(last) == 1:
        return None
    return median([row["pictures_per_s"] for row in last], "images/s")


def _minutes(
    homes: Sequence[Path], histories: Sequence[Sequence[dict[str, float]]]
) -> float | None:
    """Return the time of the training steps on the slowest fold; None for a head."""
    if any("pictures_per_s" not in row for history in histories for row in history):
        return None
    return max(
        sum(_training_images(home) / row["pictures_per_s"] / 60 for row in history)
        for home, history in zip(homes, histories, strict=True)
    )


def _passes(
    settings: Config, homes: Sequence[Path], answers: Sequence[Answers]
) -> list[FoldPasses]:
    """Return what the members of every fold say of validation and test images."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    bundles = [open_bundle(home / "run" / "bundle") for home in homes]
    members = bundles[0].spec.members
    flops = {member.name: _facts(bundles[0], member.name)[1] for member in members}
    if settings.views == 1 and all(m.views == 1 for bundle in bundles for m in bundle.spec.members):
        return [
            served_passes(home, bundle, flops, own)
            for home, bundle, own in zip(homes, bundles, answers, strict=True)
        ]
    return [
        fold_passes(home, bundle, flops, settings.views, device)
        for home, bundle in zip(homes, bundles, strict=True)
    ]


def _inference(bundle: Bundle, settings: Config) -> dict[str, Figure]:
    """Time each member as it is served: normalising, network, views."""
    import torch

    ensemble = bundle.ensemble("cuda" if torch.cuda.is_available() else "cpu")
    rng = np.random.default_rng(0)
    candidates = {}
    for member in ensemble.members:
        side = member.preprocess.size
        squares = rng.integers(0, 256, (settings.batch, side, side, 3), dtype=np.uint8)
        predict = member.log_probabilities_of_squares
        candidates[member.name] = lambda predict=predict, squares=squares: predict([squares])
    seconds = interleave(candidates, settings.rounds)
    return {
        name: median([settings.batch / elapsed for elapsed in samples], "images/s")
        for name, samples in seconds.items()
    }


def _facts(bundle: Bundle, name: str) -> tuple[int, int]:
    """Return a member's parameters, and the operations of one forward pass (2 a multiply-add)."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    member = next(member for member in bundle.ensemble().members if member.name == name)
    side = member.preprocess.size
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        member.classifier(torch.zeros(1, side, side, 3, dtype=torch.uint8))
    parameters = sum(parameter.numel() for parameter in member.classifier.parameters())
    return parameters, counter.get_total_flops()


def _training_images(home: Path) -> int:
    return len(split_of(read_manifest(home / "data"), "train"))


def _joules(
    homes: Sequence[Path], name: str, histories: Sequence[Sequence[object]]
) -> float | None:
    """Return joules a training image; None without a sensor or where a training was interrupted."""
    per_image = []
    for home, history in zip(homes, histories, strict=True):
        file = home / "cost" / f"{name}.json"
        joules = json.loads(file.read_text())["joules"] if file.exists() else None
        if joules is None:
            return None
        per_image.append(joules / (_training_images(home) * len(history)))
    return float(np.mean(per_image))


def _notes(settings: Config, training: TrainSettings, homes: Sequence[Path]) -> tuple[str, ...]:
    left = [str(fold) for fold in range(settings.folds) if fold not in settings.use]
    unused = f" (folds {', '.join(left)} were not trained)" if left else ""
    counts = [len(split_of(read_manifest(home / "data"), "test")) for home in homes]
    return (
        f"{settings.dataset.resolve().parent.name}: folds {', '.join(map(str, settings.use))} of "
        f"{settings.folds}{unused}, whole groups only; trained on the rest but a tenth, which "
        f"chooses; {sum(counts)} test images in all. Settings: {settings.config.name}.",
        f"{training.recipe.epochs} epochs of batches of {training.recipe.batch} for members "
        "without a recipe of their own; minutes: training steps of the slowest fold.",
        "Figures over folds: mean of the folds, in brackets the 95 % bootstrap interval of the "
        "pooled test images, resampled by group. best_by_validation: the member with the best "
        "mean on the validation splits. ensemble_minus_best: against the best on test, which is "
        "the harder comparison. Calibration error: of the pooled images, since the fewer stand "
        "in a bin, the larger it looks.",
        f"inference: batches of {settings.batch}, all cores; one operation is half a multiply-add.",
    )
