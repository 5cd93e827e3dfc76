"""`skindx features evaluate`: embeddings of any tower become heads, a bundle and a report.

The tower need not be here: train fits the heads, validation chooses one and its temperature,
calibration fits sets, thresholds and checks, and test is read by the evaluation alone.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from skindx.core.atomic_files import write_json
from skindx.core.errors import UserError
from skindx.core.machine import how_to_install, missing_modules
from skindx.core.measurement import torch_threads
from skindx.core.text import counted
from skindx.core.untrusted import read_json
from skindx.data.embedding_files import EmbeddingRows, read_embedding_rows
from skindx.data.layout import TAXONOMY
from skindx.data.manifest import Record, check_sample, read_manifest, split_of
from skindx.diagnosis.predictor import Predictor
from skindx.evaluation.answers import Part
from skindx.evaluation.evaluate import EVALUATION, METRICS, Progress, evaluate_served, split_records
from skindx.evaluation.figures import bounds, figures_table
from skindx.evaluation.score import Evaluation
from skindx.imaging.sandboxed_images import decode_limited
from skindx.metrics import Interval, Statistic, confidence_interval
from skindx.models.bundle.bundle import BUNDLE, Bundle, open_bundle, trunk_file
from skindx.models.bundle.bundle_changes import add_metrics
from skindx.models.bundle.bundle_index import MemberSpec
from skindx.models.bundle.installed import bundle_path, is_installed
from skindx.models.class_calibration import fit_class_calibration
from skindx.models.classifier.classifier import ClassifierSettings, fitted_network
from skindx.models.classifier.head_kinds import Head, KnnHead, LinearHead, MlpHead, PrototypeHead
from skindx.models.classifier.preprocess import framed_square
from skindx.models.classifier.pretrained import Trunk, open_trunk
from skindx.models.combination import apply_temperature, fit_temperature, log
from skindx.models.embedded import (
    EMBEDDINGS,
    PLACE,
    EmbeddingsSpec,
    embedded_decoder,
    embedded_member,
)
from skindx.models.ensemble import Ensemble, decoded
from skindx.models.towers import TowerOrigin, is_tower, resolve_tower
from skindx.taxonomy import Taxonomy
from skindx.training.callbacks import Silent
from skindx.training.checkpoint.finished import FinishedMember
from skindx.training.config.run import MemberSettings, TrainSettings
from skindx.training.ensembles.ready_ensemble import ReadyEnsemble, fit_facts, pack_ensemble
from skindx.training.loop import fit
from skindx.training.tasks.head_data import HeadData, solve
from skindx.training.tasks.heads_task import setup_heads
from skindx.training.tasks.open_sets import class_numbers

if TYPE_CHECKING:
    from rich.table import Table


HEADS: dict[str, Head] = {
    "linear": LinearHead(solver="exact"),
    "mlp": MlpHead(),
    "knn": KnnHead(),
    "prototypes": PrototypeHead(),
}
"""Heads that are fitted, by the name of the option."""

RECIPE: dict[str, Any] = {"epochs": 30, "batch": 64, "class_weights": "sqrt"}
"""Recipe of heads that train in steps; its class weights apply to all heads."""


@dataclass(frozen=True)
class EmbeddedHead:
    """One head and its figures on the validation images."""

    name: str
    settings: Head
    finished: FinishedMember
    temperature: float
    loss: float
    """Negative log-likelihood of a validation image, after the temperature: the least is chosen."""
    balanced: Interval

    def figures(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        low, high = self.balanced.low, self.balanced.high
        return {
            "name": self.name,
            "temperature": self.temperature,
            "loss": self.loss,
            "balanced_accuracy": {"value": self.balanced.value, "low": low, "high": high},
        }


def fit_heads(
    wanted: Sequence[str],
    rows: EmbeddingRows,
    records: Sequence[Record],
    classes: Sequence[str],
    *,
    place: str = PLACE,
    say: Callable[[str], None] = print,
) -> list[EmbeddedHead]:
    """Fit heads on the training images and measure them on validation, best first; none: all.

    Raises UserError for a head that needs what is not installed, where it is asked for by name.
    """
    names = list(dict.fromkeys(wanted)) or list(HEADS)
    if unknown := [name for name in names if name not in HEADS]:
        raise UserError(f"there is no head {unknown[0]!r}; choose --head from {', '.join(HEADS)}.")
    by_steps = [name for name in names if not HEADS[name].solved]
    if by_steps and missing_modules("deepspeed"):
        text = f"head {by_steps[0]} needs DeepSpeed; run {how_to_install('train')}"
        if wanted:
            raise UserError(f"{text}, or leave it out.")
        say(f"without the {text}")
        names = [name for name in names if name not in by_steps]
    settings = TrainSettings.parse(
        {
            "members": [
                {
                    "name": name,
                    "model": EMBEDDINGS,
                    "trunk": "frozen",
                    "head": HEADS[name].model_dump(),
                }
                for name in names
            ],
            "recipe": RECIPE,
        },
        expand=False,
    )
    labels_P = class_numbers(list(records), tuple(classes))
    split_P = np.array([record.split for record in records])
    train_N, val_N = np.flatnonzero(split_P == "train"), np.flatnonzero(split_P == "val")
    groups_N = np.array([record.group for record in split_of(records, "val")])
    result = []
    for member in settings.members:
        data = HeadData(member, [rows.embeddings_PD], labels_P, train_N, val_N, len(classes))
        if member.head.solved:
            finished = solve(data, settings.recipe, place).finished
        else:
            finished = _by_steps(settings, data, place)
        result.append(_measured(member, finished, groups_N))
    return sorted(result, key=lambda head: head.loss)


def _by_steps(settings: TrainSettings, data: HeadData, place: str) -> FinishedMember:
    from skindx.training.deepspeed.ranks import join_nobody
    from skindx.training.parallel.mesh import leave

    mesh = join_nobody(settings.engine)
    os.environ.setdefault("LOCAL_RANK", "0")  # which DeepSpeed asks of a launcher
    try:
        with torch_threads(1):  # joining took all cores
            training = setup_heads(
                settings,
                [data],
                label=data.member.name,
                place=place,
                mesh=mesh,
                say=lambda line: None,
            )
            (finished,) = fit(training, Silent())
            training.engine.close()
    finally:
        leave()
    return finished


def _measured(
    member: MemberSettings, finished: FinishedMember, groups_N: NDArray[np.str_]
) -> EmbeddedHead:
    log_NC, truth_N = finished.validation_NC, finished.truth_N
    temperature = fit_temperature(log_NC, truth_N)
    probabilities_NC = apply_temperature(log_NC, temperature)
    of_truth_N = np.maximum(probabilities_NC[np.arange(len(truth_N)), truth_N], 1e-12)
    return EmbeddedHead(
        member.name,
        fitted_network(member.network(), finished.state).head,
        finished,
        temperature,
        -float(np.log(of_truth_N).mean()),
        confidence_interval(Statistic.balanced_accuracy(probabilities_NC, truth_N), groups_N),
    )


@dataclass(frozen=True)
class PresentTower:
    """The network that made the embeddings, where it is on this machine."""

    network: ClassifierSettings
    trunk: Trunk
    origin: TowerOrigin | None


def find_tower(name: str) -> PresentTower:
    """Return the tower hf-hub:ORG/NAME or local-dir:FOLDER, or that of a bundle's frozen trunk.

    Raises UserError for a name that is none of them.
    """
    if is_tower(name):
        resolved = resolve_tower(name, pretrained=True, user_args={}, user_preprocess={})
        assert resolved.weights is not None
        trunk = open_trunk(resolved.network, resolved.weights)
        return PresentTower(resolved.network, trunk, resolved.origin)
    path = bundle_path(name) if is_installed(name) else Path(name)
    if not path.exists():
        raise UserError(
            f"there is no tower {name!r}; give --tower a folder (local-dir:FOLDER), a Hugging "
            "Face model (hf-hub:ORG/NAME), or a bundle of heads on a frozen trunk."
        )
    bundle = open_bundle(path)
    member = next((member for member in bundle.spec.members if member.trunk), None)
    if member is None:
        raise UserError(
            f"the bundle {path} has no frozen trunk, so it computes no embeddings; give --tower a "
            "folder (local-dir:FOLDER) or a Hugging Face model (hf-hub:ORG/NAME)."
        )
    trunk = open_trunk(member.classifier, path / trunk_file(member.trunk))
    return PresentTower(member.classifier, trunk, member.tower)


LEAST_COSINE = 0.95
"""Least cosine of the tower's features here and the embeddings, both minus the mean embedding."""
_COMPARED = 16


def compare_tower(
    tower: PresentTower, rows: EmbeddingRows, dataset: Path, records: Sequence[Record]
) -> float:
    """Return the median cosine between embeddings and what the tower makes of the same images.

    Both are about the dataset's mean: what all embeddings of a tower have in common says nothing.
    Raises UserError for another tower, and for embeddings of otherwise prepared images.
    """
    name = tower.origin.name if tower.origin else tower.network.model
    if tower.trunk.dimensions != rows.dimensions:
        raise UserError(
            f"the tower {name} computes {tower.trunk.dimensions} numbers for each image, but "
            f"these embeddings have {rows.dimensions}; give --tower the tower that computed them, "
            "or remove --tower."
        )
    sample = records[:: max(1, len(records) // _COMPARED)][:_COMPARED]
    classifier, parts = tower.trunk.classifier, []
    with torch.inference_mode():
        for images in decoded(dataset, sample):
            squares = np.stack([framed_square(image, tower.network.preprocess) for image in images])
            map_ = classifier.forward_features(torch.from_numpy(squares))
            parts.append(classifier.forward_pooled(map_).float().numpy())
    mean_D = rows.embeddings_PD.mean(axis=0)
    here_ND = np.concatenate(parts) - mean_D
    there_ND = np.stack([rows.embedding(record.sha256) for record in sample]) - mean_D
    lengths_N = np.linalg.norm(here_ND, axis=1) * np.linalg.norm(there_ND, axis=1)
    cosine = float(np.median((here_ND * there_ND).sum(axis=1) / np.maximum(lengths_N, 1e-12)))
    if not cosine >= LEAST_COSINE:
        raise UserError(
            f"tower {name} computes other embeddings of these images than the file has (cosine "
            f"{cosine:.3f} about the mean, at least {LEAST_COSINE} is needed); give the tower "
            "that computed the file, or compute the file again from images prepared as "
            f"{_prepared(tower.network)}."
        )
    return cosine


def _prepared(network: ClassifierSettings) -> str:
    preprocess = network.preprocess
    part = (
        "the whole image"
        if preprocess.frame == "whole"
        else (f"the central {preprocess.crop:.0%} of the shorter side")
    )
    return f"{part}, {preprocess.size} px, mean {list(preprocess.mean)}, std {list(preprocess.std)}"


def plain_figures(heads: Sequence[EmbeddedHead], **others: Any) -> Mapping[str, Any]:
    """Return what OUT/heads.json holds; its keys are an interface."""
    return {"chosen": heads[0].name, "heads": [head.figures() for head in heads], **others}


HEADS_JSON = "heads.json"


@dataclass(frozen=True)
class FeaturesResult:
    """What `evaluate_embeddings` made."""

    bundle: Bundle
    evaluation: Evaluation
    folder: Path
    """Folder of the evaluation."""
    heads: Sequence[EmbeddedHead]
    """Best on validation first; () for a bundle that was there before."""


@torch_threads(1)  # heads are small: more threads gain little, and wait by turning
def evaluate_embeddings(
    embeddings: Path,
    dataset: Path,
    out: Path,
    *,
    names: Path | None = None,
    heads: Sequence[str] = (),
    tower: str | None = None,
    made_by: str = "",
    bundle: Path | None = None,
    split: Part = "test",
    draws: int = 1000,
    say: Callable[[str], None] = print,
    progress: Progress | None = None,
) -> FeaturesResult:
    """Fit heads on the embeddings of a dataset's images, and write OUT/bundle and OUT/evaluation.

    `names` are those of the rows of an .npy file. With the `tower` that made the embeddings the
    bundle diagnoses photos. `bundle`: evaluate that one on them instead of fitting heads. Raises
    UserError for a file that is not of this dataset, and for a folder that holds anything else.
    """
    if bundle and (heads or tower or made_by):
        raise UserError("--head, --tower and --made-by do not work with --bundle; remove them.")
    EVALUATION.check(out / "evaluation")
    records = read_manifest(dataset)
    scored = split_records(dataset, split)
    check_sample(dataset, records)
    rows = read_embedding_rows(embeddings, names, records)
    if rows.unused:
        say(f"{counted(rows.unused, 'row')} of {embeddings} are of no image of {dataset}")
    chosen: Sequence[EmbeddedHead] = ()
    if bundle:
        packed = open_bundle(bundle)
        ensemble = packed.ensemble_on(rows)
    else:
        BUNDLE.check(out / "bundle")
        taxonomy = Taxonomy.load(dataset / TAXONOMY)
        _check_classes(records, taxonomy.keys)
        present = find_tower(tower) if tower else None
        cosine = compare_tower(present, rows, dataset, records) if present else None
        place = {"place": present.trunk.head} if present else {}
        chosen = fit_heads(heads, rows, records, taxonomy.keys, **place, say=say)
        ensemble = _ensemble(chosen[0], rows, taxonomy, out)
        ready = _ready(chosen[0], ensemble, records, taxonomy, present)
        ensemble = ready.ensemble
        provenance = {"embeddings_sha256": rows.sha256}
        note = {} if cosine is None else {"tower_cosine": round(cosine, 4)}
        lacking = EmbeddingsSpec(dimensions=rows.dimensions, tower=made_by)
        packed = pack_ensemble(
            out / "bundle",
            dataset,
            records,
            taxonomy,
            ready,
            name=made_by or embeddings.stem[:200],
            provenance={**provenance, **note},
            embeddings=None if present else lacking,
        )
        write_json(out / HEADS_JSON, plain_figures(chosen, **provenance, **note))
    predictor = Predictor(packed, ensemble, None, gallery=packed.gallery(), ood=packed.ood())
    folder = out / "evaluation"
    evaluation = evaluate_served(
        predictor,
        scored,
        embedded_decoder(partial(decode_limited, decoding=predictor.decoding), rows),
        folder,
        bundle=str(packed.path),
        digest=packed.digest,
        dataset=dataset,
        split=split,
        draws=draws,
        progress=progress,
    )
    if chosen and split == "test":
        packed = add_metrics(packed.path, read_json(folder / METRICS, finite=False))
    return FeaturesResult(packed, evaluation, folder, chosen)


def _ensemble(head: EmbeddedHead, rows: EmbeddingRows, taxonomy: Taxonomy, out: Path) -> Ensemble:
    member = embedded_member(
        head.name,
        head.settings,
        head.finished.state,
        rows,
        classes=len(taxonomy.classes),
        file=out,
        temperature=head.temperature,
    )
    return Ensemble((member,))


def _ready(
    head: EmbeddedHead,
    ensemble: Ensemble,
    records: Sequence[Record],
    taxonomy: Taxonomy,
    tower: PresentTower | None,
) -> ReadyEnsemble:
    answers_NC = apply_temperature(head.finished.validation_NC, head.temperature)
    held = split_of(records, "val")
    groups = [record.group for record in held]
    by_class = fit_class_calibration(log(answers_NC), head.finished.truth_N, groups)
    network = tower.network if tower else ClassifierSettings(model=EMBEDDINGS)
    spec = MemberSpec(
        name=head.name,
        classifier=network.model_copy(update={"head": head.settings}),
        temperature=head.temperature,
        tower=tower.origin if tower else None,
        trunk=tower.trunk.key if tower else "",
    )
    return ReadyEnsemble(
        replace(ensemble, class_calibration=by_class.kept),
        [(spec, head.finished.state)],
        split_of(records, "train"),
        fit_facts(by_class.served(answers_NC), held, taxonomy),
        {tower.trunk.key: tower.trunk.state} if tower else {},
        by_class=by_class.words(taxonomy.keys),
    )


def heads_table(heads: Sequence[EmbeddedHead]) -> "Table":
    """Return what each head scores on validation, the chosen one first and marked."""
    rows = [
        (
            head.name + ("" if number else "  <- chosen"),
            f"{head.loss:.3f}",
            f"{head.temperature:.2f}",
            f"{100 * head.balanced.value:.1f} % {bounds(head.balanced)}",
        )
        for number, head in enumerate(heads)
    ]
    heading = "heads, on the validation images; the least loss is chosen"
    return figures_table(heading, ("head", "loss", "temperature", "balanced accuracy"), rows)


def _check_classes(records: Sequence[Record], classes: Sequence[str]) -> None:
    """Raise UserError for a dataset without training or validation images of its classes."""
    for split in ("train", "val"):
        labels = {record.label for record in records if record.split == split}
        if not labels:
            raise UserError(f"the dataset has no {split} images; add some and build it again.")
        if split == "train" and len(labels) < len(classes):
            missing = next(key for key in classes if key not in labels)
            raise UserError(
                f"no training image has the class {missing!r}; add images of this class and build "
                "the dataset again, or remove the class from the taxonomy."
            )
