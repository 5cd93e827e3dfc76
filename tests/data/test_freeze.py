"""Frozen splits: whatever comes, goes and comes back, no image ever changes its split."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skindx.core.errors import UserError
from skindx.data.copies.deduplicate import LabelledImage, distinct
from skindx.data.ledger import LedgerRow
from skindx.data.manifest import SPLITS, Record, write_manifest
from skindx.data.recipe import BuildSettings
from skindx.data.screening.screen import Screened
from skindx.data.sources.folder import FolderSource
from skindx.data.splits.freeze import (
    Placement,
    fitting_folds,
    group_aliases,
    hold_splits,
    lacking_notes,
    nearest,
    place_groups,
    read_places,
    write_places,
)
from skindx.data.splits.groups import GroupKeys, GroupSettings, group_names
from skindx.data.splits.split import SplitSettings, split_groups

SOUND = Screened(None, "", 100, 100, np.zeros((2, 8), np.uint64))
KEYS = GroupKeys(GroupSettings())


def sha(number: int) -> str:
    return f"{number:064x}"


@dataclass
class Built:
    """What one build made of its images."""

    splits: dict[str, str]
    folds: dict[str, int | None]
    groups: dict[str, str]
    conflicts: set[str]


def build(
    folder: Path,
    numbers: set[int],
    links: set[tuple[int, int]],
    keys: dict[int, str],
    split: SplitSettings | None = None,
) -> Built:
    """Split images as a build does; two are linked if `links` has them, or by equal `keys`."""
    images = distinct(
        [
            LabelledImage(
                LedgerRow(f"{n}.jpg", "ab"[n % 2], "stored", sha256=sha(n), group=keys.get(n, "")),
                "ab"[n % 2],
                SOUND,
            )
            for n in numbers
        ]
    )
    position = {same[0].row.sha256: i for i, same in enumerate(images)}
    near = [(position[sha(i)], position[sha(j)], 0) for i, j in links if {i, j} <= numbers]
    groups = group_names(images, np.array(near, np.int64).reshape(-1, 3), KEYS, 6)
    source = FolderSource(path=folder)
    recipe = BuildSettings(name="x", sources=(source,), split=split or SplitSettings())
    before = read_places(folder) if (folder / "splits.csv").exists() else {}
    places = fitting_folds(before, recipe.split.folds)
    aliases = group_aliases(images, groups, KEYS)
    kept, held, issues = hold_splits(places, [same[0] for same in images], aliases)
    placed = place_groups(recipe.split, recipe.seed, kept, groups, held)
    write_places(folder, aliases, groups, placed, places)
    of = {image.row.sha256: placed[groups[image.row.sha256]] for image in kept}
    return Built(
        {name: place.split for name, place in of.items()},
        {name: place.fold for name, place in of.items()},
        groups,
        {issue.sha256 for issue in issues},
    )


images = st.sets(st.integers(0, 29), min_size=1)
versions = st.lists(
    st.tuples(
        images,
        st.sets(st.tuples(st.integers(0, 29), st.integers(0, 29)), max_size=6),
        st.dictionaries(st.integers(0, 29), st.sampled_from(["lesion 1", "lesion 2", "page"])),
    ),
    min_size=2,
    max_size=6,
)


@given(versions)
def test_no_image_ever_changes_its_split(
    tmp_path_factory: pytest.TempPathFactory,
    versions: list[tuple[set[int], set[tuple[int, int]], dict[int, str]]],
) -> None:
    folder = tmp_path_factory.mktemp("dataset")
    first: dict[str, str] = {}
    for numbers, links, keys in versions:
        built = build(folder, numbers, links, keys)
        assert built.splits.keys() | built.conflicts == {sha(n) for n in numbers}
        assert built.splits.keys().isdisjoint(built.conflicts)
        for name, split in built.splits.items():
            assert first.setdefault(name, split) == split
        sides: dict[str, set[str]] = {}
        for name, split in built.splits.items():
            sides.setdefault(built.groups[name], set()).add(split)
        assert all(len(side) == 1 for side in sides.values())
        # Only what stood elsewhere before is dropped: a new image never is.
        assert built.conflicts <= first.keys()
        for name, fold in built.folds.items():
            assert (fold is None) == (built.splits[name] in ("calibration", "test"))


def test_what_ties_two_sides_goes_to_the_one_nearest_to_training(tmp_path: Path) -> None:
    first = build(tmp_path, set(range(20)), set(), {})
    train = next(n for n in range(20) if first.splits[sha(n)] == "train")
    test = next(n for n in range(20) if first.splits[sha(n)] == "test")
    tied = build(tmp_path, set(range(21)), {(train, 20), (test, 20)}, {})
    assert tied.conflicts == {sha(test)}
    assert tied.splits[sha(20)] == tied.splits[sha(train)] == "train"
    # The tie has gone with the image that made it; each is where it was.
    assert build(tmp_path, set(range(20)), set(), {}).splits == first.splits
    # It comes back: still an image that a model may have been trained on.
    assert build(tmp_path, set(range(21)), set(), {}).splits[sha(20)] == "train"


def test_a_group_keeps_its_side_when_all_its_images_are_new(tmp_path: Path) -> None:
    first = build(tmp_path, set(range(20)), set(), {19: "lesion 7"})
    side = first.splits[sha(19)]
    build(tmp_path, set(range(19)), set(), {})
    for extra in range(20, 26):
        later = build(tmp_path, {*range(19), extra}, set(), {extra: "lesion 7"})
        assert later.splits[sha(extra)] == side


def test_every_name_of_a_group_is_remembered(tmp_path: Path) -> None:
    """A lesion's id is no group's name when a smaller id ties the same images."""
    first = build(tmp_path, set(range(12)), {(0, 1)}, {0: "a", 1: "b"})
    assert first.groups[sha(1)].endswith("/a")
    later = build(tmp_path, {*range(2, 12), 20, 21}, set(), {20: "b", 21: "a"})
    assert later.splits[sha(20)] == later.splits[sha(21)] == first.splits[sha(0)]


def test_shares_approach_the_settings_around_what_is_frozen(tmp_path: Path) -> None:
    present = set(range(40))
    build(tmp_path, present, set(), {})
    build(tmp_path, present - set(range(0, 40, 3)), set(), {})
    grown = set(range(10, 400))
    built = build(tmp_path, grown, set(), {})
    for label in (0, 1):
        counts = Counter(built.splits[sha(n)] for n in grown if n % 2 == label)
        whole = sum(counts.values())
        for split, share in SplitSettings().share.items():
            assert abs(counts[split] - share * whole) <= 1


def test_a_held_group_that_overfills_a_split_turns_the_others_away() -> None:
    members = [("old", "a")] * 50 + [(f"new {n}", "a") for n in range(50)]
    splits = split_groups(members, SplitSettings(), 0, {"old": "test"})
    counts = Counter(splits[group] for group, _ in members)
    # Test has more than its share already, so that nothing new goes there.
    assert counts["test"] == 50
    assert counts["train"] > 30
    assert min(counts["val"], counts["calibration"]) >= 1


def test_folds_stay_and_another_number_deals_them_anew(tmp_path: Path) -> None:
    first = build(tmp_path, set(range(60)), set(), {})
    second = build(tmp_path, set(range(5, 90)), set(), {})
    for name in first.folds.keys() & second.folds.keys():
        assert first.folds[name] == second.folds[name]
    sizes = Counter(fold for fold in second.folds.values() if fold is not None)
    assert max(sizes.values()) - min(sizes.values()) <= 2
    three = SplitSettings(folds=3)
    third = build(tmp_path, set(range(90)), set(), {}, three)
    assert {fold for fold in third.folds.values() if fold is not None} == {0, 1, 2}
    assert build(tmp_path, set(range(90)), set(), {}, three).folds == third.folds
    none = build(tmp_path, set(range(90)), set(), {}, SplitSettings(folds=0))
    assert set(none.folds.values()) == {None}
    assert build(tmp_path, set(range(90)), set(), {}, three).folds == third.folds


def test_a_published_table_and_an_old_manifest_are_read(tmp_path: Path) -> None:
    table = tmp_path / "splits.csv"
    table.write_text(
        f"sha256,group,split,fold\n{sha(1)},L1,train,3\n{sha(2)},L2,test,\n,P9,val,0\n"
    )
    assert read_places(table) == {
        sha(1): Placement("train", 3),
        "L1": Placement("train", 3),
        sha(2): Placement("test"),
        "L2": Placement("test"),
        "P9": Placement("val", 0),
    }
    old = tmp_path / "old"
    record = Record("store/x.jpg", sha(3), "0" * 16, 9, 9, "a", "L3", "calibration")
    write_manifest(old, [record])
    assert read_places(old) == {sha(3): Placement("calibration"), "L3": Placement("calibration")}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("picture,split\n1,test\n", "must have the names sha256 and split"),
        ("sha256,split\n1,tset\n", "line 2: the split 'tset' is unknown; write one of train, val"),
        ("sha256,split,fold\n1,train,x\n", "line 2: the fold 'x' is not a whole number"),
        ("sha256,split\n1,train\n1,test\n", "the image 1 into both train and test"),
    ],
)
def test_a_table_that_says_nothing_is_reported(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "splits.csv").write_text(text)
    with pytest.raises(UserError, match=said):
        read_places(tmp_path / "splits.csv")
    with pytest.raises(UserError, match="does not exist"):
        read_places(tmp_path / "nowhere.csv")


def test_of_several_places_the_one_nearest_to_training_and_the_first_fold_count() -> None:
    places = [Placement("test"), Placement("train", 3), Placement("train", 1), Placement("val", 0)]
    assert nearest(places) == Placement("train", 1)
    assert nearest(places[:1] + places[3:]) == Placement("val", 0)


def test_folds_stay_only_where_there_are_as_many_as_are_wanted() -> None:
    places = {"a": Placement("train", 0), "b": Placement("val", 1), "c": Placement("test")}
    assert fitting_folds(places, 2) == places
    assert fitting_folds(places, 0) == places
    for folds in (1, 3, 5):
        assert {place.fold for place in fitting_folds(places, folds).values()} == {None}
    gap = {"a": Placement("train", 0), "b": Placement("val", 2)}
    assert {place.fold for place in fitting_folds(gap, 2).values()} == {None}


def test_a_build_without_folds_forgets_none(tmp_path: Path) -> None:
    now, before = {"g": Placement("train")}, {sha(1): Placement("train", 2)}
    write_places(tmp_path, {"g": {"g", sha(1)}}, [sha(1)], now, before)
    assert read_places(tmp_path)[sha(1)] == Placement("train", 2)


@pytest.mark.parametrize("lines", [(1, 2, 3), (3, 2, 1)])
def test_a_group_of_a_table_is_where_its_image_nearest_to_training_is(
    tmp_path: Path, lines: tuple[int, ...]
) -> None:
    split = {1: "val,1", 2: "train,4", 3: "test,"}
    text = "".join(f"{sha(170 + n).upper()},L,{split[n]}\n" for n in lines)
    (tmp_path / "splits.csv").write_text(f"sha256,group,split,fold\n{text}")
    places = read_places(tmp_path)
    assert places["L"] == Placement("train", 4)
    assert places[sha(171)] == Placement("val", 1)  # written in small letters or large ones


def test_copies_of_the_same_bytes_give_a_group_all_their_names() -> None:
    rows = [LedgerRow(f"{g}.jpg", "a", "stored", sha256=sha(1), group=g) for g in ("P1", "P2")]
    images = distinct([LabelledImage(row, "a", SOUND) for row in rows])
    assert group_aliases(images, {sha(1): "/P1"}, KEYS) == {"/P1": {"/P1", "/P2", sha(1)}}


def test_a_class_that_a_split_lacks_is_named_with_what_helps() -> None:
    where = {"a": SPLITS, "b": ["train", "val", "test"], "c": ["train"], "d": ["train"] * 4}
    spots = [(label, split) for label, splits in where.items() for split in splits]
    rows = [LedgerRow(f"{n}", label, "stored", sha256=sha(n)) for n, (label, _) in enumerate(spots)]
    kept = [LabelledImage(row, row.label, SOUND) for row in rows]
    groups = {row.sha256: row.sha256 for row in rows}
    placed = {row.sha256: Placement(split) for row, (_, split) in zip(rows, spots, strict=True)}
    notes = lacking_notes(kept, groups, placed, SplitSettings())
    assert [note.partition(":")[0] for note in notes] == [
        "b has no image in calibration",
        "c has no image in val and calibration and test",
        "d has no image in val and calibration and test",
    ]
    assert "3 images in 3 groups" in notes[0]
    assert "`folds: 2` and members of `fold: each`" in notes[0]
    assert "sensitivity and AUROC cannot be computed" in notes[1]
    assert "1 image in 1 group, and folds cannot divide them" in notes[1]
    assert "--resplit" in notes[2]
    whole = SplitSettings(train=0.8, val=0.1, calibration=0, test=0.1)
    assert [note[0] for note in lacking_notes(kept, groups, placed, whole)] == ["c", "d"]


def test_an_image_that_gave_a_group_its_name_stays_where_its_line_says(tmp_path: Path) -> None:
    table = tmp_path / "splits.csv"
    table.write_text(f"sha256,group,split,fold\n{sha(1)},,train,0\n{sha(2)},{sha(1)},test,\n")
    places = read_places(table)
    assert places[sha(1)] == Placement("train", 0)
    assert places[sha(2)] == Placement("test")


def test_an_image_whose_group_went_elsewhere_does_not_speak_for_the_group(tmp_path: Path) -> None:
    names, now = {"g": {"g", sha(1), sha(2)}}, {"g": Placement("train", 0)}
    write_places(tmp_path, names, [sha(1), sha(2)], now, {sha(1): Placement("test")})
    rows = {tuple(line.split(",")) for line in (tmp_path / "splits.csv").read_text().split()[1:]}
    assert {(sha(1), "", "test", ""), (sha(2), "g", "train", "0")} < rows
