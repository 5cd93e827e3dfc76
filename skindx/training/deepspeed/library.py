"""DeepSpeed itself: its import, its environment, its operator, and what it leaves behind."""

import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from skindx.light_imports import light_imports
from skindx.system import require_extra


def import_deepspeed() -> Any:
    """Return DeepSpeed. Raises UserError when it is not installed."""
    # DeepSpeed looks for ninja on PATH, where an environment that was not activated is not.
    programs = str(Path(sys.executable).parent)
    if programs not in os.environ.get("PATH", "").split(os.pathsep):
        os.environ["PATH"] = os.pathsep.join([programs, os.environ.get("PATH", "")])
    # On a machine without a GPU torch warns that it found none; `skindx doctor` says it better.
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


def cpu_operator() -> Any:
    """Return the builder of the operator that DeepSpeed's CPU communication needs."""
    import_deepspeed()
    from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder

    return ShareMemCommBuilder()


@contextmanager
def without_cpu_operator() -> Iterator[None]:
    """Let DeepSpeed begin without its operator for ranks that share memory.

    A rank alone needs none; and one that is killed while it loads the operator leaves a lock file
    behind, for which every later one would wait.
    """
    known, name = import_deepspeed().ops.__compatible_ops__, cpu_operator().NAME
    before = known.get(name, False)
    known[name] = False
    try:
        yield
    finally:
        known[name] = before


def ranks_on_node() -> int:
    """Return how many ranks torchrun (1st name) or DeepSpeed's launcher (2nd) gave this node."""
    for name in ("LOCAL_WORLD_SIZE", "LOCAL_SIZE"):
        if name in os.environ:
            return int(os.environ[name])
    return 1


def unlink_shared_buffer(
    rank: int,
    address: str,
    port: str,
    folder: Path = Path("/dev/shm"),  # noqa: S108
) -> None:
    """Remove the name of the shared buffer of one rank of those that met at a port.

    DeepSpeed never removes it, so 69 MB a rank would stay taken after each training. A process
    that has mapped the buffer keeps it, and it goes with the last of them, however that ends. So
    call this when all ranks have mapped it, or are gone.
    """
    name = f"deepspeed_allreduce_buffer_{os.getuid()}_{address}_{port}_{rank}"
    with contextlib.suppress(FileNotFoundError):
        (folder / name).unlink()


def preload() -> None:
    """Import DeepSpeed now, for the processes that are forked from this one."""
    import_deepspeed()
