"""What follows from probabilities: the set, the next step, an honest abstention."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skindx.diagnosis import conclusion
from skindx.diagnosis.conclusion import Conclusion, conclude
from skindx.models.combination import mutual_information
from skindx.models.conformal import Conformal, Share
from skindx.models.urgent_risk import RiskLevel, UrgentRiskRule
from skindx.taxonomy import SkinClass, Urgency
from skindx.texts import catalogue

URGENCIES: list[Urgency] = ["routine", "soon", "urgent", "unknown"] + ["routine"] * 8
CLASSES = tuple(
    SkinClass(key=f"c{n}", name=f"C{n}", urgency=urgency) for n, urgency in enumerate(URGENCIES)
)
SEVERITY: list[Urgency] = ["routine", "unknown", "soon", "urgent"]
RULE = Conformal(
    pictures=500,
    thresholds={"all": 0.2, "skin type 5": 0.05},
    group_pictures={"skin type 5": 60},
    urgent_missed=Share(value=0.02, low=0.01, high=0.05, pictures=80),
)


def of(*shares: float) -> np.ndarray:
    """Return probabilities of all classes; what is left goes to the others evenly."""
    rest = (1 - sum(shares)) / (len(CLASSES) - len(shares))
    return np.array([*shares, *[rest] * (len(CLASSES) - len(shares))])


def concluded(
    *photos: np.ndarray,
    conformal: Conformal | None = RULE,
    members: list[np.ndarray] | None = None,
    urgent_risk: UrgentRiskRule | None = None,
    soon_risk: UrgentRiskRule | None = None,
    miss_rate: float | None = None,
    weights: tuple[float, ...] | None = None,
    classes: tuple[SkinClass, ...] = CLASSES,
    **facts: object,
) -> Conclusion:
    predictor = SimpleNamespace(
        taxonomy=SimpleNamespace(classes=classes),
        conformal=conformal,
        weights=weights,
        urgent_risk=urgent_risk,
        soon_risk=soon_risk,
        miss_rate=miss_rate,
    )
    probabilities_PC = np.stack(photos)
    members_MPC = np.stack(
        [np.stack([photo] * len(photos)) for photo in members or [photos[0]] * 2]
    )
    return conclude(predictor, probabilities_PC, members_MPC, **facts)  # type: ignore[arg-type]


def held(conclusion: Conclusion) -> set[str]:
    return {skin_class.key for skin_class, _, in_set in conclusion.ranked if in_set}


def test_urgency_is_that_of_the_most_urgent_in_the_set() -> None:
    sure = concluded(of(0.9, 0.05, 0.02))
    assert (held(sure), sure.next_step.urgency, sure.abstained) == ({"c0"}, "routine", "")
    assert "The model puts C0 first" in sure.next_step.because
    torn = concluded(of(0.7, 0.01, 0.25))
    assert held(torn) == {"c0", "c2"}
    assert torn.next_step.urgency == "urgent"
    assert "C2 needs an examination soonest of the 2 conditions" in torn.next_step.because


def test_skin_type_chooses_the_threshold() -> None:
    probabilities = of(0.85, 0.03, 0.08)
    reported, other = (concluded(probabilities, skin_type=count) for count in (5, 2))
    assert (held(reported), held(other)) == ({"c0", "c2"}, {"c0"})
    assert reported.next_step.urgency == "urgent"
    assert reported.promise is not None
    assert (reported.promise.group, reported.promise.pictures) == ("skin type 5", 60)
    assert other.promise is not None
    assert (other.promise.group, other.promise.pictures) == ("all", 500)
    assert other.promise.urgent_missed is not None
    assert other.promise.urgent_missed.pictures == 80


def test_a_cases_set_holds_what_any_photo_leaves_possible() -> None:
    both = concluded(of(0.7, 0.01, 0.25), of(0.7, 0.25, 0.01))
    assert held(both) == {"c0", "c1", "c2"}
    assert [share for _, share, _ in both.ranked[:3]] == pytest.approx([0.7, 0.13, 0.13])


def test_the_likeliest_of_the_mean_is_in_the_set_although_no_photo_holds_it() -> None:
    half = RULE.model_copy(update={"thresholds": {"all": 0.5}})
    second = of(0.51, 0.001, 0.001, 0.001, 0.48), of(0.001, 0.51, 0.001, 0.001, 0.48)
    assert held(concluded(*second, conformal=half)) == {"c0", "c1", "c4"}


@pytest.mark.parametrize(
    ("possible", "classes", "named"),
    [(5, 12, True), (6, 12, False), (5, 10, True), (5, 9, False), (3, 6, True), (1, 1, False)],
)
def test_five_conditions_and_half_of_all_may_remain(
    possible: int, classes: int, named: bool
) -> None:
    probabilities_C = np.array([0.9 / possible] * possible + [0.0] * (classes - possible))
    rule = RULE.model_copy(update={"thresholds": {"all": 0.1}})
    abstained = concluded(probabilities_C, conformal=rule, classes=CLASSES[:classes]).abstained
    assert abstained == "" if named else f"{possible} of {classes} remain" in abstained


def test_at_each_limit_of_doubt_the_answer_is_as_written(monkeypatch: pytest.MonkeyPatch) -> None:
    halved = concluded(of(0.6, 0.3), members=[of(0.6, 0.3), of(0.4, 0.5)])
    assert halved.abstained == "", "one of two networks agrees with the answer"
    assert "is unlike most" in concluded(of(0.99), ood_p_value=0.05).abstained
    opposed = {"members": [of(0.6, 0.3), of(0.4, 0.5)]}
    photos = of(0.97), of(0.6, 0.3)
    apart = float(mutual_information(np.stack(photos)[:, None])[0])
    for limit, held_back in ((halved.disagreement, False), (halved.disagreement - 1e-9, True)):
        monkeypatch.setattr(conclusion, "MOST_DISAGREEMENT", limit)
        assert ("networks disagree" in concluded(of(0.6, 0.3), **opposed).abstained) == held_back
    for limit, held_back in ((apart, False), (apart - 1e-9, True)):
        monkeypatch.setattr(conclusion, "MOST_DISAGREEMENT", limit)
        assert ("different conditions" in concluded(*photos).abstained) == held_back


def test_classes_that_carry_exactly_nine_tenths_stand_for_a_set() -> None:
    step = concluded(of(0.9, 0.001, 0.05), conformal=None).next_step
    assert (step.classes, step.urgency) == (1, "routine")


def test_an_unknown_urgency_outweighs_a_routine_one() -> None:
    step = concluded(of(0.6, 0.001, 0.001, 0.3)).next_step
    assert (step.urgency, step.decided_by) == ("unknown", "c3")


def test_too_many_routine_conditions_are_no_advice_to_wait() -> None:
    shares = [0.15 if n in (0, 4, 5, 6, 7, 8) else 0.1 / 6 for n in range(12)]
    rule = RULE.model_copy(update={"thresholds": {"all": 0.1}})
    said = concluded(np.array(shares), conformal=rule)
    assert "6 of 12 remain" in said.abstained
    assert (said.next_step.urgency, said.next_step.decided_by) == ("unknown", "")


def test_what_is_soon_by_its_set_says_its_risk_where_that_is_soon_too() -> None:
    level = RiskLevel(miss_rate=0.05, thresholds={"all": 0.1})
    soon = UrgentRiskRule(urgent_columns=(1, 2), lesions={"all": 57}, levels=(level,))
    step = concluded(of(0.5, 0.4, 0.02), soon_risk=soon).next_step
    assert (step.urgency, step.decided_by) == ("soon", "c1")
    assert "risk of an urgent or soon condition is 42 %" in step.because


def test_members_are_weighed_and_heard_on_every_photo() -> None:
    one, other = of(0.98), of(0.01, 0.01, 0.01, 0.01, 0.95)
    assert concluded(of(0.9), members=[one, other], weights=(1.0, 0.0)).disagreement == 0
    # On the first photo they agree, on the second they do not.
    members_MPC = np.array([[one, one], [one, other]])
    predictor = SimpleNamespace(
        taxonomy=SimpleNamespace(classes=CLASSES), conformal=None, weights=None,
        urgent_risk=None, soon_risk=None, miss_rate=None,
    )  # fmt: skip
    said = conclude(predictor, np.array([one, one]), members_MPC)  # type: ignore[arg-type]
    expected = mutual_information(members_MPC.mean(axis=1)[:, None])[0]
    assert said.disagreement == pytest.approx(expected) != 0


def test_photos_of_different_things_are_not_named() -> None:
    said = concluded(of(0.97), of(0.01, 0.97)).abstained
    assert "different conditions" in said
    assert concluded(of(0.97), of(0.93)).abstained == ""


def test_a_set_of_nearly_everything_is_no_answer() -> None:
    said = concluded(of(*[0.21] * 4), conformal=RULE.model_copy(update={"thresholds": {"all": 0}}))
    assert f"{len(CLASSES)} of {len(CLASSES)} remain possible" in said.abstained
    assert said.next_step.urgency == "urgent"


def test_members_who_contradict_each_other_are_not_believed() -> None:
    said = concluded(of(0.5, 0.1, 0.1), members=[of(0.98), of(0.01, 0.01, 0.01, 0.01, 0.95)])
    assert "networks disagree" in said.abstained
    minority = concluded(of(0.5), members=[of(0.5), of(0.4, 0.5), of(0.4, 0.5)])
    assert minority.abstained.startswith("1 of 3 networks put the likeliest")


def test_a_strange_photo_is_not_named_and_never_reported_to_wait() -> None:
    said = concluded(of(0.99), ood_p_value=0.04)
    assert "is unlike most images" in said.abstained
    assert (said.next_step.urgency, said.next_step.advice) == (
        "unknown",
        catalogue.text("advice_unknown"),
    )
    assert concluded(of(0.99), ood_p_value=0.06).abstained == ""
    urgent = concluded(of(0.01, 0.01, 0.97), ood_p_value=0.04)
    assert urgent.next_step.urgency == "urgent"


def test_without_sets_the_leading_classes_decide() -> None:
    said = concluded(of(0.8, 0.01, 0.15), conformal=None)
    assert held(said) == set()
    assert said.promise is None
    assert (said.next_step.urgency, said.next_step.classes) == ("urgent", 2)
    assert "conditions that carry" in said.next_step.because


@given(st.lists(st.floats(0.001, 1), min_size=12, max_size=12), st.floats(0, 1))
def test_no_class_of_the_set_is_more_urgent_than_the_advice(
    drawn: list[float], ood_p_value: float
) -> None:
    said = concluded(np.array(drawn) / sum(drawn), ood_p_value=ood_p_value)
    advised = SEVERITY.index(said.next_step.urgency)
    in_set = [SEVERITY.index(skin_class.urgency) for skin_class, _, inside in said.ranked if inside]
    assert max(in_set) <= advised
    assert said.ranked[0][2]
    shares = [share for _, share, _ in said.ranked]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(1)


RISK = UrgentRiskRule(
    urgent_columns=(2,),
    lesions={"all": 57, "skin type 5": 20},
    levels=(
        RiskLevel(miss_rate=0.02, thresholds={"all": 0.05}),
        RiskLevel(miss_rate=0.05, thresholds={"all": 0.3, "skin type 5": 0.1}),
    ),
)


def test_the_risk_decides_whether_the_next_step_is_urgent() -> None:
    said = concluded(of(0.64, 0.01, 0.32), urgent_risk=RISK)
    assert said.next_step.urgency == "urgent"
    assert said.next_step.because == (
        "C2 decides the advice, with an estimated risk of 32 % (urgent from 30 %)."
    )
    assert said.urgent_risk is not None
    assert (said.urgent_risk.risk, said.urgent_risk.threshold) == (pytest.approx(0.32), 0.3)
    assert said.urgent_risk.by_photo == ()
    two = concluded(of(0.64, 0.01, 0.32), of(0.9, 0.01, 0.05), urgent_risk=RISK).urgent_risk
    assert two is not None
    assert (two.risk, two.by_photo) == (pytest.approx(0.32), pytest.approx((0.32, 0.05)))
    assert said.urgent_risk.by_photo == ()
    assert (said.urgent_risk.miss_rate, said.urgent_risk.lesions) == (0.05, 57)
    assert (said.urgent_risk.confidence, said.urgent_risk.bound) == pytest.approx(
        (0.785, 0.081), abs=1e-3
    )


def test_a_next_step_names_the_condition_that_decides_it() -> None:
    def decided(*shares: float, **facts: object) -> str:
        return concluded(of(*shares), **facts).next_step.decided_by  # type: ignore[arg-type]

    assert decided(0.9, 0.05, 0.02) == "c0"
    assert decided(0.7, 0.01, 0.25) == "c2"  # of the set
    assert decided(0.7, 0.01, 0.25, urgent_risk=RISK) == "c2"  # soon, since it is not ruled out
    assert decided(0.88, 0.01, 0.08, urgent_risk=RISK, miss_rate=0.02) == "c2"  # outside the set
    assert decided(0.8, 0.15, 0.01, urgent_risk=RISK, soon_risk=SOON) == "c1"
    assert decided(0.99, ood_p_value=0.04) == ""  # that it is unsure does


def test_a_risk_exactly_at_the_threshold_is_urgent() -> None:
    """The promise of the threshold counts the calibration lesions that lie on it as urgent."""
    said = concluded(of(0.6, 0.01, 0.3), urgent_risk=RISK)
    assert said.urgent_risk is not None
    assert said.urgent_risk.risk == said.urgent_risk.threshold
    assert said.next_step.urgency == "urgent"
    just_below = concluded(of(0.6, 0.01, float(np.nextafter(0.3, 0))), urgent_risk=RISK)
    assert just_below.next_step.urgency != "urgent"


def test_an_urgent_condition_outside_the_set_can_still_make_it_urgent() -> None:
    said = concluded(of(0.88, 0.01, 0.08), urgent_risk=RISK, miss_rate=0.02)
    assert held(said) == {"c0"}
    assert said.next_step.urgency == "urgent"
    assert "C2 decides the advice, with an estimated risk of 8 %" in said.next_step.because


def test_an_urgent_condition_in_the_set_below_the_threshold_does_not_wait() -> None:
    """The set does not rule it out, so the answer is no routine visit; nor is it urgent."""
    said = concluded(of(0.7, 0.01, 0.25), urgent_risk=RISK)
    assert held(said) == {"c0", "c2"}
    assert said.abstained == ""
    assert said.next_step.urgency == "soon"
    assert said.next_step.advice.startswith("A dermatologist should see the lesion within")
    assert said.next_step.because == (
        "C2 is not ruled out, so this should not wait for a routine visit."
    )
    assert said.next_step.more == (
        "The estimated risk of an urgent condition is 25 %, below the 30 % at which the "
        "advice becomes urgent.",
    )
    # The operator's stricter level makes the same photo urgent.
    strict = concluded(of(0.7, 0.01, 0.25), urgent_risk=RISK, miss_rate=0.02)
    assert strict.next_step.urgency == "urgent"


def test_below_the_threshold_the_set_decides_among_the_lower_tiers() -> None:
    routine = concluded(of(0.95, 0.01, 0.01), urgent_risk=RISK)
    assert routine.next_step.urgency == "routine"
    assert "The model puts C0 first" in routine.next_step.because
    assert "risk of an urgent condition is 1 %, below" in routine.next_step.more[0]
    soon = concluded(of(0.5, 0.4, 0.05), urgent_risk=RISK)
    assert soon.next_step.urgency == "soon"
    assert "C1 needs an examination soonest" in soon.next_step.because


def test_a_doubtful_answer_is_not_lowered_by_the_risk() -> None:
    said = concluded(of(0.7, 0.01, 0.25), urgent_risk=RISK, ood_p_value=0.04)
    assert said.abstained
    assert said.next_step.urgency == "urgent"
    assert "is not ruled out, so the advice stays urgent" in said.next_step.because
    torn = concluded(
        of(0.5, 0.1, 0.25),
        members=[of(0.98), of(0.01, 0.01, 0.01, 0.01, 0.95)],
        urgent_risk=RISK,
    )
    assert "networks disagree" in torn.abstained
    assert torn.next_step.urgency == "urgent"
    wait = concluded(of(0.99), urgent_risk=RISK, ood_p_value=0.04)
    assert wait.next_step.urgency == "unknown"


def test_a_set_of_too_many_conditions_never_tells_to_wait() -> None:
    """The guarantee of the risk counts such photos in, so that it may say soon, but not less."""
    wide = RULE.model_copy(update={"thresholds": {"all": 0.01}})
    said = concluded(of(0.4, 0.2, 0.05), conformal=wide, urgent_risk=RISK)
    assert "cannot be distinguished" in said.abstained
    assert said.next_step.urgency == "soon"


def test_of_several_photos_the_highest_risk_counts() -> None:
    said = concluded(of(0.9, 0.01, 0.01), of(0.6, 0.01, 0.35), urgent_risk=RISK)
    assert said.next_step.urgency == "urgent"
    assert said.urgent_risk is not None
    assert said.urgent_risk.risk == pytest.approx(0.35)
    assert "risk of 35 %" in said.next_step.because


def test_a_skin_type_is_judged_by_its_own_threshold() -> None:
    said = concluded(of(0.8, 0.01, 0.12), urgent_risk=RISK, skin_type=5)
    assert said.next_step.urgency == "urgent"
    assert said.urgent_risk is not None
    assert (said.urgent_risk.group, said.urgent_risk.lesions) == ("skin type 5", 20)
    assert concluded(of(0.8, 0.01, 0.12), urgent_risk=RISK).next_step.urgency == "routine"


def test_the_digits_tell_risk_and_threshold_apart() -> None:
    said = concluded(of(0.6, 0.01, 0.2999), urgent_risk=RISK)
    assert "29.990 %, below the 30.000 %" in said.next_step.more[0]


@given(
    st.lists(st.floats(0.001, 1), min_size=12, max_size=12),
    st.sampled_from([None, 0.01, 0.5]),
    st.sampled_from([0.02, 0.05]),
)
def test_no_risk_makes_an_answer_reassuring(
    drawn: list[float], ood_p_value: float | None, miss_rate: float
) -> None:
    facts: dict[str, float | None] = {"ood_p_value": ood_p_value, "miss_rate": miss_rate}
    said = concluded(np.array(drawn) / sum(drawn), urgent_risk=RISK, **facts)
    by_set = concluded(np.array(drawn) / sum(drawn), ood_p_value=ood_p_value)
    advised, before = (
        SEVERITY.index(conclusion.next_step.urgency) for conclusion in (said, by_set)
    )
    assert said.urgent_risk is not None
    if said.urgent_risk.is_reached:
        assert said.next_step.urgency == "urgent"
    else:
        assert advised >= min(before, SEVERITY.index("soon"))
    if ood_p_value == 0.01:
        assert advised >= before
    if said.abstained:
        assert said.next_step.urgency != "routine"


SOON = UrgentRiskRule(
    urgent_columns=(1, 2),
    lesions={"all": 90},
    levels=(
        RiskLevel(miss_rate=0.02, thresholds={"all": 0.03}),
        RiskLevel(miss_rate=0.05, thresholds={"all": 0.12}),
    ),
)


def test_the_second_question_raises_a_routine_step_and_says_why() -> None:
    probabilities = of(0.82, 0.1, 0.03)
    assert concluded(probabilities, urgent_risk=RISK).next_step.urgency == "routine"
    said = concluded(probabilities, urgent_risk=RISK, soon_risk=SOON)
    assert (said.next_step.urgency, held(said)) == ("soon", {"c0"})
    assert said.next_step.because == (
        "The estimated risk of an urgent or soon condition is 13 % (soon from 12 %)."
    )
    assert "is 3 %, below the 30 %" in said.next_step.more[0]
    assert said.soon_risk is not None
    assert (said.soon_risk.lesions, said.soon_risk.is_reached) == (90, True)
    # The first question goes first, and an abstention is raised too.
    assert concluded(of(0.6, 0.01, 0.35), urgent_risk=RISK, soon_risk=SOON).next_step.urgency == (
        "urgent"
    )
    strange = concluded(probabilities, urgent_risk=RISK, soon_risk=SOON, ood_p_value=0.04)
    assert (bool(strange.abstained), strange.next_step.urgency) == (True, "soon")


@given(
    st.lists(st.floats(0.001, 1), min_size=12, max_size=12),
    st.sampled_from([None, 0.01, 0.5]),
    st.sampled_from([None, RISK]),
    st.sampled_from([0.02, 0.05]),
)
def test_the_second_question_never_lowers_a_step(
    drawn: list[float], ood_p_value: float | None, rule: UrgentRiskRule | None, miss_rate: float
) -> None:
    probabilities = np.array(drawn) / sum(drawn)
    facts = {"urgent_risk": rule, "ood_p_value": ood_p_value, "miss_rate": miss_rate}
    before = concluded(probabilities, **facts)  # type: ignore[arg-type]
    after = concluded(probabilities, soon_risk=SOON, **facts)  # type: ignore[arg-type]
    assert after.soon_risk is not None
    if after.soon_risk.is_reached and before.next_step.urgency in ("routine", "unknown"):
        assert after.next_step.urgency == "soon"
    elif after.soon_risk.is_reached:  # its reason may be the risk that is reached
        assert after.next_step.urgency == before.next_step.urgency
        assert after.next_step.decided_by == before.next_step.decided_by
    else:
        assert after.next_step == before.next_step


def test_an_urgent_condition_that_is_not_ruled_out_stays_the_reason_of_soon() -> None:
    probabilities = of(0.7, 0.01, 0.25)
    alone = concluded(probabilities, urgent_risk=RISK).next_step
    step = concluded(probabilities, urgent_risk=RISK, soon_risk=SOON).next_step
    assert step == alone
    assert step.because == "C2 is not ruled out, so this should not wait for a routine visit."


def test_fever_and_redness_are_no_reason_to_hurry_with_a_cancer() -> None:
    """They are signs of infections, and stand where nothing is named and no cancer is suspected."""
    codes = {"c1": "C44.91", "c2": "C43.9"}
    cancers = [one.model_copy(update={"icd10": codes.get(one.key, "")}) for one in CLASSES]
    shown = {}
    for name, classes in (("cancers", cancers), ("others", CLASSES)):
        rules = SimpleNamespace(
            taxonomy=SimpleNamespace(classes=classes), conformal=RULE, weights=None,
            urgent_risk=RISK, soon_risk=None, miss_rate=None,
        )  # fmt: skip
        for tier, shares_C in (("urgent", of(0.1, 0.1, 0.7)), ("soon", of(0.1, 0.8, 0.01))):
            for p_value in (0.9, 0.04):
                said = conclude(
                    rules,  # type: ignore[arg-type]
                    shares_C[None],
                    shares_C[None, None],
                    ood_p_value=p_value,
                )
                assert said.next_step.urgency == tier
                shown[name, tier, p_value] = said.next_step.advice
    ill = {one for one, advice in shown.items() if "feels ill" in advice}
    of_cancers = {("urgent", 0.9), ("urgent", 0.04), ("soon", 0.9)}
    assert ill == {*shown} - {("cancers", *one) for one in of_cancers}


SHARES = st.lists(st.floats(0.001, 1), min_size=len(CLASSES), max_size=len(CLASSES))


@given(SHARES, st.booleans(), st.booleans(), st.sampled_from(["", "a child"]))
def test_an_abstention_never_reads_less_urgent_than_the_same_answer(
    shares: list[float], urgent: bool, soon: bool, beyond: str
) -> None:
    """It names whose risk reached a threshold, before all else, and advises the same time."""
    shares_C = np.array(shares) / sum(shares)
    rules = {"urgent_risk": RISK if urgent else None, "soon_risk": SOON if soon else None}
    known = concluded(shares_C, ood_p_value=0.9, **rules)
    unsure = concluded(shares_C, ood_p_value=0.04, beyond=beyond, **rules)
    before, after = known.next_step, unsure.next_step
    assert unsure.abstained
    assert SEVERITY.index(after.urgency) >= SEVERITY.index(before.urgency)
    if after.urgency == before.urgency in ("urgent", "soon"):
        assert after.advice == before.advice
    risk = unsure.urgent_risk if after.urgency == "urgent" else None
    if risk and risk.is_reached:
        likeliest = next(one.name for one, *_ in unsure.ranked if one.urgency == "urgent")
        assert after.because.startswith(f"{likeliest} is suspected. ")
    if beyond:
        assert "%" not in after.because
