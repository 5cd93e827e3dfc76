"""A hostfile with real pdsh, ssh and sshd: two nodes, and what can be wrong with one of them."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from machines import Machine, machines, wait_for

import skindx

pytestmark = [pytest.mark.long, pytest.mark.distributed, pytest.mark.timeout(2400)]

_SERVER = """
Port 22
HostKey {folder}/host-{name}
AuthorizedKeysFile {folder}/authorized-{name}
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
"""
_CLIENT = """
Host *
  User root
  IdentityFile {folder}/user
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
"""
SETTINGS = {
    "recipe": {"epochs": 2, "batch": 9},
    "members": [{"name": "a", "model": "test_resnet", "preprocess": {"size": 64}}],
    "loader": {"threads": 1},
}


@dataclass(frozen=True)
class Ssh:
    """Two nodes with sshd, and a head from which a user starts trainings."""

    folder: Path
    head: Machine
    nodes: list[Machine]

    @property
    def env(self) -> dict[str, str]:
        keep = ("PATH", "HOME", "PYTHONPATH")
        return {
            **{name: os.environ[name] for name in keep if name in os.environ},
            "OMP_NUM_THREADS": "1",
            "PDSH_SSH_ARGS_APPEND": f"-F {self.folder}/client",
        }

    def serve(self, node: Machine) -> None:
        config = self.folder / f"server-{node.name}"
        code, output = node.run("/usr/sbin/sshd", "-f", config, "-E", f"{config}.log")
        assert code == 0, output

    def train(self, dataset: Path, run: str, *more: str) -> "subprocess.Popen[str]":
        words = [sys.executable, "-m", "skindx", "train", dataset]
        words += ["--config", self.folder / "train.yaml", "--out", self.folder / run]
        return self.head.start(
            [*words, "--set", f"engine.hostfile={self.folder}/hostfile", *more], self.env
        )

    def refused(self, dataset: Path, run: str) -> str:
        """Return the one line that a training says which ends with code 2 and leaves nothing."""
        with self.train(dataset, run) as process:
            output, _ = process.communicate(timeout=120)
        assert process.returncode == 2, output
        assert not any(node.processes("python") for node in self.nodes), output
        assert not (self.folder / run).exists()
        (line,) = output.strip().splitlines()
        return line


@pytest.fixture(scope="module")
def ssh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ssh]:
    for program in ("pdsh", "ssh", "/usr/sbin/sshd"):
        if subprocess.run(["which", program], capture_output=True, check=False).returncode:
            pytest.skip(f"{program} is not installed (apt-get install pdsh openssh-server)")
    folder = tmp_path_factory.mktemp("ssh")
    with machines(folder, "sk-user", "sk-c", "sk-d") as (head, *nodes):
        made = Ssh(folder, head, nodes)
        (folder / "train.yaml").write_text(yaml.safe_dump(SETTINGS))
        (folder / "hostfile").write_text("".join(f"{n.name} slots=1\n" for n in nodes))
        (folder / "client").write_text(_CLIENT.format(folder=folder))
        known = []
        for name in ("user", *(f"host-{node.name}" for node in nodes)):
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", folder / name]
            subprocess.run(words, check=True)
        for node in nodes:
            public = (folder / f"host-{node.name}.pub").read_text()
            known.append(f"{node.name} {public}")
            (folder / f"authorized-{node.name}").write_text((folder / "user.pub").read_text())
            text = _SERVER.format(folder=folder, name=node.name)
            (folder / f"server-{node.name}").write_text(text)
            made.serve(node)
        (folder / "known").write_text("".join(known))
        yield made


def test_a_training_on_both(ssh: Ssh, small_dataset: Path) -> None:
    with ssh.train(small_dataset, "both") as process:
        output, _ = process.communicate(timeout=900)
    assert process.returncode == 0, output
    assert output.count("packed") == 1
    assert not any(node.processes("python") for node in ssh.nodes)


def test_a_stop_and_a_lost_node_leave_nothing(ssh: Ssh, small_dataset: Path) -> None:
    longer = ("--set", "recipe.epochs=8", "--set", "checkpoint.every_steps=2")
    folder = ssh.folder / "disturbed" / "checkpoints" / "a"

    def saved() -> set[str]:
        return {file.name for file in folder.glob("epoch-*")}

    def disturb(how: Callable[[], None]) -> tuple[int, str]:
        before = saved()
        with ssh.train(small_dataset, "disturbed", *longer) as process:
            wait_for("it trains", 300, lambda: len(saved() - before) > 1, 0.05)
            how()
            output, _ = process.communicate(timeout=120)
        assert not any(node.processes("python") for node in ssh.nodes), output
        return process.returncode, output

    def stop() -> None:
        ssh.head.processes("skindx train")[0].send_signal(signal.SIGTERM)

    code, output = disturb(stop)
    assert code == 128 + signal.SIGTERM, output
    assert "stopped by SIGTERM before the training was finished" in output
    node = ssh.nodes[1]
    code, output = disturb(node.off)
    assert code == 1, output
    assert "rank 1 (process " in (line := output.strip().splitlines()[-1])
    assert "on sk-d) was killed" in line
    node.on()
    ssh.serve(node)
    with ssh.train(small_dataset, "disturbed", *longer) as process:
        output, _ = process.communicate(timeout=900)
    assert process.returncode == 0, output


def test_a_node_that_is_off(ssh: Ssh, small_dataset: Path) -> None:
    node = ssh.nodes[1]
    node.off()
    try:
        line = ssh.refused(small_dataset, "off")
    finally:
        node.on()
        ssh.serve(node)
    assert line.startswith(f"error: node sk-d of {ssh.folder}/hostfile cannot start a rank (ssh: ")
    assert "sk-d port 22: Connection refused" in line
    assert "remove its line from that file" in line


def test_a_node_behind_a_broken_cable(ssh: Ssh, small_dataset: Path) -> None:
    subprocess.run(["ip", "-n", "sk-d", "link", "set", "eth0", "down"], check=True)
    try:
        line = ssh.refused(small_dataset, "cable")
    finally:
        subprocess.run(["ip", "-n", "sk-d", "link", "set", "eth0", "up"], check=True)
    assert "node sk-d" in line
    assert "No route to host" in line or "timed out" in line


def test_a_key_that_a_node_does_not_know(ssh: Ssh, small_dataset: Path) -> None:
    file = ssh.folder / "authorized-sk-c"
    before = file.read_text()
    file.write_text((ssh.folder / "host-sk-d.pub").read_text())
    try:
        line = ssh.refused(small_dataset, "key")
    finally:
        file.write_text(before)
    assert "node sk-c" in line
    assert "Permission denied (publickey)" in line


def test_a_node_with_another_host_key(ssh: Ssh, small_dataset: Path) -> None:
    file = ssh.folder / "known"
    before = file.read_text()
    file.write_text(
        before.replace("sk-c ", "other ").replace("sk-d ", "sk-c ").replace("other ", "sk-d ")
    )
    try:
        line = ssh.refused(small_dataset, "host-key")
    finally:
        file.write_text(before)
    assert "node sk-c" in line
    assert "Host key verification failed" in line


def test_another_version_of_skindx(ssh: Ssh, small_dataset: Path) -> None:
    node, module = ssh.nodes[1], Path(skindx.__file__)
    other = ssh.folder / "other.py"
    other.write_text(module.read_text().replace(skindx.__version__, "0.0.7"))
    node.run("mount", "--bind", other, module)
    try:
        line = ssh.refused(small_dataset, "version")
    finally:
        node.run("umount", module)
    assert f"node sk-d of {ssh.folder}/hostfile has skindx 0.0.7 with torch" in line
    assert "install the same versions" in line


def test_a_node_without_the_dataset(ssh: Ssh, small_dataset: Path) -> None:
    ssh.nodes[1].run("mount", "-t", "tmpfs", "none", small_dataset)
    try:
        line = ssh.refused(small_dataset, "data")
    finally:
        ssh.nodes[1].run("umount", small_dataset)
    assert f"node sk-d of {ssh.folder}/hostfile cannot see {small_dataset}" in line
