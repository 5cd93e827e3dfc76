"""Heat of a network whose answer comes from a class token alone, so that its last map has none.

Chefer, Gur and Wolf 2021 (arXiv 2103.15679, eq. 5 and 6): attention A of a block counts by the
logit's derivative, A' = mean over heads of ReLU(dlogit/dA * A), and relevance is carried through
the blocks, R <- R + A' R, from the identity on. The class token's row of R is the heat. Gradient
times activation of the patches' tokens does not serve: attention before them has already moved
what they hold, and a planted texture is found no better than by chance.
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
from skindx.models.classifier import Classifier

# N = photos, S = side, H = heads, T = tokens, h, w = places


def token_heat(
    classifier: Classifier, squares_NSS3: Tensor, classes_N: Sequence[int]
) -> NDArray[np.float32] | None:
    """Return the heat N x h x w for a class of each square, not negative.

    It takes another pass and its derivative by the attentions. None: the rule does not hold, since
    not every token attends to every other in all blocks, or nothing of them reaches the answer.
    """
    net = classifier.net
    with _attentions(net) as kept, torch.inference_mode(False), torch.enable_grad():
        logits_NC = classifier(squares_NSS3.clone())
        if not kept or len({each.shape for each in kept}) > 1 or kept[0].ndim != 4:
            return None
        wanted = torch.tensor(list(classes_N), device=logits_NC.device)
        score = logits_NC.gather(1, wanted[:, None]).sum()
        slopes = torch.autograd.grad(score, kept, allow_unused=True)
    tokens = kept[0].shape[-1]
    if kept[0].shape[-2] != tokens:
        return None
    relevance_NTT = torch.eye(tokens, device=logits_NC.device).expand(len(classes_N), -1, -1)
    for attention_NHTT, slope_NHTT in zip(kept, slopes, strict=True):
        if slope_NHTT is None:
            continue
        weighed_NTT = (attention_NHTT * slope_NHTT).detach().float().relu().mean(1)
        relevance_NTT = relevance_NTT + weighed_NTT @ relevance_NTT
    read_NT1 = relevance_NTT[:, 0, :, None]
    heat_Nhw: NDArray[np.float32] = places(read_NT1, net)[:, 0].cpu().numpy()
    return heat_Nhw if heat_Nhw.any() else None


@contextmanager
def _attentions(net: nn.Module) -> Iterator[list[Tensor]]:
    """Collect what timm's attention modules compute in this thread, N x H x T x T each."""
    kept: list[Tensor] = []
    own = threading.get_ident()

    def keep(module: nn.Module, inputs: Any, output: Tensor) -> None:
        if threading.get_ident() == own:
            kept.append(output)

    found = [each for each in net.modules() if hasattr(each, "attn_drop")]
    fused: list[Any] = [each for each in found if getattr(each, "fused_attn", False)]
    hooks = [each.attn_drop.register_forward_hook(keep) for each in found]  # type: ignore[union-attr, operator]
    for each in fused:
        each.fused_attn = False  # the fused kernel does not show its attention
    try:
        yield kept
    finally:
        for each in fused:
            each.fused_attn = True
        for hook in hooks:
            hook.remove()
