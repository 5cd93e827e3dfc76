"""Channel statistics of layers inside the eager networks, for detectors that need them."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from skindx.core.errors import UserError
from skindx.models.ensemble.ensemble import Ensemble
from skindx.models.ood.features import Singles

# B = batch, K = channels, H x W = places

Layers = list[list[Tensor]]


@contextmanager
def hooked(ensemble: Ensemble) -> Iterator[Layers]:
    """Collect channel means and deviations B x 2K of every stage of every eager member.

    The stages are those that timm names as a network's features. Call `taken` after each batch.
    Raises UserError for an exported member, and for a network whose stages timm does not name.
    """
    with ExitStack() as stack:
        found: Layers = []
        for member in ensemble.members:
            names = _stages(member.classifier.net)
            if member.exported or not names:
                raise UserError(
                    f"{member.name} gives no statistics of its layers; load the bundle with the "
                    "backend eager, and leave out the detectors of layers for such a network."
                )
            own: list[Tensor] = []
            found.append(own)
            for name in names:
                module = member.classifier.net.get_submodule(name)
                hook = module.register_forward_hook(
                    lambda _module, _given, out, own=own: own.append(_moments(out))
                )
                stack.callback(hook.remove)
        yield found


def taken(layers: Layers) -> tuple[Singles, ...]:
    """Return the statistics of the last batch, all members' layers in order, and forget them."""
    found = tuple(part.cpu().numpy() for own in layers for part in own)
    for own in layers:
        own.clear()
    return found


def _stages(net: nn.Module) -> list[str]:
    modules = dict(net.named_modules())
    info: Any = getattr(net, "feature_info", None) or []
    rows = info if isinstance(info, list) else info.info
    return [row["module"] for row in rows if row["module"] in modules]


def _moments(map_BKHW: Tensor) -> Tensor:
    flat_BKP = map_BKHW.float().flatten(2)
    return torch.cat([flat_BKP.mean(2), flat_BKP.std(2, correction=0)], dim=1)
