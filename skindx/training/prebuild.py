"""`python -m skindx.training.prebuild`: compile DeepSpeed's operator ahead of the first start."""

import os

from skindx.training.cluster import resolve_accelerator
from skindx.training.engine import cpu_operator


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
