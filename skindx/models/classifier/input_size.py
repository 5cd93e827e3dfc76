"""The side of the images that a network is built for."""

from typing import Any

import torch

from skindx.core.startup import light_imports


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
