"""The paper's tables on real skin, from kept predictions: networks, and ensembles beside them.

An ensemble is compared with the member that the same images chose by the figure that is compared,
and with a single network of its cost; all are calibrated alike, class by class. Nothing is chosen
by the images on which it is judged. Each gain is tried again on a subset, without calibration and
in more views, over the member that is strongest there.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import Field

from skindx.core.errors import UserError
from skindx.core.measurement import interleave
from skindx.core.settings_base import Settings
from skindx.data.layout import TAXONOMY
from skindx.data.manifest import Record, Split, read_manifest
from skindx.evaluation.answers import FACTS, Answers
from skindx.evaluation.breakdown import breakdowns
from skindx.evaluation.figures import plain
from skindx.metrics import balanced_rule, confidence_interval, roc_figures
from skindx.models.bundle.bundle import open_bundle
from skindx.models.classifier.classifier import ClassifierSettings, build_classifier
from skindx.models.classifier.preprocess import Preprocess, Views
from skindx.taxonomy import Taxonomy
from skindx_bench.harness.result import MEANS, Figure, Result, median
from skindx_bench.train.ensemble_curve import curve
from skindx_bench.train.ensemble_curve_figures import curve_figures
from skindx_bench.train.ensemble_gains import (
    Bools,
    Fold,
    Judged,
    calibration_figures,
    ensemble_figures,
    ensemble_of,
)
from skindx_bench.train.ensemble_passes import FoldPasses, Seen, mean_of_views, predict_views
from skindx_bench.train.frozen_heads import NETWORKS, network
from skindx_bench.train.kept_predictions import (
    TEST,
    VALIDATION,
    Kept,
    costs_of,
    image_name,
    judged_images,
    origin_of,
    passes_of,
    read_all,
    write_kept,
)

# N = images, C = classes, M = members

SMALLEST = ("dataset=none",)

_MOST_SUBSETS = 200
"""Of members of one size, of which the curve is the mean."""


class Config(Settings):
    """Which kept predictions, and bundles whose predictions are to be kept first."""

    dataset: str = "ham10000"
    """The files DATASET-*.parquet are read."""
    kept: Path = Path("docs/measured/predictions")
    melanoma: str = "Melanoma"
    """The class with figures of its own; nothing: the dataset has none."""
    data: Path = Path("runs/ham10000/data")
    """The dataset of `bundles`, `groups` and `subset`."""
    bundles: tuple[Path, ...] = ()
    """Bundles of one split, whose members' predictions are kept as DATASET-split-NAME.parquet."""
    groups: bool = False
    """Break the ensembles' figures down by what the manifest of `data` says of people."""
    subset: str = ""
    """FIELD=VALUE of the manifest of `data`, such as confirmed_by=histopathology: gains are tried
    on these images alone too."""
    rounds: int = Field(0, ge=0)
    """Timed batches of each network, in turn; 0: no speed is measured."""
    speeds: Path | None = None
    """A result of before, whose speeds are taken over with their date and machine."""
    batch: int = Field(16, ge=1)
    """Images at once where speed is measured."""
    views: Views = 4
    """As many views of each image are predicted by the members of `bundles`."""


def run(settings: Config) -> Result:
    """Keep the predictions of `bundles`, then make the tables of all kept ones."""
    for bundle in settings.bundles:
        keep_bundle(bundle, settings)
    kept = read_all(settings.kept, f"{settings.dataset}-*.parquet")
    figures: dict[str, Figure] = {}
    parts: dict[str, dict[str, Any]] = {}
    rows: dict[str, dict[str, Any]] = {}
    for name, members in pools(kept).items():
        folds = [Fold(passes) for passes in passes_of(members)]
        rows |= {own.name: row(own, m, folds, settings) for m, own in enumerate(members)}
        subset_N = _subset(members, settings) if settings.subset else None
        made, parts[name] = ensemble_figures(folds, subset_N)
        made |= _curve(folds)
        classes = members[0].classes
        place = classes.index(settings.melanoma) if settings.melanoma in classes else None
        made |= calibration_figures(folds, place)
        figures |= {f"{name}_{key}": value for key, value in made.items()}
        if settings.groups:
            parts[name]["breakdowns"] = _groups(members, folds, settings.data)
    for own in kept:
        if own.name not in rows:
            rows[own.name] = row(own, 0, [Fold(passes) for passes in passes_of([own])], settings)
    speed, parts["speed"] = speeds(kept, settings)
    for own in kept:
        rows[own.name]["images_per_s"] = speed.get(_kind(own))
    return Result("real-skin", figures, notes=(_METHOD,), models=rows, parts=parts, headings=MEANS)


_METHOD = (
    "Every predictor is calibrated class by class on the images that choose: out of fold the other "
    "folds, with a single split validation. They choose the members of the ensemble by log loss, "
    "all classes counting alike, and a rival by the figure that is compared; where fewer than 90 % "
    "of resampled groups choose the same one, the gain over each stands instead. Members are "
    "combined by their mean probability. The balanced rule divides probabilities by the shares of "
    "the classes. Intervals of 95 % over groups, paired for differences."
)


def pools(kept: Sequence[Kept]) -> dict[str, list[Kept]]:
    """Return the members that are combined: heads alone, with trained networks, and one split."""
    folds = [member for member in kept if member.out_of_fold]
    heads = [member for member in folds if member.name.startswith("frozen-")]
    split = [member for member in kept if not member.out_of_fold]
    parts = {"frozen": heads, "split": split}
    if len(heads) < len(folds):
        parts |= {"folds": folds, "trained": [m for m in folds if m not in heads]}
    return {name: members for name, members in parts.items() if len(members) > 1}


def _kind(kept: Kept) -> str:
    return f"{kept.facts.get('model')} {kept.facts.get('size')}"


def speeds(
    kept: Sequence[Kept], settings: Config
) -> tuple[dict[str, dict[str, float]], dict[str, Any]]:
    """Return images a second of each network at its side, and when and where it was measured.

    All are timed in turn, with random weights, or taken over from a result of before.
    """
    if settings.speeds:
        written = json.loads(settings.speeds.read_text(encoding="utf-8"))
        found = {
            f"{own['model']} {own['size']}": own["images_per_s"]
            for own in written["models"].values()
            if own["images_per_s"]
        }
        origin = written.get("parts", {}).get("speed") or {
            key: written[key] for key in ("date", "hardware", "versions")
        }
        return found, origin if found else {}
    if not settings.rounds:
        return {}, {}
    rng = np.random.default_rng(0)

    def candidate(kind: str) -> Callable[[], object]:
        model, text = kind.split()
        side = int(text)
        preprocess = Preprocess(size=side)
        classifier = (
            network(model, preprocess, None)
            if model in NETWORKS
            else build_classifier(ClassifierSettings(model=model, preprocess=preprocess), 2)
        )
        classifier.eval().to(memory_format=torch.channels_last)
        shape = (settings.batch, side, side, 3)
        batch_BSS3 = torch.from_numpy(rng.integers(0, 256, shape, dtype=np.uint8))

        def predict() -> object:
            with torch.inference_mode():
                return classifier(batch_BSS3)

        return predict

    kinds = sorted({_kind(member) for member in kept})
    seconds = interleave({kind: candidate(kind) for kind in kinds}, settings.rounds)
    figures = {kind: median([settings.batch / s for s in own], "") for kind, own in seconds.items()}
    found = {
        kind: {"value": own.value, "low": own.spread[0], "high": own.spread[1]}
        for kind, own in figures.items()
    }
    now = Result("real-skin", {})
    return found, {"date": now.date, "hardware": now.hardware, "versions": now.versions}


ROWS = ("top1", "balanced_accuracy", "balanced_rule_accuracy", "auroc")


def row(kept: Kept, member: int, folds: Sequence[Fold], settings: Config) -> dict[str, Any]:
    """Return a network's figures with their intervals, what it is and what it costs."""
    judged = Judged.of(folds, [fold.says((member,))[1] for fold in folds])
    intervals = {key: confidence_interval(judged.measure(key), judged.groups_N) for key in ROWS}
    if settings.melanoma in kept.classes:
        place = kept.classes.index(settings.melanoma)
        areas = roc_figures(judged.own_NC[:, place], judged.truth_N == place, judged.groups_N)
        names = ("melanoma_auroc", "melanoma_pauc_80", "melanoma_pauc_88")
        intervals |= dict(zip(names, areas.areas if areas else (), strict=False))
    figures = {
        key: {"value": own.value, "low": own.low, "high": own.high}
        for key, own in intervals.items()
    }
    shown = ("model", "size", "parameters", "flops", "joules_per_image", "trained")
    facts = {key: kept.facts.get(key) for key in shown}
    return {**facts, "images": len(judged.truth_N), **figures}


def _curve(folds: Sequence[Fold]) -> dict[str, Figure]:
    """Return the gain over the better member by the number of members, and its limit.

    By the balanced rule: a mean of calibrated members is less sure than they are, which moves its
    likeliest class, and hardly the class of the greatest probability over its share.
    """
    passes = []
    for fold in folds:
        said = [fold.says((member,)) for member in range(len(fold.names))]
        seen = [
            Seen(
                own.truth_N,
                own.groups_N,
                {1: np.stack([balanced_rule(part_NC, fold.mix_C) for part_NC in parts])},
            )
            for own, parts in zip(
                (fold.passes.validation, fold.passes.test), zip(*said, strict=True), strict=True
            )
        ]
        passes.append(FoldPasses(fold.names, fold.passes.flops_M, seen[0], seen[1]))
    made = curve_figures(passes, curve(passes, _MOST_SUBSETS))
    kept = ("curve_gain_", "gain_limit")
    return {key: figure for key, figure in made.items() if key.startswith(kept)}


def _records(members: Sequence[Kept], data: Path) -> list[Record]:
    """Return the judged images' records. Raises UserError for another dataset."""
    by_name = {image_name(record): record for record in read_manifest(data)}
    names = judged_images(members)
    if absent := [name for name in names if name not in by_name]:
        raise UserError(
            f"{data} lacks {len(absent)} of the images of the kept predictions, {absent[0]} among "
            "them; give the dataset that they were made of with `--set data=…`."
        )
    return [by_name[name] for name in names]


def _subset(members: Sequence[Kept], settings: Config) -> Bools:
    """Return which judged images the subset has. Raises UserError for one without any."""
    field, _, value = settings.subset.partition("=")
    if field not in {one.name for one in fields(Record)}:
        raise UserError(f"subset names {field!r}, which no manifest has; name FIELD=VALUE.")
    records = _records(members, settings.data)
    some_N = np.array([str(getattr(record, field)) == value for record in records])
    if not some_N.any():
        raise UserError(f"no judged image of {settings.data} has {settings.subset}; name another.")
    return some_N


def _groups(members: Sequence[Kept], folds: Sequence[Fold], data: Path) -> list[dict[str, Any]]:
    """Return the ensemble's figures by skin type, age, sex, site, source and confirmation."""
    taxonomy = Taxonomy.load(data / TAXONOMY)
    records, judged = _records(members, data), ensemble_of(folds)
    answers = Answers(
        classes=tuple(taxonomy.classes),
        members=("ensemble",),
        truth_N=judged.truth_N,
        groups_N=judged.groups_N,
        sha256_N=np.array([record.sha256 for record in records]),
        ensemble_NC=judged.own_NC,
        members_NMC=judged.own_NC[:, None],
        skin_types=tuple(record.skin_type for record in records),
        sources=tuple(record.source for record in records),
        facts={name: tuple(getattr(record, name) for record in records) for name in FACTS},
    )
    return [plain(attribute) for attribute in breakdowns(answers, draws=1000) if attribute.parts]


def keep_bundle(path: Path, settings: Config) -> None:
    """Keep what the members of a bundle say of validation and test images; a kept one stays."""
    bundle = open_bundle(path)
    parts: dict[Split, int] = {"val": VALIDATION, "test": TEST}
    everything = read_manifest(settings.data)
    for member in bundle.ensemble().members:
        file = settings.kept / f"{settings.dataset}-split-{member.name}.parquet"
        if file.exists():
            continue
        records = [record for record in everything if record.split in parts]
        folds = [parts[record.split] for record in records]
        if not records:
            raise UserError(f"{settings.data} has no images in val and test; build it again.")
        log_VNC = predict_views(member, settings.data, records, settings.views)
        views = mean_of_views(log_VNC[:, None], [member.temperature])
        spec = next(own for own in bundle.spec.members if own.name == member.name)
        facts = {
            "model": spec.classifier.model,
            "size": member.preprocess.size,
            "trained": "all layers",
            **costs_of(member.classifier, member.preprocess.size),
            **origin_of(settings.data),
        }
        classes = bundle.taxonomy.keys
        own_views = {count: own_1NC[0] for count, own_1NC in views.items()}
        kept = Kept.of(member.name, classes, records, folds, views=own_views, facts=facts)
        write_kept(file, kept)
