"""Arguments of timm's constructors that a configuration or a bundle may set, with limits.

timm also takes URLs and paths of weights there (`pretrained_cfg`, `checkpoint_path`), which a
bundle must not set.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

Check = Callable[[Any], bool]


def whole(low: int, high: int) -> Check:
    """Check for a whole number of a range."""
    return lambda value: type(value) is int and low <= value <= high


def _number(low: float, high: float) -> Check:
    return lambda value: (
        type(value) in (int, float) and math.isfinite(value) and low <= value <= high
    )


def _one_or_two(check: Check) -> Check:
    return lambda value: (
        all(check(item) for item in value)
        if isinstance(value, list | tuple) and len(value) == 2
        else check(value)
    )


def _several(check: Check) -> Check:
    return lambda value: (
        isinstance(value, list | tuple)
        and 1 <= len(value) <= 8
        and all(check(item) for item in value)
    )


def _word(*words: str) -> Check:
    return lambda value: isinstance(value, str) and value in words


def flag(value: Any) -> bool:
    """Tell whether a value is a truth value."""
    return isinstance(value, bool)


_share = _number(0, 0.99)
_activation = _word(
    *("elu", "gelu", "gelu_tanh", "hard_sigmoid", "hard_swish", "identity", "leaky_relu", "mish"),
    *("prelu", "quick_gelu", "relu", "relu6", "sigmoid", "silu", "swish", "tanh"),
)

ALLOWED: dict[str, Check] = {
    "act_layer": _activation,
    "always_partition": flag,
    "attn_drop_rate": _share,
    "bn_eps": _number(1e-12, 1),
    "bn_momentum": _number(0, 1),
    "class_token": flag,
    "depth": whole(1, 128),
    "depths": _several(whole(1, 128)),
    "drop_block_rate": _share,
    "drop_path_rate": _share,
    "drop_rate": _share,
    "dynamic_img_pad": flag,
    "dynamic_img_size": flag,
    "embed_dim": whole(8, 8192),
    "global_pool": _word("avg", "avgmax", "catavgmax", "fast", "map", "max", "token"),
    "head_drop_rate": _share,
    "img_size": _one_or_two(whole(16, 2048)),
    "init_values": _number(0, 10),
    "mlp_ratio": _number(0.1, 16),
    "no_embed_class": flag,
    "num_heads": lambda value: whole(1, 128)(value) or _several(whole(1, 128))(value),
    "output_stride": lambda value: type(value) is int and value in (8, 16, 32),
    "pad_type": _word("", "same", "valid"),
    "patch_drop_rate": _share,
    "patch_size": _one_or_two(whole(2, 128)),
    "pos_drop_rate": _share,
    "proj_drop_rate": _share,
    "qk_norm": flag,
    "qkv_bias": flag,
    "strict_img_size": flag,
    "window_size": _one_or_two(whole(1, 128)),
}


def check_model_args(arguments: Mapping[str, Any]) -> None:
    """Raise ValueError for an argument that is not in the list, and a value it cannot have."""
    for name, value in arguments.items():
        fits = ALLOWED.get(name)
        if fits is None:
            raise ValueError(f"{name[:40]!r} cannot be set; valid: {', '.join(ALLOWED)}")
        if not fits(value):
            raise ValueError(f"{name} cannot be {str(value)[:40]!r}")
