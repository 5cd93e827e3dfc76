"""The launcher of elastic runs, with plain processes in the place of ranks."""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch.distributed as dist

from skindx.core.errors import JobError, UserError
from skindx.training.launching.supervise import RANKS, StoppedError, supervise
from skindx_methods.elastic.elastic_run import host_store
from skindx_methods.elastic.restarts import deciding

RANK = """
import os, sys, time
from pathlib import Path
from skindx.training.launching.supervise import RANKS, StopRequest, write_note
run, rank = Path(sys.argv[1]), int(os.environ["RANK"])
lives = len(list(run.glob(f"life-{{rank}}-*")))
(run / f"life-{{rank}}-{{lives}}").write_text(str(os.getpid()))
with StopRequest(20, run / RANKS) as stop:
    write_note(run / RANKS, "at work")
    {work}
    while not (run / "done").exists() and not stop.requested:
        time.sleep(0.01)
    if stop.requested:
        write_note(run / RANKS, "stopped", "a: 3 steps done", stop.why)
    else:
        write_note(run / RANKS, "finished")
"""


@pytest.fixture
def launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[int, int]]:
    """Run three ranks that do `work`, and `meanwhile`; return how often each was started."""
    run = tmp_path / "run"
    run.mkdir()

    def launch(
        meanwhile: Callable[[Path], None], work: str = "", *, least: int = 1, timeout_s: float = 60
    ) -> dict[int, int]:
        (tmp_path / "elastic_rank.py").write_text(RANK.format(work=work.strip()))
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
        # Pauses short enough for a test; the launcher's process reads them as it is imported.
        start = "from skindx_methods.elastic import restarts; "
        start += "restarts._PAUSES_S = 0.1, 0.4; restarts.run_launcher(restarts.main)"
        options = [f"{least},{timeout_s}", "json", "3", "31000"]
        command = [sys.executable, "-c", start, *options, "elastic_rank", str(run)]
        thread = threading.Thread(target=meanwhile, args=(run,), daemon=True)
        thread.start()
        supervise(
            command, dict(os.environ), run / RANKS, 20, local=True, ranks=3, deciding=deciding
        )
        thread.join(10)
        return {rank: len(list(run.glob(f"life-{rank}-*"))) for rank in range(3)}

    return launch


def _pid(run: Path, rank: int, life: int = 0) -> int:
    file = run / f"life-{rank}-{life}"
    deadline = time.monotonic() + 20
    while not (file.exists() and file.read_text()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return int(file.read_text())


def _noted(run: Path, rank: int) -> None:
    deadline = time.monotonic() + 20
    while not (run / RANKS / f"rank-{rank}.json").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.1)


def _finish(run: Path) -> None:
    (run / "done").touch()


def test_a_killed_rank_is_started_again_and_the_run_ends_well(
    launched: Callable[..., dict[int, int]], capfd: pytest.CaptureFixture[str]
) -> None:
    def kill_twice(run: Path) -> None:
        for rank in range(3):
            _pid(run, rank)
        os.kill(_pid(run, 1), signal.SIGKILL)
        os.kill(_pid(run, 1, 1), signal.SIGKILL)
        _pid(run, 1, 2)
        _noted(run, 1)
        _finish(run)

    assert launched(kill_twice) == {0: 1, 1: 3, 2: 1}
    told = [line for line in capfd.readouterr().err.splitlines() if "SIGKILL" in line]
    assert [line.rpartition("again in ")[2] for line in told] == ["0.1 s", "0.2 s"]
    assert told[0].startswith("rank 1 (process ")


def test_a_rank_that_refuses_or_is_taken_out_is_not_started_again(
    launched: Callable[..., dict[int, int]],
) -> None:
    def take_out(run: Path) -> None:
        pid = _pid(run, 1)
        _noted(run, 1)
        os.kill(pid, signal.SIGTERM)
        _pid(run, 0)
        time.sleep(0.4)
        _finish(run)

    assert launched(take_out, "sys.exit(2) if rank == 2 else 0") == {0: 1, 1: 1, 2: 1}


def test_what_dies_after_the_end_is_not_started_again(
    launched: Callable[..., dict[int, int]],
) -> None:
    def finish(run: Path) -> None:
        _pid(run, 2)
        _finish(run)

    late = "rank or (time.sleep(1), os.kill(os.getpid(), 9))"
    assert launched(finish, late) == {0: 1, 1: 1, 2: 1}


def test_a_run_without_living_ranks_ends(launched: Callable[..., dict[int, int]]) -> None:
    with pytest.raises(JobError, match=r"rank 0 .* and rank 1 .* and rank 2 .* was killed"):
        launched(lambda run: None, "time.sleep(0.5); os.kill(os.getpid(), 9)")


def test_a_run_with_too_few_ranks_ends(launched: Callable[..., dict[int, int]]) -> None:
    with pytest.raises(JobError, match=r"fewer ranks than engine.elastic.min_ranks were alive"):
        launched(lambda run: None, "sys.exit(2) if rank else 0", least=2, timeout_s=0.3)


def test_refused_by_all_is_the_users_to_mend(launched: Callable[..., dict[int, int]]) -> None:
    with pytest.raises(UserError, match="see the error above"):
        launched(lambda run: None, "write_note(run / RANKS, 'refused'); sys.exit(2)")


def test_a_stop_reaches_all_and_starts_none_again(
    launched: Callable[..., dict[int, int]],
) -> None:
    def stop(run: Path) -> None:
        for rank in range(3):
            _pid(run, rank)
            _noted(run, rank)
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(StoppedError, match="a: 3 steps done"):
        launched(stop, "rank or (time.sleep(0.6), os.kill(os.getpid(), 9))")


def test_the_store_is_reached_at_its_address_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    variables: dict[str, str] = {}
    store = host_store(variables)
    port = int(variables["MASTER_PORT"])
    assert variables["MASTER_ADDR"] == "127.0.0.1"
    assert variables["SKINDX_ELASTIC"] == "1"
    store.set("a", "1")
    assert dist.TCPStore("127.0.0.1", port, is_master=False).get("a") == b"1"
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.2", port), timeout=1)
    with pytest.raises(UserError, match=rf"cannot connect at 127.0.0.1:{port} \(Address already"):
        host_store(dict(variables))
    with pytest.raises(UserError, match=r"cannot connect at no-such-host.invalid:0"):
        host_store({"MASTER_ADDR": "no-such-host.invalid"})
