"""Heat of a network whose answer comes from a class token alone, so that its last map has none.

Integrated gradients (Sundararajan, Taly and Yan 2017, arXiv 1703.01365) by the patches' tokens
before the first block, on the straight way from the image's mean colour to the image, and of each
patch the size of what it does to the logit: near the mean colour the layer norms make slopes steep,
so that few steps give the size and not always the sign. `skindx bench heat` counts how often the
hottest token lies on the patch that decides the answer, beside other methods, on small transformers
of several depths and seeds.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from skindx.diagnosis.explain.feature_map import places
from skindx.models.classifier.classifier import Classifier

# N = photos, S = side, T = tokens, D = channels, h, w = places

STEPS = 8
"""Images on the path of integration; each takes a forward and a backward pass."""


def token_heat(
    classifier: Classifier, squares_NSS3: Tensor, classes_N: Sequence[int]
) -> NDArray[np.float32] | None:
    """Return the heat N x h x w for a class of each square, not negative.

    It takes `STEPS` passes and their derivatives. None: the network has no row of blocks of tokens,
    as timm names them, or nothing of them reaches the answer.
    """
    squares = squares_NSS3.clone().float()  # what inference mode made has no derivative
    plain = squares.mean(dim=(1, 2), keepdim=True)
    tokens, slopes = [], []
    for step in range(STEPS):
        between = plain + (step + 0.5) / STEPS * (squares - plain)
        found = _tokens_and_slope(classifier, between, classes_N)
        if found is None:
            return None
        tokens.append(found[0])
        slopes.append(found[1])
    # The way from the first to the last of them is the whole way, but for a factor.
    moved_NTD, slope_NTD = tokens[-1] - tokens[0], torch.stack(slopes).mean(0)
    size_NT1 = (moved_NTD * slope_NTD).float().sum(2, keepdim=True).abs()
    if not size_NT1.any():
        return None
    heat_Nhw: NDArray[np.float32] = places(size_NT1, classifier.net)[:, 0].cpu().numpy()
    return heat_Nhw


def _tokens_and_slope(
    classifier: Classifier, squares_NSS3: Tensor, classes_N: Sequence[int]
) -> tuple[Tensor, Tensor] | None:
    """Return the tokens N x T x D before the first block, and the logits' derivative by them."""
    blocks = getattr(classifier.net, "blocks", None)
    if not isinstance(blocks, nn.Sequential | nn.ModuleList) or not len(blocks):
        return None
    with _tokens_of(blocks[0]) as kept, torch.inference_mode(False), torch.enable_grad():
        logits_NC = classifier(squares_NSS3.clone())
        if len(kept) != 1 or len(kept[0]) != len(squares_NSS3):  # TNT's first tokens are pixels
            return None
        wanted = torch.tensor(list(classes_N), device=logits_NC.device)
        score = logits_NC.gather(1, wanted[:, None]).sum()
        (slope_NTD,) = torch.autograd.grad(score, kept, allow_unused=True)
    return None if slope_NTD is None else (kept[0].detach(), slope_NTD)


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
