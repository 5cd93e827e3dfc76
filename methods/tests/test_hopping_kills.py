"""Real workers of the command line that are killed with kill -9, and trainings that meet."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from command_line import Skindx
from one_process import alone, in_order, recorded
from ranks import run_ranks

from skindx.core.errors import UserError
from skindx.training.checkpoint.finished import load_member
from skindx.training.config.run import TrainSettings
from skindx.workers.lease_queue import LeaseQueue, LeaseTask, TaskState
from skindx.workers.leases import Leases
from skindx_methods.hopping import local_workers
from skindx_methods.hopping.hop_units import open_queue
from skindx_methods.hopping.hop_worker import launch_workers
from skindx_methods.hopping.local_workers import Manager
from skindx_methods.hopping.run_queue import RunJobs, fill, schedule, write_hops

MEMBERS = [
    {"name": name, "model": "test_resnet", "seed": seed, "preprocess": {"size": 64}}
    for seed, name in enumerate("abc")
]
SETTINGS = {
    "engine": {"accelerator": "cpu", "schedule": "hop", "ranks": 2, "lease_s": 20},
    "recipe": {"epochs": 2, "batch": 9, "ema": {"decay": 0.9}},
    "members": MEMBERS,
}


def _same(run: Path, dataset: Path) -> dict[str, bool]:
    settings = TrainSettings.parse(SETTINGS)
    mesh, same = alone(settings), {}
    for member in settings.members:
        order = recorded(run, member.name)
        expected = in_order(dataset, settings, member.name, order, 2, mesh).state
        found = load_member(run, member.name).state
        same[member.name] = all(found[key].equal(value) for key, value in expected.items())
    return same


@pytest.mark.long
@pytest.mark.distributed
def test_killed_workers_change_no_bit(small_dataset: Path, tmp_path: Path) -> None:
    (tmp_path / "hop.yaml").write_text(yaml.safe_dump(SETTINGS))
    run, settings = tmp_path / "run", TrainSettings.parse(SETTINGS)
    command = [sys.executable, "-m", "skindx", "train", str(small_dataset), "--hop"]
    command += ["--config", str(tmp_path / "hop.yaml"), "--out", str(run)]
    rng, killed, deadline = random.Random(5), 0, time.monotonic() + 500
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            while not (run / "checkpoints" / "leases.sqlite").exists():
                assert process.poll() is None, process.stdout and process.stdout.read()
                time.sleep(0.1)
            with open_queue(run, settings.engine) as queue:
                leases = Leases(queue, 20)
                while killed < 3 and process.poll() is None and time.monotonic() < deadline:
                    time.sleep(0.05)
                    done = sum(task.ended is not None for task in leases.tasks())
                    held = {task.worker for task in leases.tasks() if task.state == "taken"}
                    victims = [worker for worker in leases.workers() if worker.worker in held]
                    if victims and done >= 3 * killed + 2:
                        os.kill(rng.choice(victims).note["pid"], signal.SIGKILL)
                        killed += 1
                        time.sleep(1)
            said, _ = process.communicate(timeout=max(1, deadline - time.monotonic()))
        finally:
            process.kill()
    assert process.returncode == 0, said
    assert killed == 3
    assert "packed" in said
    (same,) = run_ranks(1, _same, run, small_dataset)
    assert same == {"a": True, "b": True, "c": True}


@pytest.mark.long
@pytest.mark.distributed
def test_a_worker_that_must_leave_and_one_that_hangs_stop_nobody(
    small_dataset: Path, tmp_path: Path
) -> None:
    engine = {**SETTINGS["engine"], "ranks": 3, "partitions": 2, "lease_s": 5}
    (tmp_path / "hop.yaml").write_text(yaml.safe_dump({**SETTINGS, "engine": engine}))
    run, settings = tmp_path / "run", TrainSettings.parse(SETTINGS)
    command = [sys.executable, "-m", "skindx", "train", str(small_dataset)]
    command += ["--config", str(tmp_path / "hop.yaml"), "--out", str(run)]
    process = subprocess.Popen(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with process:
        while not (run / "checkpoints" / "leases.sqlite").exists():
            assert process.poll() is None, process.communicate()
            time.sleep(0.1)
        with open_queue(run, settings.engine) as queue:
            leases = Leases(queue, 5)
            while len(workers := leases.workers()) < 3 or not any(
                task.ended is not None for task in leases.tasks()
            ):
                assert process.poll() is None, process.communicate()
                time.sleep(0.05)
        for worker, number in zip(workers, (signal.SIGTERM, signal.SIGSTOP), strict=False):
            os.kill(worker.note["pid"], number)
        output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert "packed" in output
    assert "hung and is ended" in output
    (same,) = run_ranks(1, _same, run, small_dataset)
    assert same == {"a": True, "b": True, "c": True}


@pytest.mark.long
@pytest.mark.distributed
def test_ranks_of_torchrun_are_workers(small_dataset: Path, tmp_path: Path) -> None:
    raw = {**SETTINGS, "members": MEMBERS[:2], "recipe": {"epochs": 1, "batch": 9}}
    (tmp_path / "hop.yaml").write_text(yaml.safe_dump(raw))
    run = tmp_path / "run"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["-m", "skindx", "train", str(small_dataset), "--config", str(tmp_path / "hop.yaml")]
    done = subprocess.run(
        [*command, "--out", str(run)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("packed") == 1
    assert {epoch: sorted(parts) for epoch, parts in recorded(run, "a").items()} == {0: [0, 1]}
    assert not (run / "checkpoints" / "leases.sqlite").exists()


def test_a_second_training_of_a_run_is_refused(small_dataset: Path, tmp_path: Path) -> None:
    from contextlib import ExitStack

    from skindx.training.jobs import hold

    settings = TrainSettings.parse(SETTINGS)
    with ExitStack() as held:
        hold(tmp_path, 0.0, held)
        with pytest.raises(UserError, match="another training is running in"):
            launch_workers(tmp_path, small_dataset, settings)
    jobs = RunJobs.of(tmp_path, small_dataset, settings)
    with open_queue(tmp_path, settings.engine) as queue:
        fill(queue, jobs, 2)
        schedule(queue, "node7", 60)  # a machine that does not see this one's locks
    with pytest.raises(
        UserError, match=r"another training is already running on this run \(node7\)"
    ):
        launch_workers(tmp_path, small_dataset, settings)
    other = TrainSettings.parse({**SETTINGS, "recipe": {"epochs": 1, "batch": 9}})
    with pytest.raises(UserError, match="belongs to a run with other settings"):
        launch_workers(tmp_path, small_dataset, other)


def test_the_manager_loads_no_torch() -> None:
    """It waits beside the workers for hours, and their memory is theirs."""
    code = "import sys, skindx_methods.hopping.local_workers; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_worker_that_hangs_ends_with_the_work(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_workers, "_HUNG_S", 0.1)
    with LeaseQueue(tmp_path / "leases.sqlite", "q") as queue:
        queue.put([], fingerprint="f", version="v", facts={}, places=0)
        command = [sys.executable, "-S", "-c", "import signal; signal.pause()"]
        assert Manager(1, command, Leases(queue, 60), tmp_path).run() == 0
    assert "worker 0 (process " in (line := capfd.readouterr().err)
    assert "hung and is ended" in line


def test_the_history_says_where_when_and_at_what_cost(tmp_path: Path) -> None:
    """Rows of an older version, which knew less, stay."""
    old = "member,epoch,visit,kind,partition,worker,seconds\nold,1,1,train,1,w1,0.500\n"
    (tmp_path / "hops.csv").write_text(old)
    task = TaskState(
        key="new/0000/train/1",
        alone="new",
        place=1,
        stage=0,
        weight=1.0,
        state="done",
        worker="w2",
        losses=2,
        began=1_700_000_000.25,
        took_s=1.5,
        answer={"state": "s", "host": "node7"},
        ended=1,
    )
    write_hops(tmp_path, [task])
    assert (tmp_path / "hops.csv").read_text().splitlines() == [
        "member,epoch,visit,kind,partition,worker,seconds,host,began,died",
        "old,1,1,train,1,w1,0.500,,,",
        "new,1,1,train,2,w2,1.500,node7,2023-11-14T22:13:20+00:00,2",
    ]


def test_what_cannot_be_joined_is_refused(
    skindx: Skindx, small_dataset: Path, tmp_path: Path
) -> None:
    words = ("train", str(small_dataset), "--out", str(tmp_path / "run"), "--join")
    code, _, errors = skindx(*words)
    assert (code, errors.count("\n")) == (2, 1)
    assert "no training with schedule hop or members is running in" in errors
    assert not (tmp_path / "run").exists()
    code, _, errors = skindx(*words, "--hop")
    assert code == 2
    assert "--join accepts only DATASET and --out" in errors


def test_the_end_of_a_worker_is_a_sentence(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ends = {
        "import os; os.kill(os.getpid(), 9)": (
            "was killed by SIGKILL (out of memory is the most common reason); "
        ),
        "import os; os.kill(os.getpid(), 11)": "was killed by SIGSEGV; ",
        "raise SystemExit(1)": "failed; see its error above; ",
    }
    for number, (code, how) in enumerate(ends.items()):
        with LeaseQueue(tmp_path / "leases.sqlite", f"q{number}") as queue:
            queue.put(
                [LeaseTask("m/0000/whole/0")], fingerprint="f", version="v", facts={}, places=0
            )
            leases = Leases(queue, 60)
            manager = Manager(1, [sys.executable, "-S", "-c", code], leases, tmp_path)
            assert manager.run() in (-9, -11, 1)
        lines = capfd.readouterr()
        said = [line for line in (lines.out + lines.err).splitlines() if "worker 0 (proc" in line]
        assert len(said) == 4
        assert f"{how}its unit is another's to do, and it is started again" in said[0]
        assert "it died 4 times and no unit was done meanwhile, so the run ends" in said[3]
