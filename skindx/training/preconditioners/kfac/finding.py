"""Finds the layers of a network that K-FAC preconditions, and says what it leaves alone."""

from torch import nn

from skindx.core.startup import light_imports
from skindx.training.preconditioners.kfac.layers import BatchNorm, Conv, Layer, Linear

with light_imports():
    from timm.layers import BatchNormAct2d, Conv2dSame

_CONVS = {nn.Conv2d, Conv2dSame}
_NORMS = {nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, BatchNormAct2d}

_SHOWN = 3


def find_layers(module: nn.Module, widest: int) -> tuple[list[Layer], list[str]]:
    """Return the layers in the module's order, and one sentence for each kind of layer left out.

    Layers without a weight that learns are neither.
    """
    found: list[Layer] = []
    wide: list[str] = []
    other: list[str] = []
    seen: set[int] = set()
    for name, part in module.named_modules():
        own = dict(part.named_parameters(recurse=False))
        learning = [weight for weight in own.values() if weight.requires_grad]
        if not learning or any(id(weight) in seen for weight in learning):
            continue
        seen |= {id(weight) for weight in learning}
        layer = _layer(name, part)
        if layer is None or not {"weight"} <= own.keys() or not own["weight"].requires_grad:
            other.append(name or type(part).__name__)
        elif max(width for _, width in layer.shapes.values()) > widest:
            wide.append(name)
        else:
            found.append(layer)
    said = []
    if wide:
        said.append(f"K-FAC skips {_names(wide)}: a factor is wider than widest={widest}")
    if other:
        said.append(f"K-FAC knows no factors of {_names(other)}, which keep their plain gradient")
    return found, said


def _layer(name: str, part: nn.Module) -> Layer | None:
    # The exact classes: one that is derived may pad or normalise otherwise.
    if type(part) is nn.Linear:
        return Linear(name, part)
    if type(part) in _CONVS and not isinstance(part.padding, str):
        return Conv(name, part) if part.padding_mode == "zeros" else None
    return BatchNorm(name, part) if type(part) in _NORMS else None


def _names(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
