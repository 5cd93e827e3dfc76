"""Which rank a process is, by the variables of torchrun and of Slurm."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import Skindx

from skindx.core.errors import UserError
from skindx.core.machine import cpu_count, free_port
from skindx.training.config.engine import EngineSettings
from skindx.training.deepspeed import ranks as launching
from skindx.training.launching import place
from skindx.training.launching.place import settle_place

SMALL: dict[str, Any] = {
    "members": [{"name": "a", "model": "test_resnet", "preprocess": {"size": 64}}],
    "recipe": {"epochs": 1, "batch": 18},
    "engine": {"accelerator": "cpu", "ranks": 1},
}
TASK = {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1"}
NODES = {**TASK, "SLURM_JOB_NODELIST": "node[01-03,7]", "SLURM_JOB_ID": "71003"}

MPI = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "3",
       "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}  # fmt: skip


def settled(**variables: str) -> dict[str, str]:
    environment = dict(variables)
    settle_place(environment)
    return environment


def test_without_a_launcher_nothing_is_set_and_what_would_mislead_goes() -> None:
    assert settled() == {}
    assert settled(WORLD_SIZE="", RANK=" ", LOCAL_RANK="", MASTER_PORT="") == {}
    assert settled(WORLD_SIZE="4", LOCAL_WORLD_SIZE="4", MASTER_ADDR="a") == {"MASTER_ADDR": "a"}


def test_what_torchrun_sets_stays_also_within_slurm() -> None:
    given = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_PORT": "29500"}
    assert settled(**given, **NODES) == {**given, **NODES}


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK is 'x', but must be a whole number from 0"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK is '-1'"),
        ({"RANK": "1.0", "WORLD_SIZE": "2"}, "RANK is '1.0'"),
        ({"RANK": "9" * 5000, "WORLD_SIZE": "2"}, "RANK is '9999"),
        ({"RANK": "٣", "WORLD_SIZE": "4"}, "RANK is"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "WORLD_SIZE is '0', but must be a whole number from 1"),
        ({"RANK": "0", "WORLD_SIZE": ""}, "RANK is set without WORLD_SIZE, but"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK is 2, but with WORLD_SIZE=2 ranks go from 0 to 1"),
        ({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "a"}, "LOCAL_RANK is 'a'"),
        ({"RANK": "0", "WORLD_SIZE": "1", "MASTER_PORT": "99999"}, "from 1 to 65535"),
        ({"WORLD_SIZE": "many"}, "WORLD_SIZE is 'many'"),
        ({**NODES, "SLURM_PROCID": "x"}, "SLURM_PROCID is 'x'"),
        ({**NODES, "SLURM_NTASKS": "x"}, "SLURM_NTASKS is 'x'"),
        ({**NODES, "SLURM_LOCALID": "x"}, "SLURM_LOCALID is 'x'"),
        ({**NODES, "SLURM_PROCID": "8"}, "RANK is 8, but with WORLD_SIZE=8"),
        (TASK, "without a list of nodes"),
        ({**NODES, "SLURM_NTASKS": "0"}, "SLURM_NTASKS is '0', but must be a whole number from 1"),
        ({"SLURM_NTASKS": "0"}, "SLURM_NTASKS is '0'"),
        ({"SLURM_NTASKS": "-1", "SLURM_SUBMIT_DIR": "/a"}, "SLURM_NTASKS is '-1'"),
        ({"SLURM_PROCID": "2"}, "SLURM_PROCID is 2 but SLURM_NTASKS is not set"),
        ({"SLURM_PROCID": "2", "SLURM_NTASKS": "1"}, "SLURM_NTASKS=1 allows only 0"),
        (
            {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "2"},
            "LOCAL_RANK is 2, but with LOCAL_WORLD_SIZE=2 ranks go from 0 to 1",
        ),
        ({**MPI, "OMPI_COMM_WORLD_SIZE": "0"}, "OMPI_COMM_WORLD_SIZE is '0'"),
        ({**MPI, "OMPI_COMM_WORLD_RANK": "x"}, "OMPI_COMM_WORLD_RANK is 'x'"),
        ({**MPI, "OMPI_COMM_WORLD_RANK": "4"}, "RANK is 4, but with WORLD_SIZE=4 ranks"),
        (
            {**MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
            "without the address at which they connect; set .* MASTER_AD",
        ),
        ({"PMI_RANK": "1", "PMI_SIZE": "many"}, "PMI_SIZE is 'many'"),
        ({"PMI_RANK": "1"}, "PMI_RANK is 1 but PMI_SIZE is not set"),
        ({**NODES, "SLURM_JOB_NODELIST": "node[01-"}, "not a list of hosts"),
        ({**NODES, "SLURM_JOB_NODELIST": "-oProxy"}, "not a list of hosts"),
    ],
)
def test_variables_that_say_nothing_are_refused(variables: dict[str, str], said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        settled(**variables)
    assert len(str(caught.value)) < 400


def test_a_task_of_slurm_is_a_rank() -> None:
    found = settled(**NODES)
    wanted = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "node01",
              "MASTER_PORT": "31003"}  # fmt: skip
    assert found == {**NODES, **wanted}
    again = dict(found)
    settle_place(again)
    assert again == found


def test_a_process_of_mpirun_is_a_rank() -> None:
    here = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4"}
    meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    assert settled(**MPI) == {**MPI, **here, **meet}
    two = {"PMI_RANK": "0", "PMI_SIZE": "2", "MASTER_ADDR": "node1", "MASTER_PORT": "4000"}
    assert settled(**two) == {**two, "RANK": "0", "WORLD_SIZE": "2"}
    assert "RANK" not in settled(PMI_RANK="0", PMI_SIZE="1")


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node[01-03,7]", "node01"),
        ("node[7,01-03]", "node7"),
        ("a,b", "a"),
        ("rack[2-3]-node[04-05].lan,x", "rack2-node04.lan"),
        ("gpu-1,gpu-[2-9]", "gpu-1"),
        ("node[3],other", "node3"),
        # All tasks are on this node, whatever its name leads to.
        ("node17", "127.0.0.1"),
        ("node[17]", "127.0.0.1"),
    ],
)
def test_the_first_host_is_where_the_ranks_meet(nodes: str, first: str) -> None:
    assert settled(**{**NODES, "SLURM_JOB_NODELIST": nodes})["MASTER_ADDR"] == first


def test_given_addresses_and_the_nodes_of_a_step_come_first() -> None:
    given = {**NODES, "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "4000"}
    assert settled(**given)["MASTER_ADDR"] == "10.0.0.1"
    assert settled(**given)["MASTER_PORT"] == "4000"
    assert settled(**NODES, SLURM_STEP_NODELIST="b[5-6]")["MASTER_ADDR"] == "b5"


def test_ranks_of_a_node_are_counted_as_slurm_writes_them() -> None:
    counts = {**NODES, "SLURM_TASKS_PER_NODE": "2(x3),1"}
    assert settled(**counts, SLURM_NODEID="1")["LOCAL_WORLD_SIZE"] == "2"
    assert settled(**counts, SLURM_NODEID="3")["LOCAL_WORLD_SIZE"] == "1"
    one = {**TASK, "SLURM_JOB_NODELIST": "node1"}
    assert settled(**one)["LOCAL_WORLD_SIZE"] == "8"


def test_one_task_and_a_batch_script_are_no_ranks() -> None:
    assert "RANK" not in settled(**{**NODES, "SLURM_PROCID": "0", "SLURM_NTASKS": "1"})
    batch = {**NODES, "SLURM_PROCID": "0", "SLURM_SUBMIT_DIR": "/home/a"}
    assert "RANK" not in settled(**batch)
    assert settled(**batch, SLURM_STEP_ID="0")["RANK"] == "0"


@pytest.mark.parametrize(("given", "threads"), [("1", "1"), ("3", "3"), ("", None), (None, None)])
def test_threads_that_the_user_sets_reach_the_ranks(
    given: str | None, threads: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    seen: list[dict[str, str]] = []
    monkeypatch.setattr(launching, "supervise", lambda command, env, *_, **__: seen.append(env))
    engine = EngineSettings(accelerator="cpu", ranks=2)
    launching.launch(engine, "cpu", "m", [], notes=tmp_path, grace_s=1)
    assert seen[0]["OMP_NUM_THREADS"] == (threads or str(max(1, cpu_count() // 2)))


def test_a_user_of_a_host_is_for_pdsh_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("me@node1 slots=2\nnode2 slots=2\n")
    assert launching.read_hosts(hosts) == ["node1", "node2"]
    monkeypatch.setattr(launching.shutil, "which", lambda name: f"/bin/{name}")
    assert launching.ranks_on_hosts(EngineSettings(accelerator="cpu", hostfile=hosts), hosts) == 4
    with pytest.raises(UserError, match=r"names the user me@node1, which engine\.launcher=mpich"):
        launching.ranks_on_hosts(
            EngineSettings(accelerator="cpu", hostfile=hosts, launcher="mpich"), hosts
        )


@pytest.mark.parametrize("verb", ["train", "network"])
def test_the_command_line_says_it_in_one_sentence(
    verb: str, skindx: Skindx, small_dataset: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(SMALL))
    monkeypatch.setenv("RANK", "x")
    words: dict[str, tuple[object, ...]] = {
        "train": ("train", small_dataset, "--config", tmp_path / "c.yaml", "--out", tmp_path / "r"),
        "network": ("bench", "network", "--out", tmp_path / "cluster.yaml"),
    }
    code, _, err = skindx(*words[verb])
    assert code == 2
    assert err.startswith("error: the environment variable RANK is 'x'")
    assert not (tmp_path / "r").exists()


@pytest.mark.long
@pytest.mark.distributed
def test_two_tasks_of_slurm_train_one_run(small_dataset: Path, tmp_path: Path) -> None:
    settings = {**SMALL, "engine": {"accelerator": "cpu"}}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(settings))
    command = [sys.executable, "-m", "skindx", "train", str(small_dataset), "--config",
               str(tmp_path / "c.yaml"), "--out", str(tmp_path / "run")]  # fmt: skip
    # One node, whose name leads nowhere.
    job = {"SLURM_NTASKS": "2", "SLURM_JOB_NODELIST": "node[01]", "OMP_NUM_THREADS": "1",
           "MASTER_PORT": str(free_port())}  # fmt: skip
    tasks = [
        subprocess.Popen(
            command,
            env={**os.environ, **job, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [task.communicate(timeout=400)[0] for task in tasks]
    finally:
        for task in tasks:
            task.kill()
    assert [task.returncode for task in tasks] == [0, 0], said
    assert "packed" in said[0]
    assert "packed" not in said[1]
    assert (tmp_path / "run" / "bundle").is_dir()


@pytest.mark.parametrize(
    ("host", "said"), [("no-such-host.invalid", "MASTER_ADDR"), ("a" * 300, "no name of a")]
)
def test_a_host_without_an_address_is_one_sentence(
    host: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, "_FIND_S", 0.0)
    with pytest.raises(UserError, match=rf"cannot find the host .* {said}") as caught:
        place.check_address(host)
    assert "\n" not in str(caught.value)
    place.check_address("127.0.0.1")
