"""Towers with random weights in the formats of timm and open_clip, made on the spot."""

import json
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

MEAN, STD = [0.5, 0.4, 0.3], [0.2, 0.25, 0.3]
CARD = "---\nlicense: {}\ntags:\n- image\n---\n# A tower\n"


class OpenClipViT(nn.Module):
    """open_clip's image tower, written down again from its documentation of the state's names."""

    def __init__(
        self, *, width: int, layers: int, heads: int, patch: int, side: int, out: int, coca: bool
    ) -> None:
        super().__init__()
        scale = width**-0.5
        self.conv1 = nn.Conv2d(3, width, patch, patch, bias=False)
        self.class_embedding = nn.Parameter(scale * torch.randn(width))
        self.positional_embedding = nn.Parameter(
            scale * torch.randn((side // patch) ** 2 + 1, width)
        )
        self.ln_pre = nn.LayerNorm(width)
        self.transformer = nn.Module()
        self.transformer.resblocks = nn.ModuleList(_block(width, heads) for _ in range(layers))
        self.attn_pool = _attention_pool(out, width) if coca else None
        self.ln_post = nn.LayerNorm(out if coca else width)
        self.proj = nn.Parameter(scale * torch.randn(out if coca else width, out))
        for parameter in self.parameters():  # norms that do nothing would hide a wrong order
            nn.init.normal_(parameter, std=0.3)

    def pooled(self, images_B3SS: Tensor) -> Tensor:
        """Return the embedding before the projection."""
        x = self.conv1(images_B3SS).flatten(2).transpose(1, 2)
        first = self.class_embedding.expand(len(x), 1, -1)
        x = self.ln_pre(torch.cat([first, x], 1) + self.positional_embedding)
        for block in self.transformer.resblocks:
            inner = block.ln_1(x)
            x = x + block.attn(inner, inner, inner, need_weights=False)[0]
            x = x + block.mlp(block.ln_2(x))
        if self.attn_pool is None:
            return self.ln_post(x[:, 0])
        keys, queries = self.attn_pool.ln_k(x), self.attn_pool.ln_q(self.attn_pool.query)
        x = self.attn_pool.attn(queries.expand(len(x), -1, -1), keys, keys, need_weights=False)[0]
        return self.ln_post(x)[:, 0]


def _block(width: int, heads: int) -> nn.Module:
    block = nn.Module()
    block.ln_1, block.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
    block.attn = nn.MultiheadAttention(width, heads, batch_first=True)
    block.mlp = nn.Sequential()
    block.mlp.add_module("c_fc", nn.Linear(width, 4 * width))
    block.mlp.add_module("gelu", nn.GELU())
    block.mlp.add_module("c_proj", nn.Linear(4 * width, width))
    return block


def _attention_pool(out: int, width: int) -> nn.Module:
    pool = nn.Module()
    pool.query = nn.Parameter(torch.randn(5, out))
    pool.attn = nn.MultiheadAttention(out, 2, kdim=width, vdim=width, batch_first=True)
    pool.ln_q, pool.ln_k = nn.LayerNorm(out), nn.LayerNorm(width)
    return pool


def open_clip_folder(
    folder: Path, *, coca: bool = False, licence: str = "mit", **changed: Any
) -> OpenClipViT:
    """Write a CLIP or CoCa tower of 64 x 64 pixels; `changed` are keys of its vision_cfg."""
    torch.manual_seed(3)
    tower = OpenClipViT(width=32, layers=2, heads=2, patch=16, side=64, out=24, coca=coca)
    vision = {"image_size": 64, "layers": 2, "width": 32, "head_width": 16, "patch_size": 16}
    if coca:
        vision |= {"attentional_pool": True, "attn_pooler_heads": 2, "output_tokens": True}
    config = {
        "model_cfg": {"embed_dim": 24, "vision_cfg": {**vision, **changed}, "text_cfg": {}},
        "preprocess_cfg": {"mean": MEAN, "std": STD},
    }
    state = {f"visual.{name}": tensor for name, tensor in tower.state_dict().items()}
    state |= {"logit_scale": torch.ones(()), "token_embedding.weight": torch.ones(3, 24)}
    _write(folder, "open_clip_config.json", config, "open_clip_model.safetensors", state, licence)
    return tower.eval()


def siglip_folder(folder: Path) -> nn.Module:
    """Write a SigLIP tower: a network of timm inside a model of open_clip."""
    torch.manual_seed(4)
    trunk = timm.create_model(SIGLIP, num_classes=0).eval()
    config = {
        "model_cfg": {
            "embed_dim": 64,
            "vision_cfg": {
                **{"image_size": 160, "timm_model_name": SIGLIP, "timm_pool": "map"},
                **{"timm_model_pretrained": False, "timm_proj": "none"},
            },
        },
        "preprocess_cfg": {"mean": MEAN, "std": STD, "resize_mode": "squash"},
    }
    state = {f"visual.trunk.{name}": tensor for name, tensor in trunk.state_dict().items()}
    state["text.token_embedding.weight"] = torch.ones(3, 24)
    weights = "open_clip_model.safetensors"
    _write(folder, "open_clip_config.json", config, weights, state, "apache-2.0")
    return trunk


SIGLIP = "test_vit3"
"""timm's small vision transformer with an attention pool and no class token, as SigLIP's."""


def timm_folder(
    folder: Path, model: str = "test_vit", *, licence: str = "apache-2.0", **changed: Any
) -> nn.Module:
    """Write a network of timm as its `push_to_hf_hub` does; `changed` are of its pretrained_cfg."""
    torch.manual_seed(5)
    net = timm.create_model(model, num_classes=7).eval()
    cfg = {"input_size": [3, 160, 160], "mean": MEAN, "std": STD, "crop_pct": 0.95, **changed}
    config = {
        "architecture": model,
        "num_classes": 7,
        "pretrained_cfg": {key: value for key, value in cfg.items() if value is not None},
    }
    _write(folder, "config.json", config, "model.safetensors", net.state_dict(), licence)
    return net


def _write(
    folder: Path, config: str, facts: dict, weights: str, state: dict[str, Tensor], licence: str
) -> None:
    folder.mkdir(parents=True)
    (folder / config).write_text(json.dumps(facts))
    save_file(
        {name: tensor.detach().contiguous() for name, tensor in state.items()}, folder / weights
    )
    (folder / "README.md").write_text(CARD.format(licence))
