"""Networks before they have weights: shapes alone, the input's side, a fault of a kernel."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from skindx.core.kinds import entry_of, load_entry
from skindx.core.startup import light_imports

NETWORKS = "skindx.networks"
"""Group of the entry points by which other distributions bring networks."""


@contextmanager
def shapes_only() -> Iterator[None]:
    """Let modules that are built inside have shapes alone; no initial value is drawn for them."""
    with torch.device("meta"), _Undrawn():
        yield


_OF_INITIAL_VALUES = frozenset(
    {
        *(Tensor.normal_, Tensor.uniform_, Tensor.erfinv_, Tensor.mul_, Tensor.add_),
        *(Tensor.clamp_, Tensor.mul, Tensor.__rmul__),
    }
)
"""Functions that, given a tensor and numbers, return a tensor of the same shape and type."""


class _Undrawn(TorchFunctionMode):
    """Leave out initial values: without memory torch computes them in Python, by its compiler."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", "") == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        if func in _OF_INITIAL_VALUES:
            tensors = [value for value in args if isinstance(value, Tensor)]
            if len(tensors) == 1 and tensors[0].is_floating_point():
                return tensors[0]
        return func(*args, **kwargs)


def sized_arguments(model: str, arguments: dict[str, Any], side: int) -> dict[str, Any]:
    """Return timm's arguments, with `img_size` where the network would refuse `side` pixels else.

    A vision transformer is built for one side. Where it takes the images as it is, or was given
    a side, nothing changes, so that weights trained so still fit. It follows from model,
    arguments and side alone: a bundle rebuilds the same network.
    """
    with light_imports():
        import timm

    known = timm.get_pretrained_cfg(model)
    if "img_size" in arguments or known is None or not known.fixed_input_size:
        return arguments
    if side == known.input_size[-1] or _accepts(model, arguments, side):
        return arguments
    sized = {**arguments, "img_size": side}
    return sized if _accepts(model, sized, side) else arguments


def is_known(model: str) -> bool:
    """Tell whether timm has a network of this name.

    A network of another distribution is an entry point of the group `skindx.networks`: its name is
    the model's, and to load it registers the model with timm (`timm.models.register_model`). The
    bundle then opens only where that distribution is installed. Raises UserError for an entry point
    that cannot be imported.
    """
    with light_imports():
        import timm

    if timm.is_model(model):
        return True
    entry = entry_of(NETWORKS, model)
    if entry is not None:
        load_entry(entry, f"network {model!r}")
    return bool(timm.is_model(model))


def _accepts(model: str, arguments: dict[str, Any], side: int) -> bool:
    """Tell whether a network takes images of a side; only shapes are computed."""
    with light_imports():
        import timm

    try:
        with torch.device("meta"), torch.inference_mode():
            net = timm.create_model(model, pretrained=False, num_classes=1, **arguments).eval()
            net(torch.empty(2, 3, side, side))
    except Exception:  # the error is reported where the network itself is built and tried
        return False
    return True


_FEWEST = 16
"""Fewest input channels with which the kernel works on whole blocks."""


def avoid_strided_pointwise_fault(net: nn.Module) -> None:
    """Let strided 1 x 1 convolutions over few channels see their input channels first on a CPU.

    Where the input or the weight is channels last, their weight gradient is written beyond its
    buffer (torch 2.15 with oneDNN on x86: `Conv2d(3, 48, 1, stride=2)` on 96 x 96 pixels), and the
    process ends or computes with damaged memory. The stems of fastvit, mobileone and repvgg hold
    one. The values stay the same; only the order of the input in memory and the strides of the
    weight change.
    """
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d) and _is_faulty(layer):
            layer.register_forward_pre_hook(_channels_first)


def _is_faulty(layer: nn.Conv2d) -> bool:
    pointwise, strided = set(layer.kernel_size) == {1}, max(layer.stride) > 1
    return pointwise and strided and layer.in_channels // layer.groups < _FEWEST


def _channels_first(layer: nn.Conv2d, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
    image_BDHW = inputs[0]
    if image_BDHW.device.type != "cpu" or not torch.is_grad_enabled():
        return None
    # A 1 x 1 weight lies in memory alike in both formats: its strides alone name one.
    weight = layer.weight
    weight.data = weight.data.as_strided(weight.shape, (weight.shape[1], 1, 1, 1))
    return (image_BDHW.contiguous(), *inputs[1:])
