"""A bundle's answers fitted to local images: temperature, mix of diseases, and thresholds.

The networks stay as they are, and so do the biases b of a calibration by class. The fitted
probabilities are p'(y|x) ∝ p(y|x)^(a/T) exp(b(y)) π'(y)/π(y), with its slope a, where π is the mix
that p holds for and π' the local one (Saerens, Latinne and Decaestecker 2002, equation
4; with a temperature: Alexandari, Kundaje and Shrikumar 2020, "Maximum likelihood with
bias-corrected calibration is hard-to-beat at label shift adaptation", section 3).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from skindx.core.settings_base import Settings
from skindx.data.manifest import Record
from skindx.models.combination import fit_temperature, fuse, log, shifted
from skindx.models.conformal import ALL, LEVEL, Conformal, fit_on_records
from skindx.models.ood.ood_check import FEWEST
from skindx.models.urgent_risk import (
    QUESTION_WORDS,
    QUESTIONS,
    Question,
    RiskLevel,
    UrgentRiskRule,
    fit_risk_on_records,
    rank_needs,
    rank_of,
    share_from,
)
from skindx.taxonomy import Taxonomy
from skindx.texts.catalogue import joined, text

# N = images, C = classes, K = detectors

Floats = NDArray[np.float64]

LEAST_GROUPS = FEWEST
"""Fewest lesions; with less, the out-of-distribution check would refuse over one in twenty."""
FOLDS = 5
CANNOT = (
    "The networks are unchanged: adapting does not make them tell diseases apart that they "
    "confuse here (AUROC hardly changes), and knows nothing of classes without local images."
)


class MeasuredFigure(Settings):
    """A figure with its 95 % interval, NaN for none."""

    value: float
    low: float
    high: float

    @property
    def words(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


class Adaptation(Settings):
    """What a bundle was adapted to: its index has it, its card and its answers name it."""

    parent: str = Field(pattern="^[0-9a-f]{64}$")
    """Digest of the bundle that it was made from."""
    earlier: tuple[str, ...] = ()
    """Digests of the bundles that the parent was made from, the first one first."""
    dataset: str = Field(max_length=256)
    manifest_sha256: str = Field(pattern="^[0-9a-f]{64}$")
    date: str = Field(max_length=64)
    images: int = Field(ge=LEAST_GROUPS)
    groups: int = Field(ge=LEAST_GROUPS)
    images_by_class: dict[str, int]
    log_shifts: tuple[float, ...]
    """Added to the log-probabilities of the classes after the temperature."""
    first_mix: dict[str, float]
    """Share of each class among the calibration images of the first bundle."""
    mix: dict[str, float]
    """Share of each class that the probabilities now hold for."""
    figures: dict[str, dict[str, MeasuredFigure]] = Field(default_factory=dict)
    """Title -> figures before and after on the local images, cross-fitted."""
    notes: tuple[str, ...] = ()
    """What could not be fitted to so few images, and what stays as it was."""

    @property
    def words(self) -> str:
        """The dataset it was adapted to, the number of images, and the date, in sentences."""
        counts = {"images": self.images, "groups": self.groups}
        on = text("adapted_on", day=self.date[:10], dataset=self.dataset, **counts)
        return joined(on, text("adapted_what"))

    def card_lines(self) -> list[str]:
        """Return the section of the model card."""
        mix = ", ".join(f"{key} {share:.1%}" for key, share in self.mix.items())
        lines = [
            f"{self.words} {CANNOT}",
            "",
            f"- parent: digest {self.parent}",
            *(f"- before that: digest {digest}" for digest in reversed(self.earlier)),
            f"- manifest of the local images: SHA-256 {self.manifest_sha256}",
            f"- mix that the probabilities hold for: {mix}",
            *(f"- {note}" for note in self.notes),
        ]
        if self.figures:
            lines += [
                "",
                f"Cross-fitted on the local images ({FOLDS} folds of groups; 95 % intervals). Of a "
                "hundred images the calibration error is mostly noise, which only adds to it:",
                "",
                "| figure | before | after |",
                "|---|---|---|",
            ]
        return lines + [
            f"| {title} | {row['before'].words} | {row['after'].words} |"
            for title, row in self.figures.items()
        ]


@dataclass(frozen=True)
class LocalImages:
    """What the networks make of labelled images, once, before any temperature of the ensemble."""

    records: tuple[Record, ...]
    truth_N: NDArray[np.intp]
    whole_NC: Floats
    """Logarithms of the pooled probabilities of whole images, times the slope of the bundle's
    calibration by class."""
    crop_NC: Floats | None = None
    """The same for crops around the best boxes, NaN where an image has no box; None: no crops."""
    ood_NK: Floats | None = None
    """Scores of the out-of-distribution detectors."""

    def __len__(self) -> int:
        return len(self.records)

    @property
    def groups_N(self) -> NDArray[np.str_]:  # noqa: N802
        """The group of each image."""
        return np.array([record.group for record in self.records])

    def select(self, index: NDArray[Any]) -> Self:
        """Return the images of an index array or a mask."""
        rows = np.arange(len(self))[index]
        return replace(
            self,
            records=tuple(self.records[row] for row in rows),
            truth_N=self.truth_N[rows],
            whole_NC=self.whole_NC[rows],
            crop_NC=None if self.crop_NC is None else self.crop_NC[rows],
            ood_NK=None if self.ood_NK is None else self.ood_NK[rows],
        )


@dataclass(frozen=True)
class FittedRules:
    """Everything that is fitted in a bundle's answers, without the networks."""

    temperature: float
    log_shifts_C: Floats
    mix_C: Floats | None
    """Share of each class that the probabilities hold for; None: the bundle does not say."""
    biases_C: Floats | float = 0.0
    """Biases of the bundle's calibration by class. Adapting keeps them: the effect of the networks'
    loss on the classes is the same elsewhere."""
    crop_weight: float = 0.0
    conformal: Conformal | None = None
    whole_conformal: Conformal | None = None
    risks: dict[str, UrgentRiskRule | None] = field(default_factory=dict)
    """The rules of both questions, also of whole images, by their names in a bundle."""
    notes: tuple[str, ...] = ()

    def probabilities(self, images: LocalImages, *, whole: bool = False) -> Floats:
        """Return the probabilities N x C as served; `whole`: without the crops."""
        shifts_C = self.log_shifts_C + self.biases_C
        whole_NC = shifted(images.whole_NC / self.temperature, shifts_C)
        if whole or images.crop_NC is None or not self.crop_weight:
            return whole_NC
        seen_N = np.isfinite(images.crop_NC[:, 0])
        crop_NC = shifted(images.crop_NC[seen_N] / self.temperature, shifts_C)
        fused_NC = whole_NC.copy()
        fused_NC[seen_N] = fuse(whole_NC[seen_N], crop_NC, self.crop_weight)
        return fused_NC


@dataclass(frozen=True)
class LocalFit:
    """How rules are fitted: of which classes, from where, and whether the mix is the local one."""

    taxonomy: Taxonomy
    parent: FittedRules
    first_mix_C: Floats | None
    """Share of each class where the logarithms of `LocalImages` come from; None: not known."""
    keep_mix: bool = False

    def fit(self, images: LocalImages) -> FittedRules:
        """Fit temperature and mix on all images, and thresholds on cross-fitted probabilities.

        A threshold is one of images that its own temperature was not fitted on. One that so few
        images cannot support stays the parent's, or lower where local images ask for it.
        """
        fitted = self._scaled(images)
        fold_N = folds(images)
        parts = [self._scaled(images.select(fold_N != k)) for k in range(FOLDS)]
        notes: list[str] = []
        change: dict[str, Any] = {}
        risks: dict[str, UrgentRiskRule | None] = {}
        for prefix in ("", "whole_"):
            old = getattr(self.parent, f"{prefix}conformal")
            if prefix and old is None:
                continue
            crossed_NC = np.empty_like(images.whole_NC)
            for k, rules in enumerate(parts):
                held = images.select(fold_N == k)
                crossed_NC[fold_N == k] = rules.probabilities(held, whole=bool(prefix))
            before_NC = self.parent.probabilities(images, whole=bool(prefix))
            level = old.level if old else LEVEL
            sets = fit_on_records(crossed_NC, images.records, self.taxonomy, level)
            change[f"{prefix}conformal"] = sets
            for question in QUESTIONS:
                risk, note = self._risk(
                    question, self.parent.risks.get(f"{prefix}{question}"), images.records,
                    before_NC, crossed_NC,
                )  # fmt: skip
                risks[f"{prefix}{question}"] = risk
                notes += [note] if note and not prefix else []
            if old and not prefix and (old.urgent_level or 0) > (sets.urgent_level or 0):
                promised = f"{sets.urgent_level:.0%}" if sets.urgent_level else "nothing"
                notes.append(
                    f"sets of urgent conditions promise {promised} and no longer "
                    f"{old.urgent_level:.0%}: there are too few local images of them"
                )
        return replace(fitted, **change, risks=risks, notes=(*fitted.notes, *notes))

    def _scaled(self, images: LocalImages) -> FittedRules:
        """Return the parent's rules with a temperature and a mix fitted to the images."""
        classes = images.whole_NC.shape[1]
        if self.first_mix_C is None or self.parent.mix_C is None:
            mix_C, shifts_C = None, self.parent.log_shifts_C
            notes: tuple[str, ...] = (
                "the bundle does not say for which mix of diseases its probabilities hold, so the "
                "mix stays; only the temperature is local",
            )
        elif self.keep_mix:
            mix_C, shifts_C = self.parent.mix_C, self.parent.log_shifts_C
            notes = ("the mix of diseases was kept, as asked",)
        else:
            # Images of one lesion are one lesion; each class counts as much as the parent's mix
            # says of as many images as there are classes (a Dirichlet prior).
            pairs = {(record.group, int(c)) for record, c in zip(
                images.records, images.truth_N, strict=True)}  # fmt: skip
            counts_C = np.bincount([c for _, c in pairs], minlength=classes)
            mix_C = (counts_C + classes * self.parent.mix_C) / (counts_C.sum() + classes)
            shifts_C, notes = log(mix_C) - log(self.first_mix_C), ()
        added_C = shifts_C + self.parent.biases_C
        temperature = fit_temperature(images.whole_NC, images.truth_N, added_C)
        return replace(
            self.parent, temperature=temperature, log_shifts_C=shifts_C, mix_C=mix_C, notes=notes
        )

    def _risk(
        self,
        question: Question,
        old: UrgentRiskRule | None,
        records: Sequence[Record],
        before_NC: Floats,
        crossed_NC: Floats,
    ) -> tuple[UrgentRiskRule | None, str]:
        """Return the local rule, or the parent's no less cautious than it was, and a note."""
        local = fit_risk_on_records(crossed_NC, records, self.taxonomy, question)
        if old is None:
            return local, ""
        condition = QUESTION_WORDS[question][0]
        if local and rank_of(local.lesions[ALL], old.default):
            lost = [x.miss_rate for x in old.levels if not rank_of(local.lesions[ALL], x.miss_rate)]
            if not lost:
                return local, ""
            return local, (
                f"no threshold of {condition} conditions for a miss rate of "
                f"{', '.join(f'{rate:g}' for rate in lost)}: {local.lesions[ALL]} local lesions "
                "are too few"
            )
        columns = list(old.urgent_columns)
        keys = {self.taxonomy.keys[c] for c in columns}
        positive_N = np.array([record.label in keys for record in records])
        groups_N = np.array([record.group for record in records])
        lesions = set(groups_N[positive_N].tolist())
        risk_N, before_N = crossed_NC[:, columns].sum(axis=1), old.risks(before_NC)
        levels = []
        for level in old.levels:
            called_N = before_N >= old.thresholds(level, [record.skin_type for record in records])
            # No local image loses its urgency, and no lesion that is urgent goes without it.
            least = min(risk_N[called_N | positive_N], default=level.thresholds[ALL])
            least = min(max(float(least), 0.0), 1.0)
            levels.append(
                RiskLevel(
                    miss_rate=level.miss_rate,
                    thresholds={ALL: least},
                    sent_on=share_from(least, risk_N[~positive_N], groups_N[~positive_N]),
                )
            )
        kept = old.model_copy(update={"levels": tuple(levels), "lesions": {ALL: old.lesions[ALL]}})
        note = (
            f"the threshold of {condition} conditions is the parent's, lowered so that no local "
            f"image is less urgent than before: {len(lesions)} local lesions of them are too few "
            f"for one of their own (it takes {rank_needs(old.default)})"
        )
        return kept, note


def folds(images: LocalImages) -> NDArray[np.intp]:
    """Return each image's fold, by group and much the same classes in each."""
    names, first = np.unique(images.groups_N, return_index=True)
    random_G = np.random.default_rng(0).permutation(len(names))
    order_G = np.lexsort((random_G, images.truth_N[first]))
    fold_G = np.empty(len(names), dtype=np.intp)
    fold_G[order_G] = np.arange(len(names)) % FOLDS
    return fold_G[np.searchsorted(names, images.groups_N)]
