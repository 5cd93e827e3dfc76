from pathlib import Path

import pytest
from some_plans import cluster

from skindx.comm.hierarchical import HierarchicalSettings
from skindx.core.errors import UserError
from skindx_methods.plan.cluster import Cluster, ClusterNetwork, Collective, Link, Links
from skindx_methods.plan.plan import (
    BETWEEN,
    INSIDE,
    PlanRequest,
    only_ranks,
    plan_of_trace,
    preset,
    read_cluster,
)
from skindx_methods.plan.search import PlanLimits


def test_a_written_cluster_is_read_back(tmp_path: Path) -> None:
    made = cluster(3, price_per_node_hour=1.5, watts_per_node=300, memory_gb=64)
    made.write(tmp_path / "cluster.yaml")
    assert read_cluster(str(tmp_path / "cluster.yaml")) == made
    assert "# What `skindx plan` knows" in (tmp_path / "cluster.yaml").read_text()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}", "'nodes' is missing"),
        ("{nodes: 0}", "greater than or equal to 1|greater than 0"),
        ("{nodes: 4}", "the cluster file has no measured network; add links.between"),
        ("{nodes: 1, ranks_per_node: 2}", "add links.inside"),
        ("{nodes: 2, links: {between: {alpha_s: -1, beta_s_per_byte: 1}}}", "alpha_s"),
        ("{nodes: 2, links: {between: {alpha_s: .nan, beta_s_per_byte: 1}}}", "alpha_s"),
        ("{nodes: 2, linsk: {}}", "did you mean 'links'"),
        ("{nodes: 2, format: 9}", "format"),
    ],
)
def test_what_is_no_cluster_is_refused_in_one_sentence(
    tmp_path: Path, text: str, words: str
) -> None:
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(UserError, match=words):
        read_cluster(str(tmp_path / "c.yaml"))


def test_a_plan_for_more_ranks_than_there_are_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"--nodes 8 .* is more than .* nodes of 1 ranks\); lower --nodes"
    ):
        only_ranks(cluster(4), 8, 1)


@pytest.mark.parametrize("name", [*BETWEEN, *INSIDE])
def test_every_preset_makes_a_cluster_that_says_so(name: str) -> None:
    made = preset(f"{name}:4x2")
    assert made.source == "preset"
    assert made.ranks == 8
    assert ClusterNetwork(made).price("all_reduce")(1 << 20).alone_s > 0


def test_a_word_that_is_no_preset_is_refused() -> None:
    for words in ("10gbit:8", "10gbe:0", "10gbe:8+nothing", ""):
        with pytest.raises(UserError):
            preset(words)


def test_what_was_measured_comes_before_what_is_derived() -> None:
    points = ((1000, 0.2), (2000, 0.4))
    measured = Collective(
        collective="all_reduce", nodes=4, alpha_s=0.1, beta_s_per_byte=1e-4, points=points
    )
    known = ClusterNetwork(cluster(4, collectives=(measured,)))
    assert known.price("all_reduce").measured
    assert known.price("all_reduce")(1500).alone_s == pytest.approx(0.3)
    assert known.price("all_reduce")(500).alone_s == pytest.approx(0.2)
    assert known.price("all_reduce")(3000).alone_s == pytest.approx(0.4 + 0.1)
    other = ClusterNetwork(cluster(4, collectives=(measured,)), nodes=2)
    assert not other.price("all_reduce").measured


def test_a_link_is_what_a_ring_would_have_had() -> None:
    # 6 steps of a quarter at 4 ranks; at 8 ranks 14 steps of an eighth.
    known = Collective(collective="all_reduce", nodes=4, alpha_s=0.6, beta_s_per_byte=1.5e-4)
    made = Cluster(nodes=8, collectives=(known,))
    line = ClusterNetwork(made).price("all_reduce").line
    assert line.alpha_s == pytest.approx(1.4)
    assert line.beta_s_per_byte == pytest.approx(1e-4 * 14 / 8)
    assert not ClusterNetwork(made).price("all_reduce").measured


def test_ranks_of_a_node_share_its_link() -> None:
    links = Links(
        between=Link(alpha_s=1e-3, beta_s_per_byte=1e-8),
        inside=Link(alpha_s=1e-4, beta_s_per_byte=1e-9),
    )
    made = Cluster(nodes=2, ranks_per_node=4, links=links)
    network = ClusterNetwork(made)
    # All four swap over it at the same time.
    assert network.price("exchange").line.beta_s_per_byte == pytest.approx(4e-8)
    flat, levels = (
        network.price("all_reduce")(1e8).alone_s,
        HierarchicalSettings().price(network)(1e8),
    )
    # A ring over all crosses the link with 2 x 7 / 8 of the bytes, two levels with all of them.
    assert levels.alone_s < flat


def test_a_plan_of_nothing_names_both_ways_to_begin() -> None:
    with pytest.raises(UserError, match=r"plan make CONFIG DATA`, or give --trace .* a preset"):
        plan_of_trace(PlanRequest(PlanLimits()))
