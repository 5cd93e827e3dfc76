import random
from collections import Counter, defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skindx.data.manifest import SPLITS, Split
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


held_groups = st.dictionaries(st.sampled_from("ghijklmnop"), st.sampled_from(SPLITS))


@given(any_groups, shares, st.integers(0, 9), held_groups)
def test_a_class_lacks_a_split_only_where_others_need_its_groups(
    members: list[tuple[str, str]], settings: SplitSettings, seed: int, held: dict[str, Split]
) -> None:
    splits = split_groups(members, settings, seed, held)
    labels = defaultdict(set)
    for group, label in members:
        labels[group].add(label)
    assert all(splits[group] == split for group, split in held.items() if group in labels)
    there = Counter((label, splits[group]) for group in labels for label in labels[group])
    for group in labels.keys() - held.keys():
        spare = all(there[label, splits[group]] > 1 for label in labels[group])
        lacks = any(
            not there[label, split]
            for label in labels[group]
            for split in SPLITS
            if settings.share[split]
        )
        assert not (spare and lacks)


def test_few_positives_of_patients_with_many_images_are_in_every_split() -> None:
    members = [(f"p{n % 40}", "benign") for n in range(4000)]
    members += [(f"p{n}", "malignant") for n in range(8)]
    splits = split_groups(members, SplitSettings(), 0)
    assert {splits[f"p{n}"] for n in range(8)} == set(SPLITS)
    counts = images_of(members, splits)
    assert [round(counts[split] / len(members), 1) for split in SPLITS] == [0.6, 0.1, 0.1, 0.2]


def test_a_group_moves_where_rarer_classes_took_the_places() -> None:
    # x, y and z each put their largest group, which holds b too, into train.
    members = [(f"{label}{n}", label) for label in "xyz" for n in range(4)]
    members += [(f"{label}0", label) for label in "xyz"]
    members += [(f"{label}0", "b") for label in "xyz"] + [("b", "b")] * 5
    splits = split_groups(members, SplitSettings(), 0)
    present = {splits[group] for group, label in members if label == "b"}
    assert len(present) > 1
    for label in "xyz":
        assert {splits[f"{label}{n}"] for n in range(4)} == set(SPLITS)


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


def of_sizes(label: str, *sizes: int) -> list[tuple[str, str]]:
    return [(f"{label}{n}", label) for n, size in enumerate(sizes) for _ in range(size)]


def images_of(members: list[tuple[str, str]], splits: dict[str, str]) -> Counter[str]:
    return Counter(splits[group] for group, _ in members)


HALVES = SplitSettings(train=0.5, val=0, calibration=0, test=0.5)


def test_train_gets_the_largest_group_of_a_class_and_the_others_its_smallest() -> None:
    splits = split_groups(of_sizes("a", 5, 1, 9, 3), SplitSettings(), 0)
    assert splits == {"a2": "train", "a1": "test", "a3": "val", "a0": "calibration"}


def test_the_rarest_class_chooses_first() -> None:
    mixed = [(f"z{n}", label) for n in range(4) for label in ("z", "aabb"[n])]
    members = [*mixed, *of_sizes("a", *[3] * 6), *of_sizes("b", *[3] * 6)]
    for seed in range(5):
        splits = split_groups(members, SplitSettings(), seed)
        assert {splits[f"z{n}"] for n in range(4)} == set(SPLITS)


def test_large_groups_are_placed_before_small_ones() -> None:
    members = of_sizes("a", 6, 6, *[1] * 12)
    for seed in range(5):
        assert images_of(members, split_groups(members, HALVES, seed)) == {"train": 12, "test": 12}


def test_a_group_of_two_classes_goes_where_most_of_its_images_are_missing() -> None:
    members = [("a1", "a"), *[("a2", "a")] * 20, *[("b1", "b")] * 30, ("b2", "b")]
    members += [*[("mixed", "a")] * 15, ("mixed", "b")]
    held = {"a1": "train", "a2": "test", "b1": "train", "b2": "test"}
    assert split_groups(members, HALVES, 0, held)["mixed"] == "train"
