"""What a configuration or a bundle may say of a network: timm's arguments, a detector's layers.

timm also takes URLs and paths of weights among its arguments (`pretrained_cfg`,
`checkpoint_path`), which a bundle must not set. ultralytics evaluates `activation` as Python, looks
modules up by any name, and replaces strings among arguments by variables of its own: a model.yaml
may name only the layers below, with numbers in their ranges, and a few fixed words. ultralytics
then passes a square through each new network to learn its strides: `refuse_work` bounds memory and
work by arithmetic before that.
"""

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from skindx.core.errors import UserError
from skindx.core.settings_base import Settings

Check = Callable[[Any], bool]


def whole(low: int, high: int) -> Check:
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
            near = difflib.get_close_matches(name, ALLOWED, n=1, cutoff=0.6)
            hint = f"did you mean {near[0]!r}?" if near else "remove it"
            raise ValueError(f"the network's setting {name[:40]!r} is not allowed; {hint}")
        if not fits(value):
            raise ValueError(f"{name} cannot be {str(value)[:40]!r}")


ACTIVATIONS = tuple(
    f"{package}.{call}"
    for package in ("torch.nn", "nn")
    for call in (
        "ReLU()",
        "ReLU6()",
        "SiLU()",
        "GELU()",
        "Hardswish()",
        "LeakyReLU(0.1)",
        "Mish()",
        "ELU()",
        "Identity()",
    )
)

_MOST_CHANNELS, _MOST_LAYERS, _MOST_REPEATS = 4096, 128, 512


def _list_of(check: Check, most: int) -> Check:
    return lambda value: (
        isinstance(value, list) and 1 <= len(value) <= most and all(check(item) for item in value)
    )


def _ratio(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and 0 < value <= 8


def _nothing(value: Any) -> bool:
    return value is None or value == "None"


_channels = whole(1, _MOST_CHANNELS)
_step = whole(0, 32)
_count = whole(1, 8)
_place = whole(-_MOST_LAYERS, _MOST_LAYERS)


def _padding(value: Any) -> bool:
    return _nothing(value) or _step(value)


LAYERS: dict[str, tuple[Check, ...]] = {
    "A2C2f": (_channels, flag, whole(-1, 16), flag, _ratio, _ratio, _channels, flag),
    "AConv": (_channels,),
    "ADown": (_channels,),
    "Bottleneck": (_channels, flag, _channels, _list_of(_step, 2), _ratio),
    "C2": (_channels, flag, _channels, _ratio),
    "C2PSA": (_channels, _ratio),
    "C2f": (_channels, flag, _channels, _ratio),
    "C3": (_channels, flag, _channels, _ratio),
    "C3Ghost": (_channels, flag, _channels, _ratio),
    "C3k2": (_channels, flag, _ratio, flag, _channels, flag),
    "CBFuse": (_list_of(_step, 16),),
    "CBLinear": (_list_of(_channels, 16), _step, _step, _padding, _channels),
    "Concat": (whole(1, 1),),
    "Conv": (_channels, _step, _step, _padding, _channels, _step, flag),
    "DWConv": (_channels, _step, _step, _step, flag),
    "Detect": (lambda value: value == "nc" or whole(1, 1000)(value),),
    "ELAN1": (_channels, _channels, _channels),
    "GhostConv": (_channels, _step, _step, _channels, flag),
    "RepNCSPELAN4": (_channels, _channels, _channels, _count),
    "SPP": (_channels, _list_of(_step, 8)),
    "SPPELAN": (_channels, _channels, _step),
    "SPPF": (_channels, _step, _count, flag),
    "nn.ConvTranspose2d": (_channels, _step, _step, _step),
    "nn.Identity": (),
    "nn.MaxPool2d": (_step, _step, _step, _step),
    "nn.Upsample": (_nothing, whole(1, 4), lambda value: value in ("nearest", "bilinear")),
    "nn.ZeroPad2d": (lambda value: _step(value) or _list_of(_step, 4)(value),),
}
"""The layers of ultralytics' plain detectors (YOLOv3 to YOLO12): what each argument may be."""


class DetectorConfig(Settings):
    """ultralytics' model dictionary; the network is built from these values and no others."""

    nc: int = Field(80, ge=1, le=1000)
    backbone: list[list[Any]] = Field(min_length=1, max_length=_MOST_LAYERS)
    head: list[list[Any]] = Field(min_length=1, max_length=_MOST_LAYERS)
    scales: dict[str, tuple[float, float, float]] | None = None
    """Factors of depth and width and the most channels, by the scale's letter."""
    scale: str = Field("", pattern=r"^[a-z]?$")
    depth_multiple: float = Field(1.0, gt=0, le=4)
    width_multiple: float = Field(1.0, gt=0, le=4)
    activation: Literal[ACTIVATIONS] | None = None  # type: ignore[valid-type]
    end2end: Literal[False] | None = None
    reg_max: int = Field(16, ge=1, le=64)
    channels: Literal[3] = 3
    inplace: bool = True
    yaml_file: str = ""
    """Path at which the file was read: ultralytics notes it, and nothing uses it."""

    @field_validator("scales")
    @classmethod
    def _usable_scales(
        cls, scales: dict[str, tuple[float, float, float]] | None
    ) -> dict[str, tuple[float, float, float]] | None:
        for letter, (depth, width, most) in (scales or {}).items():
            if not (len(letter) == 1 and 0 < depth <= 4 and 0 < width <= 4 and 1 <= most <= 8192):
                raise ValueError(
                    f"the scale {letter!r} must be one letter with [depth, width, most channels], "
                    "where factors are above 0 and up to 4, and channels up to 8192"
                )
        return scales

    @model_validator(mode="after")
    def _known_layers(self) -> "DetectorConfig":
        rows = [*self.backbone, *self.head]
        for number, row in enumerate(rows):
            _check_row(number, row)
        if [row[2] for row in rows].count("Detect") != 1 or rows[-1][2] != "Detect":
            raise ValueError("Detect must be the last layer of `head` and must not occur elsewhere")
        if self.scale and self.scales and self.scale not in self.scales:
            raise ValueError(
                f"there is no scale {self.scale!r}; choose one of {', '.join(self.scales)}"
            )
        if sum(row[1] for row in rows) > _MOST_REPEATS:
            raise ValueError(
                f"the layers are repeated more than {_MOST_REPEATS} times; use a smaller model"
            )
        return self

    def plain(self) -> dict[str, Any]:
        """Return the dictionary that ultralytics takes, without what the file left out."""
        raw = self.model_dump(mode="json", exclude={"yaml_file"}, exclude_unset=True)
        return {"nc": self.nc, **raw}


def _check_row(number: int, row: Sequence[Any]) -> None:
    """Raise ValueError for a row that is not [from, number, layer, arguments]."""
    if len(row) != 4:
        raise ValueError(f"layer {number} must be [from, number, layer, arguments]")
    source, repeats, layer, arguments = row
    if not (_place(source) or _list_of(_place, 16)(source)):
        raise ValueError(
            f"layer {number}: `from` must be the number of a layer, or a list of such numbers"
        )
    sources = source if isinstance(source, list) else [source]
    if any(not -number - 1 <= index < max(number, 1) for index in sources):
        raise ValueError(f"layer {number}: `from` must name a layer before it")
    if not whole(1, 64)(repeats):
        raise ValueError(f"layer {number} must be repeated 1 to 64 times")
    kinds = LAYERS.get(layer) if isinstance(layer, str) else None
    if kinds is None:
        raise ValueError(
            f"layer {number}: {str(layer)[:40]!r} is not a layer of a plain detector; valid "
            f"layers are {', '.join(LAYERS)}"
        )
    if not isinstance(arguments, list) or len(arguments) > len(kinds):
        raise ValueError(
            f"layer {number}: {layer} accepts a list of at most {len(kinds)} arguments"
        )
    for place, (value, fits) in enumerate(zip(arguments, kinds, strict=False)):
        if not fits(value):
            raise ValueError(
                f"layer {number}: argument {place} of {layer} cannot be {str(value)[:40]!r}"
            )


_SIDE = 256
"""Side in pixels of the square that ultralytics passes through a new network."""

_MOST_ELEMENTS, _MOST_PRODUCTS = 2**26, 5e11
"""Most elements of one result and most products of a network: several times the largest YOLO's."""

_STRIDED = ("Conv", "GhostConv", "DWConv", "CBLinear")
"""Layers whose third argument is their stride."""
_PADDED = {"Conv": 3, "CBLinear": 3, "nn.MaxPool2d": 2}
"""Position of the padding argument, for layers that have one."""

_HEAD_CHANNELS = 32


def refuse_work(rows: Sequence[Sequence[Any]], layers: Any, origin: str) -> None:
    """Raise UserError for layers that take too much memory or work on a square of 256 pixels.

    `rows` are the checked rows of the model.yaml, `layers` the modules made of them (no tensor of
    which needs to have memory).
    """
    sides: list[int] = []
    channels: list[int] = []
    products = 0.0
    for number, ((source, _, layer, arguments), module) in enumerate(
        zip(rows, layers, strict=True)
    ):
        before = _before(source, number, sides, _SIDE)
        width = sum(_before(source, number, channels, 3))
        side = _side_after(layer, arguments, max(before))
        weights = [weight for weight in module.parameters() if weight.ndim > 1]
        widest = max([width, *(size for weight in weights for size in weight.shape[:2])])
        area = max(side, *before) ** 2
        elements = widest * area
        if areas := _areas_of_attention(layer, arguments):
            elements += -(-widest // _HEAD_CHANNELS) * area**2 // areas
        products += area * sum(weight.numel() for weight in weights) + elements
        if elements > _MOST_ELEMENTS or products > _MOST_PRODUCTS:
            raise UserError(
                f"{origin}: layer {number} ({layer}) needs too much memory or computation; use a "
                "smaller model."
            )
        sides.append(side)
        made = [weight.shape[0] for weight in weights] or [width]
        channels.append(max(made))


def _before(source: Any, number: int, known: Sequence[int], first: int) -> list[int]:
    """Return what is known of the layers that a row takes its input from."""
    if number == 0:
        return [first]
    return [known[index] for index in (source if isinstance(source, list) else [source])]


def _areas_of_attention(layer: str, arguments: Sequence[Any]) -> int:
    """Return into how many parts a layer's attention cuts the square; 0: it has no attention."""
    if layer == "A2C2f":
        return max([1, *arguments[2:3]]) if arguments[1:2] != [False] else 0
    return int(layer == "C2PSA" or (layer == "C3k2" and arguments[3:4] == [True]))


def _side_after(layer: str, arguments: Sequence[Any], side: int) -> int:
    """Return the side of a layer's result, or a little more."""

    def given(place: int, default: int) -> int:
        value = arguments[place] if place < len(arguments) else None
        return value if type(value) is int else default

    if layer == "nn.Upsample":
        return side * given(1, 1)
    if layer == "nn.ConvTranspose2d":
        return side * max(1, given(2, 1)) + given(1, 0)
    if layer == "nn.ZeroPad2d":
        return side + 64
    strides = {**dict.fromkeys(_STRIDED, given(2, 1)), "AConv": 2, "ADown": 2}
    strides["nn.MaxPool2d"] = given(1, given(0, 1))
    padding = given(_PADDED[layer], 0) if layer in _PADDED else 0
    return (side + 2 * padding) // max(1, strides.get(layer, 1)) + (layer in strides)
