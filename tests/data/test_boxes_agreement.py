"""Agreement, against figures worked out by hand and scikit-learn's kappa."""

from pathlib import Path

import pytest
from boxed_dataset import boxed_dataset
from hypothesis import given
from hypothesis import strategies as st

from skindx.core.errors import UserError
from skindx.data.box import Box, iou, match
from skindx.data.boxes.annotations import (
    Annotation,
    agree,
    cohens_kappa,
    compare,
    write_annotations,
)


def box(x1: float, y1: float, x2: float, y2: float, label: str = "mole") -> Box:
    return Box(x1, y1, x2, y2, label)


def test_overlap_by_hand() -> None:
    # 10 x 10 against the same moved by 5: 50 shared of 150; apart; inside: 25 of 100.
    others = [box(5, 0, 15, 10), box(20, 0, 30, 10), box(0, 0, 5, 5)]
    assert iou([box(0, 0, 10, 10)], others).tolist() == [[pytest.approx(1 / 3), 0, 0.25]]
    assert iou([], others).shape == (0, 3)


def test_matching_is_best_as_a_whole_not_greedy() -> None:
    # A greedy match would take (0, 0) at 0.9 and leave the others apart.
    first = [box(0, 0, 100, 10), box(0, 0, 80, 10)]
    second = [box(0, 0, 90, 10), box(20, 0, 100, 10)]
    pairs = {(i, j): round(value, 3) for i, j, value in match(first, second, 0.5)}
    assert pairs == {(0, 1): 0.8, (1, 0): 0.889}
    assert match(first, second, 0.85) == [(0, 0, pytest.approx(0.9))]
    assert match(first, [], 0.5) == []


def test_agreement_by_hand() -> None:
    a, b, moved = box(0, 0, 10, 10), box(50, 50, 60, 60, "scar"), box(0, 0, 10, 8)
    pairs = [
        ([a, b], [moved]),  # one matched at 0.8, one only A's
        ([b], [box(50, 50, 60, 60, "mole")]),  # matched at 1, classes differ
        ([], []),  # both: none
        ([], [a]),  # only B sees one
        ([b], [b]),
    ]
    found = compare("A", "B", pairs, ["g", "g", "h", "i", "j"], draws=50)
    assert (found.images, found.groups, found.matched) == (5, 4, 3)
    assert (found.boxes_first, found.boxes_second) == (4, 4)
    assert found.iou is not None
    assert found.iou.value == pytest.approx((0.8 + 1 + 1) / 3)
    assert found.rate_first is not None
    assert found.rate_first.value == 0.75
    assert found.rate_first.low <= 0.75 <= found.rate_first.high
    # Presence: 3 both, 1 none, 1 only B: observed 4/5, chance (3*4 + 2*1)/25 = 14/25.
    assert found.kappa_presence is not None
    assert found.kappa_presence.value == pytest.approx((0.8 - 0.56) / (1 - 0.56))
    # Classes: mole-mole, scar-mole, scar-scar: observed 2/3, chance (1*2 + 2*1)/9.
    assert found.kappa_class is not None
    assert found.kappa_class.value == pytest.approx((2 / 3 - 4 / 9) / (1 - 4 / 9))


def test_what_cannot_be_said_is_none() -> None:
    a = box(0, 0, 10, 10)
    one = compare("A", "B", [([a], [a]), ([a], [])], ["g", "h"], draws=10)
    assert one.kappa_class is None  # one class only
    none = compare("A", "B", [([], []), ([], [])], ["g", "h"], draws=10)
    assert (none.iou, none.rate_first, none.rate_second, none.kappa_presence) == (None,) * 4
    lesion = box(0, 0, 10, 10, "lesion")
    other = compare("A", "B", [([a], [lesion])], ["g"], draws=10)
    assert other.kappa_class is None  # each has words of its own


@given(st.lists(st.tuples(*[st.sampled_from("abc")] * 2), min_size=2, max_size=30))
def test_kappa_is_scikit_learns(said: list[tuple[str, str]]) -> None:
    from sklearn.metrics import cohen_kappa_score

    ours = cohens_kappa([[pair] for pair in said])
    if ours is None:
        assert len({word for pair in said for word in pair}) == 1
    else:
        assert ours.value == pytest.approx(cohen_kappa_score(*zip(*said, strict=True)))


def test_of_a_dataset(tmp_path: Path) -> None:
    built = box(0, 0, 10, 10)
    records = boxed_dataset(tmp_path, {0: (built,), 1: ()})
    with pytest.raises(UserError, match=r"name from: recipe \(2 images\)"):
        agree(tmp_path, ["Ann", "recipe"])
    rows = [
        Annotation(records[0].sha256, "recipe", "", (built,)),
        Annotation(records[0].sha256, "Ann", "2026-01-01", (built,)),
        Annotation(records[1].sha256, "Bob", "2026-01-01", ()),
    ]
    write_annotations(tmp_path, rows)
    with pytest.raises(UserError, match="name two"):
        agree(tmp_path)
    with pytest.raises(UserError, match="have not annotated the same images of"):
        agree(tmp_path, ["Ann", "Bob"])
    found = agree(tmp_path, ["Ann", "recipe"], draws=10)
    assert (found.images, found.matched) == (1, 1)


def test_boxes_that_overlap_by_just_the_threshold_are_of_one_lesion() -> None:
    whole, half = Box(0, 0, 10, 10, "a"), Box(0, 0, 10, 5, "a")
    assert match([whole], [half], 0.5) == [(0, 0, 0.5)]
    assert match([whole], [half], 0.51) == []
