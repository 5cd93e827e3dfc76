"""Copies join groups: hand-computed cases, and what holds for any pairs."""

from hypothesis import given
from hypothesis import strategies as st

from skindx.data.manifest import SPLITS
from skindx.data.splits.copy_groups import (
    Swallowed,
    count_crossing,
    join_groups,
    swallowed_classes,
)

GROUPS = list("abcdef")


def test_without_frozen_splits_every_pair_joins() -> None:
    joining = join_groups([(0, 1), (1, 2), (0, 2)], GROUPS, {})
    assert joining.joined == ((0, 1), (1, 2), (0, 2))
    assert joining.crossing == ()


def test_two_sides_are_never_joined_also_not_through_a_third() -> None:
    joining = join_groups([(0, 1), (1, 2), (2, 3)], GROUPS, {"a": "train", "d": "test"})
    # a–b–c is of train once joined, so c–d would tear a frozen split.
    assert joining.joined == ((0, 1), (1, 2))
    assert joining.crossing == ((2, 3),)


def test_the_most_certain_pair_decides_where_a_new_image_goes() -> None:
    sides = {"a": "train", "c": "test"}
    assert join_groups([(1, 2), (0, 1)], GROUPS, sides).joined == ((1, 2),)
    assert join_groups([(0, 1), (1, 2)], GROUPS, sides).joined == ((0, 1),)


@given(
    pairs=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)).filter(lambda p: p[0] < p[1])),
    sides=st.dictionaries(st.sampled_from(GROUPS), st.sampled_from(SPLITS)),
)
def test_no_joined_family_has_two_sides(
    pairs: list[tuple[int, int]], sides: dict[str, str]
) -> None:
    joining = join_groups(pairs, GROUPS, sides)
    assert sorted([*joining.joined, *joining.crossing]) == sorted(pairs)
    family = {group: {group} for group in GROUPS}
    for first, second in joining.joined:
        union = family[GROUPS[first]] | family[GROUPS[second]]
        for group in union:
            family[group] = union
    for members in family.values():
        assert len({sides[group] for group in members if group in sides}) < 2
    for first, second in joining.crossing:
        assert family[GROUPS[first]] != family[GROUPS[second]]


def test_families_in_several_splits_are_counted_by_image() -> None:
    splits = {0: "train", 1: "test", 2: "test", 3: "val", 4: "train", 5: "train"}
    found = count_crossing([(0, 1), (4, 5)], ["a", "b", "b", "d", "e", "f"], splits)
    assert found is not None
    assert found.families == 1
    assert found.images == {"train": 1, "test": 2}
    assert found.would_leave == {"test": 2}
    assert count_crossing([(4, 5)], GROUPS, splits) is None


def test_a_chain_that_takes_most_of_a_class_is_named() -> None:
    labels = [(image, "nevus") for image in range(5)] + [(5, "wart")]
    after = ["a", "a", "a", "d", "e", "f"]
    assert swallowed_classes(labels, GROUPS, after) == [Swallowed("nevus", "a", 3, 5)]
    # A pair is no chain, and a family that a source named was as large before.
    assert swallowed_classes(labels[:3], GROUPS, ["a", "a", "c", "d", "e", "f"]) == []
    named = ["a", "a", "a", "b", "c", "f"]
    assert swallowed_classes(labels, named, ["a", "a", "a", "a", "a", "f"]) == []
