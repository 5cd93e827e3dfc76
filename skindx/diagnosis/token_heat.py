"""Heat of a network whose answer comes from a class token alone, so that its last map has none.

The class token reads the patches in the last blocks. Their tokens A before the last reading, and
the logit's derivative by them, give for each place ReLU(sum over d of dlogit/dA_d A_d): gradient
times activation, which is Grad-CAM's sum without its mean over places (HiResCAM, Draelos and Carin
2020, arXiv 2011.08891, eq. 5).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from skindx.diagnosis.places import places
from skindx.models.classifier import Classifier

# N = photos, S = side, D = channels, h, w = places of a map

_BLOCKS = ("blocks", "network")
"""Where timm's transformers keep their blocks."""


def token_heat(
    classifier: Classifier, squares_NSS3: Tensor, classes_N: Sequence[int]
) -> NDArray[np.float32] | None:
    """Return the heat N x h x w for a class of each square, not negative.

    One more pass, of which only the last two blocks are differentiated. None: the network has no
    blocks that timm names, or nothing of them reaches the answer.
    """
    blocks = next((each for name in _BLOCKS if (each := getattr(classifier.net, name, None))), None)
    if blocks is None or len(blocks) < 2:
        return None
    last_two = list(blocks.children())[-2:]
    kept: list[Tensor] = []
    hooks = [last_two[0].register_forward_hook(_start), *(
        each.register_forward_hook(lambda _, __, output: kept.append(_tokens(output)))
        for each in last_two
    )]  # fmt: skip
    try:
        with torch.inference_mode(False), torch.no_grad():
            logits_NC = classifier(squares_NSS3.clone())
            wanted = torch.tensor(list(classes_N), device=logits_NC.device)
            with torch.enable_grad():
                score = logits_NC.gather(1, wanted[:, None]).sum()
                slopes = torch.autograd.grad(score, kept, allow_unused=True)
    finally:
        for hook in hooks:
            hook.remove()
    return next(
        (heat for pair in zip(kept[::-1], slopes[::-1], strict=True)
         if (heat := _heat(*pair, classifier.net)) is not None),
        None,
    )  # fmt: skip


def _start(block: nn.Module, inputs: Any, output: Any) -> Any:
    """Let the graph begin here: what was computed so far needs no derivative."""
    torch.set_grad_enabled(True)
    if isinstance(output, tuple):
        return tuple(each.detach().requires_grad_() for each in output)
    return output.detach().requires_grad_()


def _tokens(output: Any) -> Tensor:
    tokens: Tensor = output[-1] if isinstance(output, tuple) else output
    return tokens


def _heat(map_: Tensor, slope: Tensor | None, net: nn.Module) -> NDArray[np.float32] | None:
    if slope is None:
        return None
    map_NDhw, slope_NDhw = (places(each.detach().float(), net) for each in (map_, slope))
    if not slope_NDhw.any():
        return None
    heat_Nhw: NDArray[np.float32] = (map_NDhw * slope_NDhw).sum(1).relu().cpu().numpy()
    return heat_Nhw
