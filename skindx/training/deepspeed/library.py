"""DeepSpeed itself: its import, its environment, its start."""

import logging
import os
from datetime import timedelta
from typing import Any

from skindx.core.machine import require_extra
from skindx.core.startup import light_imports


def import_deepspeed() -> Any:
    """Return DeepSpeed. Raises UserError when it is not installed."""
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
