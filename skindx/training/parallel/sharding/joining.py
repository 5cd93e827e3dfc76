"""Split layers as whole ones again."""

import torch
from torch import nn

from skindx.core.startup import light_imports
from skindx.models.classifier.heads import Mlp as MlpHead
from skindx.training.parallel.sharding.cube_blocks import (
    CUBE,
    CubeAttention,
    CubeLinear,
    CubeMlp,
    CubeMlpHead,
)
from skindx.training.parallel.sharding.owt import SplitConv, SplitLinear
from skindx.training.parallel.sharding.part import PARTS, Part
from skindx.training.parallel.sharding.staged import PIPELINE, pipeline_of
from skindx.training.parallel.sharding.transformer import WHOLE_VALUES, ColumnLinear, RowLinear

with light_imports():
    from timm.layers import Attention, Mlp

_WHOLE: dict[type[nn.Module], type[nn.Module]] = {
    SplitLinear: nn.Linear,
    SplitConv: nn.Conv2d,
    ColumnLinear: nn.Linear,
    RowLinear: nn.Linear,
    CubeLinear: nn.Linear,
    CubeAttention: Attention,
    CubeMlp: Mlp,
    CubeMlpHead: MlpHead,
}


def join_layers(net: nn.Module) -> None:
    """Make every split layer whole, in place, but for the values: these are on no device yet."""
    for layer in net.modules():
        for name, value in getattr(layer, WHOLE_VALUES, {}).items():
            setattr(layer, name, value)
        parts: dict[str, Part] = getattr(layer, PARTS, {})
        for name, part in parts.items():
            setattr(layer, name, nn.Parameter(torch.empty(part.shape, device="meta")))
        for own in (PARTS, CUBE):
            if hasattr(layer, own):
                delattr(layer, own)
        layer.__class__ = _WHOLE.get(type(layer), type(layer))
    if pipeline_of(net):
        delattr(net, PIPELINE)
