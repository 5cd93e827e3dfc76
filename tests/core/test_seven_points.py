"""The weighted 7-point checklist: the published weights, and that a yes never lowers a score."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skindx.core.seven_points import (
    ITEM_OF,
    ITEMS,
    QUESTIONS,
    SevenPoints,
    answers_from,
    answers_text,
    seven_points,
)

ANSWERS = st.dictionaries(st.sampled_from(QUESTIONS), st.sampled_from(["yes", "no", "unknown"]))
PUBLISHED = {
    "size": 2, "shape": 2, "colour": 2, "diameter": 1, "inflammation": 1, "oozing": 1,
    "sensation": 1,
}  # fmt: skip
"""NICE NG12, box of recommendation 1.7.1."""


def test_the_weights_are_the_published_ones() -> None:
    assert {item: points for item, (points, _) in ITEMS.items()} == PUBLISHED
    assert seven_points(dict.fromkeys(QUESTIONS, "yes")) == SevenPoints(10, 7, fits=True)
    assert set(QUESTIONS) - ITEM_OF.keys() == {"pigmented", "new", "changed", "raised"}


@pytest.mark.parametrize(
    ("answers", "score", "known", "refers"),
    [
        ({}, 0, 0, False),
        ({"grew": "yes"}, 2, 1, False),
        ({"grew": "yes", "itches": "yes"}, 3, 2, True),
        ({"itches": "yes", "hurts": "yes", "bleeds": "yes"}, 2, 2, False),  # one item, once
        ({"inflamed": "yes", "bleeds": "yes", "large": "yes"}, 3, 3, True),
        ({"itches": "no", "hurts": "unknown"}, 0, 1, False),
        ({"new": "yes", "changed": "yes", "raised": "yes", "pigmented": "yes"}, 0, 0, False),
        ({"irregular_shape": "yes", "irregular_colour": "yes", "pigmented": "no"}, 4, 2, False),
    ],
)
def test_scores_by_hand(answers: Mapping[str, str], score: int, known: int, refers: bool) -> None:
    points = seven_points(answers)
    assert (points.score, points.known, points.refers) == (score, known, refers)


def test_the_items_do_not_fit_a_nail() -> None:
    every = dict.fromkeys(QUESTIONS, "yes")
    assert seven_points(every, "sole").refers
    assert not seven_points(every, "nail").refers


@given(ANSWERS, st.sampled_from([one for one in QUESTIONS if one != "pigmented"]))
def test_one_more_yes_never_lowers_and_unknown_is_as_if_not_asked(
    answers: dict[str, str], question: str
) -> None:
    before, after = seven_points(answers), seven_points(answers | {question: "yes"})
    assert after.score >= before.score
    assert after.refers >= before.refers
    given = {name: value for name, value in answers.items() if value != "unknown"}
    assert seven_points(given) == before
    assert answers_from(answers_text(answers)) == given
