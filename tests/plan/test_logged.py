from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from some_plans import cluster
from typer.testing import CliRunner

from skindx.cli import app
from skindx.core.cost.cluster import Cluster, Link
from skindx.core.cost.collectives import Cost, Curve, fit_overhead
from skindx.core.cost.network import Network
from skindx.core.errors import UserError
from skindx.plan.logged_runs import overhead_of, read_runs

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
    path.write_text("I [0, 1000, 0, 0, 0]\n" + text)
    return path


@given(
    st.floats(0, 0.1),
    st.floats(0, 1e-6),
    st.lists(st.integers(1, 10**7), min_size=3, max_size=12, unique=True),
)
def test_an_overhead_is_found_whatever_the_collective_takes(
    alpha_s: float, beta: float, sizes: list[int]
) -> None:
    known = Curve(Cost(1e-3, 1e-8), ((1000, 0.01), (10**6, 0.02)))
    samples = [(size, known(size) + alpha_s + beta * size) for size in sizes]
    found = fit_overhead(samples, known)
    for size, took in samples:
        assert known(size) + found(size) == pytest.approx(took, rel=1e-6)


def test_no_overhead_is_below_zero_and_none_is_fitted_to_nothing() -> None:
    assert fit_overhead([(1000, 0.1), (2000, 0.2)], lambda size: 1.0) == Cost(0.0, 0.0)
    for samples in ([], [(1000, 0.0)]):
        with pytest.raises(ValueError, match="an overhead is fitted"):
            fit_overhead(samples, lambda size: 0.0)


def test_a_log_holds_a_run_for_each_column(log: Path) -> None:
    first, second = read_runs(log)
    assert first.sizes_bytes == [80, 2000, 40, 4000]
    assert second.groups == (1, 3)  # what comes last goes with the last message
    assert second.sizes_bytes == [80, 6040]
    # Messages follow one another from 0.2 s on.
    rest = sum(seconds(count) for count in (500, 10, 1000))
    assert first.measured_s == pytest.approx(0.2 + 5 + rest)


def test_a_disturbed_message_bends_no_line_and_widens_the_spread(log: Path) -> None:
    network = Network(cluster(4))
    overhead = overhead_of(read_runs(log)[0], network)
    assert overhead.alpha_s == pytest.approx(0.001)
    assert overhead.beta_s_per_byte == pytest.approx(1e-5)
    assert overhead.spread > 1
    more = Network(cluster(4, overhead=Link(alpha_s=0.001, beta_s_per_byte=1e-5, spread=0.2)))
    assert more.price("all_reduce")(4000).alone_s == pytest.approx(seconds(1000))
    assert more.price("all_reduce").spread == 0.2
    assert Network(more.cluster, nodes=1).price("all_reduce")(4000).alone_s == 0


def test_a_log_teaches_a_cluster_file(log: Path, tmp_path: Path) -> None:
    cluster(4).write(tmp_path / "c.yaml")
    answers = [
        CliRunner().invoke(app, ["plan", "check", str(log), "--learn", str(tmp_path / "c.yaml")])
        for _ in range(2)
    ]
    assert "training adds 1 ms + 1e+04 ms/MB" in answers[0].output
    # Learnt twice is learnt once: the first overhead is no part of the collective.
    assert answers[1].output.splitlines()[-1] == answers[0].output.splitlines()[-1]
    known = Cluster.read(tmp_path / "c.yaml").overhead
    assert known
    assert known.alpha_s == pytest.approx(0.001)


@pytest.mark.parametrize("text", ["", "I [0, 10, 1.0, 0, 0]", "I [0, 10, x, 3]"])
def test_a_log_without_messages_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(text)
    with pytest.raises(UserError):
        read_runs(tmp_path / "log")
