"""Heat of a class-token transformer by the method that skindx uses, and by its peers."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from skindx.diagnosis.heat_maps import token_heat
from skindx.models.classifier.classifier import Classifier

# N = images, H = heads, T = tokens with the class token first, P = tokens of patches, D = channels

Heat = NDArray[np.float32]


class Pass:
    """One forward pass with the tokens before each block, the attention in it, and the logits."""

    def __init__(self, classifier: Classifier, images_NSS3: Tensor, classes_N: Sequence[int]):
        self.tokens: list[Tensor] = []
        self.attention: list[Tensor] = []
        hooks = []
        blocks: Any = classifier.net.blocks
        for block in blocks:
            block.attn.fused_attn = False  # the fused kernel keeps no attention
            hooks.append(block.register_forward_pre_hook(self._keep(self.tokens)))
            hooks.append(block.attn.attn_drop.register_forward_pre_hook(self._keep(self.attention)))
        logits_NC = classifier(images_NSS3)
        wanted = torch.tensor(list(classes_N))
        self.score = logits_NC.gather(1, wanted[:, None]).sum()
        for hook in hooks:
            hook.remove()
        for block in blocks:
            block.attn.fused_attn = True

    @staticmethod
    def _keep(kept: list[Tensor]) -> Callable[[Any, tuple[Tensor, ...]], None]:
        def keep(module: Any, inputs: tuple[Tensor, ...]) -> None:
            kept.append(inputs[0])

        return keep

    def slopes(self, of: list[Tensor]) -> list[Tensor]:
        """Return the derivative of the classes' logits by each of these tensors."""
        return list(torch.autograd.grad(self.score, of, retain_graph=True))


def grad_cam_last(seen: Pass) -> Tensor:
    """Grad-CAM (Selvaraju et al. 2017) on the tokens before the last block."""
    tokens_NTD = seen.tokens[-1]
    (slope_NTD,) = seen.slopes([tokens_NTD])
    weight_N1D = slope_NTD[:, 1:].mean(dim=1, keepdim=True)
    return (weight_N1D * tokens_NTD[:, 1:]).sum(2).relu()


def gradient_times_token(seen: Pass) -> Tensor:
    """Gradient times input (Shrikumar et al. 2016) of each patch's token before the first block."""
    (slope_NTD,) = seen.slopes([seen.tokens[0]])
    return (slope_NTD * seen.tokens[0])[:, 1:].sum(2).relu()


def gradient_length(seen: Pass) -> Tensor:
    """Length of the gradient by each patch's token (Simonyan et al. 2013, by patches)."""
    (slope_NTD,) = seen.slopes([seen.tokens[0]])
    length_NP: Tensor = slope_NTD[:, 1:].norm(dim=2)
    return length_NP


def attention_rollout(seen: Pass) -> Tensor:
    """Attention rollout (Abnar and Zuidema 2020): heads averaged, residual half; for any class."""
    return _rolled([attention.mean(1) for attention in seen.attention], normed=True)


def weighted_attention(seen: Pass) -> Tensor:
    """Gradient-weighted attention (Chefer, Gur and Wolf 2021, ICCV, equations 5 and 6)."""
    slopes = seen.slopes(seen.attention)
    weighted = [
        (slope * attention).relu().mean(1)
        for slope, attention in zip(slopes, seen.attention, strict=True)
    ]
    return _rolled(weighted, normed=False)


def either_way_attention(seen: Pass) -> Tensor:
    """The same with the absolute value of each product."""
    slopes = seen.slopes(seen.attention)
    weighted = [
        (slope * attention).abs().mean(1)
        for slope, attention in zip(slopes, seen.attention, strict=True)
    ]
    return _rolled(weighted, normed=False)


def _rolled(weights: list[Tensor], *, normed: bool) -> Tensor:
    """Multiply the attention of all blocks; return the class token's row, N x P."""
    identity_TT = torch.eye(weights[0].shape[-1])
    flow_NTT = identity_TT.expand_as(weights[0])
    for weight_NTT in weights:
        step_NTT = weight_NTT + identity_TT
        if normed:
            step_NTT = step_NTT / step_NTT.sum(-1, keepdim=True)
        flow_NTT = step_NTT @ flow_NTT
    return flow_NTT[:, 0, 1:]


PEERS: dict[str, Callable[[Pass], Tensor]] = {
    "grad_cam_last_block": grad_cam_last,
    "gradient_length": gradient_length,
    "gradient_times_token": gradient_times_token,
    "attention_rollout": attention_rollout,
    "gradient_weighted_attention": weighted_attention,
    "either_way_attention": either_way_attention,
}


def heats(classifier: Classifier, images_NSS3: Tensor, classes_N: Sequence[int]) -> dict[str, Heat]:
    """Return the heat N x P of each method, ours first."""
    ours = token_heat(classifier, images_NSS3, classes_N)
    assert ours is not None
    found = {"ours": ours.reshape(len(ours), -1)}
    seen = Pass(classifier, images_NSS3, classes_N)
    return found | {name: peer(seen).detach().numpy() for name, peer in PEERS.items()}
