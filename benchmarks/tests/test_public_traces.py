"""Published traces and logs: what is read of them, by hand and of the real ones."""

from pathlib import Path
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st
from some_plans import cluster

from skindx.comm.grouping import (
    Plan,
    ddp_buckets,
    greedy,
    one_buffer,
    optimum,
    per_tensor,
    simulate,
)
from skindx.core.cost.collectives import Cost, Curve, fit
from skindx.core.cost.pricing import Price
from skindx.core.cost.profile import Trace
from skindx_bench.cluster.public_traces import (
    fit_overhead,
    overhead_of,
    read_allreduce,
    read_pipedream,
    read_runs,
)
from skindx_methods.plan.cluster import ClusterNetwork, Link
from skindx_methods.plan.profiles import compute_s, trace_of

# Two layers of a weight and a bias; each message 100 ms + 0.1 ms a byte, and 1 ms + 10 us a byte
# more, but the first, which is disturbed. Backward takes 0.2 s and then 0.3 s.
LOG = """\
I [0, 1000, 300000, {a}, 0]
I [1, 10, 300000, {b}, {d}]
I [2, 500, 200000, {c}, 0]
I [3, 20, 200000, 5000000, 7]
"""


def seconds(floats: int) -> float:
    return 0.1 + 1e-4 * 4 * floats + 0.001 + 1e-5 * 4 * floats


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "tmp4.log"
    text = LOG.format(
        a=1e6 * seconds(1000), b=1e6 * seconds(10), c=1e6 * seconds(500), d=1e6 * seconds(1030)
    )
    path.write_text("I [0, 1000, 0, 0, 0]\n" + text)  # a first block without times
    return path


@given(
    st.floats(0, 0.1),
    st.floats(0, 1e-6),
    st.lists(st.integers(1, 10**7), min_size=3, max_size=12, unique=True),
)
def test_an_overhead_is_found_whatever_the_collective_takes(
    alpha_s: float, beta: float, sizes: list[int]
) -> None:
    curve = Curve(Cost(1e-3, 1e-8), ((1000, 0.01), (10**6, 0.02)))
    known = Price(curve, 0.0, 0.0, 0.0, measured=True)
    took = [curve(size) + alpha_s + beta * size for size in sizes]
    found = fit_overhead(sizes, took, known)
    for size, once in zip(sizes, took, strict=True):
        assert curve(size) + found(size) == pytest.approx(once, rel=1e-6)
    assert fit_overhead(sizes, [curve(size) / 2 for size in sizes], known) == Cost(0.0, 0.0)


def test_a_log_holds_a_run_for_each_column(log: Path) -> None:
    first, second = read_runs(log)
    assert first.trace.sizes_bytes == (80, 2000, 40, 4000)
    assert first.trace.backward_s == (0.2, 0.0, 0.3, 0.0)
    assert first.sizes_bytes == [80, 2000, 40, 4000]
    assert second.groups == (1, 3)  # what comes last goes with the last message
    assert second.sizes_bytes == [80, 6040]
    # Messages follow one another from 0.2 s on.
    rest = sum(seconds(count) for count in (500, 10, 1000))
    assert first.measured_s == pytest.approx(0.2 + 5 + rest)


def test_a_disturbed_message_bends_no_line_and_widens_the_spread(log: Path) -> None:
    network = ClusterNetwork(cluster(4))
    overhead = overhead_of(read_runs(log)[0], network)
    assert overhead.alpha_s == pytest.approx(0.001)
    assert overhead.beta_s_per_byte == pytest.approx(1e-5)
    assert overhead.spread > 1
    more = ClusterNetwork(
        cluster(4, overhead=Link(alpha_s=0.001, beta_s_per_byte=1e-5, spread=0.2))
    )
    assert more.price("all_reduce")(4000).alone_s == pytest.approx(seconds(1000))
    assert more.price("all_reduce").spread == 0.2
    assert ClusterNetwork(more.cluster, nodes=1).price("all_reduce")(4000).alone_s == 0


NODE = (
    "node{} -- {} -- forward_compute_time={}, backward_compute_time={}, activation_size={}, "
    "parameter_size={}"
)
NODES = [
    (3, "MaxPool2d(3)", 1, 0.25, 6400, 0),
    (1, "Input", 900, 0, 4800, 0),
    (10, "Linear(in_features=64, out_features=1000)", 2, 1, 80000, 260000),
    (2, "Conv2d(3, 64, kernel_size=(3, 3))", 4, 8, 25600, 7168),
]


def test_of_pipedream_input_is_dropped_and_edges_say_what_goes_in(tmp_path: Path) -> None:
    edges = ["\tnode1 -- node2", "\tnode2 -- node3", "\tnode3 -- node10"]
    path = tmp_path / "a.graph.txt"
    path.write_text("\n".join([*(NODE.format(*node) for node in NODES), *edges]))
    [own] = read_pipedream(path).networks
    trace = trace_of(own)
    assert trace.names == ("10.Linear", "2.Conv2d")
    assert trace.sizes_bytes == (260000, 7168)
    assert trace.backward_s == pytest.approx((0.001, 0.00825))
    assert trace.forward_s == pytest.approx(0.007)
    named = {layer.name: (layer.input_bytes, layer.outputs) for layer in own.layers}
    assert named["2.Conv2d"] == (4800, 64)
    assert named["10.Linear"] == (6400, 1000)
    assert own.batch == 20
    assert compute_s(read_pipedream(path, one_rank_s=2.0).networks[0]) == pytest.approx(2.0)


MPARAMS = {
    "alexnet": 61.1,
    "densenet121": 8.0,
    "inception_v3": 27.2,
    "resnet101": 44.5,
    "resnet18": 11.7,
    "resnet50": 25.6,
    "resnext50": 25.0,
    "squeezenet1_0": 1.2,
    "vgg16": 138.4,
}


@pytest.mark.real
def test_public_profiles_hold_the_networks_that_their_names_say(real: Path) -> None:
    for name, millions in MPARAMS.items():
        path = real / "traces" / "pipedream_profiles" / f"{name}.graph.txt"
        trace = trace_of(read_pipedream(path).networks[0])
        assert sum(trace.sizes_bytes) / 4e6 == pytest.approx(millions, abs=0.06)
        # Loading, up to 0.6 s of it, is left out.
        assert 0.01 < trace.forward_s < 0.4
        assert 0.5 < sum(trace.backward_s) / trace.forward_s < 3
        # Backward begins at the classifier, and ends at the first convolution.
        assert "Linear" in trace.names[0] or name == "squeezenet1_0"
        assert trace.names[-1] == "2.Conv2d"


@pytest.mark.real
@pytest.mark.parametrize("log", ["tmp2comm", "tmp4comm", "tmp4ocomm", "tmp8comm"])
def test_all_logs_of_bcaffe_hold_googlenet(real: Path, log: str) -> None:
    trace = read_runs(real / "traces" / "bcaffe_logdata" / f"{log}.log")[0].trace
    assert len(trace.names) == 128
    assert trace.sizes_bytes[:2] == (4 * 1024, 4 * 1024000)
    assert sum(trace.sizes_bytes) / 4e6 == pytest.approx(13.4, abs=0.1)  # auxiliary heads too
    assert sum(trace.backward_s) == pytest.approx(0.2, abs=0.02)


@pytest.mark.real
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_line_describes_a_measured_all_reduce(real: Path, ranks: int) -> None:
    samples = read_allreduce(real / "traces" / "bcaffe_logdata" / f"allreduce{ranks}.log")
    assert samples[0][0] == 4
    assert samples[-1][0] == 1 << 20
    cost = fit(samples)
    errors = [abs(cost(size) / seconds - 1) for size, seconds in samples if size >= 1000]
    # This library changes its algorithm at 12 kB and, on 8 ranks, at 512 kB.
    assert median(errors) < 0.1


ETHERNET_10G = {8: Cost(5.23e-4, 8.57e-10), 32: Cost(4.04e-3, 8.64e-10)}


@pytest.mark.real
@pytest.mark.parametrize("ranks", [8, 32])
def test_on_public_traces_the_optimum_wins_with_few_groups(real: Path, ranks: int) -> None:
    folder, cost = real / "traces", ETHERNET_10G[ranks]
    profiles = sorted((folder / "pipedream_profiles").glob("*.graph.txt"))
    assert len(profiles) == 9
    found = [trace_of(read_pipedream(path).networks[0]) for path in profiles]
    found.append(read_runs(folder / "bcaffe_logdata" / "tmp8comm.log")[0].trace)
    gains = []
    for trace in found:
        plan = optimum(trace, cost)
        assert len(plan) <= 6
        best_s = _finish_s(trace, plan, cost)
        others = (greedy(trace, cost), ddp_buckets(trace), one_buffer(trace), per_tensor(trace))
        gains.append([_finish_s(trace, other, cost) / best_s for other in others])
    over_greedy, over_ddp, over_one, over_each = (
        max(column) for column in zip(*gains, strict=True)
    )
    assert min(map(min, gains)) > 1 - 1e-8
    assert over_one > 1.5
    assert over_ddp > 1.05
    if ranks == 32:
        assert over_greedy > 1.2
        assert over_each > 2


def _finish_s(trace: Trace, plan: Plan, cost: Cost) -> float:
    return simulate(trace, plan, cost).finish_s
