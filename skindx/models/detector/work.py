"""How much memory and work a detector's layers take, by arithmetic, before any of it is spent.

ultralytics passes a square through each new network to learn its strides. A few rows of YAML
with few weights can make that square, or what is computed from it, as large as one likes.
"""

from collections.abc import Sequence
from typing import Any

from skindx.core.errors import UserError

_SIDE = 256
"""Of the square that ultralytics passes through a new network."""

_MOST_ELEMENTS, _MOST_PRODUCTS = 2**26, 5e11
"""Of one result, and of all layers: several times what the largest YOLO needs."""

_STRIDED = ("Conv", "GhostConv", "DWConv", "CBLinear")
"""Their stride is their third argument."""
_PADDED = {"Conv": 3, "CBLinear": 3, "nn.MaxPool2d": 2}
"""Which argument says how much is added on each side, where one does."""

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
                f"{origin}: layer {number} ({layer}) takes too much memory or work; "
                "take a smaller model."
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
