import json
import socket
from pathlib import Path

import pytest

from skindx.core.errors import UserError
from skindx.workers import worker_process
from skindx.workers.lease_queue import TaskState
from skindx_bench.cluster.hop import record, simulate
from skindx_bench.cluster.hop_storage import SECRET_BYTES, _answer
from skindx_bench.subjects import run_bench

KEYS = [
    "hop_over_dense",
    "hop_over_fused",
    "hop_over_gtopk",
    "hop_over_members",
    "bytes_less_than_fused",
    "makespan_over_bound",
    "simulated_makespan_over_bound",
]


@pytest.mark.lab
@pytest.mark.long
@pytest.mark.distributed
def test_the_smallest_bench_has_all_its_figures(tmp_path: Path) -> None:
    try:
        run_bench("hop", tmp_path / "hop.json", smallest=True)
    except UserError as error:
        pytest.skip(str(error))
    figures = json.loads((tmp_path / "hop.json").read_text())["figures"]
    assert set(KEYS) <= figures.keys()
    assert all(figures[key]["value"] > 0 for key in KEYS)
    assert figures["makespan_over_bound"]["value"] >= 1


def _unit(key: str, began: float, took: float) -> TaskState:
    return TaskState(key, key[0], 0, 0, 1.0, "done", "w", 0, began, took, {}, 1)


def test_the_bound_of_recorded_units_by_hand() -> None:
    tasks = [
        _unit("a/0000/train/0", 0.0, 4.0),
        _unit("b/0000/train/1", 0.0, 2.0),
        _unit("b/0000/train/0", 4.0, 4.0),
        _unit("a/0000/train/1", 4.5, 2.0),
        _unit("a/0000/validate/0", 8.0, 1.0),
        _unit("a/0000/validate/1", 9.0, 1.0),
        _unit("b/0000/validate/0", 9.0, 1.0),
        _unit("b/0000/validate/1", 10.0, 1.0),
    ]
    found = record(tasks)
    assert found.makespan_s == 11.0
    assert found.bound_s == 10.0  # the worker of partition 1
    assert found.train_MP == [[4.0, 2.0], [4.0, 2.0]]
    assert found.validation == pytest.approx(4 / 12)
    ratios = simulate(found, 4, 2, 5)
    assert all(1 - 1e-9 <= ratio < 1.5 for ratio in ratios)


def test_the_storage_answers_those_who_know_its_secret() -> None:
    secret = b"s" * SECRET_BYTES
    message = worker_process.pack({"do": "names", "of": "r/a", "name": ""})
    for given, answered in ((b"", False), (b"t" * SECRET_BYTES, False), (secret, True)):
        ours, theirs = socket.socketpair()
        with ours, ours.makefile("rb") as stream:
            ours.sendall(given + message)
            ours.shutdown(socket.SHUT_WR)
            _answer(theirs, secret, {("r/a", "1"): {}})
            if answered:
                assert worker_process.receive(stream.read) == {"names": ["1"]}
            else:
                assert stream.read() == b""
