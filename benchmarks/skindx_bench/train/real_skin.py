"""The paper's tables on real skin, from kept predictions: networks, and ensembles beside them.

An ensemble is compared with the member that the same images chose, and with the best single network
of its cost. Nothing is chosen by the images on which it is judged.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from skindx.core.errors import UserError
from skindx.core.measurement import interleave
from skindx.core.settings_base import Settings
from skindx.data.layout import TAXONOMY
from skindx.data.manifest import Split, read_manifest
from skindx.evaluation.answers import FACTS, Answers
from skindx.evaluation.breakdown import breakdowns
from skindx.evaluation.figures import plain
from skindx.metrics import (
    Interval,
    Measure,
    Ranked,
    Statistic,
    confidence_interval,
    paired_interval,
    roc_figures,
)
from skindx.models.bundle.bundle import open_bundle
from skindx.models.classifier.classifier import ClassifierSettings, build_classifier
from skindx.models.classifier.preprocess import Preprocess, Views
from skindx.models.combination import EQUAL, log, pool
from skindx.taxonomy import Taxonomy
from skindx_bench.harness.result import MEANS, Figure, Result, median
from skindx_bench.train.ensemble_curve import (
    Single,
    affordable,
    best_single,
    choose_members,
    curve,
    single_losses,
)
from skindx_bench.train.ensemble_curve_figures import curve_figures
from skindx_bench.train.ensemble_passes import FoldPasses, mean_of_views, predict_views
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

Floats = NDArray[np.float64]

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
    """The dataset of `bundles`."""
    bundles: tuple[Path, ...] = ()
    """Bundles of one split, whose members' predictions are kept as DATASET-split-NAME.parquet."""
    groups: bool = False
    """Break the ensembles' figures down by what the manifest of `data` says of people."""
    rounds: int = Field(0, ge=0)
    """Timed batches of each network, in turn; 0: no speed is measured."""
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
    notes = []
    parts: dict[str, dict[str, Any]] = {}
    for name, members in pools(kept).items():
        passes = passes_of(members)
        made = ensemble_figures(passes) | _curve(passes)
        figures |= {f"{name}_{key}": value for key, value in made.items()}
        if settings.groups:
            parts[name] = {"breakdowns": _groups(members, passes, settings.data)}
        notes.append(f"{name}: {_chosen(passes)}{_only_one_view(passes)}")
    speed = speeds(kept, settings)
    rows = {
        member.name: {**row(member, settings.melanoma), "images_per_s": speed.get(_kind(member))}
        for member in kept
    }
    return Result(
        "real-skin", figures, notes=(_METHOD, *notes), models=rows, parts=parts, headings=MEANS
    )


_METHOD = (
    "Every choice is made by log loss, all classes counting alike, on images that do not judge it: "
    "out of fold by the other folds, with a single split by validation. better: the best member by "
    "that choice. same_cost: the best single network, in as many views as the ensemble's "
    "operations pay for. Members are combined by their mean probability. Intervals of 95 % over "
    "groups, paired for differences."
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


def speeds(kept: Sequence[Kept], settings: Config) -> dict[str, dict[str, float]]:
    """Return images a second of each network at its side, all timed in turn; random weights."""
    if not settings.rounds:
        return {}
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
    return {
        kind: {"value": own.value, "low": own.spread[0], "high": own.spread[1]}
        for kind, own in figures.items()
    }


@dataclass(frozen=True)
class Judged:
    """What a predictor says of the judged images of all folds."""

    truth_N: NDArray[np.intp]
    groups_N: NDArray[np.str_]
    own_NC: Floats
    even_NC: Floats
    """The same over the class shares of the images that choose: for classes that are all equally
    frequent, which is the decision that balanced accuracy rewards."""

    @classmethod
    def of(cls, passes: Sequence[FoldPasses], parts: Sequence[Floats]) -> Self:
        """Join one predictor's answers to each fold."""
        shares = [
            np.bincount(fold.validation.truth_N, minlength=own_NC.shape[1]) + 1
            for fold, own_NC in zip(passes, parts, strict=True)
        ]
        even = [own_NC / share_C for own_NC, share_C in zip(parts, shares, strict=True)]
        even_NC = np.concatenate(even)
        return cls(
            np.concatenate([fold.test.truth_N for fold in passes]),
            np.concatenate([fold.test.groups_N for fold in passes]),
            np.concatenate(parts),
            even_NC / even_NC.sum(axis=1, keepdims=True),
        )


def row(kept: Kept, melanoma: str) -> dict[str, Any]:
    """Return a network's figures with their intervals, what it is and what it costs."""
    passes = passes_of([kept])
    judged = Judged.of(passes, [fold.test.members[1][0] for fold in passes])
    intervals = {
        key: confidence_interval(make(judged), judged.groups_N) for key, make in MEASURES.items()
    }
    if melanoma in kept.classes:
        place = kept.classes.index(melanoma)
        areas = roc_figures(judged.own_NC[:, place], judged.truth_N == place, judged.groups_N)
        names = ("melanoma_auroc", "melanoma_pauc_80", "melanoma_pauc_88")
        intervals |= dict(zip(names, areas.areas if areas else (), strict=False))
    figures = {key: _plain(interval) for key, interval in intervals.items()}
    shown = ("model", "size", "parameters", "flops", "joules_per_image", "trained")
    facts = {key: kept.facts.get(key) for key in shown}
    return {**facts, "images": len(judged.truth_N), **figures}


def _plain(interval: Interval) -> dict[str, float]:
    return {"value": interval.value, "low": interval.low, "high": interval.high}


def _log_loss(judged: Judged) -> Measure:
    loss_N = -log(judged.own_NC[np.arange(len(judged.truth_N)), judged.truth_N])
    return Statistic.mean(loss_N, high=float(max(loss_N.max(), 1.0)))


MEASURES: dict[str, Callable[[Judged], Measure]] = {
    "balanced": lambda judged: Statistic.balanced_accuracy(judged.own_NC, judged.truth_N),
    "balanced_even": lambda judged: Statistic.balanced_accuracy(judged.even_NC, judged.truth_N),
    "top1": lambda judged: Statistic.top_k(judged.own_NC, judged.truth_N, 1),
    "auroc": lambda judged: Ranked.auroc(judged.own_NC, judged.truth_N),
    "log_loss": _log_loss,
}
_PERCENT = ("balanced", "balanced_even", "top1")


def choice(fold: FoldPasses) -> tuple[tuple[int, ...], Single, Single]:
    """Return the ensemble, the best member and the best single network of the ensemble's cost."""
    members = choose_members(fold.validation)
    losses = single_losses(fold.validation)
    better = best_single(losses, [single for single in losses if single[1] == 1])
    return members, better, best_single(losses, affordable(losses, fold.flops_M, members))


def rivals(passes: Sequence[FoldPasses]) -> dict[str, Judged]:
    """Return what the ensemble, all members and the two single networks say, chosen a fold."""
    parts: dict[str, list[Floats]] = {"ensemble": [], "all": [], "better": [], "same_cost": []}
    for fold in passes:
        members, better, same_cost = choice(fold)
        test = fold.test.members
        parts["ensemble"].append(pool(test[1][list(members)], EQUAL))
        parts["all"].append(pool(test[1], EQUAL))
        for name, (member, views) in (("better", better), ("same_cost", same_cost)):
            parts[name].append(test[views][member])
    return {name: Judged.of(passes, own) for name, own in parts.items()}


def ensemble_figures(passes: Sequence[FoldPasses]) -> dict[str, Figure]:
    """Return the figures of the ensemble, and its paired differences from single networks."""
    judged = rivals(passes)
    groups_N = judged["ensemble"].groups_N
    figures = {}
    for key, make in MEASURES.items():
        unit, difference, scale = ("%", "points", 100) if key in _PERCENT else ("", "", 1)
        made = {name: make(own) for name, own in judged.items()}
        for name, measure in made.items():
            interval = confidence_interval(measure, groups_N)
            figures[f"{name}_{key}"] = Figure.of(interval, unit, len(passes), scale)
        for other in ("better", "same_cost"):
            interval = paired_interval(made["ensemble"], made[other], groups_N)
            name = f"ensemble_minus_{other}_{key}"
            figures[name] = Figure.of(interval, difference, len(passes), scale)
    return figures


def _curve(passes: Sequence[FoldPasses]) -> dict[str, Figure]:
    """Return the gain over the better member by the number of members, and its limit."""
    points = curve(passes, _MOST_SUBSETS)
    kept = ("curve_gain_", "gain_limit", "disagreement", "error_correlation")
    return {k: own for k, own in curve_figures(passes, points).items() if k.startswith(kept)}


def _groups(
    members: Sequence[Kept], passes: Sequence[FoldPasses], data: Path
) -> list[dict[str, Any]]:
    """Return the ensemble's figures by skin type, age, sex, site, source and confirmation."""
    taxonomy = Taxonomy.load(data / TAXONOMY)
    by_name = {image_name(record): record for record in read_manifest(data)}
    records = [by_name[name] for name in judged_images(members)]
    judged = rivals(passes)["ensemble"]
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


def _chosen(passes: Sequence[FoldPasses]) -> str:
    """Return in words what each fold chose, the same choices together."""
    texts: dict[str, int] = {}
    for fold in passes:
        members, better, same_cost = choice(fold)
        names = " + ".join(fold.names[member] for member in members)
        single = f"{fold.names[same_cost[0]]} in {same_cost[1]} views"
        text = f"{names} beside {fold.names[better[0]]}, at the same cost {single}"
        texts[text] = texts.get(text, 0) + 1
    return "; ".join(f"{text} ({count} of {len(passes)} folds)" for text, count in texts.items())


def _only_one_view(passes: Sequence[FoldPasses]) -> str:
    if max(passes[0].test.members) > 1:
        return ""
    return (
        "; these members were judged in one view alone, so that no single network spends the whole "
        "cost of the ensemble, and same_cost is a weak rival"
    )


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
