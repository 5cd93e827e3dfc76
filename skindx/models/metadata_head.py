"""Age, sex and place on the body in an answer: an additive map on the ensemble's logits.

A missing field adds nothing, so an answer without any of them is the ensemble's, to the bit. The
map is fitted to probabilities of images that no member trained on, and serves only where its loss,
cross-fitted over groups, is lower by more than chance.

N = images, D = columns, C = classes
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from skindx.core.settings_base import Settings
from skindx.data.manifest import Record
from skindx.metrics import Ranked, paired_interval
from skindx.models.class_calibration import FOLDS, LossGain, fold_numbers, loss_gain
from skindx.models.combination import apply_temperature, log
from skindx.models.conformal import Conformal, fit_on_records
from skindx.models.urgent_risk import QUESTIONS, UrgentRiskRule, fit_risk_on_records
from skindx.taxonomy import Taxonomy
from skindx.taxonomy.lexicon import site_of, wider_site

Floats = NDArray[np.float64]
Ints = NDArray[np.integer]

MetadataField = Literal["age", "sex", "site"]
FIELDS: tuple[MetadataField, ...] = get_args(MetadataField)

MOST_URGENT_LOSS = 0.01
"""The interval of the change in the urgent risk's AUROC may not reach below minus this."""
SEX_SHIFT = 0.05
"""Most change of any probability by sex alone, in an answer with any other fields."""
_FEWEST, _FEWEST_AT_SITE = 100, 20
"""Fewest images with a known field, and fewest at a site, from which a field is learned."""
_STRENGTHS = (30.0, 10.0, 3.0, 1.0)
"""Strengths of the penalty in images: each is multiplied by half the squared weights."""
_KEPT = 0.7
"""Chance of a field to be kept in the second view of an image, so that any subset serves."""


_SEXES = {"female": 0.0, "male": 1.0}


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a person; None and "" where it is not."""

    age: float | None = None
    sex: str = ""
    """`female` or `male`; every other word counts as not known."""
    site: str = ""

    @classmethod
    def from_record(cls, record: Record) -> Self:
        """Return what the manifest says of an image."""
        return cls(record.age, record.sex, site_of(record.site))

    def only(self, fields: Iterable[str]) -> "Facts":
        """Return the same with these fields alone."""
        hidden = {"age": None, "sex": "", "site": ""}
        return replace(self, **{key: hidden[key] for key in set(FIELDS) - set(fields)})  # type: ignore[arg-type]


class MetadataHead(Settings):
    """The map: each column is centred and scaled, and has a weight for each class."""

    columns: tuple[str, ...] = Field(min_length=1)
    """`age`, `age_squared`, `sex`, and `site NAME` of each place that was learned."""
    ages: tuple[float, float] = (0.0, 120.0)
    """Ages beyond those of the fitted images count as the nearest of them."""
    centre: tuple[float, ...]
    """Means over the images that say the field: the map moves no class on average."""
    weights: tuple[tuple[float, ...], ...]
    """D x C."""
    sex_shift: float = Field(SEX_SHIFT, gt=0, lt=1)

    @model_validator(mode="after")
    def _keeps_the_bound(self) -> Self:
        widths = {len(row) for row in self.weights}
        if not (len(self.columns) == len(self.centre) == len(self.weights)) or len(widths) != 1:
            raise ValueError("the sizes of columns, centre and weights do not fit each other")
        if self.largest_sex_shift > self.sex_shift + 1e-9:
            raise ValueError(
                f"sex alone could change a probability by {self.largest_sex_shift:.3f}, but at "
                f"most {self.sex_shift} is allowed"
            )
        return self

    @property
    def fields(self) -> tuple[MetadataField, ...]:
        learned = {_field_of(column) for column in self.columns}
        return tuple(field for field in FIELDS if field in learned)

    @property
    def largest_sex_shift(self) -> float:
        """The most that any probability, or sum of some, moves by sex, whatever else is given.

        A shift d of logits moves a class most where one other class alone is against it: by
        2 s((d_c - d_k) / 2) - 1 = tanh((d_c - d_k) / 4), with s the logistic function.
        """
        if "sex" not in self.columns:
            return 0.0
        row = self.weights[self.columns.index("sex")]
        return math.tanh((max(row) - min(row)) / 4)

    def known(self, facts: Facts) -> tuple[MetadataField, ...]:
        """Return which of the given fields the map can use."""
        raw_D = _raw([facts], self.columns, self.ages)[0]
        known = {_field_of(c) for c, x in zip(self.columns, raw_D, strict=True) if not np.isnan(x)}
        return tuple(field for field in FIELDS if field in known)

    def apply(self, probabilities_NC: Floats, facts: Sequence[Facts]) -> Floats:
        """Return the probabilities with what is known; rows without any of it are left as is."""
        design_ND = _centred(_raw(facts, self.columns, self.ages), np.array(self.centre))
        result_NC = probabilities_NC.copy()
        some_N = design_ND.any(axis=1)
        if some_N.any():
            scores_NC = log(probabilities_NC[some_N]) + design_ND[some_N] @ np.array(self.weights)
            result_NC[some_N] = apply_temperature(scores_NC, 1.0)
        return result_NC


class AnswerRules(Settings):
    """Sets and urgent risk, fitted on answers with some fields; `whole_`: without the crop."""

    conformal: Conformal | None = None
    whole_conformal: Conformal | None = None
    urgent_risk: UrgentRiskRule | None = None
    whole_urgent_risk: UrgentRiskRule | None = None
    soon_risk: UrgentRiskRule | None = Field(None, exclude_if=lambda rule: rule is None)
    whole_soon_risk: UrgentRiskRule | None = Field(None, exclude_if=lambda rule: rule is None)

    def refitted(
        self, answers: Mapping[str, Floats], records: Sequence[Record], taxonomy: Taxonomy
    ) -> "AnswerRules":
        """Return what it has, fitted again on other answers to calibration images, N x C.

        They are under "" and, where answers without the crop differ, under "whole_".
        """
        fitted: dict[str, Conformal | UrgentRiskRule | None] = {}
        for prefix, answers_NC in answers.items():
            if old := getattr(self, f"{prefix}conformal"):
                rule = fit_on_records(answers_NC, records, taxonomy, old.level)
                fitted[f"{prefix}conformal"] = rule
            for question in QUESTIONS:
                if getattr(self, f"{prefix}{question}"):
                    risk = fit_risk_on_records(answers_NC, records, taxonomy, question)
                    fitted[f"{prefix}{question}"] = risk
        return AnswerRules.model_validate(fitted)


RULES = tuple(AnswerRules.model_fields)
"""What a bundle, its answers with fields and the calibration of an export have by these names."""


class MetadataSpec(Settings):
    """What a bundle does with the fields: the map where it gains, and what was measured of it."""

    head: MetadataHead | None = None
    """The head that uses the fields; None: they gain nothing, and no answer uses them."""
    gain: LossGain
    rules: dict[str, AnswerRules] = Field(default_factory=dict)
    """Rules by the fields used, such as `age+site`; an answer with other fields uses none."""

    def served(self, facts: Facts) -> tuple[MetadataField, ...]:
        """Return the fields that an answer uses of those that are given."""
        known = self.head.known(facts) if self.head else ()
        return known if "+".join(known) in self.rules else ()


def _field_of(column: str) -> str:
    return column.replace("_", " ").split(" ")[0]


def _raw(
    facts: Sequence[Facts], columns: Sequence[str], ages: tuple[float, float]
) -> NDArray[np.float64]:
    """Return the columns N x D, NaN where a field is missing or not one that was learned."""
    age_N = np.array([np.nan if person.age is None else person.age for person in facts], float)
    age_N = (np.clip(age_N, *ages) - 50) / 20
    sex_N = np.array([_SEXES.get(person.sex, np.nan) for person in facts], float)
    sites = [column.removeprefix("site ") for column in columns if column.startswith("site ")]
    places = [person.site if person.site in sites else wider_site(person.site) for person in facts]
    site_N = np.array(places, dtype=np.str_)
    learned_N = np.isin(site_N, sites)
    values = {"age": age_N, "age_squared": age_N**2, "sex": sex_N}
    for site in sites:
        values[f"site {site}"] = np.where(learned_N, (site_N == site).astype(float), np.nan)
    return np.stack([values[column] for column in columns], axis=1)


def _centred(raw_ND: Floats, centre_D: Floats) -> Floats:
    return np.nan_to_num(raw_ND - centre_D)


def urgent_change(
    with_NC: Floats,
    without_NC: Floats,
    truth_N: Ints,
    groups: Sequence[str],
    urgent_C: NDArray[np.bool_] | None,
) -> tuple[float, float, float] | None:
    """Return the change in the AUROC of the urgent risk with its interval; None: not defined."""
    if urgent_C is None or len(set(urgent_C[truth_N].tolist())) < 2:
        return None
    urgent_N = urgent_C[truth_N].astype(np.intp)
    one, other = (
        Ranked.auroc(np.stack([1 - risk_N, risk_N], axis=1), urgent_N)
        for risk_N in (
            np.clip(p_NC[:, urgent_C].sum(axis=1), 0, 1) for p_NC in (with_NC, without_NC)
        )
    )
    interval = paired_interval(one, other, groups)
    bounds = (interval.value, interval.low, interval.high)
    return None if any(map(math.isnan, bounds)) else bounds


def fit_metadata(
    probabilities_NC: Floats,
    truth_N: Ints,
    facts: Sequence[Facts],
    groups: Sequence[str],
    *,
    urgent_C: NDArray[np.bool_] | None = None,
) -> MetadataSpec | None:
    """Fit the map to probabilities of images that no member trained on, and measure its gain.

    None where too few images say any field. The head is left out where the interval of the gain
    does not lie above 0, and where that of the change in the urgent risk's AUROC reaches below
    -0.01: more likely answers are no gain if urgent conditions might be told apart worse.
    """
    crossed = cross_fit_metadata(probabilities_NC, truth_N, facts, groups)
    if crossed is None:
        return None
    crossed_NC, strength = crossed
    gain = loss_gain(crossed_NC, probabilities_NC, truth_N, groups)
    if gain is None:
        return None
    change = urgent_change(crossed_NC, probabilities_NC, truth_N, groups, urgent_C)
    gain = gain.model_copy(update={"urgent_auroc": change})
    if gain.low <= 0 or (change and change[1] < -MOST_URGENT_LOSS):
        return MetadataSpec(gain=gain)
    columns = columns_of(facts)
    sample = _Sample(probabilities_NC, truth_N, facts)
    (head,) = _fit_path(sample, columns, (strength,))
    return MetadataSpec(head=head, gain=gain)


def cross_fit_metadata(
    probabilities_NC: Floats, truth_N: Ints, facts: Sequence[Facts], groups: Sequence[str]
) -> tuple[Floats, float] | None:
    """Return each image's probabilities by a map fitted on the folds without it, and a strength.

    Folds keep groups whole. For each the strength of the penalty is the best of the other folds;
    the one that is returned is the best of all. None where there is nothing to learn from.
    """
    columns = columns_of(facts)
    if not columns or len(set(groups)) < FOLDS:
        return None
    fold_N = fold_numbers(truth_N, groups, FOLDS)
    losses_KS = np.zeros((FOLDS, len(_STRENGTHS)))
    crossed_SNC = np.repeat(probabilities_NC[None], len(_STRENGTHS), axis=0)
    for fold in range(FOLDS):
        held_N = fold_N == fold
        learned = _Sample(probabilities_NC[~held_N], truth_N[~held_N], _some(facts, ~held_N))
        held, rows_N = _some(facts, held_N), np.arange(int(held_N.sum()))
        for s, head in enumerate(_fit_path(learned, columns, _STRENGTHS)):
            crossed_SNC[s, held_N] = head.apply(probabilities_NC[held_N], held)
            losses_KS[fold, s] = -log(crossed_SNC[s, held_N])[rows_N, truth_N[held_N]].sum()
    best_K = [int(np.delete(losses_KS, k, axis=0).sum(axis=0).argmin()) for k in range(FOLDS)]
    crossed_NC = crossed_SNC[np.array(best_K)[fold_N], np.arange(len(truth_N))]
    return crossed_NC, _STRENGTHS[int(losses_KS.sum(axis=0).argmin())]


def columns_of(facts: Sequence[Facts]) -> tuple[str, ...]:
    """Return the columns that enough images say something of."""
    columns: list[str] = []
    if sum(person.age is not None for person in facts) >= _FEWEST:
        columns += ["age", "age_squared"]
    sexes = Counter(person.sex for person in facts)
    if min(sexes["female"], sexes["male"]) >= _FEWEST // 2:
        columns.append("sex")
    places = Counter(wider_site(person.site) for person in facts if person.site)
    learned = sorted(site for site, count in places.items() if count >= _FEWEST_AT_SITE)
    if len(learned) > 1 and sum(places[site] for site in learned) >= _FEWEST:
        columns += [f"site {site}" for site in learned]
    return tuple(columns)


@dataclass(frozen=True)
class _Sample:
    probabilities_NC: Floats
    truth_N: Ints
    facts: Sequence[Facts]


def _some(facts: Sequence[Facts], chosen_N: NDArray[np.bool_]) -> list[Facts]:
    return list(itertools.compress(facts, chosen_N))


def _fit_path(
    sample: _Sample, columns: tuple[str, ...], strengths: Sequence[float]
) -> Iterator[MetadataHead]:
    """Yield the maps of least penalised loss, over images as they are and with fields dropped."""
    from scipy.optimize import minimize
    from scipy.special import log_softmax

    facts, classes = sample.facts, sample.probabilities_NC.shape[1]
    known = [person.age for person in facts if person.age is not None]
    ages = (min(known), max(known)) if "age" in columns else (0.0, 120.0)
    raw_ND = _raw(facts, columns, ages)
    centre_D = np.array([_mean(raw_N) for raw_N in raw_ND.T])
    keeps = np.random.default_rng(0).random((len(facts), len(FIELDS))) < _KEPT
    dropped = [
        person.only(itertools.compress(FIELDS, kept_F))
        for person, kept_F in zip(facts, keeps, strict=True)
    ]
    design_ND = _centred(np.concatenate([raw_ND, _raw(dropped, columns, ages)]), centre_D)
    offset_NC = np.tile(log(sample.probabilities_NC), (2, 1))
    truth_NC = np.tile(np.eye(classes)[sample.truth_N], (2, 1))

    def loss(flat: Floats, strength: float) -> tuple[float, Floats]:
        weights_DC = flat.reshape(len(columns), classes)
        log_NC = log_softmax(offset_NC + design_ND @ weights_DC, axis=1)
        slope_DC = design_ND.T @ (np.exp(log_NC) - truth_NC) / 2 + strength * weights_DC
        value = -(truth_NC * log_NC).sum() / 2 + strength * (weights_DC**2).sum() / 2
        return value / len(facts), slope_DC.ravel() / len(facts)

    # A row of logits may be moved as a whole, so every row whose range is at most 2 x `most`
    # lies within these bounds, and every row within them has no larger range.
    most = 2 * math.atanh(SEX_SHIFT)
    limits = [(-most, most) if column == "sex" else (None, None) for column in columns]
    bounds = [limit for limit in limits for _ in range(classes)]
    flat = np.zeros(len(columns) * classes)
    for strength in strengths:
        fitted = minimize(loss, flat, (strength,), "L-BFGS-B", jac=True, bounds=bounds)
        flat = fitted.x
        yield MetadataHead(
            columns=columns,
            ages=ages,
            centre=tuple(centre_D.tolist()),
            weights=tuple(map(tuple, flat.reshape(len(columns), classes).tolist())),
        )


def _mean(raw_N: Floats) -> float:
    known_N = raw_N[~np.isnan(raw_N)]
    return float(known_N.mean()) if len(known_N) else 0.0


def with_rules(
    spec: MetadataSpec,
    held: Sequence[Record],
    taxonomy: Taxonomy,
    answers: Mapping[str, Floats],
    plain: AnswerRules,
) -> MetadataSpec:
    """Return the spec with the rules of calibration images, for each set of fields.

    `answers` are their probabilities without fields, N x C: under "", as served, and under
    "whole_" those without the crop, where that makes a difference. A set of fields is calibrated on
    the images that say all of them, and is not served where a rule that `plain` has cannot be.
    """
    head, rules = spec.head, {}
    for fields in _subsets(head.fields) if head else ():
        assert head is not None
        some = [Facts.from_record(record).only(fields) for record in held]
        rows = [n for n, facts in enumerate(some) if head.known(facts) == fields]
        records, known = [held[n] for n in rows], [some[n] for n in rows]
        rest = {
            prefix: head.apply(answers_NC[rows], known) for prefix, answers_NC in answers.items()
        }
        new = plain.refitted(rest, records, taxonomy) if rows else AnswerRules()
        if all(getattr(new, name) or not getattr(plain, name) for name in RULES):
            rules["+".join(fields)] = new
    return spec.model_copy(update={"rules": rules})


def _subsets(fields: Sequence[MetadataField]) -> list[tuple[MetadataField, ...]]:
    sizes = range(1, len(fields) + 1)
    return [chosen for size in sizes for chosen in itertools.combinations(fields, size)]
