"""open_clip's configuration of an image tower, in the words of timm.

A tower is a timm network by name (`timm_model_name`: SigLIP, ConvNeXt), or open_clip's own vision
transformer (CLIP; with an attention pool CoCa), which is timm's with a norm before its blocks.
What of a configuration is not known here is refused: a tower that is rebuilt nearly right answers
wrongly, and says nothing of it.
"""

from typing import Any

from skindx.core.errors import UserError

_BASE = "vit_base_patch16_clip_224"
"""timm's vision transformer with a norm before its blocks; size, width and depth are set."""

_PLAIN = {"image_size", "layers", "width", "head_width", "patch_size", "mlp_ratio", "ls_init_value"}
_POOL = {"attentional_pool", "attn_pooler_queries", "attn_pooler_heads", "output_tokens"}
_HARMLESS = {
    # What matters in training alone, or names the default.
    *("patch_dropout", "timm_model_pretrained", "timm_drop", "timm_drop_path", "timm_proj"),
    *("timm_proj_bias", "freeze"),
}
_TIMM = {"timm_model_name", "timm_pool", "image_size"}
_DEFAULTS = {
    **{"no_ln_pre": False, "input_patchnorm": False, "global_average_pool": False},
    **{"final_ln_after_pool": False, "pool_type": "tok", "pos_embed_type": "learnable"},
    **{"n_queries": 256, "act_kwargs": None, "norm_kwargs": None, "block_type": None},
    **{"qk_norm": False, "scaled_cosine_attn": False, "scale_heads": False},
}


def open_clip_network(config: dict[str, Any], origin: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the network and what is known of its preprocessing. Raises UserError."""
    model = config.get("model_cfg")
    vision = model.get("vision_cfg") if isinstance(model, dict) else None
    if not isinstance(model, dict) or not isinstance(vision, dict):
        raise UserError(f"{origin} has no model_cfg with a vision_cfg; copy the folder again.")
    prepared = config.get("preprocess_cfg")
    preprocess: dict[str, Any] = {"crop": 1.0}
    if isinstance(prepared, dict):
        preprocess |= {key: prepared[key] for key in ("mean", "std") if prepared.get(key)}
    size = vision.get("image_size", 224)
    side = size[0] if isinstance(size, list) and size else size
    preprocess["size"] = side
    if "timm_model_name" in vision:
        return _by_timm(vision, origin), preprocess
    return _own(model, vision, side, origin), preprocess


def _by_timm(vision: dict[str, Any], origin: str) -> dict[str, Any]:
    _refuse_others(vision, _TIMM, origin)
    pool = vision.get("timm_pool") or ""
    if pool not in ("", "avg", "token", "map"):
        raise UserError(f"{origin}: the pooling timm_pool={pool!r} is not known; choose another.")
    return {
        "model": str(vision["timm_model_name"]),
        "model_args": {"global_pool": pool} if pool else {},
    }


def _own(model: dict[str, Any], vision: dict[str, Any], side: Any, origin: str) -> dict[str, Any]:
    _refuse_others(vision, _PLAIN | _POOL, origin)
    layers, width = vision.get("layers", 12), vision.get("width", 768)
    head_width = vision.get("head_width", 64)
    whole = all(type(value) is int and value > 0 for value in (layers, width, head_width))
    if not whole or width % head_width:
        raise UserError(
            f"{origin}: layers={layers}, width={width}, head_width={head_width} is no vision "
            "transformer (open_clip's ResNets are not supported); choose another tower."
        )
    arguments: dict[str, Any] = {
        "img_size": side,
        "patch_size": vision.get("patch_size", 16),
        "depth": layers,
        "embed_dim": width,
        "num_heads": width // head_width,
    }
    if (ratio := vision.get("mlp_ratio")) is not None:
        arguments["mlp_ratio"] = ratio
    if (scale := vision.get("ls_init_value")) is not None:
        arguments["init_values"] = scale
    if model.get("quick_gelu"):
        arguments["act_layer"] = "quick_gelu"
    network: dict[str, Any] = {"model": _BASE, "model_args": arguments}
    pooling = vision.get("attentional_pool", False)
    if pooling not in (True, False):
        raise UserError(f"{origin}: attentional_pool={pooling!r} is not known; choose another.")
    if pooling:
        network["attention_pool"] = {
            "width": model.get("embed_dim"),
            "heads": vision.get("attn_pooler_heads", 8),
        }
    return network


def _refuse_others(vision: dict[str, Any], known: set[str], origin: str) -> None:
    for key, value in vision.items():
        if key in known | _HARMLESS or (key in _DEFAULTS and value == _DEFAULTS[key]):
            continue
        raise UserError(
            f"{origin}: vision_cfg.{key}={value!r} is not known here, and the tower would answer "
            "otherwise than it should; choose another one."
        )
