import pytest
from hypothesis import given
from hypothesis import strategies as st

from skindx.diagnosis.next_step import next_step
from skindx.diagnosis.record import Candidate, Diagnosis, LesionBox, NextStep, Photo, Source, Vote
from skindx.taxonomy import SkinClass, Urgency, advice_for
from skindx.texts.catalogue import percent

ORDER: list[Urgency] = ["routine", "unknown", "soon", "urgent"]


def a_class(urgency: Urgency, key: str = "a") -> SkinClass:
    return SkinClass(key=key, name=f"{key} {urgency}", urgency=urgency)


@pytest.mark.parametrize(
    ("ranked", "expected"),
    [
        ([("routine", 0.95), ("urgent", 0.05)], "routine"),
        ([("routine", 0.85), ("urgent", 0.15)], "urgent"),
        ([("routine", 0.9), ("urgent", 0.1)], "routine"),
        ([("routine", 0.6), ("unknown", 0.4)], "unknown"),
        ([("unknown", 0.6), ("soon", 0.4)], "soon"),
        ([("urgent", 0.3), ("routine", 0.7 / 2), ("soon", 0.7 / 2)], "urgent"),
        ([("unknown", 1.0)], "unknown"),
    ],
)
def test_the_next_step_follows_the_most_urgent_of_the_leading_classes(
    ranked: list[tuple[Urgency, float]], expected: Urgency
) -> None:
    step = next_step([(a_class(urgency), share, False) for urgency, share in ranked])
    assert step.urgency == expected
    assert step.advice == advice_for(expected)


def test_a_share_that_rounds_just_below_the_limit_counts_as_reached() -> None:
    thirds = [(a_class("routine"), 0.3, False)] * 3 + [(a_class("urgent"), 0.1, False)]
    assert sum([0.3] * 3) < 0.9
    assert next_step(thirds).urgency == "routine"


@given(st.lists(st.tuples(st.sampled_from(ORDER), st.floats(0.001, 1)), min_size=1, max_size=12))
def test_nothing_that_leads_is_more_urgent_than_the_advice(
    drawn: list[tuple[Urgency, float]],
) -> None:
    total = sum(weight for _, weight in drawn)
    ranked = sorted(((a_class(u), w / total, False) for u, w in drawn), key=lambda each: -each[1])
    urgency = ORDER.index(next_step(ranked).urgency)
    assert urgency >= ORDER.index(ranked[0][0].urgency)
    ahead = 0.0
    for skin_class, probability, _ in ranked:
        if ahead >= 0.9 - 1e-6:
            break
        # Whoever starts clearly below 90 % is among the leading classes.
        assert urgency >= ORDER.index(skin_class.urgency)
        ahead += probability


def a_diagnosis(
    votes: list[str], boxes: tuple[LesionBox, ...] | None = None, no_boxes: str = "no detector"
) -> Diagnosis:
    first = Candidate(
        key="a", name="A", icd10="", probability=0.7, description="", urgency="routine"
    )
    return Diagnosis(
        next_step=NextStep(urgency="routine", advice="x", because="y"),
        candidates=(first,),
        votes=tuple(Vote(member=str(i), key=key, probability=0.5) for i, key in enumerate(votes)),
        photos=(Photo(width=10, height=10, sha256="0", boxes=boxes, no_boxes=no_boxes),),
        source=Source(
            name="b", created="", version="0", calibrated=True, taxonomy="t", review="not reviewed"
        ),
    )


@pytest.mark.parametrize(
    ("votes", "said"),
    [
        (["a"], "holds one network"),
        (["a", "a", "a"], "All 3 networks"),
        (["a", "b", "a"], "2 of 3 networks put A first, 1 b."),
        (["b", "c"], "None of the 2"),
    ],
)
def test_agreement_counts_the_first_classes(votes: list[str], said: str) -> None:
    assert said in a_diagnosis(votes).agreement


def test_no_box_and_no_detector_are_reported_apart() -> None:
    box = LesionBox(x1=0, y1=0, x2=1, y2=1, label="lesion", score=0.5)
    assert a_diagnosis(["a"]).photos[0].boxes_found == "no detector"
    assert "no lesion" in a_diagnosis(["a"], ()).photos[0].boxes_found
    assert a_diagnosis(["a"], (box,)).photos[0].boxes_found == "The detector outlined 1 lesion."
    assert "2 lesions" in a_diagnosis(["a"], (box, box)).photos[0].boxes_found


def test_the_notice_travels_with_every_record() -> None:
    assert "not a medical device" in a_diagnosis(["a"]).model_dump_json()


@pytest.mark.parametrize(
    ("probability", "shown"),
    [
        (1.0, "> 99 %"),
        (0.991, "> 99 %"),
        (0.99, "99 %"),
        (0.426, "43 %"),
        (0.01, "1 %"),
        (0, "< 1 %"),
    ],
)
def test_nothing_is_certain(probability: float, shown: str) -> None:
    assert percent(probability) == shown
