"""Where in a photo the evidence for a class lies.

Grad-CAM of an ensemble (Selvaraju et al. 2017), from the maps of the pass that gave the
probabilities: only heads are differentiated, which costs next to nothing. Of each member, equations
1 and 2: ReLU(sum over d of a_d A_d), where a_d is the mean over places of the logit's derivative by
channel d of the last map A.

A network whose answer comes from a class token alone has no such heat. Its heat is by integrated
gradients (Sundararajan, Taly and Yan 2017, arXiv 1703.01365) of the patches' tokens before the
first block, on the straight way from the image's mean colour to the image. Of each patch the size
of its effect on the logit counts: near the mean colour the layer norms make slopes steep, so few
steps give the size and not always the sign. `skindx bench heat` counts how often the hottest token
lies on the patch that decides the answer.
"""

import io
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from skindx.models.classifier.classifier import Classifier
from skindx.models.classifier.preprocess import Preprocess, framed_square
from skindx.models.ensemble import Ensemble, Member

# N = photos, S = side, T = tokens, D = channels, h, w = places of a map, H, W = height, width


def places(map_: Tensor, net: nn.Module) -> Tensor:
    """Return a map as N x D x h x w, whether it is that, channels-last, or tokens N x T x D."""
    if map_.ndim == 3:
        rows, columns = _grid(map_.shape[1], net)
        patches = map_[:, map_.shape[1] - rows * columns :]  # class tokens come first
        return patches.transpose(1, 2).reshape(len(patches), -1, rows, columns)
    channels = getattr(net, "num_features", map_.shape[1])
    if map_.shape[1] != channels and map_.shape[-1] == channels:
        return map_.permute(0, 3, 1, 2)
    return map_


def _grid(tokens: int, net: nn.Module) -> tuple[int, int]:
    """Return rows and columns of the patches among so many tokens."""
    prefix = getattr(net, "num_prefix_tokens", 0)
    rows, columns = getattr(getattr(net, "patch_embed", None), "grid_size", (0, 0))
    if rows and rows * columns in (tokens, tokens - prefix):
        return rows, columns
    side = round((tokens - prefix) ** 0.5)  # halved on its way, or of a stem without a grid
    if side * side != tokens - prefix:
        side = int(tokens**0.5)
    return side, side


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
        step_heat = _tokens_and_slope(classifier, between, classes_N)
        if step_heat is None:
            return None
        tokens.append(step_heat[0])
        slopes.append(step_heat[1])
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
    patches = threading.get_ident()

    def keep(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        first = inputs[0]
        if threading.get_ident() != patches or not isinstance(first, Tensor) or first.ndim != 3:
            return None
        kept.append(first.detach().requires_grad_())
        return (kept[-1], *inputs[1:])

    hook = block.register_forward_pre_hook(keep)
    try:
        yield kept
    finally:
        hook.remove()


LONGEST_SIDE = 320
"""Pixels of a heat map, which knows some ten places across: more would only be sent."""
_LEVELS = 64
_STRONGEST, _COLD = 0.65, 0.2
"""Opacity of the hottest place, through which the skin must be seen, and heat without any."""


def heat_maps(
    ensemble: Ensemble,
    maps: Sequence[Tensor],
    classes_N: Sequence[int],
    photos_N: Sequence[NDArray[np.uint8]],
) -> list[NDArray[np.float32] | None]:
    """Return the heat for a class of each photo, H x W in 0..1, over the whole photo.

    `maps` are each member's of all photos, which are H x W x 3; the heat has their aspect. A
    transformer that reads its class token alone is run again, see `token_heat`. None: no
    member's answer depends on places. Each member's heat is scaled to 1, then they are averaged
    with the weights of their combination.
    """
    given = ensemble.combination.weights or (1.0,) * len(ensemble.members)
    canvases = [np.zeros(_canvas(*photo.shape[:2]), np.float32) for photo in photos_N]
    for member, map_, weight in zip(ensemble.members, maps, given, strict=True):
        heat_Nhw = grad_cam(member, map_, classes_N)
        if not heat_Nhw.any():
            heat_Nhw = _token_heat(member, photos_N, classes_N, heat_Nhw)
        for canvas, cam_hw in zip(canvases, heat_Nhw, strict=True):
            if cam_hw.max() > 0:
                _add(canvas, cam_hw / cam_hw.max(), weight, member.preprocess)
    return [canvas / canvas.max() if canvas.max() > 0 else None for canvas in canvases]


def grad_cam(member: Member, map_: Tensor, classes_N: Sequence[int]) -> NDArray[np.float32]:
    """Return one member's heat N x h x w for a class of each photo, not negative."""
    # A copy: what was made in inference mode cannot be differentiated.
    leaf = map_.detach().clone().requires_grad_()
    with torch.enable_grad():
        logits_NC = member.classifier.forward_head(leaf)
        wanted = torch.tensor(list(classes_N), device=logits_NC.device)
        score = logits_NC.gather(1, wanted[:, None]).sum()
        (slope,) = torch.autograd.grad(score, leaf)
    net = member.classifier.net
    map_NDhw, slope_NDhw = (places(tensor.detach().float(), net) for tensor in (leaf, slope))
    weight_ND11 = slope_NDhw.mean(dim=(2, 3), keepdim=True)
    cam_Nhw: NDArray[np.float32] = (weight_ND11 * map_NDhw).sum(1).relu().cpu().numpy()
    return cam_Nhw


def _token_heat(
    member: Member,
    photos_N: Sequence[NDArray[np.uint8]],
    classes_N: Sequence[int],
    cold_Nhw: NDArray[np.float32],
) -> NDArray[np.float32]:
    """Return the heat of a member whose last map has none; `cold_Nhw` where it finds none too."""
    device = next(member.classifier.parameters()).device
    squares_NSS3 = np.stack([framed_square(photo, member.preprocess) for photo in photos_N])
    heat_Nhw = token_heat(member.classifier, torch.from_numpy(squares_NSS3).to(device), classes_N)
    return cold_Nhw if heat_Nhw is None else heat_Nhw


def heat_png(heat_HW: NDArray[np.float32]) -> bytes:
    """Return a PNG to lie over the whole photo: viridis, transparent where it is cold."""
    import cv2
    from PIL import Image

    steps = np.linspace(0, 255, _LEVELS).round().astype(np.uint8)
    colours_L3 = cv2.applyColorMap(steps[:, None], cv2.COLORMAP_VIRIDIS)[:, 0, ::-1]
    image = Image.fromarray((heat_HW * (_LEVELS - 1)).round().astype(np.uint8), "P")
    image.putpalette(colours_L3.tobytes())
    file = io.BytesIO()
    opacity_L = _STRONGEST * (steps / 255.0 - _COLD).clip(0) / (1 - _COLD)
    image.save(file, "PNG", transparency=(255 * opacity_L).round().astype(np.uint8).tobytes())
    return file.getvalue()


STRONGEST, LEAST_OFF, WIDER = 0.8, 0.75, 0.05
"""The strongest region has this share of the greatest heat; it is off a lesion with this share of
its area outside of the outline, which is wider by this share of the shorter side. Of 542 test
images of HAM10000 with a map 63 were off, and 52 of these by the masks that people drew."""


def is_off(heat_HW: NDArray[np.float32], lesion_HW: NDArray[np.bool_] | None) -> bool:
    """Tell whether the strongest region of a map lies off the lesion; no outline tells nothing.

    The outline may have fewer pixels than the map, and the same aspect.
    """
    if lesion_HW is None:
        return False
    import cv2

    height, width = heat_HW.shape
    reach = max(1, round(WIDER * min(height, width)))
    disc = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * reach + 1, 2 * reach + 1))
    same = cv2.resize(lesion_HW.astype(np.uint8), (width, height), interpolation=cv2.INTER_NEAREST)
    around_HW = cv2.dilate(same, disc) > 0
    strongest_HW = heat_HW >= STRONGEST * heat_HW.max()
    return bool((strongest_HW & ~around_HW).sum() >= LEAST_OFF * strongest_HW.sum())


def _canvas(height: int, width: int) -> tuple[int, int]:
    scale = LONGEST_SIDE / max(height, width)
    return max(1, round(height * scale)), max(1, round(width * scale))


def _add(
    canvas: NDArray[np.float32], cam_hw: NDArray[np.float32], weight: float, preprocess: Preprocess
) -> None:
    """Add a member's heat over the part that it saw, as `framed_square` cuts or fills it.

    What lies in the bars beside an image is no place of it, and is left out.
    """
    import cv2

    height, width = canvas.shape
    side = max(1, round(preprocess.square_of(height, width)[2]))
    over = cv2.resize(cam_hw, (side, side), interpolation=cv2.INTER_LINEAR)
    top, left = (height - side) // 2, (width - side) // 2
    inside = over[max(-top, 0) :, max(-left, 0) :][:height, :width]
    if preprocess.frame == "whole" and inside.max() > 0:
        inside = inside / inside.max()
    rows, columns = inside.shape
    top, left = max(top, 0), max(left, 0)
    canvas[top : top + rows, left : left + columns] += weight * inside
