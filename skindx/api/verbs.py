"""The verbs as functions: `build`, `train`, `evaluate`, with the settings of the command line."""

import json
import math
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from skindx.api.dataset import Dataset
from skindx.core.errors import UserError, known_keywords
from skindx.core.machine import require_extra
from skindx.core.progress import Progress, silent
from skindx.core.settings_base import Settings
from skindx.data.manifest import Split

if TYPE_CHECKING:
    from skindx.api.model import Model
    from skindx.data.recipe import BuildSettings
    from skindx.evaluation.image_table import Pictures
    from skindx.evaluation.score import ClassScore, Evaluation
    from skindx.evaluation.served_scores import ServedScore
    from skindx.metrics import Interval
    from skindx.training.config.run import TrainSettings


AnySettings = TypeVar("AnySettings", bound=Settings)


@known_keywords
def build(
    source: "str | os.PathLike[str] | BuildSettings | Mapping[str, Any]",
    out: "str | os.PathLike[str]",
    *,
    taxonomy: str | None = None,
    urgency: Mapping[str, str] | None = None,
    sets: Sequence[str] = (),
    resplit: bool = False,
    join_copies: bool = False,
    cluster: str | None = None,
    progress: Progress = silent,
) -> Dataset:
    """Build a dataset as `skindx build` does, and open it.

    `source` is a recipe (a file, a mapping or BuildSettings), or a folder with one subfolder for
    each class. `urgency` maps a class to urgent, soon or routine; `sets` are A.B=VALUE. Raises
    UserError for bad input, before anything is written where that can be known.
    """
    from skindx.data.build.build_dataset import build as build_dataset
    from skindx.data.recipe import BuildSettings, load_build_settings

    if isinstance(source, BuildSettings | Mapping):
        if taxonomy is not None or urgency or sets:
            raise UserError(
                "`taxonomy`, `urgency` and `sets` work only with a recipe file; write them into "
                "the settings that you give as an object."
            )
        settings = _settings(BuildSettings, source)
    else:
        tiers = [f"{label}={tier}" for label, tier in (urgency or {}).items()]
        settings = load_build_settings(Path(source), sets, taxonomy, tiers)
    folder = Path(out)
    build_dataset(
        settings,
        folder,
        resplit=resplit,
        join_copies=join_copies,
        progress=progress,
        cluster=cluster,
    )
    return Dataset(folder)


@known_keywords
def train(
    dataset: "str | os.PathLike[str] | Dataset",
    out: "str | os.PathLike[str]",
    settings: "str | os.PathLike[str] | TrainSettings | Mapping[str, Any] | None" = None,
    *,
    weights: "str | os.PathLike[str] | None" = None,
    sets: Sequence[str] = (),
    progress: Progress = silent,
) -> "Model":
    """Train a run as `skindx train` does, and load its bundle; the same call resumes it.

    `settings` are a YAML file, a mapping or TrainSettings; None: one network that starts from
    `weights`, or from pretrained weights at hand. Ranks are processes of their own, which draw
    their bars on standard error. `progress` is called from a thread with a member's name, its
    finished epochs, and all of them. Raises UserError for bad input, JobError for ranks that fail.
    """
    needed = ("albumentations", "deepspeed", "matplotlib", "psutil", "sklearn", "sqlalchemy")
    require_extra("train", *needed, purpose="training")
    from skindx.api.model import load
    from skindx.training.config.run import TrainSettings
    from skindx.training.member_networks import with_default_network
    from skindx.training.run import train as train_run

    if os.environ.get("RANK"):
        raise UserError(
            "skindx.train starts its ranks itself; run your program without torchrun or srun."
        )
    chosen = _settings(TrainSettings, settings, sets)
    if weights is not None:
        chosen = chosen.starting_from(Path(weights))
    elif settings is None:
        chosen = with_default_network(chosen, random_weights=False)
    run = Path(out)
    with _epochs_reported(run, chosen, progress):
        bundle = train_run(_path(dataset), chosen, run)
    assert bundle
    return load(bundle.path)


@dataclass(frozen=True, repr=False)
class EvaluationReport:
    """What `evaluate` measured and where it wrote it."""

    folder: Path
    """Folder with report.html, metrics.json, predictions.csv and predictions.parquet."""
    scores: "Evaluation"
    digest: str | None
    """Digest of the bundle that now holds these figures; None: they are not of its test split."""
    evaluation_digest: str | None = None
    """SHA-256 of evaluation.json, for the evaluation beside the bundle."""

    @property
    def metrics(self) -> dict[str, Any]:
        """The figures with their 95 % intervals, as in metrics.json."""
        from skindx.evaluation.evaluate import METRICS

        figures: dict[str, Any] = json.loads((self.folder / METRICS).read_text(encoding="utf-8"))
        return figures

    @property
    def figures(self) -> "dict[str, Interval]":
        """The ensemble's headline figures by their keys in metrics.json: value, low and high."""
        return self.scores.ensemble.figures

    @property
    def top1(self) -> "Interval":
        """The share of images whose likeliest class is the true one, with its 95 % interval."""
        return self.scores.ensemble.top1

    @property
    def balanced_accuracy(self) -> "Interval":
        """The share found of each class, averaged over classes."""
        return self.scores.ensemble.balanced_accuracy

    @property
    def auroc(self) -> "Interval":
        """AUROC of one class against the rest, averaged over classes."""
        return self.scores.ensemble.auroc

    @property
    def log_loss(self) -> "Interval":
        """The mean of minus the logarithm of the true class's probability; low is good."""
        return self.scores.ensemble.log_loss

    @property
    def classes(self) -> "dict[str, ClassScore]":
        """Each class by its key: images, groups, sensitivity, observed over expected."""
        return {one.key: one for one in self.scores.classes}

    @property
    def served(self) -> "dict[str, ServedScore]":
        """Next steps, refusals and abstentions of `urgent classes`, `other classes` and `all`."""
        return {one.name: one for one in self.scores.served}

    @property
    def not_useful(self) -> tuple[str, ...]:
        """Why the bundle is not useful yet, in sentences; empty where nothing says so."""
        return self.scores.not_useful

    def _rows(self) -> list[tuple[str, str]]:
        from skindx.evaluation.figures import FIGURES, bounds, shown, title

        scores = self.scores
        own = {key: one for key, one in self.figures.items() if math.isfinite(one.value)}
        return [("images (groups)", f"{scores.pictures} ({scores.groups})")] + [
            (title(key, scores.k), f"{shown(one, key)} {bounds(one, FIGURES[key].unit)}")
            for key, one in own.items()
        ]

    def __repr__(self) -> str:
        """Show the folder and the headline figures, one a line."""
        lines = [f"{name}: {text}" for name, text in self._rows()]
        return "\n  ".join([f"<EvaluationReport {self.folder}", *self.not_useful, *lines]) + ">"

    def _repr_html_(self) -> str:
        """Show the same as a table in a notebook."""
        rows = "".join(
            f"<tr><td>{escape(name)}</td><td>{escape(text)}</td></tr>"
            for name, text in self._rows()
        )
        notes = "".join(f"<p><b>{escape(reason)}</b></p>" for reason in self.not_useful)
        return f"{notes}<table>{rows}</table>"


@known_keywords
def evaluate(
    bundle: "str | os.PathLike[str]",
    dataset: "str | os.PathLike[str] | Dataset",
    out: "str | os.PathLike[str] | None" = None,
    *,
    split: "Split | str | None" = None,
    external: bool = False,
    internal: "str | os.PathLike[str] | None" = None,
    digest: str | None = None,
    miss_rate: float | None = None,
    pictures: "Pictures" = "licensed",
    progress: Progress = silent,
) -> EvaluationReport:
    """Evaluate a bundle on a dataset as `skindx evaluate` does.

    `out` is by default evaluation/ beside the bundle, or external/; `split` test, or all of an
    `external` dataset; `pictures` of mistakes are `licensed`, `local` or `none`. Figures of the
    test split and the model card with them are put beside the bundle, whose digest stays.
    Raises UserError for bad input.
    """
    from skindx.evaluation.evaluate import evaluate as evaluate_bundle
    from skindx.models.bundle.bundle_changes import add_metrics
    from skindx.models.bundle.installed import InstalledPath, beside, bundle_path

    path = bundle_path(bundle)
    external = external or internal is not None
    folder = Path(out) if out else beside(path, "external" if external else "evaluation")
    part: Any = split or ("all" if external else "test")
    scores = evaluate_bundle(
        path,
        _path(dataset),
        folder,
        split=part,
        progress=partial(progress, "evaluate"),
        copies_progress=partial(progress, "copies"),
        expect=digest,
        miss_rate=miss_rate,
        external=external,
        internal=Path(internal) if internal else None,
        pictures=pictures,
    )
    report = EvaluationReport(folder, scores, None)
    if part == "test" and not (scores.external or external or isinstance(path, InstalledPath)):
        changed = add_metrics(path, report.metrics, digest)
        return replace(report, digest=changed.digest, evaluation_digest=changed.evaluation)
    return report


def _path(dataset: "str | os.PathLike[str] | Dataset") -> Path:
    return dataset.path if isinstance(dataset, Dataset) else Path(dataset)


def _settings(kind: type[AnySettings], given: Any, sets: Sequence[str] = ()) -> AnySettings:
    if isinstance(given, kind):
        if sets:
            raise UserError(
                "`sets` works only with a settings file; change the values in the settings "
                "object instead."
            )
        return given
    if given is None or isinstance(given, Mapping):
        return kind.load(None, sets, start=dict(given or {}))
    return kind.load(Path(given), sets)


@contextmanager
def _epochs_reported(run: Path, settings: "TrainSettings", progress: Progress) -> Iterator[None]:
    """Report each member's epochs while the block trains, by the histories that the ranks write."""
    from skindx.training.checkpoint.finished import HISTORY, member_folder

    if progress is silent:
        yield
        return
    totals = {member.name: settings.recipe_of(member).epochs for member in settings.members}
    reported: dict[str, int] = {}
    ended = threading.Event()

    def look() -> None:
        for name, total in totals.items():
            with suppress(OSError):
                lines = (member_folder(run, name) / HISTORY).read_bytes().count(b"\n")
                if lines - 1 > reported.get(name, 0):
                    reported[name] = lines - 1
                    progress(name, lines - 1, total)

    def watch() -> None:
        while not ended.wait(0.5):
            look()

    thread = threading.Thread(target=watch, name="skindx-epochs", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        look()
