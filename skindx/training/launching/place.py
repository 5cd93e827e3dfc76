"""Which rank of how many this process is: as torchrun, DeepSpeed, Slurm or MPI tells it.

torchrun and DeepSpeed set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT. Slurm's srun
sets SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID and the list of nodes, mpirun variables of its kind;
from these the others follow.
"""

import ipaddress
import os
import re
import socket
import time
from collections.abc import Mapping, MutableMapping

from skindx.core.errors import UserError

RANK, WORLD = "RANK", "WORLD_SIZE"
_OF_NODE = ("LOCAL_RANK", "LOCAL_SIZE", "LOCAL_WORLD_SIZE")
_OF_MPI = (
    tuple(f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")),
    tuple(f"MV2_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)
"""Variables of Open MPI, of MVAPICH, of MPICH and Intel MPI: rank, ranks, both on this node."""
_SIZES_OF_MPI = [name for _, size, _, size_here in _OF_MPI for name in (size, size_here)]
_FROM_ONE = {WORLD, "LOCAL_SIZE", "LOCAL_WORLD_SIZE", "MASTER_PORT", "SLURM_NTASKS", *_SIZES_OF_MPI}
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
    derived = RANK not in environment
    if derived:
        environment.update(_of_slurm(environment) or _of_mpi(environment))
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
            f"the environment variable {RANK} is set without {WORLD}, but a launcher sets both; "
            f"unset {RANK}, or start the ranks with torchrun or srun."
        )
    if known[RANK] >= known[WORLD]:
        raise UserError(
            f"the environment variable {RANK} is {known[RANK]}, but with {WORLD}={known[WORLD]} "
            f"ranks go from 0 to {known[WORLD] - 1}; unset both, or correct the command that "
            "starts the ranks."
        )
    for name in _OF_NODE[1:]:
        if derived or known[WORLD] == 1:  # workers that train alone keep their place on the node
            break
        if known.get("LOCAL_RANK", 0) >= known.get(name, 10**6):
            raise UserError(
                f"the environment variable LOCAL_RANK is {known['LOCAL_RANK']}, but with "
                f"{name}={known[name]} ranks go from 0 to {known[name] - 1}; unset both, or "
                "correct the command that starts the ranks."
            )


def _number(environment: Mapping[str, str], name: str, most: int) -> int:
    text = environment[name].strip()
    least = 1 if name in _FROM_ONE else 0
    if not re.fullmatch(r"[0-9]{1,9}", text) or not least <= int(text) <= most:
        raise UserError(
            f"the environment variable {name} is {environment[name][:40]!r}, but must be a whole "
            f"number from {least} to {most}; unset it, or start the ranks with torchrun or srun."
        )
    return int(text)


def _of_slurm(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the place of a task of srun; nothing for one task alone and for a batch script."""
    given = {
        name: _number(environment, name, 10**6)
        for name in ("SLURM_NTASKS", "SLURM_PROCID")
        if environment.get(name)
    }
    if "SLURM_PROCID" not in given:
        return {}
    if "SLURM_SUBMIT_DIR" in environment and not any(name in environment for name in _OF_STEP):
        return {}  # the batch script itself, which starts ranks or runs alone
    rank, tasks = given["SLURM_PROCID"], given.get("SLURM_NTASKS", 1)
    if rank and "SLURM_NTASKS" not in given:
        raise UserError(
            f"the environment variable SLURM_PROCID is {rank} but SLURM_NTASKS is not set, "
            f"although srun sets both; start the ranks with srun, or set {RANK} and {WORLD}."
        )
    if rank and tasks == 1:
        raise UserError(
            f"the environment variable SLURM_PROCID is {rank}, but SLURM_NTASKS={tasks} allows "
            f"only 0; start the ranks with srun, or set {RANK} and {WORLD}."
        )
    if tasks == 1:
        return {}
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


def _of_mpi(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the place of a process of mpirun; nothing for one alone."""
    for names in _OF_MPI:
        known = {name: _number(environment, name, 10**6) for name in names if environment.get(name)}
        rank, size, rank_here, size_here = (known.get(name) for name in names)
        if size is None or size == 1 or rank is None:
            if size is None and rank:
                raise UserError(
                    f"the environment variable {names[0]} is {rank} but {names[1]} is not set, "
                    "although mpirun sets both; start the ranks with mpirun, torchrun or srun."
                )
            continue
        if not environment.get(_MEET_AT) and size_here != size:
            raise UserError(
                f"mpirun has started {size} ranks ({names[1]}) without the address at which they "
                f"connect; set the environment variables {_MEET_AT} to the first host and "
                f"{_MEET_PORT} to a free port of that host."
            )
        here = {"LOCAL_RANK": rank_here, "LOCAL_WORLD_SIZE": size_here}
        place = {RANK: rank, WORLD: size} | {k: n for k, n in here.items() if n is not None}
        meet = {_MEET_AT: "127.0.0.1", _MEET_PORT: str(_PORT)}
        return (
            meet
            | {k: environment[k] for k in meet if environment.get(k)}
            | {name: str(number) for name, number in place.items()}
        )
    return {}


def _first_host(environment: Mapping[str, str]) -> tuple[str, bool]:
    """Return the first host of a list like `node[01-03,7],a`, and whether it is the only one."""
    name = next((name for name in _NODELISTS if environment.get(name)), None)
    if name is None:
        if environment.get(_MEET_AT):
            return environment[_MEET_AT], False
        raise UserError(
            "Slurm started this process (SLURM_PROCID is set) without a list of nodes "
            f"({', '.join(_NODELISTS)}); start it with srun, or set {_MEET_AT} to the first host."
        )
    hosts = environment[name].strip()
    if len(hosts) > 100_000 or not _HOSTS.fullmatch(hosts):
        raise UserError(
            f"the environment variable {name} is {hosts[:80]!r}, which is not a list of hosts "
            f"such as node[01-03,7]; start the ranks with srun, or set {_MEET_AT}, {RANK} and "
            f"{WORLD}."
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


_FIND_S = 5.0
"""Seconds for which a name server that does not answer is asked again."""


def check_address(host: str) -> None:
    """Raise UserError for a host that has no address: torch prints forty lines of C++ about it."""
    deadline = time.monotonic() + _FIND_S
    while True:
        try:
            socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            again = isinstance(error, socket.gaierror) and error.errno == socket.EAI_AGAIN
            if again and time.monotonic() < deadline:
                time.sleep(0.5)
                continue
            reason = error.strerror if isinstance(error, OSError) else "it is no name of a host"
            raise UserError(
                f"{socket.gethostname()} cannot find the host {host[:80]} of the environment "
                f"variable {_MEET_AT} ({reason}); set {_MEET_AT} to the correct name or address "
                "of the first host."
            ) from None
        return


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
                f"{socket.gethostname()} has no network interface {wanted}; set engine.interface "
                f"to one of {', '.join(names)}."
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
