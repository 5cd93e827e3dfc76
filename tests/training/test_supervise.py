"""Standing by a launcher, with a stand-in: two plain processes behind a third."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from skindx.core.errors import JobError, UserError
from skindx.training.launching.supervise import StoppedError, supervise

LAUNCHER = """
import os, subprocess, sys
ranks = [
    subprocess.Popen([sys.executable, "-c", *sys.argv[1:]], env={**os.environ, "RANK": rank})
    for rank in "01"
]
codes = [rank.wait() for rank in ranks]
sys.exit(next((code for code in codes if code), 0))
"""

RANK = """
import os, sys, time
from pathlib import Path
from skindx.training.launching.supervise import write_note
from skindx.training.launching.supervise import StopRequest, end_with_parent
end_with_parent()
notes, rank = Path(sys.argv[1]), int(os.environ["RANK"])
with StopRequest(grace_s={grace_s}, notes=notes) as stop:
    write_note(notes, "at work")
    {work}
"""

UNTIL_STOPPED = """
    while not stop.requested:
        time.sleep(0.01)
    stop.done()
    write_note(notes, "stopped", "a: 3 steps done")
"""


def _supervise(notes: Path, work: str, *, grace_s: float = 20, local: bool = True) -> None:
    rank = RANK.format(grace_s=grace_s, work=work.strip())
    command = [sys.executable, "-c", LAUNCHER, rank, str(notes)]
    supervise(command, dict(os.environ), notes, grace_s, local=local)


def _when_at_work(notes: Path, do: object) -> None:
    """Call `do` with the ranks' pids as soon as both are at work, from another thread."""
    import json

    def wait() -> None:
        while len(files := sorted(notes.glob("rank-*.json"))) < 2:
            time.sleep(0.02)
        do([json.loads(file.read_text())["pid"] for file in files])

    threading.Thread(target=wait, daemon=True).start()


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("local", [True, False])
def test_sigterm_is_passed_on(local: bool, tmp_path: Path) -> None:
    notes = tmp_path / "ranks"
    _when_at_work(notes, lambda pids: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(StoppedError, match="a: 3 steps done") as caught:
        _supervise(notes, UNTIL_STOPPED, local=local)
    assert (caught.value.why, caught.value.code) == ("SIGTERM", 143)
    assert not notes.exists()


def test_a_stray_sigterm_of_one_rank_is_named(tmp_path: Path) -> None:
    notes = tmp_path / "ranks"
    _when_at_work(notes, lambda pids: os.kill(pids[1], signal.SIGTERM))
    work = """
    while not stop.requested and not list(notes.glob("done-*")):
        time.sleep(0.01)
    (notes / f"done-{rank}").touch()
    stop.done()
    write_note(notes, "stopped", "a: 3 steps done", stop.why)
"""
    with pytest.raises(StoppedError, match="a: 3 steps done") as caught:
        _supervise(notes, work)
    assert (caught.value.why, caught.value.code) == ("SIGTERM to rank 1", 143)


def test_sigint_ends_with_the_known_sentence(tmp_path: Path) -> None:
    notes = tmp_path / "ranks"
    _when_at_work(notes, lambda pids: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        _supervise(notes, UNTIL_STOPPED)


def test_a_killed_rank_is_named_and_the_others_do_not_stay(tmp_path: Path) -> None:
    """This launcher waits for the other rank for ever; `launch.py` would have ended it."""
    notes, seen = tmp_path / "ranks", []

    def kill(pids: list[int]) -> None:
        seen.extend(pids)
        os.kill(pids[1], signal.SIGKILL)

    _when_at_work(notes, kill)
    with pytest.raises(JobError, match=r"^rank 1 \(process \d+ on .*\) was killed .* to continue"):
        _supervise(notes, "time.sleep(2); write_note(notes, 'left'); sys.exit(1)")
    assert not any(map(_alive, seen))


def test_a_killed_launcher_leaves_no_rank(tmp_path: Path) -> None:
    notes, seen = tmp_path / "ranks", []

    def kill(pids: list[int]) -> None:
        seen.extend(pids)
        parent = Path(f"/proc/{pids[0]}/stat").read_text().rsplit(")", 1)[1].split()[1]
        os.kill(int(parent), signal.SIGKILL)

    _when_at_work(notes, kill)
    with pytest.raises(StoppedError, match="3 steps"):
        _supervise(notes, UNTIL_STOPPED)
    assert not any(map(_alive, seen))


def test_ranks_that_do_not_stop_are_ended(tmp_path: Path) -> None:
    """Once by themselves when the grace time is over, once by a second signal."""
    notes, seen = tmp_path / "ranks", []

    def stop(pids: list[int]) -> None:
        seen.extend(pids)
        os.kill(os.getpid(), signal.SIGTERM)

    _when_at_work(notes, stop)
    with pytest.raises(StoppedError, match="the last checkpoint stands"):
        _supervise(notes, "time.sleep(1000)", grace_s=0.5)
    assert not any(map(_alive, seen))

    def twice(pids: list[int]) -> None:
        stop(pids)
        time.sleep(2.5)
        os.kill(os.getpid(), signal.SIGTERM)

    _when_at_work(notes, twice)
    with pytest.raises(StoppedError):
        _supervise(notes, "time.sleep(1000)", grace_s=500)
    assert not any(map(_alive, seen))


def test_a_refusal_is_the_users_to_mend(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="see the error above"):
        _supervise(
            tmp_path / "ranks", "write_note(notes, 'refused' if rank else 'left'); sys.exit(1)"
        )
    with pytest.raises(JobError, match=r"rank 0 .* failed; see its error above"):
        _supervise(
            tmp_path / "ranks", "write_note(notes, 'left' if rank else 'failed'); sys.exit(1)"
        )
    _supervise(tmp_path / "ranks", "write_note(notes, 'finished')")


def test_a_rank_that_ends_before_its_first_note_is_named(tmp_path: Path) -> None:
    """Rank 1 is killed while Python starts; the launcher then ends rank 0, which notes it."""
    rank = """
import os, signal, sys, time
from pathlib import Path
from skindx.training.launching.supervise import write_note
if os.environ["RANK"] == "1":
    os.kill(os.getpid(), signal.SIGKILL)
write_note(Path(sys.argv[1]), "at work")
sys.exit(1)
"""
    notes = tmp_path / "notes"
    command = [sys.executable, "-c", LAUNCHER, rank, str(notes)]
    with pytest.raises(JobError, match=r"^rank 1 stopped before training began"):
        supervise(command, dict(os.environ), notes, 5, local=True, ranks=2)


def test_a_rank_notes_itself_before_it_loads_torch_and_a_stop_meanwhile(tmp_path: Path) -> None:
    import subprocess

    from skindx.training.launching.supervise import RANKS, read_notes

    code = (
        "import sys, time; from pathlib import Path; "
        "from skindx.training.launching.rank import begin; "
        "begin(Path(sys.argv[1])); assert 'torch' not in sys.modules; time.sleep(60)"
    )
    rank = subprocess.Popen([sys.executable, "-c", code, tmp_path], env={**os.environ, "RANK": "1"})
    deadline = time.monotonic() + 60
    while not (notes := read_notes(tmp_path / RANKS)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert [(note.rank, note.pid, note.ending) for note in notes] == [(1, rank.pid, "at work")]
    time.sleep(0.2)
    rank.terminate()
    assert rank.wait(60) == 128 + signal.SIGTERM
    assert [note.ending for note in read_notes(tmp_path / RANKS)] == ["asked to stop"]
