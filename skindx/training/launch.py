"""Start the ranks with DeepSpeed's own launcher and wait for them."""

import os
import socket
import subprocess
import sys

from skindx.errors import JobError, UserError
from skindx.training.engine import EngineSettings, resolve_ranks


def launch(engine: EngineSettings, accelerator: str, module: str, arguments: list[str]) -> None:
    """Run `module` on this machine's ranks, or on all hosts of the engine's hostfile.

    Raises UserError when a rank ended for something the user can mend (it printed the sentence),
    and JobError when one failed otherwise; the launcher ends the remaining ranks.
    """
    ranks = resolve_ranks(engine)
    if engine.hostfile:
        where = ["--hostfile", str(engine.hostfile)]
    else:
        where = ["--num_accelerators", str(ranks), "--master_addr", "127.0.0.1"]
    command = [
        *(sys.executable, "-m", "deepspeed.launcher.runner"),
        *where,
        *("--master_port", str(_free_port()), "--log_level", "error"),
        "--no_local_rank",
        *("--module", module),
        *arguments,
    ]
    # Ranks that each start a thread a core would fight over the cores.
    threads = max(1, len(os.sched_getaffinity(0)) // ranks)
    environment = {**os.environ, "DS_ACCELERATOR": accelerator, "OMP_NUM_THREADS": str(threads)}
    finished = subprocess.run(command, env=environment, check=False)
    if finished.returncode == 2:
        raise UserError("training stopped; the sentence above says why.")
    if finished.returncode:
        raise JobError(f"a rank ended with code {finished.returncode}; its own error stands above")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
