from collections import Counter, defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skindx.data.splits.split import SplitSettings, fold_groups

any_groups = st.lists(st.tuples(st.sampled_from("ghijklmnop"), st.sampled_from("abc")), min_size=1)


@given(any_groups, st.integers(2, 6), st.integers(0, 9), st.randoms())
def test_whole_groups_in_every_order(members, folds, seed, rng) -> None:
    assigned = fold_groups(members, folds, seed)
    assert assigned.keys() == {group for group, _ in members}
    assert set(assigned.values()) <= set(range(folds))
    assert len(set(assigned.values())) == min(folds, len(assigned))
    assert fold_groups(rng.sample(members, len(members)), folds, seed) == assigned
    some = {group: (fold + 1) % folds for group, fold in list(assigned.items())[::2]}
    around = fold_groups(members, folds, seed, some)
    assert {group: around[group] for group in some} == some


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 4)), min_size=12, max_size=60))
def test_every_class_is_in_every_fold_and_sizes_are_even(sizes) -> None:
    members = [(f"g{n}", label) for n, (label, size) in enumerate(sizes) for _ in range(size)]
    assigned = fold_groups(members, 3, 0)
    present = defaultdict(set)
    counts = Counter()
    for group, label in members:
        present[label].add(assigned[group])
        counts[label, assigned[group]] += 1
    groups = Counter(label for label, _ in sizes)
    for label, found in present.items():
        assert len(found) == min(3, groups[label])
        if groups[label] >= 3:
            of = [counts[label, fold] for fold in range(3)]
            assert max(of) - min(of) <= 4  # no more than the largest group


def test_one_fold_is_refused() -> None:
    with pytest.raises(ValueError, match="one fold is not possible"):
        SplitSettings(folds=1)


def test_large_groups_are_placed_before_small_ones() -> None:
    sizes = {"big": 6, **{f"g{n}": 1 for n in range(6)}}
    members = [(group, "a") for group, size in sizes.items() for _ in range(size)]
    for seed in range(5):
        assigned = fold_groups(members, 2, seed)
        assert Counter(assigned[group] for group, _ in members) == {0: 6, 1: 6}
