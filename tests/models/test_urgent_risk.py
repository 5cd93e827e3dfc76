"""The urgent risk: thresholds by hand, and its promise over many random splits."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import logit
from scipy.stats import binom, norm

from skindx.core.errors import UserError
from skindx.data.manifest import Record
from skindx.models.urgent_risk import (
    QUESTIONS,
    RiskLevel,
    RiskPromise,
    UrgentRiskRule,
    check_level,
    classes_of_question,
    fit_risk_on_records,
    fit_urgent_risk,
    rank_of,
    why_no_threshold,
)
from skindx.taxonomy import SkinClass, load_taxonomy

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

URGENT_C = np.array([True, False, False, True, False])
TWO = np.array([True, False])


def fitted(risk_N: Floats, truth_N: Ints, **facts: object) -> UrgentRiskRule | None:
    """Fit on two classes, the first urgent."""
    rows_NC = np.column_stack([risk_N, 1 - risk_N])
    return fit_urgent_risk(rows_NC, truth_N, urgent_C=TWO, **facts)  # type: ignore[arg-type]


def lesions(random: np.random.Generator, count: int, most: int) -> tuple[Floats, Ints]:
    """Return risks of urgent images and their lesion: 1 to `most` images, much alike."""
    size_G = random.integers(1, most + 1, count)
    group_N = np.repeat(np.arange(count), size_G)
    score_N = random.normal(1.5, 1, count)[group_N] + 0.3 * random.normal(size=len(group_N))
    return 1 / (1 + np.exp(-score_N)), group_N


def missed(threshold: float) -> float:
    """Return the miss rate of a threshold: the share of single images whose risk lies below it."""
    return float(norm.cdf(logit(threshold), 1.5, np.hypot(1, 0.3)))


def test_the_risk_is_the_summed_probability_of_the_urgent_classes() -> None:
    rows_NC = np.random.default_rng(0).dirichlet(np.ones(5), 40)
    rule = fit_urgent_risk(rows_NC, np.zeros(40, dtype=np.intp), urgent_C=URGENT_C)
    assert rule is not None
    np.testing.assert_allclose(rule.risks(rows_NC), rows_NC[:, 0] + rows_NC[:, 3])
    with pytest.raises(ValueError, match="do not fit 3 classes"):
        rule.risks(rows_NC[:, :3])


@pytest.mark.parametrize(
    ("lesions", "miss_rate", "rank"),
    [(57, 0.02, 1), (57, 0.05, 2), (57, 0.1, 5), (19, 0.05, 1), (18, 0.05, 0), (49, 0.02, 1)],
)
def test_threshold_by_hand(lesions: int, miss_rate: float, rank: int) -> None:
    """The m-th smallest of n risks, m the greatest with m / (n + 1) <= the miss rate."""
    assert rank_of(lesions, miss_rate) == rank
    risk_N = np.arange(1, lesions + 1) / 100
    rule = fitted(risk_N, np.zeros(lesions, dtype=np.intp), miss_rates=[miss_rate])
    if not rank:
        assert rule is None
        return
    assert rule is not None
    level = rule.level(miss_rate)
    assert level.thresholds == {"all": rank / 100}
    promise = rule.promise(level)
    # Exactly the binomial test of Learn then Test: at most m - 1 misses of n at this rate.
    assert promise.confidence == pytest.approx(1 - binom.cdf(rank - 1, lesions, miss_rate))
    assert binom.cdf(rank - 1, lesions, promise.bound) == pytest.approx(0.05)


def test_another_class_at_the_threshold_is_sent_on() -> None:
    """As the rule sends on a risk at the threshold, so the share that it announces counts it."""
    risk_N = np.array([*np.arange(3, 12) / 20, 3 / 20, 3 / 20, 3 / 20, 1 / 20])
    rule = fitted(risk_N, np.array([0] * 9 + [1] * 4), miss_rates=[0.1])
    assert rule is not None
    level = rule.level(0.1)
    assert level.thresholds == {"all": 3 / 20}
    assert level.sent_on is not None
    assert level.sent_on.value == pytest.approx(3 / 4)


def test_57_lesions_promise_what_they_can() -> None:
    promise = RiskPromise(miss_rate=0.05, lesions=57)
    assert promise.confidence == pytest.approx(0.785, abs=0.001)
    assert promise.bound == pytest.approx(0.081, abs=0.001)
    assert RiskPromise(miss_rate=0.02, lesions=57).bound == pytest.approx(0.051, abs=0.001)


@pytest.mark.parametrize("most", [1, 4])
@pytest.mark.parametrize(("count", "miss_rate"), [(57, 0.05), (57, 0.02), (120, 0.1)])
def test_the_promise_holds_over_many_splits(count: int, miss_rate: float, most: int) -> None:
    """Also where lesions have several images, which are no independent evidence.

    The mean miss rate stays at or below the level, and is at most the level, or the bound, with
    the confidence that is stated.
    """
    random = np.random.default_rng([count, most])
    rates = []
    for _ in range(800):
        risk_N, group_N = lesions(random, count, most)
        rule = fitted(
            risk_N,
            np.zeros(len(risk_N), dtype=np.intp),
            groups=group_N,
            miss_rates=[miss_rate],
        )
        assert rule is not None
        level = rule.level(miss_rate)
        rates.append(missed(level.thresholds["all"]))
    promise = rule.promise(level)
    rate_D = np.array(rates)
    error = 3 / np.sqrt(len(rate_D))
    assert rate_D.mean() <= miss_rate + error * rate_D.std()
    # The share of splits that keep the level is the confidence, not merely above it.
    within = (rate_D <= miss_rate).mean()
    spread = np.sqrt(promise.confidence * (1 - promise.confidence))
    assert abs(within - promise.confidence) <= error * spread
    assert (rate_D <= promise.bound).mean() >= 0.95 - error * np.sqrt(0.05 * 0.95)


def test_images_of_one_lesion_taken_as_independent_would_break_the_promise() -> None:
    """The same data without groups states a confidence that is not kept."""
    random = np.random.default_rng(0)
    kept = []
    for _ in range(200):
        risk_N, group_N = lesions(random, 20, 1)
        risk_N, group_N = np.repeat(risk_N, 12), np.repeat(group_N, 12)
        truth_N = np.zeros(len(risk_N), dtype=np.intp)
        naive, honest = (fitted(risk_N, truth_N, groups=groups) for groups in (None, group_N))
        assert naive is not None
        assert honest is not None
        assert honest.lesions == {"all": 20}
        bounds = [rule.promise(rule.level(0.05)).bound for rule in (naive, honest)]
        rates = [missed(rule.level(0.05).thresholds["all"]) for rule in (naive, honest)]
        kept.append([rate <= bound for rate, bound in zip(rates, bounds, strict=True)])
    naive_share, honest_share = np.mean(kept, axis=0)
    assert honest_share >= 0.9
    assert naive_share < 0.88


@given(
    st.integers(9, 150),
    st.integers(0, 60),
    st.floats(0.01, 0.5),
    st.integers(0, 2**32),
)
def test_invariants(urgent: int, other: int, miss_rate: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    risk_N = random.random(urgent + other).round(2)
    truth_N = np.repeat([0, 1], [urgent, other]).astype(np.intp)
    rule = fitted(risk_N, truth_N, miss_rates=[miss_rate, miss_rate / 2])
    if rank_of(urgent, miss_rate) == 0:
        assert rule is None
        return
    assert rule is not None
    level = rule.level(miss_rate)
    below = (risk_N[:urgent] < level.thresholds["all"]).sum()
    # The correction: so many misses among n + 1 lesions, were the new one missed as well.
    assert (below + 1) / (urgent + 1) <= miss_rate + 1e-9
    promise = rule.promise(level)
    assert 0 < promise.confidence < 1
    assert promise.bound >= (below + 1) / (urgent + 1) - 1e-9
    assert (level.sent_on is None) == (other == 0)
    thresholds = [level.thresholds["all"] for level in rule.levels]
    assert thresholds == sorted(thresholds)
    assert UrgentRiskRule.parse(rule.model_dump(mode="json")) == rule


def test_of_two_rates_as_near_to_the_default_the_lower_one_is_taken() -> None:
    levels = tuple(RiskLevel(miss_rate=rate, thresholds={"all": 0.1}) for rate in (0.03, 0.07))
    assert UrgentRiskRule(urgent_columns=(0,), lesions={"all": 99}, levels=levels).default == 0.03


def test_a_skin_type_with_enough_lesions_has_its_own_threshold() -> None:
    # Two images of type 5 show another condition, which counts for no threshold.
    risk_N = np.concatenate([np.arange(1, 41) / 100, [0.001, 0.002]])
    types = [5] * 19 + [2] * 10 + [None] * 11 + [5] * 2
    rule = fitted(risk_N, np.array([0] * 40 + [1] * 2), skin_types=types)
    assert rule is not None
    assert [level.miss_rate for level in rule.levels] == [0.05, 0.1]
    five, ten = rule.levels
    assert five.thresholds == {"all": 0.02, "skin type 5": 0.01}
    assert ten.thresholds == {"all": 0.04, "skin type 5": 0.02, "skin type 2": 0.20}
    assert rule.lesions == {"all": 40, "skin type 5": 19, "skin type 2": 10}
    assert rule.thresholds(five, [None, 5, 2]).tolist() == [0.02, 0.01, 0.02]
    assert rule.promise(ten, rule.group(ten, 2)).lesions == 10


def test_levels_are_chosen_by_their_miss_rate() -> None:
    rule = fitted(np.linspace(0, 1, 57), np.zeros(57, dtype=np.intp))
    assert rule is not None
    assert rule.default == 0.05
    assert rule.level(None) == rule.level(0.05)
    with pytest.raises(
        UserError, match=r"miss rate of 0.2; choose one of its rates: --miss-rate 0.02, 0.05"
    ):
        rule.level(0.2)
    few = fitted(np.linspace(0, 1, 10), np.zeros(10, dtype=np.intp))
    assert few is not None
    assert few.default == 0.1


def test_too_few_urgent_lesions_give_no_threshold() -> None:
    assert fitted(np.linspace(0, 1, 8), np.zeros(8, dtype=np.intp)) is None
    assert fitted(np.linspace(0, 1, 50), np.ones(50, dtype=np.intp)) is None
    # Many images of eight lesions are eight lesions.
    group_N = np.repeat(np.arange(8), 10)
    assert fitted(np.linspace(0, 1, 80), np.zeros(80, dtype=np.intp), groups=group_N) is None


def test_the_order_of_a_manifest_does_not_choose_the_images() -> None:
    random = np.random.default_rng(3)
    taxonomy = load_taxonomy("isic9")
    rows_NC = random.dirichlet(np.ones(len(taxonomy.classes)), 90)
    records = [
        Record(
            f"{n}.jpg",
            hashlib.sha256(bytes([n])).hexdigest(),
            "0" * 16,
            90,
            90,
            "Melanoma" if n < 60 else "Nevus",
            f"lesion {n // 3}",
            "calibration",
        )
        for n in range(90)
    ]
    rule = fit_risk_on_records(rows_NC, records, taxonomy)
    assert rule is not None
    assert rule.lesions == {"all": 20}
    order = random.permutation(90)
    again = fit_risk_on_records(rows_NC[order], [records[n] for n in order], taxonomy)
    assert again == rule


def test_the_second_question_takes_urgent_and_soon_classes_together() -> None:
    taxonomy = load_taxonomy("isic9")
    tiers = [skin_class.urgency for skin_class in taxonomy.classes]
    asked_C = classes_of_question(taxonomy.classes, "soon_risk")
    assert asked_C.tolist() == [tier in ("urgent", "soon") for tier in tiers]
    keys = [taxonomy.keys[tiers.index(tier)] for tier in ("urgent", "soon", "routine")]
    rows_NC = np.random.default_rng(4).dirichlet(np.ones(len(tiers)), 90)
    records = [
        Record(f"{n}.jpg", f"{n:064x}", "0", 9, 9, keys[n // 5 % 3], f"l {n}", "calibration")
        for n in range(90)
    ]
    urgent, soon = (fit_risk_on_records(rows_NC, records, taxonomy, q) for q in QUESTIONS)
    assert urgent is not None
    assert soon is not None
    assert (urgent.lesions, soon.lesions) == ({"all": 30}, {"all": 60})
    of_N = [record.label != keys[2] for record in records]
    risks = np.sort(rows_NC[of_N][:, asked_C].sum(axis=1))
    assert soon.level(0.05).thresholds == {"all": pytest.approx(risks[2])}  # 61 * 0.05 = 3.05
    # Without a class of one of its tiers there is no second question.
    one_tier = [one for one in taxonomy.classes if one.urgency != "soon"]
    assert not classes_of_question(one_tier, "soon_risk").any()


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        fitted(np.array([np.nan]), np.zeros(1, dtype=np.intp))
    with pytest.raises(ValueError, match="probabilities must be"):
        fitted(np.zeros(2), np.zeros(1, dtype=np.intp))
    good = {
        "urgent_columns": [0],
        "lesions": {"all": 57},
        "levels": [{"miss_rate": 0.05, "thresholds": {"all": 0.1}}],
    }
    assert UrgentRiskRule.parse(good).default == 0.05
    for change, said in (
        ({"lesions": {"all": 10}}, "too few lesions for a level of 0.05"),
        ({"lesions": {}}, "too few lesions"),
        ({"urgent_columns": [-1]}, "from 0"),
        ({"levels": [{"miss_rate": 0.05, "thresholds": {}}]}, "must have an entry 'all'"),
        ({"levels": [{"miss_rate": 0.05, "thresholds": {"all": 1.5}}]}, r"in 0\.\.1"),
        ({"levels": [*good["levels"]] * 2}, "ascending"),  # type: ignore[misc]
    ):
        with pytest.raises(UserError, match=said):
            UrgentRiskRule.parse(good | change)


def test_too_few_images_are_not_blamed_where_no_class_is_urgent() -> None:
    wart = SkinClass(key="w", name="Wart", urgency="routine")
    spot = SkinClass(key="s", name="Spot")
    melanoma = SkinClass(key="m", name="Melanoma", urgency="urgent")
    assert why_no_threshold([wart]).startswith("none of its classes is urgent, so")
    assert "the urgency of some is unknown" in why_no_threshold([wart, spot])
    assert why_no_threshold([wart, melanoma]).startswith("it takes 9 calibration lesions")
    with pytest.raises(UserError, match=r"no.* class.* urgent.*--miss-rate"):
        check_level(None, 0.05, [wart])
