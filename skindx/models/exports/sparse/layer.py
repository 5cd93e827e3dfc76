"""A convolution with what follows it, computed by the choice that was faster in its setting."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from skindx.models.exports.sparse.convolution import SparseConvolution, fits
from skindx.models.exports.sparse.record import Choice, Setting

# N = images, C = input channels, K = output channels

_Call = Callable[[Tensor, Tensor | None], Tensor]


def setting_of(images: int, threads: int) -> Setting:
    """Return the setting of a batch."""
    if threads > 1:
        return "one_threaded" if images == 1 else "many_threaded"
    return "one" if images == 1 else "many"


def packs() -> bool:
    """Return whether this torch offers oneDNN's convolution with weights packed before."""
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return available and hasattr(torch.ops.mkldnn, "_convolution_pointwise")


def dense_choices(precision: str) -> list[Choice]:
    """Return the dense choices of this machine, the usual one first."""
    packed: list[Choice] = ["packed"] if packs() else []
    half: list[Choice] = ["bf16"] if packs() and precision == "bf16" else []
    return [*packed, "torch", *half]


class FusedConvolution(nn.Module):
    """A convolution, batch norm folded into it, a residual and ReLU; fp32 in and out, on the CPU.

    Memory of the output is channels last.
    """

    def __init__(self, convolution: nn.Conv2d, *, relu: bool) -> None:
        super().__init__()
        self.convolution = convolution
        self.relu = relu
        self.skips = fits(convolution)
        """Whether the kernel that skips zeros computes such a layer."""
        self.choices: dict[Setting, Choice] = {}
        self.dense: dict[Setting, Choice] = {}
        """What was fastest without skipping zeros."""
        self._usual = dense_choices("fp32")[0]
        self._built: dict[tuple[Choice, bool], _Call] = {}

    def forward(self, input_NCHW: Tensor, residual_NKHW: Tensor | None = None) -> Tensor:
        """Return N x K x H x W."""
        setting = setting_of(len(input_NCHW), torch.get_num_threads())
        return self.by(self.choices.get(setting, self._usual), input_NCHW, residual_NKHW)

    def by(self, choice: Choice, input_NCHW: Tensor, residual_NKHW: Tensor | None) -> Tensor:
        """Return the same by a given choice."""
        # oneDNN lays weights out for one size of the input; for another it does so in every call.
        kind = choice, len(input_NCHW) > 1 and choice in ("packed", "bf16")
        if kind not in self._built:
            self._built[kind] = _BUILDERS[choice](self, input_NCHW)
        tall_NCHW = input_NCHW.contiguous(memory_format=torch.channels_last)
        if residual_NKHW is not None and residual_NKHW.shape != self._shape(input_NCHW):
            # A residual that is stretched over the map: after the convolution, as torch does.
            found_NKHW: Tensor = self.convolution(tall_NCHW) + residual_NKHW
            return found_NKHW.relu() if self.relu else found_NKHW
        return self._built[kind](tall_NCHW, residual_NKHW)

    def _shape(self, input_NCHW: Tensor) -> tuple[int, ...]:
        padding, stride, dilation, _ = self.geometry()
        kernel, sides = self.convolution.kernel_size, input_NCHW.shape[2:]
        out = (
            (side + 2 * padding[at] - dilation[at] * (kernel[at] - 1) - 1) // stride[at] + 1
            for at, side in enumerate(sides)
        )
        return (len(input_NCHW), self.convolution.out_channels, *out)

    def geometry(self) -> tuple[list[int], list[int], list[int], int]:
        """Return padding, stride, dilation and groups as torch's operators take them."""
        own = self.convolution
        padding = [int(pad) for pad in own.padding]
        return padding, list(own.stride), list(own.dilation), own.groups


def _torch(layer: FusedConvolution, _: Tensor) -> _Call:
    own = layer.convolution
    weight_KCHW = own.weight.contiguous(memory_format=torch.channels_last)
    padding, stride, dilation, groups = layer.geometry()

    def call(input_NCHW: Tensor, residual_NKHW: Tensor | None) -> Tensor:
        found_NKHW = F.conv2d(input_NCHW, weight_KCHW, own.bias, stride, padding, dilation, groups)
        return _finished(found_NKHW, residual_NKHW, relu=layer.relu)

    return call


def _packed(layer: FusedConvolution, input_NCHW: Tensor) -> _Call:
    geometry = layer.geometry()
    weight = _reordered(layer, layer.convolution.weight, input_NCHW)
    bias = layer.convolution.bias
    after = "relu" if layer.relu else "none"
    one = torch.ops.mkldnn._convolution_pointwise

    def call(input_NCHW: Tensor, residual_NKHW: Tensor | None) -> Tensor:
        if residual_NKHW is None:
            found: Tensor = one(input_NCHW, weight, bias, *geometry, after, [], "")
            return found
        tall_NKHW = residual_NKHW.contiguous(memory_format=torch.channels_last)
        added: Tensor = one.binary(
            *(input_NCHW, tall_NKHW, weight, bias, *geometry),
            *("add", 1.0, "relu" if layer.relu else None, [], None),
        )
        return added

    return call


def _half(layer: FusedConvolution, input_NCHW: Tensor) -> _Call:
    geometry = layer.geometry()
    weight = _reordered(layer, layer.convolution.weight.bfloat16(), input_NCHW)
    bias = layer.convolution.bias
    bias = None if bias is None else bias.bfloat16()
    one = torch.ops.mkldnn._convolution_pointwise

    def call(input_NCHW: Tensor, residual_NKHW: Tensor | None) -> Tensor:
        found = one(input_NCHW.bfloat16(), weight, bias, *geometry, "none", [], "").float()
        return _finished(found, residual_NKHW, relu=layer.relu)

    return call


def _sparse(layer: FusedConvolution, _: Tensor) -> _Call:
    kernel = SparseConvolution(layer.convolution, relu=layer.relu)
    return lambda input_NCHW, residual_NKHW: kernel(
        input_NCHW, residual_NKHW, torch.get_num_threads()
    )


_BUILDERS: dict[Choice, Callable[[FusedConvolution, Tensor], _Call]] = {
    "torch": _torch,
    "packed": _packed,
    "bf16": _half,
    "sparse": _sparse,
}


def _reordered(layer: FusedConvolution, weight_KCHW: Tensor, input_NCHW: Tensor) -> Tensor:
    reorder = torch.ops.mkldnn._reorder_convolution_weight
    packed: Tensor = reorder(weight_KCHW, *layer.geometry(), list(input_NCHW.shape))
    return packed


def _finished(found_NKHW: Tensor, residual_NKHW: Tensor | None, *, relu: bool) -> Tensor:
    if residual_NKHW is not None:
        found_NKHW = found_NKHW.add_(residual_NKHW)
    return found_NKHW.relu_() if relu else found_NKHW
