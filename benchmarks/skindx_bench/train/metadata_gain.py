"""What age, sex and place add to networks: a small map on kept predictions, judged elsewhere.

Out of fold, each image is judged by a map that learned from other folds of groups; with a single
split the map learns from validation and is judged on test. Networks are calibrated class by class
before, on the images that the map learns from.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from skindx.core.errors import UserError
from skindx.core.settings_base import Settings
from skindx.data.manifest import read_manifest
from skindx.metrics import (
    Measure,
    Ranked,
    Statistic,
    bootstrap_interval,
    confidence_interval,
    paired_interval,
)
from skindx.models.class_calibration import fit_class_calibration, log_gain
from skindx.models.combination import EQUAL, apply_temperature, fit_temperature, log, pool
from skindx.models.metadata_head import (
    FIELDS,
    Facts,
    cross_fit_metadata,
    fit_metadata,
)
from skindx_bench.harness.result import MEANS, Figure, Result
from skindx_bench.train.kept_predictions import (
    TEST,
    VALIDATION,
    Kept,
    image_name,
    read_all,
)
from skindx_bench.train.real_skin import pools

# N = images, C = classes

Floats = NDArray[np.float64]

SMALLEST = ("dataset=none",)


class Config(Settings):
    """Which kept predictions, and the dataset whose manifest says age, sex and place."""

    dataset: str = "ham10000"
    """The files DATASET-*.parquet are read."""
    kept: Path = Path("docs/measured/predictions")
    data: Path = Path("runs/ham10000/data")
    draws: int = Field(1000, ge=1)
    """Of the bootstrap over groups."""
    melanoma: str = "Melanoma"
    """The class with figures of its own."""


@dataclass(frozen=True)
class Pooled:
    """The mean of several networks, with what is known of each image."""

    name: str
    answers_NC: Floats
    truth_N: NDArray[np.intp]
    groups: tuple[str, ...]
    facts: tuple[Facts, ...]
    fold_N: NDArray[np.int64]

    @classmethod
    def of(cls, name: str, members: Sequence[Kept], known: dict[str, Facts]) -> Self:
        """Pool networks on the images that all of them judged and the dataset knows."""
        shared = set(known).intersection(*(set(member.images_N) for member in members))
        if not shared:
            raise UserError(
                "the dataset has none of the images of the kept predictions; give the one that "
                "they were made of with `--set data=…`."
            )
        rows = [np.isin(member.images_N, sorted(shared)) for member in members]
        first, own_N = members[0], rows[0]
        parts = [member.views[1][some_N] for member, some_N in zip(members, rows, strict=True)]
        return cls(
            name,
            pool(np.stack(parts), EQUAL),
            first.truth_N[own_N],
            tuple(first.groups_N[own_N].tolist()),
            tuple(known[image] for image in first.images_N[own_N].tolist()),
            first.fold_N[own_N],
        )

    def rows(self, chosen_N: NDArray[np.bool_]) -> Self:
        """Return some of the images."""
        places = np.flatnonzero(chosen_N).tolist()
        return replace(
            self,
            answers_NC=self.answers_NC[chosen_N],
            truth_N=self.truth_N[chosen_N],
            groups=tuple(self.groups[n] for n in places),
            facts=tuple(self.facts[n] for n in places),
            fold_N=self.fold_N[chosen_N],
        )

    def only(self, fields: Sequence[str]) -> Self:
        """Return the same with some fields alone."""
        return replace(self, facts=tuple(facts.only(fields) for facts in self.facts))

    def calibrated(self) -> Self:
        """Return the answers calibrated class by class on the other folds, or on validation."""
        result_NC, scores_NC = self.answers_NC.copy(), log(self.answers_NC)
        for fold in sorted(set(self.fold_N.tolist())):
            of_N = self.fold_N == fold
            by_N = self.fold_N == VALIDATION if fold < 0 else ~of_N
            groups = [self.groups[n] for n in np.flatnonzero(by_N)]
            fit = fit_class_calibration(scores_NC[by_N], self.truth_N[by_N], groups)
            if fit.kept:
                result_NC[of_N] = fit.kept.apply(scores_NC[of_N])
            else:
                temperature = fit_temperature(scores_NC[by_N], self.truth_N[by_N])
                result_NC[of_N] = apply_temperature(scores_NC[of_N], temperature)
        return replace(self, answers_NC=result_NC)


def run(settings: Config) -> Result:
    """Measure the gain of all fields and of each alone, for every pool of kept predictions."""
    records = read_manifest(settings.data)
    kept = read_all(settings.kept, f"{settings.dataset}-*.parquet")
    known = {image_name(record): Facts.from_record(record) for record in records}
    groups = pools(kept) or {member.name: [member] for member in kept}
    figures: dict[str, Figure] = {}
    notes = [_METHOD]
    for name, members in groups.items():
        pooled = Pooled.of(name, members, known).calibrated()
        place = members[0].classes.index(settings.melanoma)
        found, note = gains(pooled, place, settings.draws)
        figures |= {f"{name}_{key}": figure for key, figure in found.items()}
        notes.append(f"{name}: {note}")
    return Result("metadata", figures, notes=tuple(notes), headings=MEANS)


_METHOD = (
    "Networks are combined by their mean probability, calibrated class by class on other folds or "
    "on validation. Maps of age, sex and place are additive on the logits; each image is judged by "
    "one that was fitted on other groups. Differences are paired over groups, with intervals of "
    "95 %."
)


def gains(pooled: Pooled, melanoma: int, draws: int) -> tuple[dict[str, Figure], str]:
    """Return the figures with and without fields, and what the whole map may do by sex."""
    judged, with_NC = answered(pooled)
    figures = _paired("", judged, with_NC, melanoma, draws)
    for key in ("balanced", "top1", "auroc", "melanoma_auroc"):
        for name, p_NC in (("without", judged.answers_NC), ("known", with_NC)):
            measure = _measure(key, p_NC, judged.truth_N, melanoma)
            interval = confidence_interval(measure, judged.groups, draws=draws)
            unit, scale = ("", 1) if "auroc" in key else ("%", 100)
            figures[f"{key}_{name}"] = Figure.of(interval, unit, len(judged.truth_N), scale)
    for field in FIELDS:
        alone, field_NC = answered(pooled.only([field]))
        figures |= _paired(f"{field}_", alone, field_NC, melanoma, draws)
    spec = fit_metadata(pooled.answers_NC, pooled.truth_N, pooled.facts, pooled.groups)
    if spec is None or spec.head is None:
        return figures, "a bundle would not use the fields, since they gain nothing"
    men, women = (
        spec.head.apply(pooled.answers_NC, [replace(facts, sex=sex) for facts in pooled.facts])
        for sex in ("male", "female")
    )
    moved = float(np.abs(men - women).max())
    figures["largest_shift_by_sex"] = Figure(100 * moved, "points", 1, (100 * moved, 100 * moved))
    bound = spec.head.largest_sex_shift
    return figures, f"sex alone can move no probability by more than {100 * bound:.1f} points"


def answered(pooled: Pooled) -> tuple[Pooled, Floats]:
    """Return the judged images and their answers by a map that learned from others."""
    if (pooled.fold_N >= 0).all():
        crossed = cross_fit_metadata(pooled.answers_NC, pooled.truth_N, pooled.facts, pooled.groups)
        return pooled, crossed[0] if crossed else pooled.answers_NC
    learned, judged = (pooled.rows(pooled.fold_N == part) for part in (VALIDATION, TEST))
    spec = fit_metadata(learned.answers_NC, learned.truth_N, learned.facts, learned.groups)
    if spec is None or spec.head is None:
        return judged, judged.answers_NC
    return judged, spec.head.apply(judged.answers_NC, judged.facts)


def _paired(
    prefix: str, judged: Pooled, with_NC: Floats, melanoma: int, draws: int
) -> dict[str, Figure]:
    truth_N, without_NC, n = judged.truth_N, judged.answers_NC, len(judged.truth_N)
    measure = log_gain(with_NC, without_NC, truth_N)
    gain = bootstrap_interval(measure, judged.groups, draws=draws)
    figures = {f"{prefix}log_loss_gain": Figure.of(gain, "", n)}
    for key in ("balanced", "top1", "auroc", "melanoma_auroc"):
        known, plain = (_measure(key, p_NC, truth_N, melanoma) for p_NC in (with_NC, without_NC))
        difference = paired_interval(known, plain, judged.groups, draws=draws)
        unit, scale = ("", 1) if "auroc" in key else ("points", 100)
        figures[f"{prefix}{key}_gain"] = Figure.of(difference, unit, n, scale)
    return figures


def _measure(key: str, p_NC: Floats, truth_N: NDArray[np.intp], melanoma: int) -> Measure:
    if key == "balanced":
        return Statistic.balanced_accuracy(p_NC, truth_N)
    if key == "top1":
        return Statistic.top_k(p_NC, truth_N, 1)
    if key == "auroc":
        return Ranked.auroc(p_NC, truth_N)
    risk_N = p_NC[:, melanoma]
    two_N2 = np.stack([1 - risk_N, risk_N], axis=1)
    return Ranked.auroc(two_N2, (truth_N == melanoma).astype(np.intp))
