"""How often the hottest place of a class-token transformer's heat map is what decided its answer.

Small networks learn which patch is planted in noise. Of images that a network gets right, the
share is counted whose hottest token the patch covers, for our method and for its peers.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from skindx.core.settings_base import Settings
from skindx.diagnosis.heat_maps import token_heat
from skindx.models.classifier.classifier import Classifier, ClassifierSettings, build_classifier
from skindx.models.classifier.preprocess import Preprocess
from skindx_bench.harness.result import MEANS, Figure, Result

CELL, PER_SIDE = 8, 4
"""Pixels of a token's side, and tokens a side."""
SIDE = CELL * PER_SIDE

# N = images, S = SIDE, T = tokens of patches

TASKS: tuple[Literal["textures", "colours", "shifted"], ...] = ("textures", "colours", "shifted")
"""Two textures; two colours, faint; two textures that no token holds as a whole."""


@dataclass(frozen=True)
class Planted:
    """Images N x S x S x 3, their labels (0: nothing planted), where the patch lies."""

    images_NSS3: Tensor
    labels_N: Tensor
    patch_NT: NDArray[np.bool_]
    """True for tokens of which the patch covers at least a quarter."""


def plant(rng: np.random.Generator, count: int, task: str) -> Planted:
    """Return noise with a patch of class 1, of class 2 or without one (0), at random places."""
    images = rng.integers(90, 160, (count, SIDE, SIDE, 3), dtype=np.uint8)
    labels_N = rng.integers(0, 3, count)
    rows, columns = np.indices((CELL, CELL))
    stripes = np.repeat((255 * (rows % 2))[..., None], 3, axis=2)
    checks = np.repeat((255 * (rows // 2 % 2 ^ columns // 2 % 2))[..., None], 3, axis=2)
    patch_NT = np.zeros((count, PER_SIDE**2), bool)
    for number, label in enumerate(labels_N):
        if not label:
            continue
        if task == "shifted":
            top, left = (int(value) for value in rng.integers(0, SIDE - CELL + 1, 2))
        else:
            top, left = (CELL * int(value) for value in rng.integers(0, PER_SIDE, 2))
        place = (number, slice(top, top + CELL), slice(left, left + CELL))
        if task == "colours":
            shift = np.array((25, 0, -25) if label == 1 else (-25, 0, 25))
            images[place] = (images[place] + shift).clip(0, 255)
        else:
            images[place] = stripes if label == 1 else checks
        covered = np.zeros((SIDE, SIDE))
        covered[place[1:]] = 1
        share = covered.reshape(PER_SIDE, CELL, PER_SIDE, CELL).mean(axis=(1, 3))
        patch_NT[number] = share.ravel() >= 0.25
    return Planted(torch.from_numpy(images), torch.from_numpy(labels_N), patch_NT)


def train_reader(seed: int, task: str, *, depth: int, width: int, steps: int) -> Classifier:
    """Return a vision transformer that answers by its class token, trained on planted images."""
    torch.manual_seed(seed)
    rng = np.random.default_rng([seed, TASKS.index(task)])
    arguments = {
        **{"img_size": SIDE, "patch_size": CELL, "depth": depth, "embed_dim": width},
        "num_heads": max(1, width // 16),
    }
    settings = ClassifierSettings(
        model="vit_tiny_patch16_224",
        model_args=arguments,
        preprocess=Preprocess(size=SIDE, crop=1.0),
    )
    classifier = build_classifier(settings, 3)
    optimizer = torch.optim.AdamW(classifier.parameters(), lr=2e-3)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * min(1.0, (step + 1) / 20, 2 * (1 - step / steps))
        batch = plant(rng, 32, task)
        logits_NC = classifier(batch.images_NSS3)
        loss = torch.nn.functional.cross_entropy(logits_NC, batch.labels_N)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    return classifier.eval()


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


# K = networks, N = images

SMALLEST = ("seeds=1", "depths=[2]", "widths=[32]", "steps=30", "images=60", "least_right=0")

_DRAWS = 10_000


class Config(Settings):
    """A network for each task, depth, width and seed."""

    tasks: tuple[Literal["textures", "colours", "shifted"], ...] = Field(TASKS, min_length=1)
    seeds: int = Field(3, ge=1)
    depths: tuple[int, ...] = Field((2, 4, 6), min_length=1)
    widths: tuple[int, ...] = Field((48, 96), min_length=1)
    steps: int = Field(150, ge=1)
    images: int = Field(200, ge=30)
    """New images that each network is asked about."""
    least_right: float = Field(0.8, ge=0, le=1)
    """Networks that get a smaller share of the planted images right learned too little to ask."""


def run(settings: Config) -> Result:
    """Train the networks and count; a figure's interval is a bootstrap over networks."""
    shares: dict[str, dict[str, list[float]]] = {name: {} for name in ("ours", *PEERS)}
    left_out = 0
    for task, depth, width, seed in itertools.product(
        settings.tasks, settings.depths, settings.widths, range(settings.seeds)
    ):
        hits = _hits(settings, task, depth, width, seed)
        left_out += hits is None
        for name, hit_N in (hits or {}).items():
            for part in ("all", task, f"depth_{depth}"):
                shares[name].setdefault(part, []).append(float(hit_N.mean()))
    figures = {
        name if part == "all" else f"{name}_{part}": _figure(values)
        for name, parts in shares.items()
        for part, values in parts.items()
    }
    notes = (
        f"Vision transformers with a class token, {PER_SIDE**2} patches, depths "
        f"{settings.depths}, widths {settings.widths}, {settings.seeds} seeds, {settings.steps} "
        f"steps; tasks: {', '.join(settings.tasks)}.",
        f"Share of rightly answered images with a patch whose hottest token the patch covers to a "
        f"quarter or more; {settings.images} images a network, n networks.",
        f"{left_out} networks were left out, which got less than {settings.least_right:.0%} right.",
    )
    return Result("heat", figures, notes=notes, headings=MEANS)


def _hits(
    settings: Config, task: str, depth: int, width: int, seed: int
) -> Mapping[str, NDArray[np.bool_]] | None:
    """Return by method whether each right image's hottest token lies on the patch."""
    classifier = train_reader(seed, task, depth=depth, width=width, steps=settings.steps)
    asked = plant(np.random.default_rng([seed, 1]), settings.images, task)
    with torch.inference_mode():
        said_N = classifier(asked.images_NSS3).argmax(1)
    planted_N = asked.labels_N > 0
    right_N = (said_N == asked.labels_N) & planted_N
    if not right_N.any() or right_N.sum() < settings.least_right * planted_N.sum():
        return None
    found = heats(classifier, asked.images_NSS3[right_N], asked.labels_N[right_N].tolist())
    patch_NT = asked.patch_NT[right_N.numpy()]
    return {
        name: patch_NT[np.arange(len(patch_NT)), heat_NT.argmax(1)]
        for name, heat_NT in found.items()
    }


def _figure(shares_K: Sequence[float]) -> Figure:
    """Return the mean over networks in per cent with its 95 % interval, networks resampled."""
    values_K = 100 * np.array(shares_K)
    picked = np.random.default_rng(0).integers(len(values_K), size=(_DRAWS, len(values_K)))
    low, high = np.quantile(values_K[picked].mean(axis=1), [0.025, 0.975])
    return Figure(float(values_K.mean()), "%", len(values_K), (float(low), float(high)))
