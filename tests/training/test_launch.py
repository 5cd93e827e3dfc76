import os
import socket
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import pytest

import skindx
from skindx.core.errors import UserError
from skindx.training.config.engine import EngineSettings
from skindx.training.deepspeed import ranks
from skindx.training.launching import place
from skindx.training.launching.local import NO_IMPORTS


def _hostfile(folder: Path, text: str) -> Path:
    file = folder / "hosts"
    file.write_text(text)
    return file


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("node1\n", "the line 'node1'; write it like `host slots=2`"),
        ("node1 slots=0\n", "write it like"),
        ("-oProxyCommand=x slots=1\n", "write it like"),
        ("a@b@node1 slots=1\n", "write it like"),
        (f"node1 slots={'9' * 5000}\n", "write it like"),
        ("me@node1 slots=1\nyou@node1 slots=1\n", "host node1 twice"),
        ("me@localhost slots=1\nnode2 slots=1\n", "has localhost as its first host"),
        ("node1 slots=1\nnode1 slots=1\n", "host node1 twice"),
        ("# nobody\n\n", "has no host"),
        ("localhost slots=1\nnode2 slots=1\n", "has localhost as its first host"),
    ],
)
def test_a_hostfile_that_cannot_work_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        ranks.read_hosts(_hostfile(tmp_path, text))


def test_hosts_meet_at_the_first_on_a_settled_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostfile = _hostfile(tmp_path, "node1 slots=2\nnode2 slots=2\n")
    settings = EngineSettings(accelerator="cpu", hostfile=hostfile, port=31000)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="pdsh, which is not installed"):
        ranks.launch(settings, "cpu", "skindx", [], notes=tmp_path / "ranks", grace_s=1)
    (tmp_path / "pdsh").write_text("")
    (tmp_path / "pdsh").chmod(0o755)
    options = " ".join(ranks._on_hosts(settings, hostfile))
    assert f"--hostfile {hostfile} --launcher pdsh" in options
    assert "--master_addr node1 --master_port 31000" in options
    assert "--force_multi" in options


PDSH = """#!/bin/sh
echo 'sk1: skindx {version} with torch {torch}'
{second}
"""


@pytest.mark.parametrize(
    ("second", "sentence"),
    [
        ("echo 'sk2: ssh: connect to host sk2 port 22: No route to host' >&2", "No route to host"),
        ("echo 'sk2: @@@@' >&2; echo 'sk2: Host key verification failed.' >&2", "verification"),
        ("true", "it did not answer"),
        ("echo 'sk22: skindx {version} with torch {torch}'", "it did not answer"),
        (
            "echo 'sk2: skindx 0.0.7 with torch 1.0'",
            r"has skindx 0\.0\.7 with torch 1\.0, but this",
        ),
        (
            "echo 'sk2: skindx {version} with torch {torch}|/run'",
            "sk2 of .* cannot see /run; put",
        ),
    ],
)
def test_a_node_that_cannot_take_part_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, second: str, sentence: str
) -> None:
    versions = {"version": skindx.__version__, "torch": version("torch")}
    program = tmp_path / "pdsh"
    program.write_text(PDSH.format(**versions, second=second.format(**versions)))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    hostfile = _hostfile(tmp_path, "me@sk1 slots=1\nsk2 slots=1\n")
    with pytest.raises(UserError, match=sentence) as refused:
        ranks.check_nodes(hostfile, ["/run"])
    assert str(refused.value).startswith(f"the node sk2 of {hostfile} ")
    ranks.check_nodes(_hostfile(tmp_path, "sk1 slots=1\n"), ["/run"])


RANK = """
import os, sys, time
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_SIZE", "MASTER_ADDR", "MASTER_PORT")
line = " ".join(os.environ[name] for name in [*names, "CUDA_VISIBLE_DEVICES"])
os.write(1, f"{line}\\n".encode())  # in one piece: two ranks write
if sys.argv[1] == "fail" and os.environ["RANK"] == "1":
    sys.exit(7)
if sys.argv[1] == "fail":
    time.sleep(60)
"""


def _local(folder: Path, how: str, imports: str) -> tuple[int, list[str], float]:
    """Start two ranks by the local launcher; return its code, what they printed, and the time."""
    (folder / "rank_of_test.py").write_text(RANK)
    command = [sys.executable, "-m", "skindx.training.launching.local"]
    began = time.monotonic()
    done = subprocess.run(
        [*command, imports, "2", "31000", "rank_of_test", how],
        env=os.environ | {"PYTHONPATH": str(folder), "CUDA_VISIBLE_DEVICES": "2,5,7"},
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, sorted(done.stdout.splitlines()), time.monotonic() - began


IMPORTS = pytest.mark.parametrize("imports", [NO_IMPORTS, "json,skindx.core.errors"])


@IMPORTS
def test_ranks_of_this_machine_know_their_place_and_the_users_gpus(
    tmp_path: Path, imports: str
) -> None:
    code, printed, _ = _local(tmp_path, "well", imports)
    assert code == 0
    assert printed == [f"{rank} {rank} 2 2 127.0.0.1 31000 2,5,7" for rank in (0, 1)]


@IMPORTS
def test_a_rank_that_fails_ends_the_others(tmp_path: Path, imports: str) -> None:
    code, printed, took_s = _local(tmp_path, "fail", imports)
    assert code == 7
    assert printed[-1].startswith("1 1 2 2")  # the other may have ended before it printed
    assert took_s < 50, "the rank that waits was not ended"


def test_the_interface_between_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    place.choose_interface(None, "127.0.0.1")
    assert not any(name in os.environ for name in names)  # one machine: nothing to choose
    with pytest.raises(
        UserError, match=r"no network interface ib9; set engine.interface to one of .*lo"
    ):
        place.choose_interface("ib9", "127.0.0.1")
    loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    monkeypatch.setenv(names[0], "eth7")
    place.choose_interface(None, "127.0.0.1")
    assert os.environ[names[0]] == "eth7"
    place.choose_interface(loopback, "127.0.0.1")
    assert [os.environ[name] for name in names] == [loopback] * 2
    assert place.interface_to("no-such-host.invalid") is None
