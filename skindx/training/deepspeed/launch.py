"""Start the ranks and wait for them: on this machine, or on many by DeepSpeed's launcher."""

import os
import re
import shutil
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from skindx.core.errors import UserError
from skindx.core.machine import cpu_count, free_port
from skindx.training.config.engine import EngineSettings
from skindx.training.deepspeed.library import accelerator_variables
from skindx.training.launching.local import NO_IMPORTS
from skindx.training.launching.supervise import supervise
from skindx.training.parallel.devices import resolve_ranks

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
) -> None:
    """Run `module` on this machine's ranks, or on all hosts of the engine's hostfile.

    On a CPU the ranks of this machine are forked from a process that has imported DeepSpeed and
    the modules `imports`. A `manager` is a module that starts them in another manner.
    Ranks write about their end among the `notes`; asked to stop they have `grace_s` to save.
    Raises what `supervise` raises; no rank outlives the call.
    """
    ranks = resolve_ranks(engine)
    variables, port = os.environ | accelerator_variables(accelerator), str(free_port())
    command = [sys.executable, "-m"]
    if engine.hostfile:
        command += ["deepspeed.launcher.runner", *_on_hosts(engine, engine.hostfile)]
        command += ["--log_level", "critical", "--no_local_rank", "--module"]
    else:
        # Ranks that each start a thread a core would fight over the cores.
        if not variables.get("OMP_NUM_THREADS"):
            variables["OMP_NUM_THREADS"] = str(max(1, cpu_count() // ranks))
        command += [manager] if manager else [_LOCAL, _once(accelerator, imports)]
        command += [str(ranks), port]
    command += [module, *arguments]
    expected = None if engine.hostfile else ranks
    supervise(command, variables, notes, grace_s, local=not engine.hostfile, ranks=expected)


def _once(accelerator: str, imports: Sequence[str]) -> str:
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
    first, *others = read_hosts(hostfile)
    if users and engine.launcher != "pdsh":
        raise UserError(
            f"{hostfile}: {users[0]} names a user, which engine.launcher={engine.launcher} cannot "
            "pass on; write the host alone, and its user into ~/.ssh/config, or take pdsh."
        )
    away = bool(others) or first not in ("localhost", socket.gethostname())
    if away and shutil.which(program) is None:
        raise UserError(
            f"engine.launcher={engine.launcher} starts the hosts of {hostfile} with {program}, "
            "which is not installed here; install it, choose another launcher, or start "
            "`skindx train` on each node with torchrun (train/README.md)."
        )
    return [
        *("--hostfile", str(hostfile.resolve()), "--launcher", engine.launcher),
        *("--master_addr", first, "--master_port", str(engine.port), "--no_ssh_check"),
        *(["--force_multi"] if away else []),
    ]


def ranks_on_hosts(engine: EngineSettings, hostfile: Path) -> int:
    """Return how many ranks a hostfile starts on all its hosts.

    Raises UserError for what is no hostfile, or whose hosts cannot be started from here.
    """
    resolve_ranks(engine)
    _on_hosts(engine, hostfile)
    lines = hostfile.read_text(encoding="utf-8").splitlines()
    found = (_HOST_LINE.fullmatch(line.strip()) for line in lines)
    return sum(int(match["slots"]) for match in found if match)


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
            f"engine.hostfile {hostfile} cannot be read ({reason}); give a text file of lines like "
            "`host slots=2`."
        ) from None
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _HOST_LINE.fullmatch(line.strip())
        if not match or not 1 <= int(match["slots"]) <= _MOST_SLOTS:
            raise UserError(
                f"{hostfile}: {line.strip()[:80]!r} must look like `host slots=2`, or "
                "`user@host slots=2`."
            )
        if match["host"] in hosts:
            raise UserError(f"{hostfile}: {match['host']} stands there twice; add up its slots.")
        hosts.append(match["host"])
    if not hosts:
        raise UserError(f"{hostfile} names no host; write lines like `host slots=2`.")
    if len(hosts) > 1 and hosts[0] in ("localhost", "127.0.0.1", "::1"):
        raise UserError(
            f"{hostfile}: the first host is where the others meet, and {hosts[0]} is another "
            "machine for each of them; give its name in your network."
        )
    return hosts


def users_of(hostfile: Path) -> list[str]:
    """Return the hosts of a hostfile that name a user, as `user@host`."""
    lines = hostfile.read_text(encoding="utf-8", errors="replace").splitlines()
    found = (_HOST_LINE.fullmatch(line.strip()) for line in lines)
    return [f"{match['user']}{match['host']}" for match in found if match and match["user"]]
