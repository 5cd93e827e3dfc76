"""Age, sex and place in an answer: nothing where missing, little by sex, what was planted else."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import ValidationError

from skindx.models import metadata_head
from skindx.models.class_calibration import LossGain, loss_gain
from skindx.models.metadata_head import (
    FIELDS,
    AnswerRules,
    Facts,
    MetadataHead,
    MetadataSpec,
    columns_of,
    cross_fit_metadata,
    fit_metadata,
    urgent_change,
)

HEAD = MetadataHead(
    columns=("age", "age_squared", "sex", "site back", "site face"),
    ages=(10, 80),
    centre=(0.0, 0.5, 0.4, 0.7, 0.3),
    weights=((-1, 0, 1), (0.2, 0, 0), (0.1, 0, -0.1), (1, 0, -1), (-2, 1, 1)),
)
GAIN = LossGain(value=0.02, low=0.01, high=0.03, images=100, groups=90)

logit = st.floats(-30, 30)
probabilities = st.lists(logit, min_size=3, max_size=3).map(
    lambda logits: np.exp(np.array(logits) - np.logaddexp.reduce(logits))[None]
)
ages = st.none() | st.floats(0, 120)
places = st.sampled_from(["", "back", "face", "elbow"])


def test_an_answer_by_hand() -> None:
    # Of age 70: 1 and 1 - 0.5; a man: 0.6; on the face: 0 - 0.7 and 1 - 0.3.
    moved_C = np.array([-1 + 0.1 + 0.06 - 0.7 - 1.4, 0.7, 1 - 0.06 + 0.7 + 0.7])
    expected_C = np.array([0.5, 0.3, 0.2]) * np.exp(moved_C)
    answer = HEAD.apply(np.array([[0.5, 0.3, 0.2]]), [Facts(70, "male", "face")])
    np.testing.assert_allclose(answer[0], expected_C / expected_C.sum())
    older = HEAD.apply(np.array([[0.5, 0.3, 0.2]]), [Facts(110, "male", "face")])
    assert (older == HEAD.apply(np.array([[0.5, 0.3, 0.2]]), [Facts(80, "male", "face")])).all()


def test_a_finer_place_counts_as_the_wider_one_that_was_learned() -> None:
    row_NC = np.array([[0.5, 0.3, 0.2]])
    face, lip = (HEAD.apply(row_NC, [Facts(site=site)]) for site in ("face", "lip"))
    assert lip.tobytes() == face.tobytes() != row_NC.tobytes()
    assert columns_of(
        [Facts(site=site) for site in ("sole", "palm", "back") for _ in range(40)]
    ) == (
        "site back",
        "site palm or sole",
    )


@given(probabilities)
def test_without_any_field_it_is_the_ensemble_to_the_bit(rows_NC: NDArray[np.float64]) -> None:
    nothing = [Facts(), Facts(sex="other"), Facts(site="elbow")]
    rows_NC = np.repeat(rows_NC, 3, axis=0)
    assert HEAD.apply(rows_NC, nothing).tobytes() == rows_NC.tobytes()
    assert {HEAD.known(facts) for facts in nothing} == {()}


@given(probabilities, ages, places, st.sampled_from([0, 1, 2]))
def test_sex_alone_moves_no_probability_by_more(
    rows_NC: NDArray[np.float64], age: float | None, site: str, urgent: int
) -> None:
    bound = HEAD.largest_sex_shift
    assert bound == pytest.approx(math.tanh(0.2 / 4))
    answers = [HEAD.apply(rows_NC, [Facts(age, sex, site)])[0] for sex in ("female", "male", "")]
    for one in answers:
        for other in answers:
            assert np.abs(one - other).max() <= bound + 1e-12
            urgent_C = np.arange(3) != urgent
            assert abs(one[urgent_C].sum() - other[urgent_C].sum()) <= bound + 1e-12


def test_the_bound_is_reached_and_kept() -> None:
    even = np.array([[math.exp(0.06), 1e-9, math.exp(-0.06)]])  # so that both sexes are alike far
    men, women = (HEAD.apply(even, [Facts(sex=sex)])[0, 0] for sex in ("male", "female"))
    assert abs(men - women) == pytest.approx(HEAD.largest_sex_shift, rel=0.02)
    weights = (*HEAD.weights[:2], (0.3, 0, -0.3), *HEAD.weights[3:])
    with pytest.raises(ValidationError, match="sex alone could change"):
        MetadataHead.model_validate(HEAD.model_dump() | {"weights": weights})
    with pytest.raises(ValidationError, match="do not fit each other"):
        MetadataHead.model_validate(HEAD.model_dump() | {"centre": (0.0,)})


def planted(
    n: int, strength: float, sex: float = 0.0
) -> tuple[NDArray[np.float64], NDArray[np.intp], list[Facts], list[str]]:
    """Return answers of an ensemble whose truth leans on age, place and sex beyond them."""
    rng = np.random.default_rng(3)
    facts = [
        Facts(
            None if rng.random() < 0.05 else float(rng.integers(20, 81)),
            str(rng.choice(["female", "male"])),
            str(rng.choice(["back", "face", ""], p=[0.5, 0.4, 0.1])),
        )
        for _ in range(n)
    ]
    logits_NC = rng.normal(size=(n, 3))
    effect_N = np.array(
        [
            strength * ((f.age or 50) - 50) / 20
            + sex * (f.sex == "male")
            + strength * (f.site == "face")
            for f in facts
        ]
    )
    effect_N -= effect_N.mean()
    true_NC = logits_NC + effect_N[:, None] * np.array([-1, 0, 1])
    truth_N = (true_NC + rng.gumbel(size=(n, 3))).argmax(axis=1)
    shares_NC = np.exp(logits_NC)
    groups = [f"lesion {i // 2}" for i in range(n)]
    return shares_NC / shares_NC.sum(axis=1, keepdims=True), truth_N, facts, groups


def test_a_planted_effect_is_found_and_a_strong_one_of_sex_is_bounded() -> None:
    probabilities_NC, truth_N, facts, groups = planted(600, 1.0, sex=2.0)
    spec = fit_metadata(probabilities_NC, truth_N, facts, groups)
    assert spec is not None
    assert spec.head is not None
    assert spec.gain.low > 0
    assert spec.head.fields == FIELDS
    assert spec.head.largest_sex_shift == pytest.approx(0.05)
    even = np.full((1, 3), 1 / 3)
    young, old = (spec.head.apply(even, [Facts(age)])[0] for age in (25, 75))
    assert old[2] > young[2] + 0.2
    face, back = (spec.head.apply(even, [Facts(site=site)])[0] for site in ("face", "back"))
    assert face[2] > back[2] + 0.1
    assert MetadataSpec.parse(spec.model_dump(mode="json")) == spec


def test_what_gains_nothing_is_not_used() -> None:
    spec = fit_metadata(*planted(400, 0.0))
    assert spec is not None
    assert spec.head is None
    assert spec.gain.low <= 0
    assert spec.served(Facts(70, "male", "face")) == ()


def test_what_may_tell_urgent_conditions_apart_worse_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    probabilities_NC, truth_N, facts, groups = planted(400, 1.0)
    urgent_C = np.array([False, False, True])
    kept = fit_metadata(probabilities_NC, truth_N, facts, groups, urgent_C=urgent_C)
    assert kept is not None
    assert kept.head is not None
    assert kept.gain.urgent_auroc is not None
    assert kept.gain.urgent_auroc[0] > 0
    worse_NC = probabilities_NC[:, [1, 2, 0]]
    change = urgent_change(worse_NC, probabilities_NC, truth_N, groups, urgent_C)
    assert change is not None
    assert change[1] < -0.01
    assert urgent_change(worse_NC, worse_NC, truth_N, groups, np.zeros(3, dtype=bool)) is None
    monkeypatch.setattr(metadata_head, "urgent_change", lambda *_: (0.0, -0.02, 0.02))
    refused = fit_metadata(probabilities_NC, truth_N, facts, groups, urgent_C=urgent_C)
    assert refused is not None
    assert refused.head is None
    assert refused.gain.low > 0


def test_what_is_not_said_is_not_learned() -> None:
    probabilities_NC, truth_N, facts, groups = planted(400, 1.0)
    assert fit_metadata(probabilities_NC, truth_N, [Facts()] * 400, groups) is None
    ages_alone = [facts.only(["age"]) for facts in facts]
    assert columns_of(ages_alone) == ("age", "age_squared")
    assert columns_of([Facts(sex="male")] * 400) == ()
    assert columns_of([Facts(site="back")] * 400) == ()
    assert cross_fit_metadata(probabilities_NC, truth_N, facts, ["one"] * 400) is None
    assert loss_gain(probabilities_NC, probabilities_NC, truth_N, ["one"] * 400) is None


@pytest.mark.parametrize("sets", [["age"], ["age+site", "age"]])
def test_a_set_of_fields_without_rules_is_not_served(sets: list[str]) -> None:
    spec = MetadataSpec(head=HEAD, gain=GAIN, rules={name: AnswerRules() for name in sets})
    assert spec.served(Facts(70)) == ("age",)
    assert spec.served(Facts(70, "male")) == ()
    assert spec.served(Facts(70, "", "face")) == (("age", "site") if len(sets) > 1 else ())
