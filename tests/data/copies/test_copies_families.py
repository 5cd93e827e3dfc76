"""What links join, who said otherwise, and which link of a chain is the weakest."""

from pathlib import Path

import pytest
from answering import write_answer
from copy_pairs import pair_of
from hypothesis import given
from hypothesis import strategies as st

from skindx.core.errors import UserError
from skindx.data.copies.verified import (
    CopyRecord,
    families,
    read_copies,
    records_of,
    verdict,
    write_copies,
)
from skindx.data.copies.verify import ACCEPT, REVIEW, Copy
from skindx.data.layout import COPIES
from skindx.data.removal.exclusions import verified_copies

TURN = (0.0, -2.0, 30.0, 2.0, 0.0, -4.0)


def link(a: str, b: str, probability: float = 0.99) -> CopyRecord:
    return CopyRecord(*sorted((a, b)), probability, 20, 0.9, 1.0, False, (1.0, 0, 0, 0, 1.0, 0))


def test_turned_evidence_maps_back() -> None:
    copy = Copy(0, 1, 0.95, 9, 0.8, 1.0, True, TURN)
    back = copy.turned()
    assert (back.first, back.second) == (1, 0)
    # (1, 2) goes to (0 - 4 + 30, 2 + 0 - 4) = (26, -2), and from there to (1, 2).
    a, b, x, c, d, y = back.transform_23
    assert (a * 26 + b * -2 + x, c * 26 + d * -2 + y) == pytest.approx((1, 2))
    assert back.turned().transform_23 == pytest.approx(TURN)


def test_rows_name_the_smaller_sha256_first_and_come_back(tmp_path: Path) -> None:
    paths = ["store/ff/ff.jpg", "store/aa/aa.png"]
    rows = records_of([Copy(0, 1, 0.95, 9, 0.8, 1.0, False, TURN)], paths)
    assert rows[0].pair == ("aa", "ff")
    assert rows[0].transform == pytest.approx(
        Copy(0, 1, 0, 0, 0, 0, False, TURN).turned().transform_23
    )
    write_copies(tmp_path / "copies.parquet", rows)
    assert read_copies(tmp_path / "copies.parquet") == rows
    (tmp_path / "copies.parquet").write_bytes(b"no table")
    with pytest.raises(UserError, match=r"copies.parquet is damaged"):
        read_copies(tmp_path / "copies.parquet")


def test_a_persons_answer_goes_before_the_probability() -> None:
    sure, doubtful, bad = (link("a", "b", p) for p in (ACCEPT, REVIEW, REVIEW - 0.01))
    assert [verdict(row, {}) for row in (sure, doubtful, bad)] == ["same", "uncertain", "different"]
    assert verdict(sure, {("a", "b"): False}) == "different"
    assert verdict(bad, {("a", "b"): True}) == "same"
    assert pair_of("b", "a") == pair_of("a", "b") == ("a", "b")


def test_a_chain_names_its_weakest_link_and_is_kept_whole() -> None:
    rows = [link("a", "b", 0.99), link("b", "c", 0.93), link("c", "d", 0.97), link("x", "y", 0.6)]
    (family,) = families(rows)
    assert family.sha256s == ("a", "b", "c", "d")
    assert family.weakest == rows[1]
    assert family.chained == 3


def test_a_weak_link_that_holds_nothing_together_is_not_the_weakest() -> None:
    rows = [link("a", "b", 0.99), link("b", "c", 0.98), link("a", "c", 0.91)]
    (family,) = families(rows)
    assert family.weakest == rows[1]
    assert family.chained == 0


def test_answers_cut_join_and_contradict() -> None:
    rows = [link("a", "b", 0.99), link("b", "c", 0.93)]
    assert [f.sha256s for f in families(rows, {("a", "b"): False})] == [("b", "c")]
    (reported,) = families([], {("p", "q"): True})
    assert (reported.sha256s, reported.weakest) == (("p", "q"), None)
    (family,) = families(rows, {("a", "c"): False})
    assert family.sha256s == ("a", "b", "c")
    assert family.contradicted == (("a", "c"),)


def test_a_removal_takes_the_family_along_and_names_what_is_uncertain(tmp_path: Path) -> None:
    a, b, c, u, x, y = (letter * 64 for letter in "abcdef")
    rows = [link(a, b, 0.99), link(b, c, 0.95), link(c, u, 0.6), link(x, y, 0.7)]
    write_copies(tmp_path / COPIES, rows)
    assert verified_copies(tmp_path, {a: a}) == ({b: a, c: a}, {u: a})
    write_answer(tmp_path, "different", b, c)
    assert verified_copies(tmp_path, {a: a}) == ({b: a}, {})
    assert verified_copies(tmp_path, {"9" * 64: "9" * 64}) == ({}, {})


names = st.sampled_from("abcdefgh")


@given(st.lists(st.tuples(names, names, st.floats(0, 1)), max_size=20))
def test_families_are_a_partition_and_their_order_is_their_own(
    drawn: list[tuple[str, str, float]],
) -> None:
    rows = list({pair_of(a, b): link(a, b, p) for a, b, p in drawn if a != b}.values())
    found = families(rows)
    assert found == families(rows[::-1])
    members = [name for family in found for name in family.sha256s]
    assert len(members) == len(set(members))
    linked = {name for row in rows if verdict(row, {}) == "same" for name in row.pair}
    assert set(members) == linked
    for family in found:
        inside = [
            row for row in rows if verdict(row, {}) == "same" and row.sha256_a in family.sha256s
        ]
        assert family.weakest in inside
