import pytest
from hypothesis import given
from hypothesis import strategies as st

from skindx.comm.bucketed_exchange import Tree, color_trees, rounds


def internal(tree: Tree) -> set[int]:
    """Return the ranks that have children: those that add."""
    return {tree.order[tree.parent(place)] for place in range(1, len(tree.order))}


SIZES = st.integers(1, 40).flatmap(lambda ranks: st.tuples(st.just(ranks), st.integers(1, ranks)))


@given(SIZES)
def test_no_rank_adds_for_two_colors(sizes: tuple[int, int]) -> None:
    ranks, colors = sizes
    trees = color_trees(ranks, colors)
    assert len(trees) == colors
    inner = [internal(tree) for tree in trees]
    for first in range(colors):
        assert sorted(trees[first].order) == list(range(ranks))
        for second in range(first):
            assert not inner[first] & inner[second]


def test_a_tree_by_hand() -> None:
    tree = Tree((3, 4, 5, 0, 1, 2), arity=2)
    assert [tree.parent(place) for place in range(1, 6)] == [0, 0, 1, 1, 2]
    assert [tree.depth(place) for place in range(6)] == [0, 1, 1, 2, 2, 2]
    assert tree.height == 2
    assert internal(tree) == {3, 4, 5}


def test_more_colors_than_ranks_are_refused() -> None:
    with pytest.raises(ValueError, match="4 colors need at least 4 ranks, but there are 3"):
        color_trees(3, 4)


@given(SIZES, st.integers(1, 5))
def test_rounds_sum_everything_and_bring_it_back(sizes: tuple[int, int], chunks: int) -> None:
    """Played with sets of ranks in place of sums."""
    ranks, colors = sizes
    trees = color_trees(ranks, colors)
    held = {
        (rank, color, chunk): {rank}
        for rank in range(ranks)
        for color in range(colors)
        for chunk in range(chunks)
    }
    for edges in rounds(trees, chunks):
        before = {key: set(value) for key, value in held.items()}
        for edge in edges:
            sent = before[edge.sender, edge.color, edge.chunk]
            key = (edge.receiver, edge.color, edge.chunk)
            if edge.way == "up":
                assert not held[key] & sent, "nothing is added twice"
                held[key] |= sent
            else:
                held[key] = set(sent)
    assert all(value == set(range(ranks)) for value in held.values())


def test_fewer_rounds_than_a_ring() -> None:
    assert len(rounds(color_trees(16, 2), chunks=1)) < 2 * (16 - 1)
