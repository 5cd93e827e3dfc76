"""Slurm on machines of their own: munged and slurmctld on the head, a slurmd on each other one."""

import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from machines import Machine, wait_for

_STATES = ("sinfo", "--noheader", "--format=%T")
_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue")

# Nodes claim more than they have (config_overrides), so that the script's own wishes can be met.
_CONF = """
ClusterName=skindx
SlurmctldHost={head}({head_address})
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
ReturnToService=2
SlurmdTimeout=10
KillWait=10
MessageTimeout=10
TCPTimeout=2
InactiveLimit=0
MinJobAge=300
SchedulerParameters=sched_interval=2,batch_sched_delay=1,bf_interval=2
{nodes}
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 GraceTime=60 MaxTime=INFINITE State=UP
PartitionName=high Nodes=ALL PriorityTier=2 PreemptMode=OFF MaxTime=INFINITE State=UP
"""


@dataclass(frozen=True)
class Slurm:
    folder: Path
    head: Machine
    nodes: Sequence[Machine]

    @property
    def env(self) -> dict[str, str]:
        """What a user's shell has: the configuration, and a Python first in its path."""
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin"
        return {
            "HOME": os.environ["HOME"],
            "USER": "root",
            "PATH": path,
            "SLURM_CONF": str(self.folder / "slurm.conf"),
            "OMP_NUM_THREADS": "1",
            **{key: value for key in ("PYTHONPATH",) if (value := os.environ.get(key))},
        }

    def run(self, *command: object, timeout_s: float = 60) -> str:
        """Return what one of Slurm's programs says on the head."""
        code, output = self.head.run(*command, env=self.env, timeout_s=timeout_s)
        assert code == 0, output
        return output

    def serve(self, node: Machine) -> None:
        """Start a node's slurmd."""
        code, output = node.run("slurmd", "-f", self.env["SLURM_CONF"], env=self.env)
        assert code == 0, output

    def wait_until_idle(self) -> None:
        """Wait until no job runs, and every node can take one."""
        wait_for("all nodes are idle", 60, lambda: set(self.run(*_STATES).split()) == {"idle"})

    def set(self, option: str, value: str) -> None:
        """Change the configuration of all daemons."""
        file = self.folder / "slurm.conf"
        lines = [line for line in file.read_text().splitlines() if not line.startswith(option)]
        file.write_text("\n".join([*lines, *([f"{option}={value}"] if value else []), ""]))
        self.run("scontrol", "reconfigure")

    def sbatch(self, *words: object) -> int:
        """Submit a job from its folder; return its number."""
        output = self.run("sbatch", f"--chdir={self.folder}", *words)
        match = re.fullmatch(r"Submitted batch job (\d+)", output.strip())
        assert match, output
        return int(match[1])

    def job(self, number: int) -> dict[str, str]:
        """Return what Slurm knows of a job."""
        words = self.run("scontrol", "show", "job", number, "--oneliner").split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def state(self, number: int) -> str:
        return self.job(number)["JobState"]

    def log(self, number: int) -> str:
        file = self.folder / f"skindx-{number}.log"
        return file.read_text(encoding="utf-8") if file.exists() else ""

    def wait_for_state(self, number: int, *states: str, seconds: float = 600) -> str:
        def there() -> bool:
            return self.state(number) in states

        try:
            wait_for(f"job {number} is {' or '.join(states)}", seconds, there, 0.5)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.job(number)}\n{self.log(number)}") from None
        return self.state(number)


@contextmanager
def slurm(folder: Path, head: Machine, *nodes: Machine) -> Iterator[Slurm]:
    """Yield a Slurm whose files all lie in a folder; it ends with its machines."""
    path = f"{os.environ['PATH']}:/usr/sbin"
    if missing := [name for name in _PROGRAMS if shutil.which(name, path=path) is None]:
        pytest.skip(f"{', '.join(missing)}: not installed (apt-get install slurm-wlm munge)")
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    lines = [
        f"NodeName={n.name} NodeAddr={n.address} CPUs=64 RealMemory=1000 Gres=gpu:4" for n in nodes
    ]
    conf = _CONF.format(
        head=head.name, head_address=head.address, folder=folder, nodes="\n".join(lines)
    )
    (folder / "slurm.conf").write_text(conf)
    for number in range(4):
        (folder / f"gpu{number}").symlink_to("/dev/null")  # no GPU: Slurm wants a device
    (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-3]\n")
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    (folder / "state").mkdir()
    result = Slurm(folder, head, nodes)
    for node in nodes:
        (folder / f"spool-{node.name}").mkdir()
    munged = ["munged", "--force", f"--key-file={key}"]
    munged += [f"--socket={folder}/munge.socket", f"--pid-file={folder}/munged.pid"]
    munged += [f"--log-file={folder}/munged.log", f"--seed-file={folder}/munge.seed"]
    result.run(*munged)
    result.run("slurmctld", "-c", "-f", result.env["SLURM_CONF"])
    for node in nodes:
        result.serve(node)
    result.wait_until_idle()
    yield result
