"""What a bundle loses elsewhere, and what 25, 50 or 100 labelled local images bring back.

The external images pass through the networks once. The table compares them with the bundle's
internal evaluation at unchanged thresholds. Then, many times, some groups of them are drawn as
local images, the bundle's rules are fitted to them, and all other external images are judged.
"""

import csv
import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from skindx.core.atomic_files import sha256_file
from skindx.core.errors import UserError
from skindx.core.progress import plain_lines
from skindx.core.settings_base import Settings
from skindx.data.layout import MANIFEST
from skindx.data.manifest import Record
from skindx.evaluation.adapt import first_mix, judge, look, rules_of, usable
from skindx.evaluation.answers import Answers, read_predictions
from skindx.evaluation.elsewhere import (
    TITLES,
    Elsewhere,
    Internal,
    compare_elsewhere,
    figures_of,
)
from skindx.evaluation.evaluate import split_records
from skindx.metrics import Interval
from skindx.models.adaptation import LEAST_GROUPS, FittedRules, LocalFit, LocalImages
from skindx.models.bundle.bundle import open_bundle
from skindx.models.combination import shifted
from skindx.models.ood.ood_check import OodCheck, p_values
from skindx.models.urgent_risk import fit_urgent_risk
from skindx.taxonomy import SkinClass, Taxonomy
from skindx_bench.harness.result import MEANS, Figure, Result

# N = images, C = classes

SMALLEST = ("sizes=[25]", "draws=2", "bootstrap=20")

_Z = 1.96


class Config(Settings):
    """Without a bundle: made-up answers, which only show that the benchmark runs."""

    bundle: Path | None = None
    evaluation: Path | None = None
    """What `skindx evaluate` wrote of the bundle's own dataset; none: no table of changes."""
    dataset: Path = Path("runs/isic9/data")
    """The external images, all splits."""
    without: Path | None = None
    """A CSV with the column image_id: external images of these ids (in their addresses) are left
    out, besides those that the bundle itself recognises."""
    sizes: tuple[int, ...] = Field((25, 50, 100), min_length=1)
    """Numbers of local images; as many groups as hold them."""
    draws: int = Field(20, ge=2)
    bootstrap: int = Field(1000, ge=10)
    seed: int = 0


@dataclass(frozen=True)
class Study:
    """External images as networks see them, how rules are fitted to them, and the table."""

    images: LocalImages
    fit: LocalFit
    check: OodCheck | None
    table: Elsewhere | None
    notes: tuple[str, ...]


def run(settings: Config) -> Result:
    """Measure both. Raises UserError where fewer images are left than the largest size asks for."""
    study = painted(settings) if settings.bundle is None else looked(settings, settings.bundle)
    groups = len(np.unique(study.images.groups_N))
    if len(study.images) < 2 * max(settings.sizes) or groups < 2 * LEAST_GROUPS:
        raise UserError(
            f"{settings.dataset} has {len(study.images)} images of the bundle's classes in "
            f"{groups} groups, too few to adapt to {max(settings.sizes)} and judge the rest; give "
            "a larger dataset, or smaller sizes."
        )
    figures: dict[str, Figure] = {}
    if study.table:
        figures |= _table_figures(study.table, len(study.images))
    notes = [*study.notes]
    for size in settings.sizes:
        figures |= adapted_figures(study, size, settings)
    notes.append(
        f"adapted: means over {settings.draws} draws of local images, judged on all others; the "
        "intervals hold the spread of draws and the chance in the groups that are judged"
    )
    return Result("external", figures, headings=MEANS, notes=tuple(notes))


def looked(settings: Config, path: Path) -> Study:
    """Pass the external images through a bundle's networks."""
    bundle = open_bundle(path)
    records = split_records(settings.dataset, "all")
    ids = _ids(settings.without) if settings.without else frozenset()
    others = [record for record in records if _id_of(record) not in ids]
    known, seen = usable(bundle, settings.dataset, others)
    report = plain_lines(print)
    images, _ = look(
        bundle, settings.dataset, known, lambda done, total: report("look", done, total)
    )
    fit = LocalFit(bundle.taxonomy, rules_of(bundle), first_mix(bundle))
    check = bundle.ood()
    table = None
    if settings.evaluation:
        internal = Internal(read_predictions(settings.evaluation), {})
        answers = answers_of(images, fit.parent, bundle.taxonomy, check)
        table = compare_elsewhere(internal, answers, draws=settings.bootstrap)
    counts = Counter(bundle.taxonomy.keys[c] for c in images.truth_N.tolist())
    notes: tuple[str, ...] = (
        f"bundle {bundle.digest[:16]}, external manifest "
        f"{sha256_file(settings.dataset / MANIFEST)[:16]}",
        f"{len(records)} external images; {len(records) - len(others)} are left out by their ids, "
        f"{seen} since the bundle was made from them or copies, "
        f"{len(others) - seen - len(known)} of classes that it does not know",
        f"images by class: {', '.join(f'{key} {n}' for key, n in counts.most_common())}",
    )
    if table and (table.few or table.absent):
        few = ", ".join(f"{name} {a} and {b}" for name, (a, b) in table.few.items())
        notes += (
            f"under {table.fewest} images internally or externally, so in no mean: {few or 'none'};"
            f" without external images: {', '.join(table.absent) or 'none'}",
        )
    return Study(images, fit, check, table, notes)


def answers_of(
    images: LocalImages, rules: FittedRules, taxonomy: Taxonomy, check: OodCheck | None
) -> Answers:
    """Return the answers as an evaluation has them, without those of single members."""
    answers = Answers(
        classes=taxonomy.classes,
        members=(),
        truth_N=images.truth_N,
        groups_N=images.groups_N,
        sha256_N=np.array([record.sha256 for record in images.records]),
        ensemble_NC=rules.probabilities(images),
        members_NMC=np.zeros((len(images), 0, len(taxonomy.classes))),
        skin_types=tuple(record.skin_type for record in images.records),
        sources=tuple(record.source for record in images.records),
        urgent_risk=rules.risks.get("urgent_risk"),
        soon_risk=rules.risks.get("soon_risk"),
    )
    if check is not None and images.ood_NK is not None:
        values_N = p_values(check.scores_NK, images.ood_NK)
        answers = replace(answers, ood_N=values_N, ood_rate=check.rate)
    return answers.with_sets(rules.conformal) if rules.conformal else answers


def adapted_figures(study: Study, size: int, settings: Config) -> dict[str, Figure]:
    """Return KEY_before_SIZE and KEY_after_SIZE of the images that were not drawn."""
    before: dict[str, list[Interval]] = {}
    after: dict[str, list[Interval]] = {}
    counts_C = np.bincount(study.images.truth_N)
    enough = np.flatnonzero(counts_C >= 20).tolist()
    for seed in range(settings.draws):
        drawn_N = draw(study.images, size, settings.seed + seed)
        local, rest = study.images.select(drawn_N), study.images.select(~drawn_N)
        rules = study.fit.fit(local)
        for figures, judged in (
            (before, judge(study.fit.parent, rest, study.check)),
            (after, judge(rules, rest, study.check, local.ood_NK)),
        ):
            shown = figures_of(judged, enough, draws=max(20, settings.bootstrap // 10))
            for key in TITLES:
                if key in shown:
                    figures.setdefault(key, []).append(shown[key])
    return {
        f"{key}_{when}_{size}": _pooled(values, TITLES[key][1])
        for when, figures in (("before", before), ("after", after))
        for key, values in figures.items()
        if len(values) == settings.draws
    }


def draw(images: LocalImages, size: int, seed: int) -> NDArray[np.bool_]:
    """Return a random `size` images or a few more: whole groups, as they come."""
    groups_N = images.groups_N
    names, counts = np.unique(groups_N, return_counts=True)
    order = np.random.default_rng(seed).permutation(len(names))
    last = int(np.searchsorted(np.cumsum(counts[order]), size)) + 1
    chosen = order[: max(last, LEAST_GROUPS)]
    return np.isin(groups_N, names[chosen])


def _pooled(values: Sequence[Interval], unit: str) -> Figure:
    """Return the mean over draws; its variance is that between draws and that within them."""
    mean = statistics.fmean(value.value for value in values)
    between = statistics.variance(value.value for value in values)
    below, above = (
        math.sqrt(between * _Z**2 + statistics.fmean(end**2 for end in ends))
        for ends in (
            [value.value - value.low for value in values],
            [value.high - value.value for value in values],
        )
    )
    scale = 100 if unit == "percent" else 1
    low, high = mean - below, mean + above
    low, high = max(low, 0.0), min(high, 1.0) if unit == "percent" else high
    return Figure(scale * mean, _UNITS[unit], len(values), (scale * low, scale * high))


_UNITS: Mapping[str, str] = {"percent": "%", "decimal": ""}


def _table_figures(table: Elsewhere, images: int) -> dict[str, Figure]:
    rows = [(change.key, change) for change in table.changes]
    for one in table.classes:
        rows += [(f"auroc_{one.key}", one.auroc), (f"sensitivity_{one.key}", one.sensitivity)]
    return {
        f"{key}_{side}": Figure.of(
            getattr(change, side),
            _UNITS[change.unit],
            table.internal_images if side == "internal" else images,
            100 if change.unit == "percent" else 1,
        )
        for key, change in rows
        for side in ("internal", "external", "change")
        if math.isfinite(getattr(change, side).value)
    }


def _ids(path: Path) -> frozenset[str]:
    with path.open(encoding="utf-8", newline="") as opened:
        rows = csv.DictReader(opened)
        if "image_id" not in (rows.fieldnames or ()):
            raise UserError(f"{path} has no column image_id; give a CSV that has one.")
        return frozenset(row["image_id"] for row in rows)


def _id_of(record: Record) -> str:
    return Path(record.source_url).stem


_CLASSES = Taxonomy(
    name="made-up",
    title="Made up",
    classes=(
        SkinClass(key="nevus", name="Nevus", urgency="routine"),
        SkinClass(key="melanoma", name="Melanoma", urgency="urgent"),
        SkinClass(key="carcinoma", name="Basal cell carcinoma", urgency="soon"),
    ),
)


def painted(settings: Config) -> Study:
    """Return made-up answers: elsewhere surer than right, and with more melanomas."""
    home_C, away_C = np.array([0.8, 0.1, 0.1]), np.array([0.3, 0.5, 0.2])
    home = _answers(600, home_C, home_C, 1.0, settings.seed)
    urgent_C = np.array([False, True, False])
    p_NC = np.exp(home.whole_NC)
    rule = fit_urgent_risk(p_NC, home.truth_N, urgent_C=urgent_C)
    rules = FittedRules(1.0, np.zeros(3), home_C, risks={"urgent_risk": rule})
    images = _answers(2 * max(settings.sizes) + 200, away_C, home_C, 2.5, settings.seed + 1)
    internal = Internal(answers_of(home, rules, _CLASSES, None), {})
    external = answers_of(images, rules, _CLASSES, None)
    table = compare_elsewhere(internal, external, draws=settings.bootstrap)
    fit = LocalFit(_CLASSES, rules, home_C)
    return Study(images, fit, None, table, ("made-up answers: they measure nothing",))


def _answers(
    n: int, mix_C: NDArray[np.float64], home_C: NDArray[np.float64], sharpness: float, seed: int
) -> LocalImages:
    random = np.random.default_rng(seed)
    truth_N = random.choice(3, size=n, p=mix_C)
    scores_NC = 2 * (2 * np.eye(3)[truth_N] + random.normal(size=(n, 3))) + np.log(home_C)
    records = tuple(_records(truth_N))
    log_NC = np.log(shifted(sharpness * scores_NC, np.zeros(3)))
    return LocalImages(records, truth_N, log_NC)


def _records(truth_N: NDArray[np.integer]) -> Iterator[Record]:
    for i, c in enumerate(truth_N.tolist()):
        yield Record(f"{i}", f"{i:064x}", "0", 9, 9, _CLASSES.keys[c], f"g{i // 2}", "test")
