"""AlexNet as a profile for tests: times from operations at a device's rate, no measurement.

The device is one like a P100: 9.3 TFLOP/s in single precision, which public measurements of AlexNet
reach in operations of direct convolutions; 0.5 TB/s for the update; and 0.1 ms for each layer and
pass, which its kernels take to start however few the images are.
"""

from skindx.core.cost.profile import AtBatch, Profile, ProfiledLayer
from skindx_methods.plan.profiles import Profiles

FLOP_S = 9.3e12
MEMORY_BYTES_S = 5e11
START_S = 1e-4

CONVOLUTIONS = ((3, 64, 11, 4, 2), (64, 192, 5, 1, 2), (192, 384, 3, 1, 1), (384, 256, 3, 1, 1),
                (256, 256, 3, 1, 1))  # fmt: skip
"""Channels in and out, kernel, stride, padding; pooling (3, stride 2) behind 1, 2 and 5."""


def alexnet(side: int, classes: int, batch: int) -> Profile:
    """Five convolutions, the last pooling adaptive to 6 x 6, and three linear layers."""
    layers: list[ProfiledLayer] = []
    pixels = side

    def add(name: str, operator: str, weight: tuple[int, ...], inputs: int, positions: int) -> None:
        operations = 2 * positions * weight[0] * _size(weight[1:])
        once_s = batch * operations / FLOP_S + START_S
        layers.append(
            ProfiledLayer(name=name, operator=operator, forward_s=once_s, backward_s=2 * once_s,
                  shapes=(weight, weight[:1]), parameter_bytes=4 * (_size(weight) + weight[0]),
                  activation_bytes=4 * batch * weight[0] * positions,
                  input_bytes=4 * batch * inputs)
        )  # fmt: skip

    for number, (before, after, kernel, stride, padding) in enumerate(CONVOLUTIONS, 1):
        inputs = before * pixels * pixels
        pixels = (pixels + 2 * padding - kernel) // stride + 1
        add(f"conv{number}", "Conv2d", (after, before, kernel, kernel), inputs, pixels**2)
        if number in (1, 2):
            pixels = (pixels - 3) // 2 + 1
    for number, (before, after) in enumerate(((9216, 4096), (4096, 4096), (4096, classes)), 6):
        add(f"fc{number}", "Linear", (after, before), before, 1)
    total = sum((layer.forward_s or 0) + (layer.backward_s or 0) for layer in layers)
    starts = 3 * START_S * len(layers)
    elements = sum(layer.parameter_bytes for layer in layers) // 4
    at = (AtBatch(batch=batch, compute_s=total),
          AtBatch(batch=2 * batch, compute_s=2 * total - starts))  # fmt: skip
    # SGD with momentum reads three numbers for each weight and writes two.
    return Profile(name="alexnet", size=side, batch=batch, layers=tuple(layers), at=at,
                   update_s=5 * 4 * elements / MEMORY_BYTES_S, optimizer="sgd",
                   optimizer_bytes=4 * elements)  # fmt: skip


def profiles(own: Profile) -> Profiles:
    return Profiles(source="given", device="cuda", networks=(own,))


def _size(shape: tuple[int, ...]) -> int:
    count = 1
    for side in shape:
        count *= side
    return count
