"""Which rank of how many this process is: as torchrun, DeepSpeed or Slurm tells it.

torchrun and DeepSpeed set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT. Slurm's srun
sets SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID and the list of nodes; from these the others follow.
"""

import ipaddress
import os
import re
import socket
from collections.abc import Mapping, MutableMapping

from skindx.core.errors import UserError

RANK, WORLD = "RANK", "WORLD_SIZE"
_OF_NODE = ("LOCAL_RANK", "LOCAL_SIZE", "LOCAL_WORLD_SIZE")
_LARGEST = {RANK: 10**6, WORLD: 10**6, "MASTER_PORT": 65535}
_MEET_AT, _MEET_PORT = "MASTER_ADDR", "MASTER_PORT"

_NODELISTS = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
_OF_STEP = ("SLURM_STEP_ID", "SLURM_STEP_NODELIST", "SLURM_SRUN_COMM_HOST")
"""What srun sets for its tasks, and a batch script does not have."""
_HOSTS = re.compile(r"[A-Za-z0-9_](?:[\w.-]|\[[\d,-]+\])*(?:,[A-Za-z0-9_](?:[\w.-]|\[[\d,-]+\])*)*")
_PORTS, _FIRST_PORT, _PORT = 20_000, 20_000, 29_500


def settle_place(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set RANK, WORLD_SIZE and the like where another launcher started this process as a rank.

    Empty variables count as not set. Without a launcher nothing of them is left that would mislead
    the ranks that this process starts. Raises UserError for values that are no numbers, and for
    a rank outside of its world.
    """
    for name in (RANK, WORLD, *_OF_NODE, _MEET_AT, _MEET_PORT):
        if not environment.get(name, "x").strip():
            del environment[name]
    if RANK not in environment:
        environment.update(_of_slurm(environment))
    known = {
        name: _number(environment, name, _LARGEST.get(name, 10**6))
        for name in (RANK, WORLD, *_OF_NODE, _MEET_PORT)
        if name in environment
    }
    if RANK not in known:
        for name in (WORLD, *_OF_NODE):
            environment.pop(name, None)
        return
    if WORLD not in known:
        raise UserError(
            f"the environment variable {RANK} is set and {WORLD} is not, and a launcher sets both; "
            f"unset {RANK}, or start the ranks with torchrun or srun."
        )
    if known[RANK] >= known[WORLD]:
        raise UserError(
            f"the environment variable {RANK} is {known[RANK]}, and {WORLD} {known[WORLD]} has "
            f"ranks from 0 to {known[WORLD] - 1}; unset both, or correct what starts the ranks."
        )


def _number(environment: Mapping[str, str], name: str, most: int) -> int:
    text = environment[name].strip()
    least = 1 if name in (WORLD, "LOCAL_SIZE", "LOCAL_WORLD_SIZE", _MEET_PORT) else 0
    if not re.fullmatch(r"[0-9]{1,9}", text) or not least <= int(text) <= most:
        raise UserError(
            f"the environment variable {name} is {environment[name][:40]!r}, and must be a whole "
            f"number from {least} to {most}; unset it, or start the ranks with torchrun or srun."
        )
    return int(text)


def _of_slurm(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the place of a task of srun; nothing for one task alone and for a batch script."""
    if not environment.get("SLURM_PROCID") or not environment.get("SLURM_NTASKS"):
        return {}
    if "SLURM_SUBMIT_DIR" in environment and not any(name in environment for name in _OF_STEP):
        return {}  # the batch script itself, which starts ranks or runs alone
    tasks = _number(environment, "SLURM_NTASKS", 10**6)
    if tasks <= 1:
        return {}
    rank = _number(environment, "SLURM_PROCID", 10**6)
    first, alone = _first_host(environment)
    place = {RANK: str(rank), WORLD: str(tasks)}
    place["LOCAL_RANK"] = str(
        _number({"SLURM_LOCALID": "0", **environment}, "SLURM_LOCALID", 10**6)
    )
    if beside := tasks if alone else _tasks_per_node(environment):
        place["LOCAL_WORLD_SIZE"] = str(beside)
    place[_MEET_AT] = environment.get(_MEET_AT) or ("127.0.0.1" if alone else first)
    place[_MEET_PORT] = environment.get(_MEET_PORT) or str(_port(environment))
    return place


def _first_host(environment: Mapping[str, str]) -> tuple[str, bool]:
    """Return the first host of a list like `node[01-03,7],a`, and whether it is the only one."""
    name = next((name for name in _NODELISTS if environment.get(name)), None)
    if name is None:
        if environment.get(_MEET_AT):
            return environment[_MEET_AT], False
        raise UserError(
            "Slurm started this process (SLURM_PROCID is set) and names no nodes "
            f"({', '.join(_NODELISTS)}); start it with srun, or set {_MEET_AT}."
        )
    hosts = environment[name].strip()
    if len(hosts) > 100_000 or not _HOSTS.fullmatch(hosts):
        raise UserError(
            f"the environment variable {name} is {hosts[:80]!r}, which is no list of hosts like "
            f"node[01-03,7]; start the ranks with srun, or set {_MEET_AT}, {RANK} and {WORLD}."
        )
    # A bracket holds numbers and ranges; the first number of each makes the first host.
    first = re.split(r",(?![^\[]*\])", hosts)[0]
    first = re.sub(r"\[(\d+)[^\]]*\]", r"\1", first)
    several = re.search(r",|\[[^\]]*[-,]", hosts)
    return first, several is None


def _tasks_per_node(environment: Mapping[str, str]) -> int | None:
    """Return how many tasks this node has: `4(x2),3` is two nodes of four, and one of three."""
    counts: list[int] = []
    for name in ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"):
        if text := environment.get(name):
            for part in re.finditer(r"(\d{1,6})(?:\(x(\d{1,6})\))?", text):
                counts += [int(part[1])] * min(10**6, int(part[2] or 1))
            break
    node = environment.get("SLURM_NODEID", "")
    if re.fullmatch(r"[0-9]{1,6}", node) and int(node) < len(counts):
        return counts[int(node)]
    return counts[0] if counts else None


def _port(environment: Mapping[str, str]) -> int:
    """Return a port of this job's own: nodes may be shared with other jobs."""
    numbers = [environment.get(name, "") for name in ("SLURM_JOB_ID", "SLURM_STEP_ID")]
    job, step = (int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None for text in numbers)
    return _PORT if job is None else _FIRST_PORT + (job + (step or 0)) % _PORTS


_GLOO, _NCCL = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"


def choose_interface(wanted: str | None, master: str) -> None:
    """Tell gloo and NCCL the interface between the nodes, `wanted` or the one towards `master`.

    Left to itself gloo asks what this host's own name resolves to, which on many systems is
    127.0.1.1: the other nodes then call their own door. NCCL looks at the interfaces themselves
    and gets only what the user sets. Variables that are set already stay.

    Raises UserError for an interface that this host does not have.
    """
    if wanted:
        names = [name for _, name in socket.if_nameindex()]
        if wanted not in names:
            raise UserError(
                f"engine.interface={wanted} is not on {socket.gethostname()}, "
                f"which has {', '.join(names)}."
            )
        os.environ[_GLOO] = os.environ[_NCCL] = wanted
    elif _GLOO not in os.environ and (result := interface_to(master)):
        os.environ[_GLOO] = result


def interface_to(address: str) -> str | None:
    """Return the interface that leads to a host, None for this machine's loopback or no way."""
    import psutil

    try:
        family, _, _, _, target = socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM)[0]
        if ipaddress.ip_address(target[0]).is_loopback:
            return None
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)  # UDP: asks the routing table, sends nothing
            source = probe.getsockname()[0]
    except (OSError, ValueError):
        return None
    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address == source for entry in addresses):
            return str(name)
    return None
