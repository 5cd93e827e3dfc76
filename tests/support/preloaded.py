"""What every rank imports, once for all of them; see `ranks`."""

import gc

from skindx.core.startup import light_imports

with light_imports():
    import albumentations  # noqa: F401
    import deepspeed  # noqa: F401
    import timm  # noqa: F401

import numpy as np
import torch._dynamo  # noqa: F401 (the first optimizer imports it)

import skindx.training.run  # noqa: F401
from skindx.comm import kernels


def _call_once() -> None:
    """Let numba load what it compiled before: half a second for each process that calls it."""
    floats, places, wide = np.zeros(4, np.float32), np.zeros(4, np.int32), np.zeros(8, np.int32)
    kernels.add_and_find(floats, places, floats, np.int32(1), places, floats)
    kernels.merge_sorted(places, floats, places, floats, wide, np.zeros(8, np.float32))


_call_once()
# No rank looks through what was imported, or copies its memory by doing so.
gc.freeze()
gc.enable()
