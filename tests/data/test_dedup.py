from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from skindx.data.copies.deduplicate import Cleaned, LabelledImage, deduplicate, distinct
from skindx.data.ledger import LedgerRow
from skindx.data.screening.screen import Screened


def image(url: str, sha: str, label: str = "a", side: int = 100) -> LabelledImage:
    row = LedgerRow(url=url, label=label, status="stored", sha256=sha, size_bytes=1000)
    return LabelledImage(row, label, Screened(None, "", side, side, np.zeros((2, 8), np.uint64)))


def clean(
    images: list[LabelledImage], links: list[tuple[int, int, int]], radius: int = 4
) -> Cleaned:
    table = np.array(links, np.int64).reshape(-1, 3)
    return deduplicate(distinct(images), table, radius)


def test_the_same_bytes_keep_the_first_url() -> None:
    cleaned = clean([image("b", "1"), image("a", "1")], [])
    assert [kept.row.url for kept in cleaned.kept] == ["a"]
    (issue,) = cleaned.issues
    assert (issue.url, issue.reason, issue.kept_sha256) == ("b", "exact-duplicate", "1")


def test_the_largest_of_near_duplicates_stays() -> None:
    images = [image("a", "1", side=90), image("b", "2", side=180), image("c", "3")]
    cleaned = clean(images, [(0, 1, 3), (1, 2, 4)])
    assert [kept.row.url for kept in cleaned.kept] == ["b"]
    assert {(i.url, i.reason, i.kept_sha256) for i in cleaned.issues} == {
        ("a", "near-duplicate", "2"),
        ("c", "near-duplicate", "2"),
    }


def test_a_copy_of_a_removed_image_names_the_one_that_stays() -> None:
    images = [image("a", "1", side=90), image("a2", "1", side=90), image("b", "2")]
    cleaned = clean(images, [(0, 1, 0)])
    assert {(i.url, i.reason, i.kept_sha256) for i in cleaned.issues} == {
        ("a", "near-duplicate", "2"),
        ("a2", "exact-duplicate", "2"),
    }


def test_a_chain_is_not_swallowed_whole() -> None:
    images = [image(name, name, side=200 - n) for n, name in enumerate("1234")]
    cleaned = clean(images, [(0, 1, 4), (1, 2, 4), (2, 3, 4)])
    assert [kept.row.url for kept in cleaned.kept] == ["1", "3"]


def test_links_beyond_the_radius_do_not_count() -> None:
    assert len(clean([image("a", "1"), image("b", "2")], [(0, 1, 5)]).kept) == 2


def test_the_same_bytes_under_two_labels_all_go() -> None:
    cleaned = clean([image("x", "1", "nevus"), image("y", "1", "wart"), image("z", "2")], [])
    assert [kept.row.url for kept in cleaned.kept] == ["z"]
    assert {(i.url, i.reason, i.detail) for i in cleaned.issues} == {
        ("x", "conflicting-duplicate", "the same image is labelled nevus and wart"),
        ("y", "conflicting-duplicate", "the same image is labelled nevus and wart"),
    }
    assert (cleaned.exact_conflicts, cleaned.near_conflicts) == (1, 0)


def test_a_contradiction_through_a_removed_image_drops_both_clusters() -> None:
    # 2 would go for 1, but it also shows the same as 3, which has another label.
    images = [
        image("1", "1", "nevus", 300),
        image("2", "2", "nevus", 200),
        image("3", "3", "wart", 100),
        image("4", "4", "wart", 100),
    ]
    cleaned = clean(images, [(0, 1, 2), (1, 2, 3)])
    assert [kept.row.url for kept in cleaned.kept] == ["4"]
    assert (cleaned.exact_conflicts, cleaned.near_conflicts) == (0, 1)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[LabelledImage], list[tuple[int, int, int]]]:
    rows = draw(
        st.lists(
            st.tuples(st.integers(10, 19), st.sampled_from("aab"), st.integers(50, 52)),
            min_size=1,
            max_size=14,
        )
    )
    sides: dict[int, int] = {}
    images = [
        image(f"u{n}", str(sha), label, sides.setdefault(sha, side))
        for n, (sha, label, side) in enumerate(rows)
    ]
    pairs = list(combinations(range(len(distinct(images))), 2))
    linked = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    return images, [(i, j, draw(st.integers(0, 6))) for i, j in linked]


@given(worlds())
def test_every_image_is_kept_or_explained(
    world: tuple[list[LabelledImage], list[tuple[int, int, int]]],
) -> None:
    images, links = world
    cleaned = clean(images, links)
    position = {same[0].row.sha256: i for i, same in enumerate(distinct(images))}
    near = {frozenset((i, j)) for i, j, distance in links if distance <= 4}
    labels = [{p.label for p in same} for same in distinct(images)]

    reported = [p.row.url for p in cleaned.kept] + [issue.url for issue in cleaned.issues]
    assert sorted(reported) == sorted(p.row.url for p in images)
    kept = {position[p.row.sha256] for p in cleaned.kept}
    assert not any(pair <= kept for pair in near), "two kept pictures show the same"
    for i in kept:
        around = [labels[j] for pair in near if i in pair for j in pair]
        assert len(set.union(labels[i], *around)) == 1, "a kept picture is contradicted"
    for issue in cleaned.issues:
        if issue.reason == "near-duplicate":
            pair = frozenset((position[issue.sha256], position[issue.kept_sha256]))
            assert pair in near, "a picture was removed for one that is not its neighbour"
            assert position[issue.kept_sha256] in kept
