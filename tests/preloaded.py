"""What every rank imports, once for all of them; see `ranks`."""

from skindx.light_imports import light_imports

with light_imports():
    import albumentations  # noqa: F401
    import deepspeed  # noqa: F401
    import timm  # noqa: F401

import torch._dynamo  # noqa: F401 (the first optimizer imports it)

import skindx.comm.kernels
import skindx.training.run  # noqa: F401
