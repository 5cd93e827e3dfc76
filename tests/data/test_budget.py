import pytest
from hypothesis import given
from hypothesis import strategies as st

from skindx.data.loader.cache import Node, kept_share, wants_shards

GB = 10**9


@pytest.mark.parametrize(
    ("copies", "total_gb", "ranks", "world", "free_gb", "sharded"),
    [
        (2, 4, 2, 2, 17, False),  # two copies of 4 in 8.5
        (2, 4, 2, 2, 15, True),  # in 7.5: two halves, 4 together
        (1, 4, 1, 1, 1, False),  # one rank has nobody to share with
        (1, 4, 8, 8, 9, False),  # one copy for the node
        (1, 4, 8, 8, 7, False),  # eight shares on one node are no smaller
        (1, 4, 8, 16, 7, True),  # the other node has the other half
        (1, 0, 8, 16, 0, False),  # nothing is kept
    ],
)
def test_shards_by_hand(copies, total_gb, ranks, world, free_gb, sharded) -> None:
    node = Node(ranks, world, free_gb * GB)
    assert wants_shards(total_gb * GB, node, copies) == sharded


@given(
    total=st.integers(0, 10**12),
    ranks=st.integers(1, 8),
    nodes=st.integers(1, 4),
    free=st.integers(0, 10**12),
    sharded=st.booleans(),
    shared=st.booleans(),
)
def test_what_is_kept_fits(
    total: int, ranks: int, nodes: int, free: int, sharded: bool, shared: bool
) -> None:
    node = Node(ranks, ranks * nodes, free)
    copies = 1 if shared else ranks
    share = kept_share(total, node, copies, sharded=sharded)
    seen = total / node.world * ranks if sharded else total * copies
    assert 0 <= share <= 1
    assert share * seen <= node.budget_bytes * (1 + 1e-9)
    assert share == 1 or share * seen == pytest.approx(node.budget_bytes)
