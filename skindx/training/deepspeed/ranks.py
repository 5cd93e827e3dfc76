"""Start the ranks, on this machine or on many by DeepSpeed's launcher, and join the others."""

import logging
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import skindx
from skindx.core.atomic_files import entries
from skindx.core.errors import UserError
from skindx.core.machine import (
    child_environment,
    cpu_count,
    free_port,
    keep_freed_memory,
    python_command,
    require_extra,
)
from skindx.core.startup import light_imports
from skindx.training.config.engine import EngineSettings
from skindx.training.launching.local import NO_IMPORTS
from skindx.training.launching.place import check_address, choose_interface, settle_place
from skindx.training.launching.supervise import Deciding, supervise
from skindx.training.parallel.mesh import (
    Mesh,
    ProcessGroup,
    check_precision,
    mesh_of_all,
    resolve_accelerator,
    resolve_ranks,
)


def import_deepspeed() -> Any:
    """Return DeepSpeed. Raises UserError when it is not installed."""
    # Torch warns on a machine without a GPU; `skindx doctor` says it better.
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    require_extra("train", "deepspeed", purpose="training")
    with light_imports():
        import deepspeed
        from deepspeed.utils import logger

    logger.setLevel(logging.ERROR)
    return deepspeed


def accelerator_variables(accelerator: str) -> dict[str, str]:
    """Return the variable that chooses its accelerator: left alone it takes any GPU it finds."""
    return {"DS_ACCELERATOR": accelerator}


def init_distributed(backend: str, timeout: timedelta | None = None) -> None:
    """Let DeepSpeed join the process group, or use the one that this process has joined.

    It begins without its operator for ranks that share memory. Only tensor-parallel inference calls
    that operator, yet DeepSpeed would compile it (about a minute, with a C++ compiler) and leave
    69 MB of shared memory a rank behind; one that is killed leaves a lock for which others wait.
    """
    deepspeed = import_deepspeed()
    from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder

    known, name = deepspeed.ops.__compatible_ops__, ShareMemCommBuilder.NAME
    before = known.get(name, False)
    known[name] = False
    options = {} if timeout is None else {"timeout": timeout}
    try:
        deepspeed.init_distributed(dist_backend=backend, verbose=False, **options)
    finally:
        known[name] = before


def ranks_on_node() -> int:
    """Return how many ranks torchrun (1st name) or DeepSpeed's launcher (2nd) gave this node."""
    for name in ("LOCAL_WORLD_SIZE", "LOCAL_SIZE"):
        if name in os.environ:
            return int(os.environ[name])
    return 1


def join(settings: EngineSettings) -> Mesh:
    """Join the other ranks (gloo on CPU, NCCL on GPUs) and return this process's place.

    Raises UserError when the other ranks cannot be reached.
    """
    backend, device = prepare_rank(settings)
    try:
        init_distributed(backend, timedelta(seconds=settings.timeout_s))
    except (dist.DistError, RuntimeError) as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise UserError(
            f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']} could not connect to the "
            f"other ranks at {where} within {settings.timeout_s:g} s ({_first_line(error)}); "
            "check that all ranks were started and that every node can reach this address, or "
            "set engine.interface."
        ) from None
    return mesh_of_all(device, settings)


def prepare_rank(settings: EngineSettings) -> tuple[str, torch.device]:
    """Settle this process's place among the ranks that a launcher started, and its device.

    Returns the backend and the device.
    """
    accelerator = resolve_accelerator(settings.accelerator)
    check_precision(settings, accelerator)
    os.environ.update(accelerator_variables(accelerator))
    settle_place()
    for name, alone in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1")):
        os.environ.setdefault(name, alone)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29500")
    check_address(os.environ["MASTER_ADDR"])
    choose_interface(settings.interface, os.environ["MASTER_ADDR"])
    return _prepare_device(accelerator, int(os.environ["LOCAL_RANK"]))


def _prepare_device(accelerator: str, local_rank: int) -> tuple[str, torch.device]:
    """Let this rank compute on its GPU, or its part of the cores; return backend and device."""
    if accelerator == "cpu":
        keep_freed_memory()
        _share_cores()
        return "gloo", torch.device("cpu")
    if local_rank >= (gpus := torch.cuda.device_count()):
        raise UserError(
            f"LOCAL_RANK is {local_rank}, but this machine has only {gpus} GPUs, one for each "
            "rank from 0; start as many ranks on it as it has GPUs."
        )
    torch.cuda.set_device(local_rank)
    torch.backends.cudnn.benchmark = True  # try each new shape's convolutions once
    return "nccl", torch.device("cuda", local_rank)


def join_nobody(settings: EngineSettings) -> Mesh:
    """Return a mesh of this process alone, whatever launcher started it beside others.

    LOCAL_RANK chooses its GPU. Call it before DeepSpeed is imported.
    """
    accelerator = resolve_accelerator(settings.accelerator)
    check_precision(settings, accelerator)
    settle_place()
    beside = ranks_on_node()
    os.environ.update(accelerator_variables(accelerator))
    backend, device = _prepare_device(accelerator, int(os.environ.get("LOCAL_RANK", "0")))
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    os.environ.update(alone)
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=store, rank=0, world_size=1)
    init_distributed(backend)
    return Mesh(ProcessGroup(0, 1), device, settings, beside)


def adopt_next_group(backend: str) -> None:
    """Let DeepSpeed use the group that this process is in now, and forget those before."""
    deepspeed = import_deepspeed()
    from deepspeed.utils import groups

    deepspeed.comm.comm.cdb = None
    groups._release_process_group_references()
    init_distributed(backend)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def _share_cores() -> None:
    """Give each rank of this node its part of the cores, where no launcher has said so."""
    if not os.environ.get("OMP_NUM_THREADS"):
        torch.set_num_threads(max(1, cpu_count() // ranks_on_node()))


_LOCAL = "skindx.training.launching.local"
PRELOADED = "skindx.training.deepspeed.preloaded"
"""Imports what every rank on a CPU needs, for the process from which they are forked."""

_HOST_LINE = re.compile(r"(?P<user>\w[\w.-]*@)?(?P<host>\w[\w.:-]*)\s+slots=(?P<slots>\d{1,6})")
_MOST_SLOTS = 4096

_STARTERS = {"pdsh": "pdsh", "slurm": "srun"}
"""Launcher -> its program; the others are kinds of MPI."""


def launch(
    engine: EngineSettings,
    accelerator: str,
    module: str,
    arguments: list[str],
    *,
    notes: Path,
    grace_s: float,
    imports: Sequence[str] = (),
    manager: str | None = None,
    manager_words: Sequence[str] = (),
    meeting: Mapping[str, str] | None = None,
    deciding: Deciding | None = None,
) -> None:
    """Run `module` on this machine's ranks, or on all hosts of the engine's hostfile.

    On a CPU the ranks of this machine are forked from a process that has imported DeepSpeed and
    the modules `imports`. A `manager` is a module that starts them in another manner, as the
    `manager_words` before its number of ranks say. `meeting` are the variables that say where ranks
    meet; without it they do so at a free port.
    Ranks write about their end among the `notes`; asked to stop they have `grace_s` to save.
    `deciding` is for `supervise`. Raises what that raises; no rank outlives the call.
    """
    ranks = resolve_ranks(engine)
    variables = child_environment(accelerator_variables(accelerator))
    variables |= meeting or {}
    port = meeting["MASTER_PORT"] if meeting else str(free_port())
    command = python_command("-m")
    if engine.hostfile:
        options = _on_hosts(engine, engine.hostfile)
        if engine.launcher == "pdsh" and "--force_multi" in options:
            folders = (Path(word) for word in arguments if word.startswith("/"))
            filled = [str(path) for path in folders if path.is_dir() and entries(path)]
            check_nodes(engine.hostfile, filled)
        command += ["deepspeed.launcher.runner", *options]
        command += ["--log_level", "critical", "--no_local_rank", "--module"]
    else:
        # Ranks that each start a thread a core would fight over the cores.
        if not variables.get("OMP_NUM_THREADS"):
            variables["OMP_NUM_THREADS"] = str(max(1, cpu_count() // ranks))
        words = manager_words if manager else [imports_once(accelerator, imports)]
        command += [manager or _LOCAL, *words, str(ranks), port]
    command += [module, *arguments]
    expected = None if engine.hostfile else ranks
    supervise(
        command,
        variables,
        notes,
        grace_s,
        local=not engine.hostfile,
        ranks=expected,
        deciding=deciding,
    )


def imports_once(accelerator: str, imports: Sequence[str]) -> str:
    """Return what the local launcher imports before it forks the ranks, if it can fork them."""
    forks = accelerator == "cpu" and sys.platform == "linux"  # what CUDA or macOS hold does not
    return ",".join([PRELOADED, *imports]) if forks else NO_IMPORTS


def _on_hosts(engine: EngineSettings, hostfile: Path) -> list[str]:
    """Return the launcher's options for the hosts of a hostfile.

    The first host is where the ranks meet: by name, on a port that is settled beforehand, since
    which ports are free there is not known here.
    """
    program = _STARTERS.get(engine.launcher, "mpirun")
    users = users_of(hostfile)
    first, *more_hosts = read_hosts(hostfile)
    if users and engine.launcher != "pdsh":
        raise UserError(
            f"{hostfile} names the user {users[0]}, which engine.launcher={engine.launcher} "
            "cannot use; write only the host there and its user into ~/.ssh/config, or set "
            "engine.launcher=pdsh."
        )
    away = bool(more_hosts) or first not in ("localhost", socket.gethostname())
    if away and shutil.which(program) is None:
        raise UserError(
            f"engine.launcher={engine.launcher} starts the hosts of {hostfile} with {program}, "
            f"which is not installed; install {program}, set another engine.launcher, or start "
            "`skindx train` on each node with torchrun (train/README.md)."
        )
    return [
        *("--hostfile", str(hostfile.resolve()), "--launcher", engine.launcher),
        *("--master_addr", first, "--master_port", str(engine.port), "--no_ssh_check"),
        *(["--force_multi"] if away else []),
    ]


_PROBE = (
    "import os, sys, skindx; from importlib.metadata import version; "
    "gone = [path for path in sys.argv[1:] if not os.path.isdir(path) or not os.listdir(path)]; "
    "print(f'skindx {skindx.__version__} with torch {version(\"torch\")}', *gone, sep='|')"
)
_REACH_S, _NODES_S = 10, 120
"""Seconds in which one node must answer ssh, and in which all must report their facts."""


def check_nodes(hostfile: Path, paths: Sequence[str]) -> None:
    """Ask each host of a hostfile by pdsh for its versions and for `paths`, before ranks start.

    A host that does not answer would let the ranks of the others wait for it. Raises UserError,
    which names the host.
    """
    users = {name.partition("@")[2]: name for name in users_of(hostfile)}
    logins = {host: users.get(host, host) for host in read_hosts(hostfile)}
    probe = shlex.join(python_command("-c", _PROBE, *paths))
    here = f"skindx {skindx.__version__} with torch {version('torch')}"
    # As DeepSpeed does: the same folder, and the variables that a Python looks at.
    python = {key: value for key, value in child_environment().items() if key.startswith("PYTHON")}
    exports = [f"export {key}={shlex.quote(value)};" for key, value in python.items()]
    remote = " ".join([*exports, f"cd {shlex.quote(str(Path.cwd()))} && exec {probe}"])
    options = os.environ.get("PDSH_SSH_ARGS_APPEND", "")
    variables = {
        "PDSH_RCMD_TYPE": "ssh",
        "PDSH_SSH_ARGS_APPEND": f"{options} -oBatchMode=yes -oConnectTimeout={_REACH_S}",
    }
    answered = subprocess.run(
        ["pdsh", "-u", str(_NODES_S), "-w", ",".join(logins.values()), remote.replace("%", "%%")],
        env=os.environ | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        start_new_session=True,
        check=False,
    )
    answers = {host: _of_host(host, answered.stdout) for host in logins}
    for host, lines in answers.items():
        it_has, *gone = next((line for line in lines if line.startswith("skindx ")), "").split("|")
        if not it_has:
            why = (_of_host(host, answered.stderr) or ["it did not answer"])[-1]
            raise UserError(
                f"the node {host} of {hostfile} cannot start a rank ({why[:200].rstrip('.')}); "
                f"check that `ssh {logins[host]} {sys.executable} --version` runs without asking "
                "a question, or remove its line from that file."
            )
        if it_has != here:
            raise UserError(
                f"the node {host} of {hostfile} has {it_has}, but this machine has {here}; "
                f"install the same versions in {sys.prefix} on every node."
            )
        if gone:
            raise UserError(
                f"the node {host} of {hostfile} cannot see {' and '.join(gone)}; put the run and "
                "the dataset on shared storage with the same path on every node."
            )


def _of_host(host: str, lines: str) -> list[str]:
    """Return the lines that pdsh passed on from a host."""
    mark = f"{host}: "
    return [line.removeprefix(mark) for line in lines.splitlines() if line.startswith(mark)]


def ranks_on_hosts(engine: EngineSettings, hostfile: Path) -> int:
    """Return how many ranks a hostfile starts on all its hosts.

    Raises UserError for what is no hostfile, or whose hosts cannot be started from here.
    """
    resolve_ranks(engine)
    _on_hosts(engine, hostfile)
    lines = hostfile.read_text(encoding="utf-8").splitlines()
    result = (_HOST_LINE.fullmatch(line.strip()) for line in lines)
    return sum(int(match["slots"]) for match in result if match)


def read_hosts(hostfile: Path) -> list[str]:
    """Return the hosts of a DeepSpeed hostfile in order, without the users who log in there.

    Raises UserError for what is no hostfile.
    """
    hosts: list[str] = []
    try:
        text = hostfile.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = "it is no text" if isinstance(error, UnicodeDecodeError) else error.strerror
        raise UserError(
            f"engine.hostfile {hostfile} cannot be read ({reason}); give a text file with one "
            "line such as `host slots=2` for each host."
        ) from None
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _HOST_LINE.fullmatch(line.strip())
        if not match or not 1 <= int(match["slots"]) <= _MOST_SLOTS:
            raise UserError(
                f"{hostfile} has the line {line.strip()[:80]!r}; write it like `host slots=2`, or "
                "`user@host slots=2`."
            )
        if match["host"] in hosts:
            raise UserError(
                f"{hostfile} has the host {match['host']} twice; write one line with the sum of "
                "the slots."
            )
        hosts.append(match["host"])
    if not hosts:
        raise UserError(f"{hostfile} has no host; write lines like `host slots=2`.")
    if len(hosts) > 1 and hosts[0] in ("localhost", "127.0.0.1", "::1"):
        raise UserError(
            f"{hostfile} has {hosts[0]} as its first host, which other machines cannot connect "
            "to; write the name or address of this machine in your network."
        )
    return hosts


def users_of(hostfile: Path) -> list[str]:
    """Return the hosts of a hostfile that name a user, as `user@host`."""
    lines = hostfile.read_text(encoding="utf-8", errors="replace").splitlines()
    result = (_HOST_LINE.fullmatch(line.strip()) for line in lines)
    return [f"{match['user']}{match['host']}" for match in result if match and match["user"]]
