"""`train/slurm.sbatch` and srun under a real Slurm: two nodes, requeues, lost nodes, preemption."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from machines import machines, wait_for
from safetensors.torch import load_file
from slurm import Slurm, slurm

pytestmark = [pytest.mark.long, pytest.mark.distributed, pytest.mark.timeout(3000)]

SCRIPT = Path(__file__).parents[2] / "train" / "slurm.sbatch"
SETTINGS = {
    "engine": {"accelerator": "cpu"},
    "recipe": {"epochs": 16, "batch": 9},
    "members": [{"name": "a", "model": "test_resnet", "preprocess": {"size": 64}}],
    "loader": {"threads": 1},
    "checkpoint": {"every_steps": 2},
}
_OVER = ("COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "TIMEOUT", "PREEMPTED")
SMALL = ("--nodes=2", "--gpus-per-node=1", "--cpus-per-task=2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("slurm")
    (folder / "train.yaml").write_text(yaml.safe_dump(SETTINGS))
    return folder


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[Slurm]:
    """Return a cluster of a head and two nodes."""
    with (
        machines(folder, "sk-head", "sk-a", "sk-b") as (head, *nodes),
        slurm(folder, head, *nodes) as running,
    ):
        yield running


def _submit(cluster: Slurm, dataset: Path, run: str, *options: str) -> int:
    words = [*SMALL, *options, SCRIPT, dataset, "train.yaml", run]
    return cluster.sbatch(*words)


def _weights(cluster: Slurm, run: str) -> dict[str, bytes]:
    file = cluster.folder / run / "members" / "a" / "model.safetensors"
    return {key: value.numpy().tobytes() for key, value in load_file(file).items()}


def _wait_until_mid_run(cluster: Slurm, job: int, run: str, after: str = "epoch-0002") -> None:
    """Wait for a checkpoint of a later epoch, of a run that is far from its end."""
    folder = cluster.folder / run / "checkpoints" / "a"

    def is_there() -> bool:
        assert cluster.state(job) in ("PENDING", "RUNNING", "CONFIGURING"), cluster.log(job)
        return any(file.name > after for file in folder.glob("epoch-*"))

    wait_for(f"{run} trains", 400, is_there, 0.05)


def _finish(cluster: Slurm, job: int, restarts: int) -> None:
    """Let a job that queues again start at once, instead of in two minutes, and end."""

    def is_over() -> bool:
        known = cluster.job(job)
        if known["JobState"] == "PENDING" and known["Reason"] == "BeginTime":
            cluster.head.run("scontrol", "update", f"JobId={job}", "StartTime=now", env=cluster.env)
        return known["JobState"] in _OVER

    wait_for(f"job {job} ends", 600, is_over, 0.5)
    known = cluster.job(job)
    assert (known["JobState"], known["Restarts"]) == ("COMPLETED", str(restarts)), cluster.log(job)


@pytest.fixture(scope="module")
def undisturbed(cluster: Slurm, small_dataset: Path) -> dict[str, bytes]:
    job = _submit(cluster, small_dataset, "undisturbed")
    cluster.wait_for_state(job, "COMPLETED", "FAILED")
    assert cluster.state(job) == "COMPLETED", cluster.log(job)
    assert (cluster.folder / "undisturbed" / "bundle").is_dir()
    return _weights(cluster, "undisturbed")


def test_the_job_as_documented(cluster: Slurm, undisturbed: dict[str, bytes]) -> None:
    assert undisturbed


def test_a_requeued_job_goes_on(
    cluster: Slurm, small_dataset: Path, undisturbed: dict[str, bytes]
) -> None:
    job = _submit(cluster, small_dataset, "requeued")
    _wait_until_mid_run(cluster, job, "requeued")
    cluster.run("scontrol", "requeue", job)
    _finish(cluster, job, 1)
    assert _weights(cluster, "requeued") == undisturbed


@pytest.mark.parametrize("number", [0, 1])
def test_a_job_outlives_a_node(
    cluster: Slurm, small_dataset: Path, undisturbed: dict[str, bytes], number: int
) -> None:
    run, node = f"lost-{number}", cluster.nodes[number]
    job = _submit(cluster, small_dataset, run)
    _wait_until_mid_run(cluster, job, run)
    node.off()
    cluster.wait_for_state(job, "PENDING")  # not COMPLETING, and Slurm has noticed
    (other,) = [one for one in cluster.nodes if one is not node]
    assert not other.processes("skindx")
    node.on()
    cluster.serve(node)
    cluster.wait_until_idle()
    _finish(cluster, job, 1)
    assert _weights(cluster, run) == undisturbed


@pytest.mark.parametrize("notice", ["term", "user"])
def test_a_preempted_job_saves_and_goes_on(
    cluster: Slurm, small_dataset: Path, undisturbed: dict[str, bytes], notice: str
) -> None:
    """A job of a higher partition takes the nodes; the notice is SIGTERM, or our --signal."""
    run = f"preempted-{notice}"
    cluster.set("SlurmctldParameters", "preempt_send_user_signal" if notice == "user" else "")
    job = _submit(cluster, small_dataset, run)
    _wait_until_mid_run(cluster, job, run)
    other = cluster.sbatch("--nodes=2", "--exclusive", "--partition=high", "--wrap=sleep 5")
    cluster.wait_for_state(other, "COMPLETED")
    _finish(cluster, job, 1)
    words = {"term": "another job takes the nodes", "user": "time is nearly up"}[notice]
    assert f"{words}: this job goes on when it gets its turn again" in cluster.log(job)
    assert "epochs and" in cluster.log(job)  # what was saved
    assert _weights(cluster, run) == undisturbed


def test_tasks_of_srun_are_the_ranks(
    cluster: Slurm, small_dataset: Path, undisturbed: dict[str, bytes]
) -> None:
    words = ["srun", "--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=1", "skindx", "train"]
    words += [str(small_dataset), "--config", str(cluster.folder / "train.yaml")]
    output = cluster.run(*words, "--out", cluster.folder / "tasks", timeout_s=300)
    assert output.count("packed") == 1
    assert _weights(cluster, "tasks") == undisturbed
