import json
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skindx_bench.harness import accidents
from skindx_bench.harness.accidents import Accident, Injector, at_random, every
from skindx_bench.harness.netlab import Link, NetLab
from skindx_bench.subjects import run_bench
from skindx_bench.train.elastic import goodputs
from skindx_bench.train.elastic_process import logged
from skindx_bench.train.elastic_run import Outcome, answers_of, outcome_of


@pytest.mark.lab
@pytest.mark.long
@pytest.mark.distributed
def test_the_smallest_bench_has_all_its_figures(lab_here: None, tmp_path: Path) -> None:
    run_bench("elastic", tmp_path / "elastic.json", [f"out={tmp_path}"], smallest=True)
    figures = json.loads((tmp_path / "elastic.json").read_text())["figures"]
    assert {"elastic_goodput", "restarted_goodput"} <= figures.keys()
    assert figures["elastic_goodput"]["value"] > 0


def test_steps_that_count_by_hand(tmp_path: Path) -> None:
    """Two ranks; a kill at 11 s undoes steps 6 and 7, which are done again; then one at 21 s."""
    ours = {10.0: 5, 10.5: 6, 11.0: 7, 14.0: 6, 15.0: 7, 16.0: 8, 20.5: 9}
    theirs = {10.1: 5, 10.6: 6, 22.0: 10, 30.0: 11}
    for name, steps in (("0-71", ours), ("1-72", theirs)):
        rows = "".join(f'[{when}, {done}, 1, 0, 2, [3], ""]\n' for when, done in steps.items())
        (tmp_path / f"{name}.steps").write_text(f"{rows}[31.2, 1")
    lines = logged(tmp_path)
    assert len(lines) == 11
    assert [line.slot for line in lines[:2]] == [0, 1]
    outcome = outcome_of(lines, 11.0, 10.0, 2, [11.0, 21.0])
    assert outcome.steps == [2, 2]
    assert outcome.pauses_s == [5.0, 1.0]
    assert outcome.rate == 4 / 20
    figures = goodputs(
        [Outcome(10, [2]), Outcome(10, [4])],
        {("elastic", 10.0): [outcome], ("elastic", 5.0): [Outcome(10, [1, 2])]},
    )
    assert figures["elastic_goodput"].value == pytest.approx(0.2 / 0.3)
    assert figures["elastic_goodput"].spread == pytest.approx((0.2 / 0.3, 0.2 / 0.3))
    assert figures["elastic_goodput_5"].value == pytest.approx(1)
    assert figures["elastic_pause_s"].value == 3


def test_answers_of_a_history_by_hand() -> None:
    """Rank 1 was killed two seconds ago, then rank 2 stopped; each answer took half a second."""
    now = time.time()

    def event(ago_s: float, left: str) -> dict[str, object]:
        when = datetime.fromtimestamp(now - ago_s, UTC).isoformat(timespec="milliseconds")
        return {"when": when, "left": {left: "it is gone"}, "seconds_since_noticed": 0.5}

    history = [event(5, "1"), event(1.25, "1"), event(0, "2")]
    kill, stop = time.monotonic() - 2, time.monotonic() - 1.8
    accidents = [Accident(0, "kill", 1, 0, kill), Accident(0, "stop", 2, 9, stop)]
    answers = answers_of(history, accidents)
    assert answers == {
        "regroup": [0.5, 0.5],
        "closed_noticed": [pytest.approx(0.25, abs=0.05)],
        "hang_noticed": [pytest.approx(1.3, abs=0.05)],
    }
    assert answers_of(history[:1], accidents) == {}


@given(seed=st.integers(0, 2**32), ranks=st.integers(2, 5), count=st.integers(0, 20))
def test_schedules_are_the_seeds_and_no_rank_has_two_accidents_at_once(
    seed: int, ranks: int, count: int
) -> None:
    schedule = at_random(seed, ranks, 10.0, count)
    assert schedule == at_random(seed, ranks, 10.0, count)
    assert [one.at_s for one in schedule] == sorted(one.at_s for one in schedule)
    for rank in range(ranks):
        theirs = [one for one in schedule if one.rank == rank]
        ends = [one.at_s + one.for_s for one in theirs]
        assert all(end <= after.at_s for end, after in zip(ends, theirs[1:], strict=False))
    kills = every(30, count, ranks, seed)
    assert [one.at_s for one in kills] == [30 * number for number in range(count)]
    assert all(one.rank != after.rank for one, after in pairwise(kills))


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_accidents_happen_and_end() -> None:
    """A stop that outlasts the schedule is over when it returns; a rank that is gone is none."""
    processes = [subprocess.Popen(["sleep", "60"]) for _ in range(3)]
    try:
        injector = Injector(lambda rank: processes[rank].pid if rank < 3 else None)
        began = time.monotonic()
        injector.run(
            [
                Accident(0.0, "kill", 0),
                Accident(0.0, "stop", 1, 0.3),
                Accident(0.05, "leave", 2),
                Accident(0.1, "kill", 3),
            ]
        )
        assert 0.25 < time.monotonic() - began < 2
        assert [one.rank for one in injector.happened] == [0, 1, 2]
        assert all(one.happened and one.happened >= began for one in injector.happened)
        assert processes[0].wait(5) == -signal.SIGKILL
        assert processes[2].wait(5) == -signal.SIGTERM
        assert _state(processes[1].pid) != "T"
        injector.run([Accident(0, "stop", 1, 60), Accident(9, "kill", 1)], lambda: True)
        assert _state(processes[1].pid) != "T"
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_a_node_that_is_cut_off_is_not_reached_until_it_is_mended(
    lab_here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = "import socket; socket.create_connection(('10.77.0.1', 7000), timeout=0.3)"
    with NetLab(2, Link(1000)) as lab:
        listen = "import socket, time; s = socket.create_server(('', 7000)); print(1, flush=True)"
        server = subprocess.Popen(
            lab.command(0, sys.executable, "-c", f"{listen}; time.sleep(60)"),
            stdout=subprocess.PIPE,
        )
        try:
            assert server.stdout
            server.stdout.readline()

            def reached(until: float = 0.0) -> bool:
                deadline = time.monotonic() + until
                while True:
                    words = lab.command(1, sys.executable, "-c", call)
                    if subprocess.run(words, capture_output=True, check=False).returncode == 0:
                        return True
                    if time.monotonic() > deadline:
                        return False

            assert reached(5)
            injector = Injector(lambda rank: server.pid, lab, first_node=1)
            monkeypatch.setattr(accidents, "_POLL_S", 0.01)
            seen = []
            injector.run(
                [Accident(0, "cut", 0, 60), Accident(0.01, "stop", 0, 0)],
                lambda: len(injector.happened) == 2 and not seen.append(reached()),
            )
            assert seen[0] is False
            assert reached(5)
        finally:
            server.kill()
            server.communicate()
