"""Two or more networks out of fold, trained on any machine, a fold at a time, and what they gain.

After each finished fold its rows are kept: image, group, fold, member, truth and log-probabilities
in one view and in two, with the settings, the dataset, the seed, the machine and the seconds
behind them. Started elsewhere, the same command takes rows that fit as done and trains the rest. No
image of the splits calibration and test is seen.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from pydantic import Field

from skindx.core.errors import UserError
from skindx.core.settings_base import Settings
from skindx.core.text import MADE_FROM, differences
from skindx.core.untrusted import read_json
from skindx.data.layout import MANIFEST, TAXONOMY
from skindx.data.loader.batches import partition
from skindx.data.manifest import read_manifest
from skindx.models.classifier.classifier import build_classifier
from skindx.models.classifier.preprocess import Views
from skindx.models.ensemble import Member
from skindx.taxonomy import Taxonomy
from skindx.training.checkpoint.fingerprints import fingerprint, fingerprint_of
from skindx.training.checkpoint.finished import load_member, member_folder
from skindx.training.config.run import MemberSettings, TrainSettings
from skindx.training.parallel.mesh import resolve_accelerator
from skindx.training.run import finish_members
from skindx_bench.harness.result import MEANS, Result
from skindx_bench.harness.training import end_on_sigterm, read_history
from skindx_bench.train.ensemble_curve import curve
from skindx_bench.train.ensemble_curve_figures import curve_figures
from skindx_bench.train.ensemble_passes import mean_of_views, predict_views
from skindx_bench.train.fold_gains import TUNED, Study, class_gains, gains, trials
from skindx_bench.train.kept_predictions import Kept, costs_of, origin_of, read_kept, write_kept

# N = images, C = classes, V = views

SMALLEST = ("missing=leave", "least_folds=2", "views=1")

BALANCED = ("balanced_rule_accuracy", TUNED)
"""The rules of the classes' gains."""
_DIVERSITY = ("disagreement", "mistake_correlation", "error_correlation")
_CLOSE = 0.02
"""Largest difference in nats between what a training said and what its weights say again."""


class Config(Settings):
    """Members, data, and where rows are kept."""

    dataset: Path = Path("runs/ham10000/data")
    """Without it figures are made from kept rows alone."""
    config: Path = Path("configs/ham10000-folds.yaml")
    """Training settings: members with `fold: each`."""
    train: tuple[str, ...] = ()
    """KEY=VALUE of these settings, such as engine.accelerator=cuda."""
    out: Path = Path("runs/ham10000-folds")
    """A run for each member and fold; a training that is stopped goes on from its checkpoints."""
    kept: Path = Path("docs/measured/folds-ham10000")
    """The rows, MEMBER-foldK.parquet."""
    imports: tuple[Path, ...] = ()
    """Runs of `skindx train` whose finished folds are taken over."""
    missing: Literal["train", "leave"] = "train"
    """leave: nothing is trained; figures are of the folds that are there."""
    least_folds: int = Field(3, ge=2)
    """Fewer folds that all members have finished give no figures."""
    views: Views = 2
    """Most views in which images are judged, for single networks of the ensemble's passes."""


class FoldOf(NamedTuple):
    """A member and one of its folds."""

    name: str
    """Of the member, without its fold."""
    settings: MemberSettings

    @property
    def fold(self) -> int:
        """The fold that judges."""
        assert self.settings.fold is not None
        return self.settings.fold

    def file(self, kept: Path) -> Path:
        """Return the file of its rows."""
        return kept / f"{self.settings.name}.parquet"


def run(settings: Config) -> Result:
    """Take over, train and keep folds, then make the figures of those that all members have."""
    end_on_sigterm()
    training = TrainSettings.load(settings.config, list(settings.train))
    folds = folds_of(training, settings.config)
    if (settings.dataset / MANIFEST).is_file():
        check_rows(folds, training, settings)
        take_over(folds, training, settings)
        if settings.missing == "train":
            for own in folds:
                if not own.file(settings.kept).exists():
                    train_fold(own, training, settings)
    elif settings.imports or settings.missing == "train":
        raise UserError(
            f"{settings.dataset} is no dataset; build it first, give it with `--set dataset=…`, or "
            "make figures of the kept rows alone with `--set missing=leave`."
        )
    return figures_of(folds, training, settings)


def folds_of(training: TrainSettings, file: Path) -> list[FoldOf]:
    """Return all members by fold, fold after fold. Raises UserError for a member without folds."""
    for member in training.members:
        if member.fold is None or not member.name.endswith(f"-fold{member.fold}"):
            raise UserError(f"{file}: member {member.name} has no folds; give it `fold: each`.")
    found = [FoldOf(own.name.removesuffix(f"-fold{own.fold}"), own) for own in training.members]
    if len({own.name for own in found}) < 2:
        raise UserError(f"{file} has one member; an ensemble out of fold takes two or more.")
    return sorted(found, key=lambda own: own.fold)


def made_of(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a training's fingerprint decides its rows, on whatever machine it ran.

    Starting weights count by their content, and a recipe wherever it stands.
    """
    elsewhere = ("name", "weights", "recipe")
    member = {key: value for key, value in parts["member"].items() if key not in elsewhere}
    return {**parts, "member": member}


def expected_of(own: FoldOf, training: TrainSettings, dataset: Path) -> dict[str, Any]:
    """Return what the rows of a fold have to be made of. Raises UserError without its weights."""
    weights = own.settings.weights
    if weights and not weights.is_file():
        raise UserError(f"{weights}, from which {own.settings.name} starts, is not there.")
    return made_of(fingerprint(training, own.settings, dataset).parts)


def check_rows(folds: Sequence[FoldOf], training: TrainSettings, settings: Config) -> None:
    """Raise UserError for rows that are kept of other settings or another dataset."""
    for own in folds:
        file = own.file(settings.kept)
        if file.exists() or settings.missing == "train":
            expected = expected_of(own, training, settings.dataset)
            made = read_kept(file).facts.get(MADE_FROM) if file.exists() else expected
            if made != expected:
                raise UserError(
                    f"{file} was kept of other settings or another dataset "
                    f"({differences(made, expected)}); give another folder with `--set kept=…`, or "
                    "remove the file to train that fold again."
                )


def take_over(folds: Sequence[FoldOf], training: TrainSettings, settings: Config) -> None:
    """Keep the rows of all folds that the imported runs have finished; kept ones stay."""
    for own in folds:
        for home in settings.imports:
            if not home.is_dir():
                raise UserError(f"{home} is not a run; give folders of `skindx train --out`.")
            index = member_folder(home, own.settings.name) / "member.json"
            if index.is_file() and not own.file(settings.kept).exists():
                made = read_json(index, finite=False).get(MADE_FROM)
                made = made_of(made) if isinstance(made, dict) and "member" in made else made
                expected = expected_of(own, training, settings.dataset)
                if made != expected:
                    raise UserError(
                        f"{own.settings.name} of {home} was trained with other settings or data "
                        f"than {settings.config} says ({differences(made, expected)}); leave that "
                        "run out."
                    )
                keep(own, home, training, settings)


def train_fold(own: FoldOf, training: TrainSettings, settings: Config) -> None:
    """Train one fold of one member in a run of its own, and keep its rows."""
    alone = training.model_copy(update={"members": (own.settings,)})
    home = settings.out / own.settings.name
    finish_members(home, settings.dataset, alone)
    keep(own, home, training, settings)


def keep(own: FoldOf, home: Path, training: TrainSettings, settings: Config) -> None:
    """Judge a finished fold's images in all views, and keep the rows."""
    records = read_manifest(settings.dataset)
    learned, held = partition(records, own.fold, training.folds)
    classes = Taxonomy.load(settings.dataset / TAXONOMY).keys
    finished = load_member(home, own.settings.name)
    classifier = build_classifier(own.settings.network(), len(classes))
    classifier.net.load_state_dict(finished.state)
    preprocess = own.settings.preprocess
    costs = costs_of(classifier.eval(), preprocess.size)
    classifier.to(resolve_accelerator(training.engine.accelerator))
    member = Member(own.settings.name, classifier, preprocess)
    begun = time.monotonic()
    log_VNC = predict_views(member, settings.dataset, held, settings.views)
    apart = np.abs(np.exp(log_VNC[0]) - np.exp(finished.validation_NC)).max()
    if apart > _CLOSE:
        raise UserError(
            f"the weights of {own.settings.name} in {home} answer otherwise than when they were "
            f"trained, by up to {apart:.2f} in a probability; train that fold again."
        )
    views = mean_of_views(log_VNC[:, None], [1.0])
    parts = expected_of(own, training, settings.dataset)
    facts = {
        "model": own.settings.model,
        "size": preprocess.size,
        "frame": preprocess.frame,
        "trained": "all layers",
        **costs,
        "seed": own.settings.seed,
        "training_images": len(learned),
        "training_s": round(training_seconds(home, own.settings.name, len(learned))),
        "judging_s": round(time.monotonic() - begun),
        **origin_of(settings.dataset),
        "settings_sha256": str(fingerprint_of(parts)),
        MADE_FROM: parts,
    }
    rows = {count: own_1NC[0] for count, own_1NC in views.items()}
    numbers = [own.fold] * len(held)
    kept = Kept.of(own.name, classes, held, numbers, views=rows, facts=facts, confirmed=True)
    write_kept(own.file(settings.kept), kept)
    print(f"kept {own.file(settings.kept)}: {len(held)} images", flush=True)


def training_seconds(home: Path, name: str, images: int) -> float:
    """Return how long the steps of a finished member took, without validation."""
    return sum(images / row["pictures_per_s"] for row in read_history(home, name))


def members_of(folds: Sequence[FoldOf], kept: Path) -> tuple[list[Kept], list[int]]:
    """Return the members on the folds that all of them have, and these folds.

    Raises UserError for rows of different settings or data among the folds of a member.
    """
    there: dict[str, dict[int, Kept]] = {}
    for own in folds:
        parts = there.setdefault(own.name, {})
        if own.file(kept).exists():
            parts[own.fold] = read_kept(own.file(kept))
    common = sorted(set.intersection(*(set(parts) for parts in there.values())))
    rows = [joined([parts[fold] for fold in common]) for parts in there.values() if common]
    if len({row.facts.get("manifest_sha256") for row in rows}) > 1:
        raise UserError(f"{kept} holds rows of several datasets; keep each in a folder of its own.")
    return rows, common


def joined(parts: Sequence[Kept]) -> Kept:
    """Return the folds of one member as one. Raises UserError for folds of other trainings."""
    for part in parts[1:]:
        ours, theirs = (_without_fold(one.facts.get(MADE_FROM)) for one in (parts[0], part))
        if ours != theirs:
            raise UserError(
                f"the folds of {part.name} were kept of different settings or data "
                f"({differences(ours, theirs)}); remove those that are not wanted."
            )
    order_N = np.argsort(np.concatenate([part.images_N for part in parts]), kind="stable")

    def together(name: str) -> Any:
        return np.concatenate([getattr(part, name) for part in parts])[order_N]

    with_words = all(part.confirmed_N is not None for part in parts)
    counts = set.intersection(*(set(part.views) for part in parts))
    return replace(
        parts[0],
        images_N=together("images_N"),
        groups_N=together("groups_N"),
        truth_N=together("truth_N"),
        fold_N=together("fold_N"),
        views={
            count: np.concatenate([part.views[count] for part in parts])[order_N]
            for count in sorted(counts)
        },
        confirmed_N=together("confirmed_N") if with_words else None,
    )


def _without_fold(made: Any) -> Any:
    if not isinstance(made, Mapping):
        return made
    return {**made, "member": {**made["member"], "fold": None}}


def figures_of(folds: Sequence[FoldOf], training: TrainSettings, settings: Config) -> Result:
    """Return the figures of the folds that are there. Raises UserError for too few."""
    members, common = members_of(folds, settings.kept)
    if len(common) < settings.least_folds:
        raise UserError(
            f"{settings.kept} has {len(common)} folds that all members have finished, and figures "
            f"take {settings.least_folds}; run the same command again, here or elsewhere."
        )
    study = Study(members)
    figures, parts = gains(study)
    tried, rivals = trials(study)
    figures |= tried
    for rule in BALANCED:
        figures |= class_gains(study, rule)
    passes = [fold.passes for fold in study.folds]
    said = curve_figures(passes, curve(passes, 1))
    figures |= {key: said[key] for key in _DIVERSITY}
    rows = dict(_rows(folds, settings.kept))
    parts |= {"tries": rivals, "folds": {"finished": common, "of": training.folds}}
    return Result("folds", figures, notes=(_NOTE,), models=rows, parts=parts, headings=MEANS)


_NOTE = (
    "Each image is judged by networks that did not learn from its lesion; calibration and test "
    "images are not seen. Members are calibrated class by class on the other folds; the ensemble "
    "is the mean of their calibrated probabilities, calibrated there again. The chosen member is "
    "the one that the other folds put first by the figure of the row; the strongest one is put "
    "first by the judged images themselves. The balanced rule divides probabilities by the shares "
    "of the classes in the other folds; the tuned rule multiplies them by the factors of the "
    "classes that name best there, found for every predictor alike. Differences: 95 % by a "
    "bootstrap over lesions within each "
    "fold, paired. Other tables join to an interval what a sample may lack, counted by the "
    "effective number of groups, which one large group lowers. One network of its cost sees as "
    "many views as the ensemble takes passes."
)


def _rows(folds: Sequence[FoldOf], kept: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield of each fold that is kept what it is, without the settings in full."""
    for own in folds:
        if own.file(kept).exists():
            rows = read_kept(own.file(kept))
            facts = {key: value for key, value in rows.facts.items() if key != MADE_FROM}
            yield (
                own.settings.name,
                {"member": own.name, "fold": own.fold, "images": len(rows.truth_N), **facts},
            )
