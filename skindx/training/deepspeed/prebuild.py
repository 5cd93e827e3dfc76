"""`python -m skindx.training.deepspeed.prebuild`: compile DeepSpeed's operator in advance."""

import os
import sys

from skindx.training.deepspeed.library import accelerator_variables, cpu_operator

COMMAND = (sys.executable, "-m", "skindx.training.deepspeed.prebuild")
"""Does it in a process of its own."""


def prebuild() -> str:
    """Compile the operator that DeepSpeed's CPU communication needs; return what happened."""
    from skindx.training.parallel.devices import resolve_accelerator

    if resolve_accelerator("auto") == "cuda":
        return "not needed: NCCL serves this machine's GPUs"
    os.environ.update(accelerator_variables("cpu"))
    builder = cpu_operator()
    if not builder.is_compatible(verbose=False):
        return "not compatible with this CPU: gloo serves alone"
    builder.load(verbose=False)
    return "built"


if __name__ == "__main__":
    print(prebuild())
