"""Split layers as whole ones again."""

import torch
from torch import nn

from skindx.training.parallel.sharding.owt import SplitConv, SplitLinear
from skindx.training.parallel.sharding.part import PARTS, Part
from skindx.training.parallel.sharding.transformer import WHOLE_VALUES, ColumnLinear, RowLinear

_WHOLE: dict[type[nn.Module], type[nn.Module]] = {
    SplitLinear: nn.Linear,
    SplitConv: nn.Conv2d,
    ColumnLinear: nn.Linear,
    RowLinear: nn.Linear,
}


def join_layers(net: nn.Module) -> None:
    """Make every split layer whole, in place, but for the values: these are on no device yet."""
    for layer in net.modules():
        for name, value in getattr(layer, WHOLE_VALUES, {}).items():
            setattr(layer, name, value)
        if type(layer) not in _WHOLE:
            continue
        parts: dict[str, Part] = getattr(layer, PARTS)
        for name, part in parts.items():
            setattr(layer, name, nn.Parameter(torch.empty(part.shape, device="meta")))
        delattr(layer, PARTS)
        layer.__class__ = _WHOLE[type(layer)]
