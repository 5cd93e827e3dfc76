"""`python -m skindx.training.deepspeed.prebuild`: compile DeepSpeed's operator in advance."""

import os

from skindx.training.deepspeed.engine import cpu_operator
from skindx.training.parallel.mesh import resolve_accelerator


def prebuild() -> str:
    """Compile the operator that DeepSpeed's CPU communication needs; return what happened."""
    if resolve_accelerator("auto") == "cuda":
        return "not needed: NCCL serves this machine's GPUs"
    os.environ["DS_ACCELERATOR"] = "cpu"
    builder = cpu_operator()
    if not builder.is_compatible(verbose=False):
        return "not compatible with this CPU: gloo serves alone"
    builder.load(verbose=False)
    return "built"


if __name__ == "__main__":
    print(prebuild())
