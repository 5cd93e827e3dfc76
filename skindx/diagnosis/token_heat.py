"""Heat of a network whose answer comes from a class token alone, so that its last map has none.

The length of the logit's derivative by each patch's token, before the first block (the saliency of
Simonyan, Vedaldi and Zisserman 2013, arXiv 1312.6034, a patch instead of a pixel): where a change
would change the answer. A small transformer that learned planted textures finds them so, while
gradient times activation of later tokens and gradient-weighted attention (Chefer et al. 2021)
missed one class of two.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from skindx.diagnosis.places import places
from skindx.models.classifier.classifier import Classifier

# N = photos, S = side, T = tokens, D = channels, h, w = places


def token_heat(
    classifier: Classifier, squares_NSS3: Tensor, classes_N: Sequence[int]
) -> NDArray[np.float32] | None:
    """Return the heat N x h x w for a class of each square, not negative.

    It takes another pass and its derivative. None: the network has no row of blocks of tokens, as
    timm names them, or nothing of them reaches the answer.
    """
    blocks = getattr(classifier.net, "blocks", None)
    if not isinstance(blocks, nn.Sequential | nn.ModuleList) or not len(blocks):
        return None
    with _tokens_of(blocks[0]) as kept, torch.inference_mode(False), torch.enable_grad():
        logits_NC = classifier(squares_NSS3.clone())
        if len(kept) != 1:
            return None
        wanted = torch.tensor(list(classes_N), device=logits_NC.device)
        score = logits_NC.gather(1, wanted[:, None]).sum()
        (slope_NTD,) = torch.autograd.grad(score, kept, allow_unused=True)
    if slope_NTD is None or not slope_NTD.any():
        return None
    length_NT1 = slope_NTD.float().norm(dim=2, keepdim=True)
    heat_Nhw: NDArray[np.float32] = places(length_NT1, classifier.net)[:, 0].cpu().numpy()
    return heat_Nhw


@contextmanager
def _tokens_of(block: nn.Module) -> Iterator[list[Tensor]]:
    """Collect the tokens N x T x D that this thread gives to a block; the graph begins there."""
    kept: list[Tensor] = []
    own = threading.get_ident()

    def keep(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        first = inputs[0]
        if threading.get_ident() != own or not isinstance(first, Tensor) or first.ndim != 3:
            return None
        kept.append(first.detach().requires_grad_())
        return (kept[-1], *inputs[1:])

    hook = block.register_forward_pre_hook(keep)
    try:
        yield kept
    finally:
        hook.remove()
