import random
from collections import Counter, defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skindx.data.manifest import SPLITS
from skindx.data.splits.split import SplitSettings, assert_disjoint, split_groups

groups_of_one_class = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(1, 9)), min_size=1, max_size=40
).map(
    lambda sizes: [(f"g{n}", label) for n, (label, size) in enumerate(sizes) for _ in range(size)]
)
any_groups = st.lists(st.tuples(st.sampled_from("ghijklmnop"), st.sampled_from("abc")), min_size=1)
shares = st.sampled_from(
    [
        SplitSettings(),
        SplitSettings(train=0.2, val=0.1, calibration=0.1, test=0.6),
        SplitSettings(train=0.8, val=0.1, calibration=0.0, test=0.1),
    ]
)


@given(any_groups, shares, st.integers(0, 9), st.randoms())
def test_whole_groups_whatever_the_order(
    members: list[tuple[str, str]], settings: SplitSettings, seed: int, rng: random.Random
) -> None:
    splits = split_groups(members, settings, seed)
    assert splits.keys() == {group for group, _ in members}
    assert_disjoint([(group, splits[group]) for group, _ in members])
    assert all(settings.share[split] > 0 for split in splits.values())
    shuffled = rng.sample(members, len(members))
    assert split_groups(shuffled, settings, seed) == splits


@given(groups_of_one_class, shares, st.integers(0, 9))
def test_every_class_is_in_as_many_splits_as_it_has_groups(
    members: list[tuple[str, str]], settings: SplitSettings, seed: int
) -> None:
    splits = split_groups(members, settings, seed)
    groups, present = defaultdict(set), defaultdict(set)
    for group, label in members:
        groups[label].add(group)
        present[label].add(splits[group])
    order = [split for split in ("train", "test", "val", "calibration") if settings.share[split]]
    for label in groups:
        assert present[label] >= set(order[: len(groups[label])])


def test_shares_are_met_class_by_class() -> None:
    members = [(f"{label}{n}", label) for label in "ab" for n in range(100)]
    splits = split_groups(members, SplitSettings(), 0)
    counts = Counter((label, splits[group]) for group, label in members)
    for label in "ab":
        assert [counts[label, split] for split in SPLITS] == [60, 10, 10, 20]


def test_another_seed_is_another_split() -> None:
    members = [(f"g{n}", "a") for n in range(50)]
    assert split_groups(members, SplitSettings(), 0) != split_groups(members, SplitSettings(), 1)


def test_a_torn_group_is_noticed() -> None:
    with pytest.raises(AssertionError, match="group g is in two splits"):
        assert_disjoint([("g", "train"), ("g", "test")])


def test_shares_must_add_up() -> None:
    with pytest.raises(ValueError, match=r"add up to 1, not 1\.1"):
        SplitSettings(train=0.7)
