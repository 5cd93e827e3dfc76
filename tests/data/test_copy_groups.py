"""Copies join groups: hand-computed cases, and what holds for any pairs."""

from hypothesis import given
from hypothesis import strategies as st

from skindx.data.manifest import SPLITS, Split
from skindx.data.splits.groups import SwallowedClass, count_crossing, join_groups, swallowed_classes

IMAGES = "012345"
GROUPS = dict(zip(IMAGES, "abcdef", strict=True))


def test_without_frozen_splits_every_pair_joins() -> None:
    joining = join_groups([("0", "1"), ("1", "2"), ("0", "2")], GROUPS, {})
    assert joining.joined == (("0", "1"), ("1", "2"), ("0", "2"))
    assert joining.crossing == ()


def test_two_sides_are_never_joined_also_not_through_a_third() -> None:
    pairs = [("0", "1"), ("1", "2"), ("2", "3")]
    joining = join_groups(pairs, GROUPS, {"a": "train", "d": "test"})
    # a, b and c are of train once joined, so c and d would tear a frozen split.
    assert joining.joined == (("0", "1"), ("1", "2"))
    assert joining.crossing == (("2", "3"),)


def test_the_most_certain_pair_decides_where_a_new_image_goes() -> None:
    sides = {"a": "train", "c": "test"}
    assert join_groups([("1", "2"), ("0", "1")], GROUPS, sides).joined == (("1", "2"),)
    assert join_groups([("0", "1"), ("1", "2")], GROUPS, sides).joined == (("0", "1"),)


PAIR = st.tuples(st.sampled_from(IMAGES), st.sampled_from(IMAGES)).filter(lambda p: p[0] < p[1])


@given(
    pairs=st.lists(PAIR),
    sides=st.dictionaries(st.sampled_from(list(GROUPS.values())), st.sampled_from(SPLITS)),
)
def test_no_joined_family_has_two_sides(
    pairs: list[tuple[str, str]], sides: dict[str, Split]
) -> None:
    joining = join_groups(pairs, GROUPS, sides)
    assert sorted([*joining.joined, *joining.crossing]) == sorted(pairs)
    family = {group: {group} for group in GROUPS.values()}
    for first, second in joining.joined:
        union = family[GROUPS[first]] | family[GROUPS[second]]
        for group in union:
            family[group] = union
    for members in family.values():
        assert len({sides[group] for group in members if group in sides}) < 2
    for first, second in joining.crossing:
        assert family[GROUPS[first]] != family[GROUPS[second]]


def test_families_in_several_splits_are_counted_by_image() -> None:
    groups = {**GROUPS, "2": "b"}
    splits: dict[str, Split] = dict(
        zip(IMAGES, ("train", "test", "test", "val", "train", "train"), strict=True)
    )
    found = count_crossing([("0", "1"), ("4", "5")], groups, splits)
    assert found is not None
    assert found.families == 1
    assert found.images == {"train": 1, "test": 2}
    assert found.would_leave == {"test": 2}
    assert count_crossing([("4", "5")], groups, splits) is None


def test_a_chain_that_takes_most_of_a_class_is_named() -> None:
    labels = dict.fromkeys("01234", "nevus") | {"5": "wart"}
    chain = {**GROUPS, "1": "a", "2": "a"}
    assert swallowed_classes(labels, GROUPS, chain) == [SwallowedClass("nevus", "a", 3, 5)]
    # A pair is no chain, and a family that a source named was as large before.
    assert swallowed_classes(dict.fromkeys("012", "nevus"), GROUPS, {**GROUPS, "1": "a"}) == []
    named = {**GROUPS, "1": "a", "2": "a"}
    joined = {**named, "3": "a", "4": "a"}
    assert swallowed_classes(labels, named, joined) == []
    # Half a class is not most of it, neither after joining nor before.
    assert swallowed_classes(dict.fromkeys("012345", "nevus"), GROUPS, chain) == []
    half = {**GROUPS, "1": "a"}
    assert swallowed_classes(dict.fromkeys("0123", "nevus"), half, {**chain, "3": "a"}) == [
        SwallowedClass("nevus", "a", 4, 4)
    ]
