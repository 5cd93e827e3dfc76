"""The urgent risk of a photo, and the thresholds from which a next step is urgent.

The risk is the summed probability of the urgent classes. A threshold bounds the miss rate: of
lesions with an urgent condition, the share whose risk lies below it. A second question is asked of
urgent and soon classes together, by the same rule: from its threshold on a next step is at least
soon.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal, Protocol, Self, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, model_validator

from skindx.core.errors import UserError
from skindx.core.settings_base import Settings
from skindx.data.manifest import Record
from skindx.metrics import share_interval
from skindx.models.conformal import ALL, Share, skin_type_group
from skindx.taxonomy import SkinClass, Taxonomy, Urgency
from skindx.texts.catalogue import Digits, text

MISS_RATES = (0.02, 0.05, 0.1)
"""Levels that are fitted where the calibration split has enough lesions for them."""
DEFAULT_MISS_RATE = 0.05
BOUND_CONFIDENCE = 0.95

# N = images, C = classes

Question = Literal["urgent_risk", "soon_risk"]
"""Names the rule of a question in a bundle; `whole_` stands before that of whole images alone."""
QUESTIONS: tuple[Question, ...] = get_args(Question)
TIERS: dict[Question, tuple[Urgency, ...]] = {
    "urgent_risk": ("urgent",),
    "soon_risk": ("urgent", "soon"),
}
"""The tiers of urgency whose probabilities a question sums."""
QUESTION_WORDS: dict[Question, tuple[str, str]] = {
    "urgent_risk": ("urgent", "urgent"),
    "soon_risk": ("urgent or soon", "at least soon"),
}
"""What its conditions are, and what a photo is called whose risk reaches the threshold."""


def classes_of_question(
    classes: Iterable[SkinClass], question: Question = "urgent_risk"
) -> NDArray[np.bool_]:
    """Return which classes a question is about, C; none where a tier of it has no class."""
    tiers = [skin_class.urgency for skin_class in classes]
    whole = set(TIERS[question]) <= set(tiers)
    return np.array([whole and tier in TIERS[question] for tier in tiers], dtype=bool)


def why_no_threshold(classes: Iterable[SkinClass]) -> str:
    """Return why a bundle of these classes has no threshold of the urgent risk, in a clause."""
    tiers = {skin_class.urgency for skin_class in classes}
    if "urgent" not in tiers:
        unknown = " and the urgency of some is unknown" if "unknown" in tiers else ""
        return f"none of its classes is urgent{unknown}, so there is no such risk to estimate"
    least = rank_needs(max(MISS_RATES))
    return f"it takes {least} calibration lesions with an urgent condition, and fewer were used"


def rank_needs(miss_rate: float) -> int:
    """Return the fewest lesions that a threshold of a miss rate takes."""
    return math.ceil(round(1 / miss_rate, 9)) - 1


def rank_of(lesions: int, miss_rate: float) -> int:
    """Return which of the ascending risks of `lesions` is the threshold; 0: there is none.

    With the threshold at the m-th smallest, a new lesion is missed with probability m / (n + 1):
    the largest m with m / (n + 1) <= miss rate (conformal risk control with a loss of 0 or 1,
    Angelopoulos et al. 2022, arXiv 2208.02814, section 2.1).
    """
    # Rounded first: (19 + 1) * 0.05 is 1, and not a hair below it.
    return math.floor(round((lesions + 1) * miss_rate, 9))


class RiskPromise(Settings):
    """The guarantee of a threshold for lesions drawn like the calibration lesions."""

    miss_rate: float = Field(gt=0, lt=1)
    """The miss rate is at most this on average over calibration splits."""
    lesions: int = Field(ge=1)
    """Calibration lesions with an urgent condition behind the threshold."""

    @property
    def confidence(self) -> float:
        """Probability, over calibration splits, that the miss rate is at most `miss_rate`.

        The miss rate below the m-th smallest of n risks has the distribution Beta(m, n + 1 - m)
        if no risks are equal, and smaller values otherwise (Vovk 2012, proposition 2a). The same
        number is 1 - p of the binomial test in Learn then Test (arXiv 2110.01052, section 2).
        """
        from scipy.special import betainc

        rank = rank_of(self.lesions, self.miss_rate)
        return float(betainc(rank, self.lesions + 1 - rank, self.miss_rate))

    @property
    def bound(self) -> float:
        """The rate that the miss rate does not exceed with a confidence of 95 %."""
        from scipy.special import betaincinv

        rank = rank_of(self.lesions, self.miss_rate)
        return float(betaincinv(rank, self.lesions + 1 - rank, BOUND_CONFIDENCE))


class RiskLevel(Settings):
    """The thresholds for one miss rate."""

    miss_rate: float = Field(gt=0, lt=1)
    thresholds: dict[str, float]
    """Least risk that is urgent, by group of images: `all`, and skin types with enough lesions."""
    sent_on: Share | None = None
    """Calibration images of other classes that are urgent by it; None: there was no such image."""

    @model_validator(mode="after")
    def _has_the_threshold_of_all(self) -> Self:
        if ALL not in self.thresholds:
            raise ValueError(f"thresholds must have an entry {ALL!r}, the threshold for any image")
        for group, threshold in self.thresholds.items():
            if not 0 <= threshold <= 1:
                raise ValueError(f"the threshold of {group} must be in 0..1, not {threshold}")
        return self


class UrgentRiskRule(Settings):
    """The rule by which a next step is urgent: risk at or above the threshold of a level.

    That of the second question reads the same with "urgent or soon" in the place of "urgent".
    """

    urgent_columns: tuple[int, ...] = Field(min_length=1)
    """Urgent classes, by their places in the taxonomy."""
    lesions: dict[str, int]
    """Calibration lesions with an urgent condition, by the groups of the thresholds.

    A lesion is a group of the manifest (a lesion, a patient, copies of one image). One image of
    each counts, since images of one group are no independent evidence.
    """
    levels: tuple[RiskLevel, ...] = Field(min_length=1)
    """Levels by ascending miss rate."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        rates = [level.miss_rate for level in self.levels]
        if rates != sorted(set(rates)):
            raise ValueError("levels must have distinct miss rates in ascending order")
        if any(column < 0 for column in self.urgent_columns):
            raise ValueError("urgent_columns must be class numbers from 0")
        for level in self.levels:
            for group in level.thresholds:
                if rank_of(self.lesions.get(group, 0), level.miss_rate) < 1:
                    raise ValueError(
                        f"{group} has too few lesions for a level of {level.miss_rate}"
                    )
        return self

    @property
    def default(self) -> float:
        """The default miss rate: 0.05, or else the nearest that was fitted."""
        rates = [level.miss_rate for level in self.levels]
        return min(rates, key=lambda rate: (abs(rate - DEFAULT_MISS_RATE), rate))

    def level(self, miss_rate: float | None = None) -> RiskLevel:
        """Return the level of a miss rate, None: the default. Raises UserError for another one."""
        wanted = self.default if miss_rate is None else miss_rate
        for level in self.levels:
            if math.isclose(level.miss_rate, wanted):
                return level
        rates = ", ".join(f"{level.miss_rate:g}" for level in self.levels)
        raise UserError(
            f"the bundle has no threshold for a miss rate of {wanted:g}; choose one of its rates: "
            f"--miss-rate {rates}."
        )

    def group(self, level: RiskLevel, skin_type: int | None) -> str:
        """Return whose threshold an image is judged by: a skin type's, or `all`."""
        name = ALL if skin_type is None else skin_type_group(skin_type)
        return name if name in level.thresholds else ALL

    def promise(self, level: RiskLevel, group: str = ALL) -> RiskPromise:
        return RiskPromise(miss_rate=level.miss_rate, lesions=self.lesions[group])

    def risks(self, probabilities_NC: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the urgent risk of each image, N.

        Raises ValueError when an urgent class is beyond the last one.
        """
        classes = probabilities_NC.shape[1]
        if any(column >= classes for column in self.urgent_columns):
            raise ValueError(
                f"the urgent columns {self.urgent_columns} do not fit {classes} classes"
            )
        return urgent_risks(probabilities_NC, self.urgent_columns)

    def thresholds(self, level: RiskLevel, skin_types: Sequence[int | None]) -> NDArray[np.float64]:
        """Return the threshold of each image, N, by its Fitzpatrick type where it is known."""
        return np.array(
            [level.thresholds[self.group(level, skin_type)] for skin_type in skin_types]
        )


def check_level(
    rule: UrgentRiskRule | None, miss_rate: float | None, classes: Iterable[SkinClass]
) -> None:
    """Raise UserError for a miss rate that the rule has no threshold for; None is always there.

    `classes` are those of the bundle.
    """
    if miss_rate is None:
        return
    if rule is None:
        raise UserError(
            f"the bundle has no threshold for any miss rate, so not for {miss_rate:g} "
            f"({why_no_threshold(classes)}); remove --miss-rate."
        )
    rule.level(miss_rate)


def urgent_risks(
    probabilities_NC: NDArray[np.float64], urgent_columns: Sequence[int]
) -> NDArray[np.float64]:
    """Return the summed probability of the urgent classes, N; rounding does not exceed 1."""
    risks_N: NDArray[np.float64] = probabilities_NC[:, list(urgent_columns)].sum(axis=1)
    return np.clip(risks_N, 0.0, 1.0)


class MeasuredRate(Protocol):
    """A measured figure with its 95 % interval."""

    @property
    def value(self) -> float: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...


ENOUGH = 59
"""Calibration images of a class; of 59 lesions without a miss, a miss rate of 5 % is excluded with
a confidence of 95 %."""


def not_useful(
    *,
    others_urgent: MeasuredRate | None = None,
    all_classes: MeasuredRate | None = None,
    over_refer_all: MeasuredRate | None = None,
    images: Mapping[str, int] | None = None,
    urgent: Collection[str] = (),
) -> tuple[str, ...]:
    """Return why a bundle is not useful yet, in sentences; empty where nothing says so.

    `others_urgent` is the share of images of no urgent class that are called urgent, `all_classes`
    that of sets with every class, `over_refer_all` what the threshold is worth beyond referring
    everyone, as net benefit; each None where it was not measured. `images` counts the calibration
    images of each class, by its name: the last sentence names the class with too few, of the
    `urgent` ones where what is wrong is what is called urgent.
    """
    reasons = []
    if others_urgent and others_urgent.value > 0.5:
        reasons.append(text("not_useful_others", **_bounded(others_urgent)))
    if over_refer_all and over_refer_all.value <= 0:
        figures = {"value": over_refer_all.value, "low": over_refer_all.low}
        reasons.append(text("not_useful_refer_all", high=over_refer_all.high, **figures))
    of_urgency = bool(reasons)
    if all_classes and all_classes.value > 0.5:
        reasons.append(text("not_useful_sets", **_bounded(all_classes)))
    if reasons and images:
        few = [one for one in images if of_urgency and one in urgent and images[one] < ENOUGH]
        name = min(few or images, key=lambda one: images[one])
        if images[name] < ENOUGH:
            reasons.append(text("not_useful_few", name=name, n=images[name], least=ENOUGH))
        else:
            reasons.append(text("not_useful_other_images", least=images[name]))
    return tuple(reasons)


def _bounded(rate: MeasuredRate) -> dict[str, Digits]:
    return {
        "value": Digits(rate.value, 1),
        "low": Digits(rate.low, 1),
        "high": Digits(rate.high, 1),
    }


Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def fit_risk_on_records(
    probabilities_NC: Floats,
    records: Sequence[Record],
    taxonomy: Taxonomy,
    question: Question = "urgent_risk",
) -> UrgentRiskRule | None:
    """Fit on the probabilities of calibration images; None where they are too few."""
    number = {key: index for index, key in enumerate(taxonomy.keys)}
    # Which image of a lesion counts is left to its hash: no order of the manifest chooses it.
    order = sorted(range(len(records)), key=lambda n: records[n].sha256)
    return fit_urgent_risk(
        probabilities_NC[order],
        np.array([number[records[n].label] for n in order], dtype=np.intp),
        urgent_C=classes_of_question(taxonomy.classes, question),
        groups=[records[n].group for n in order],
        skin_types=[records[n].skin_type for n in order],
    )


def fit_urgent_risk(
    probabilities_NC: Floats,
    truth_N: NDArray[np.integer],
    *,
    urgent_C: Bools,
    groups: ArrayLike | None = None,
    skin_types: Sequence[int | None] | None = None,
    miss_rates: Sequence[float] = MISS_RATES,
) -> UrgentRiskRule | None:
    """Fit a threshold for each miss rate that the urgent lesions are enough for.

    A miss rate r needs 1 / r - 1 lesions: 49 for 0.02, 19 for 0.05, 9 for 0.1. None when there are
    too few for any. Of each group (images of one lesion or patient) the first image counts: one
    image a group makes lesions independent, which the guarantee rests on, so the order must not
    depend on the images' content. Raises ValueError for what does not fit.
    """
    if probabilities_NC.ndim != 2 or truth_N.shape != probabilities_NC.shape[:1]:
        raise ValueError(
            f"probabilities must be (N, C) and truth (N), but are {probabilities_NC.shape}, "
            f"{truth_N.shape}"
        )
    if not np.isfinite(probabilities_NC).all():
        raise ValueError("probabilities must be finite")
    n = len(truth_N)
    columns = tuple(np.flatnonzero(urgent_C).tolist())
    groups_N = np.arange(n) if groups is None else np.asarray(groups)
    types_N = np.array(
        [skin_type or 0 for skin_type in skin_types] if skin_types is not None else [0] * n
    )
    risk_N, urgent_N = urgent_risks(probabilities_NC, columns), urgent_C[truth_N]
    among = {ALL: urgent_N}
    for skin_type in np.unique(types_N[types_N > 0]).tolist():
        among[skin_type_group(skin_type)] = urgent_N & (types_N == skin_type)
    risks = {name: np.sort(risk_N[_one_a_group(of_N, groups_N)]) for name, of_N in among.items()}
    levels = []
    for miss_rate in sorted(miss_rates):
        ranks = {name: rank_of(len(risk_G), miss_rate) for name, risk_G in risks.items()}
        if ranks[ALL]:
            thresholds = {g: float(risks[g][rank - 1]) for g, rank in ranks.items() if rank}
            sent_on = share_from(thresholds[ALL], risk_N[~urgent_N], groups_N[~urgent_N])
            levels.append(RiskLevel(miss_rate=miss_rate, thresholds=thresholds, sent_on=sent_on))
    if not levels:
        return None
    used = {name for level in levels for name in level.thresholds}
    lesions = {name: len(risk_G) for name, risk_G in risks.items() if name in used}
    return UrgentRiskRule(urgent_columns=columns, lesions=lesions, levels=tuple(levels))


def _one_a_group(of_N: Bools, groups_N: NDArray[np.generic]) -> NDArray[np.intp]:
    """Return the places of the first image of each group among some of the images."""
    places = np.flatnonzero(of_N)
    _, first = np.unique(groups_N[places], return_index=True)
    chosen: NDArray[np.intp] = places[first]
    return chosen


def share_from(threshold: float, risk_N: Floats, groups_N: NDArray[np.generic]) -> Share | None:
    """Return the share of risks at or above a threshold, with an interval over groups."""
    if not len(risk_N):
        return None
    share = share_interval(risk_N >= threshold, groups_N)
    return Share(value=share.value, low=share.low, high=share.high, pictures=len(risk_N))
