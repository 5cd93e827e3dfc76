import json
from pathlib import Path

import pytest
from hypothesis import given
from pydantic import ValidationError
from some_traces import trace_of, traces

from skindx.core.cost.profile import Trace
from skindx.core.errors import UserError
from skindx.plan.public_traces import read_allreduce, read_bcaffe, read_pipedream


@given(traces())
def test_a_written_trace_is_read_back_to_the_bit(
    tmp_path_factory: pytest.TempPathFactory, trace: Trace
) -> None:
    path = tmp_path_factory.getbasetemp() / "trace.json"
    trace.write(path)
    assert Trace.read(path) == trace


def test_gradients_are_ready_one_after_the_other() -> None:
    assert trace_of([1, 1, 1], [0.5, 0.0, 0.25], forward_s=1.0).ready_s == [1.5, 1.5, 1.75]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sizes_bytes": [1]}, "equally many"),
        ({"names": ["a", "a"]}, "one tensor only"),
        ({"backward_s": [0.1, -0.1]}, "greater than or equal to 0"),
        ({"backward_s": [0.1, float("inf")]}, "Infinity is no number"),
        ({"names": [], "sizes_bytes": [], "backward_s": []}, "at least 1 item"),
        ({"forward": 1.0}, "did you mean 'forward_s'"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_sentence(
    tmp_path: Path, change: dict[str, object], words: str
) -> None:
    path = tmp_path / "trace.json"
    whole = {"names": ["a", "b"], "sizes_bytes": [4, 8], "backward_s": [0.1, 0.2]}
    path.write_text(json.dumps(whole))
    assert Trace.read(path).sizes_bytes == (4, 8)
    path.write_text(json.dumps({**whole, **change}))
    with pytest.raises(UserError, match=words):
        Trace.read(path)


@pytest.mark.parametrize("text", ["[]", "{", "\x00"])
def test_what_is_no_json_object_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(UserError, match=r"trace\.json"):
        Trace.read(path)
    with pytest.raises(UserError, match="does not exist"):
        Trace.read(tmp_path / "absent.json")


def test_a_trace_made_wrongly_is_a_value_error() -> None:
    with pytest.raises(ValidationError, match="equally many"):
        trace_of([1, 2], [0.1])


BCAFFE = """I0214 23:25:18.918774 37167 distributed.cpp:112] [0, 10, 0, 0]
I0214 23:25:18.918774 37167 distributed.cpp:112] [1, 2, 0, 0]
I0214 23:25:18.918774 37167 distributed.cpp:112] [2, 30, 0, 0]
I0214 23:25:18.918774 37167 distributed.cpp:112] [3, 4, 0, 0]
I0214 23:25:19.918774 37167 distributed.cpp:112] [0, 10, 1500.5, 7]
I0214 23:25:19.918774 37167 distributed.cpp:112] [1, 2, 1500.5, 7]
I0214 23:25:19.918774 37167 distributed.cpp:112] [2, 30, 2e+06, 7, 8]
I0214 23:25:19.918774 37167 distributed.cpp:112] [3, 4, 2e+06, 7, 8]
"""


def test_of_bcaffe_the_last_block_counts_and_a_layer_once(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(BCAFFE)
    trace = read_bcaffe(tmp_path / "log")
    assert trace.names == ("1.bias", "1.weight", "0.bias", "0.weight")
    assert trace.sizes_bytes == (16, 120, 8, 40)
    assert trace.backward_s == (2.0, 0.0, 0.0015005, 0.0)


def test_of_pipedream_input_is_dropped_and_nodes_without_parameters_count(tmp_path: Path) -> None:
    node = "node{} -- {} -- forward_compute_time={}, backward_compute_time={}, "
    rest = "activation_size=8.000, parameter_size={}"
    nodes = [
        (3, "ReLU(inplace)", "1.000", "0.250", "0.000"),
        (1, "Input", "900.000", "0.000", "0.000"),
        (10, "Linear(in_features=2, out_features=3, bias=True)", "2.000", "1.000", "36.000"),
        (2, "Conv2d(3, 64, kernel_size=(3, 3))", "4.000", "8.000", "12.000"),
    ]
    lines = [(node + rest).format(*values) for values in nodes]
    (tmp_path / "graph").write_text("\n".join([*lines, "\tnode1 -- node2", "\tnode2 -- node3"]))
    trace = read_pipedream(tmp_path / "graph")
    assert trace.names == ("10.Linear", "2.Conv2d")
    assert trace.sizes_bytes == (36, 12)
    assert trace.backward_s == (0.001, 0.00825)
    assert trace.forward_s == 0.007


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("hello")
    for read in (read_bcaffe, read_pipedream, read_allreduce):
        with pytest.raises(UserError, match="no row"):
            read(tmp_path / "other")


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
        trace = read_pipedream(real / "traces" / "pipedream_profiles" / f"{name}.graph.txt")
        assert sum(trace.sizes_bytes) / 4e6 == pytest.approx(millions, abs=0.06)
        # Loading, up to 0.6 s of it, is left out.
        assert 0.01 < trace.forward_s < 0.4
        assert 0.5 < sum(trace.backward_s) / trace.forward_s < 3
        # Backward begins at the classifier, and ends at the first convolution.
        assert "Linear" in trace.names[0] or name == "squeezenet1_0"
        assert trace.names[-1] == "2.Conv2d"


@pytest.mark.real
@pytest.mark.parametrize("log", ["tmpcomm", "tmp2comm", "tmp4comm", "tmp4ocomm", "tmp8comm"])
def test_all_logs_of_bcaffe_hold_googlenet(real: Path, log: str) -> None:
    trace = read_bcaffe(real / "traces" / "bcaffe_logdata" / f"{log}.log")
    assert len(trace.names) == 128
    assert trace.sizes_bytes[:2] == (4 * 1024, 4 * 1024000)
    assert sum(trace.sizes_bytes) / 4e6 == pytest.approx(13.4, abs=0.1)  # auxiliary heads too
    assert sum(trace.backward_s) == pytest.approx(0.2, abs=0.02)
