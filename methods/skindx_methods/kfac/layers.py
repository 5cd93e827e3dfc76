"""Layers that K-FAC knows: their Kronecker factors, and their gradient as matrices.

A layer is a stack of S blocks that share nothing: one for a linear layer or a convolution, one a
group for a grouped convolution, one a channel for a batch norm. Each block has a Fisher matrix
A kron G, with A of what goes in and G of the gradient at what comes out.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from skindx.core.machine import cpu_fact, cpu_flags
from skindx.core.startup import light_imports
from skindx.training.parallel.batch_norm import is_synchronised, statistics_over_ranks

# How K-FAC multiplies by a transpose: as torch does, and large products by oneDNN where faster.

# M, N, K = sizes of a product

LEAST = 2**20
"""Number of multiplications below which calling oneDNN takes longer than it saves."""

Multiply = Callable[[Tensor, Tensor], Tensor]
"""A and B -> A B^T."""


def plain_nt(a_MK: Tensor, b_NK: Tensor) -> Tensor:
    """Return A B^T as torch computes it."""
    return nn.functional.linear(a_MK, b_NK) if b_NK.ndim == 2 else a_MK @ b_NK.mT


@cache
def onednn_is_faster() -> bool:
    """Return True where torch's products are MKL's and MKL leaves AVX-512 unused.

    MKL computes with AVX2 on a processor that is not Intel's, whatever that processor has; oneDNN,
    which comes with torch too, computes with AVX-512 there.
    """
    return (
        "avx512f" in cpu_flags()
        and cpu_fact("vendor_id") not in ("", "GenuineIntel")
        and bool(torch._C.has_mkl)
        and bool(torch._C._has_mkldnn)
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def by_onednn(otherwise: Multiply) -> Multiply:
    """Return what makes large products on the CPU, in single precision, by oneDNN.

    The others, and stacks of several blocks, go to `otherwise`. A product rounds otherwise than
    torch's own in the last bits. It has no gradient.
    """

    def multiply(a_MK: Tensor, b_NK: Tensor) -> Tensor:
        a, b = a_MK, b_NK
        if a.ndim == 3 and len(a) == 1 == len(b):
            a, b = a[0], b[0]
        single = a.dtype == b.dtype == torch.float32 and a.device.type == "cpu"
        if not single or a.ndim != 2 or b.ndim != 2 or a.shape[0] * b.numel() < LEAST:
            return otherwise(a_MK, b_NK)
        # Other layouts are copied anyway, or go to a kernel that is a hundred times as slow.
        a = a.contiguous()
        b = b if b.mT.is_contiguous() else b.contiguous()
        c: Tensor = torch.ops.mkldnn._linear_pointwise(a, b, None, "none", [], "")
        return c if a_MK.ndim == 2 else c[None]

    return multiply


# N = images, R = rows of a linear layer (images x positions), T = positions of an image,
# C = channels, L = patches, S = blocks, A = inputs of a block (bias included), G = its outputs


with light_imports():
    from timm.layers import Conv2dSame, pad_same

Sums = dict[str, Tensor]
"""Sums over images, by factor (INSIDE, OUTSIDE)."""

INSIDE, OUTSIDE = "inside", "outside"

_CHUNK_BYTES = 64 * 2**20
"""Memory for the patches of a convolution, which limits how many images are unfolded at once."""
_LEAST_SHARE = 1 / 8
"""Least share of the images whose rows are taken, however many rows they have (tau_1 in Martens and
Grosse 2015, section 8)."""
_SAVES_STATISTICS = ("NativeBatchNormBackward0", "CudnnBatchNormBackward0")
"""Backward passes of batch norm that hold the batch's mean and 1 / standard deviation, in single
precision."""
_TILE = 512
"""Largest width of a factor that is computed as one product."""


class Layer(ABC):
    """A module with weights that K-FAC preconditions."""

    def __init__(self, name: str, module: nn.Module) -> None:
        self.name, self.module = name, module
        weight, bias = module.weight, module.bias
        assert isinstance(weight, Tensor)
        self.weight, self._bias = weight, bias if isinstance(bias, Tensor) else None
        self.shapes = self._shapes()
        """Blocks and width of each factor; one without OUTSIDE has G = 1."""
        self.multiply: Multiply = plain_nt
        """How its factors are made of rows: A B^T."""
        self.most_rows = 0
        """Rows (images x positions) that are enough for a factor; 0: all are taken."""

    @abstractmethod
    def _shapes(self) -> Mapping[str, tuple[int, int]]:
        """Return blocks and width of each factor."""

    @abstractmethod
    def observe(
        self, inputs: Tensor, output: Tensor, images: int
    ) -> tuple[Sums, Callable[[Tensor], Sums]]:
        """Return what the inputs of `images` images, which gave `output`, add to the factors.

        With it comes what makes the rest from the gradient at the outputs, taken of the sum of the
        images' losses.
        """

    def parts(self) -> tuple[Tensor, Tensor | None]:
        """Return the weight, and the bias where it learns."""
        bias = self._bias
        return self.weight, bias if bias is not None and bias.requires_grad else None

    def _taken(self, images: int, positions: float) -> int:
        """Return of how many images of a pass the rows are enough."""
        if not self.most_rows:
            return images
        enough = math.ceil(self.most_rows / max(1.0, positions))
        return min(images, max(enough, math.ceil(images * _LEAST_SHARE)))

    def _gram(self, rows_SAR: Tensor) -> Tensor:
        """Return the product with its own transpose; of wide ones each half is made once."""
        width = rows_SAR.shape[1]
        if width <= _TILE:
            return self.multiply(rows_SAR, rows_SAR)
        half = width // 2
        first_SHR, last_SIR = rows_SAR[:, :half], rows_SAR[:, half:]
        across_SHI = self.multiply(first_SHR, last_SIR)
        gram_SAA = rows_SAR.new_empty(len(rows_SAR), width, width)
        gram_SAA[:, :half, :half] = self._gram(first_SHR)
        gram_SAA[:, half:, half:] = self._gram(last_SIR)
        gram_SAA[:, :half, half:] = across_SHI
        gram_SAA[:, half:, :half] = across_SHI.mT
        return gram_SAA

    @property
    def _biased(self) -> int:
        return int(self.parts()[1] is not None)


class Linear(Layer):
    """A linear layer: A of inputs with a one behind them, G of gradients at the outputs.

    Where an image has T positions (tokens), A sums and G averages over them, as for convolutions.
    """

    def _shapes(self) -> Mapping[str, tuple[int, int]]:
        """Return one block for each factor."""
        outputs, inputs = self.parts()[0].shape
        return {INSIDE: (1, inputs + self._biased), OUTSIDE: (1, outputs)}

    def observe(
        self, inputs: Tensor, output: Tensor, images: int
    ) -> tuple[Sums, Callable[[Tensor], Sums]]:
        """Multiply the rows with themselves."""
        rows_RA = inputs.detach().reshape(-1, inputs.shape[-1])
        positions = len(rows_RA) / images
        rows = round(self._taken(images, positions) * positions)
        share = rows / len(rows_RA)
        inside = self._gram(_with_ones(rows_RA[:rows].float().T[None], self._biased)) / share

        def outside(gradient: Tensor) -> Sums:
            rows_RG = gradient.reshape(-1, gradient.shape[-1])[:rows].float()
            return {OUTSIDE: self._gram(rows_RG.T[None]) / (positions * share)}

        return {INSIDE: inside}, outside


class Conv(Layer):
    """A convolution (KFC, Grosse and Martens 2016, arXiv 1602.01407, eq. 33).

    A sums over the patches of an image, G averages over its positions; each group is a block.
    """

    def _shapes(self) -> Mapping[str, tuple[int, int]]:
        """Return one block for each group."""
        weight, _ = self.parts()
        groups = self._conv.groups
        inside = weight[0].numel() + self._biased
        return {INSIDE: (groups, inside), OUTSIDE: (groups, len(weight) // groups)}

    def observe(
        self, inputs: Tensor, output: Tensor, images: int
    ) -> tuple[Sums, Callable[[Tensor], Sums]]:
        """Spread out the patches of some images at a time and multiply them with themselves."""
        blocks, width = self.shapes[INSIDE]
        inside: Tensor | None = None
        taken = self._taken(len(inputs), math.prod(self._patches(inputs[:1]).shape[4:]))
        share = taken / len(inputs)
        spread = inputs[0].numel() * self._conv.weight[0, 0].numel() * 4
        for part in torch.split(inputs.detach()[:taken], max(1, _CHUNK_BYTES // max(1, spread))):
            rows_SAR = self._patches(part.float()).reshape(blocks, width - self._biased, -1)
            gram = self._gram(_with_ones(rows_SAR, self._biased))
            inside = gram if inside is None else inside.add_(gram)
        if inside is None:
            inside = inputs.new_zeros(blocks, width, width, dtype=torch.float32)

        def outside(gradient: Tensor) -> Sums:
            channels = gradient.shape[1]
            rows = gradient[:taken].float().reshape(taken, blocks, channels // blocks, -1)
            positions = rows.shape[3]
            rows_SGR = rows.permute(1, 2, 0, 3).reshape(blocks, channels // blocks, -1)
            return {OUTSIDE: self._gram(rows_SGR) / (positions * share)}

        return {INSIDE: inside if share == 1 else inside.div_(share)}, outside

    @property
    def _conv(self) -> nn.Conv2d:
        assert isinstance(self.module, nn.Conv2d)
        return self.module

    def _padded(self, images_NCHW: Tensor) -> Tensor:
        conv = self._conv
        if isinstance(conv, Conv2dSame):
            # TensorFlow's padding depends on the image size and is larger behind than before.
            sizes = (list(conv.kernel_size), list(conv.stride), list(conv.dilation))
            padded: Tensor = pad_same(images_NCHW, *sizes)
            return padded
        assert not isinstance(conv.padding, str)
        down, across = conv.padding
        if not (down or across):
            return images_NCHW
        return functional.pad(images_NCHW, (across, across, down, down))

    def _patches(self, images_NCHW: Tensor) -> Tensor:
        """Return a view: channels, rows and columns of the kernel, images, positions of both.

        So that one copy, unlike `unfold` with a permutation behind it, puts channels first.
        """
        conv, padded = self._conv, self._padded(images_NCHW)
        many, channels, *size = padded.shape
        of_image, of_channel, *strides = padded.stride()
        counts = [
            (side - apart * (kernel - 1) - 1) // step + 1
            for side, apart, kernel, step in zip(
                size, conv.dilation, conv.kernel_size, conv.stride, strict=True
            )
        ]
        return padded.as_strided(
            (channels, *conv.kernel_size, many, *counts),
            (
                of_channel,
                *(s * apart for s, apart in zip(strides, conv.dilation, strict=True)),
                of_image,
                *(s * step for s, step in zip(strides, conv.stride, strict=True)),
            ),
        )


class BatchNorm(Layer):
    """Scale and shift of a batch norm: for each channel its own 2 x 2 Fisher matrix, exactly.

    The gradient of an image by (scale, shift) is the sum over its positions of (g x, g), with x
    normalised by the statistics that the forward pass used.
    """

    def _shapes(self) -> Mapping[str, tuple[int, int]]:
        """Return one block for each channel; G is 1."""
        return {INSIDE: (len(self.parts()[0]), 1 + self._biased)}

    def observe(
        self, inputs: Tensor, output: Tensor, images: int
    ) -> tuple[Sums, Callable[[Tensor], Sums]]:
        """Keep the statistics; all else waits for the gradient."""
        norm = self.module
        assert isinstance(norm, _BatchNorm)
        x_NCT = inputs.detach().flatten(2) if inputs.ndim > 2 else inputs.detach()[:, :, None]
        if not norm.training and norm.running_mean is not None and norm.running_var is not None:
            mean_C, scale_C = norm.running_mean.clone(), (norm.running_var + norm.eps).rsqrt()
        elif norm.training and is_synchronised(norm):
            mean_C, variance_C, _ = statistics_over_ranks(x_NCT)
            scale_C = (variance_C + norm.eps).rsqrt()
        elif type(step := output.grad_fn).__name__ in _SAVES_STATISTICS:
            mean_C, scale_C = step._saved_result1, step._saved_result2  # type: ignore[union-attr]
        else:
            variance_C, mean_C = torch.var_mean(x_NCT.float(), (0, 2), correction=0)
            scale_C = (variance_C + norm.eps).rsqrt()
        share = (taken := self._taken(len(x_NCT), x_NCT.shape[2])) / len(x_NCT)
        x_NCT = x_NCT[:taken]

        def inside(gradient: Tensor) -> Sums:
            g_NCT = gradient[:taken].reshape(x_NCT.shape).float()
            shift_NC = g_NCT.sum(2)
            centred_NCT = x_NCT.float() - mean_C[:, None]
            parts = [(g_NCT * centred_NCT).sum(2) * scale_C, shift_NC][: 1 + self._biased]
            return {INSIDE: self._gram(torch.stack(parts).permute(2, 0, 1)) / share}

        return {}, inside


def _with_ones(rows_SAR: Tensor, biased: int) -> Tensor:
    if not biased:
        return rows_SAR
    return torch.cat([rows_SAR, torch.ones_like(rows_SAR[:, :1])], dim=1)


with light_imports():
    from timm.layers import BatchNormAct2d, Conv2dSame

_CONVS = {nn.Conv2d, Conv2dSame}
_NORMS = {nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, BatchNormAct2d}

_SHOWN = 3


def find_layers(module: nn.Module, widest: int) -> tuple[list[Layer], list[str]]:
    """Return the layers in the module's order, and one sentence for each kind of layer left out.

    Layers without a weight that learns are neither.
    """
    result: list[Layer] = []
    wide: list[str] = []
    other: list[str] = []
    seen: set[int] = set()
    for name, part in module.named_modules():
        weights = dict(part.named_parameters(recurse=False))
        learning = [weight for weight in weights.values() if weight.requires_grad]
        if not learning or any(id(weight) in seen for weight in learning):
            continue
        seen |= {id(weight) for weight in learning}
        layer = _layer(name, part)
        if layer is None or not {"weight"} <= weights.keys() or not weights["weight"].requires_grad:
            other.append(name or type(part).__name__)
        elif max(width for _, width in layer.shapes.values()) > widest:
            wide.append(name)
        else:
            result.append(layer)
    sentences = []
    if wide:
        sentences.append(f"K-FAC skips {_names(wide)}: a factor is wider than widest={widest}")
    if other:
        sentences.append(
            f"K-FAC knows no factors of {_names(other)}, which keep their plain gradient"
        )
    return result, sentences


def _layer(name: str, part: nn.Module) -> Layer | None:
    # The exact classes: one that is derived may pad or normalise otherwise.
    if type(part) is nn.Linear:
        return Linear(name, part)
    if type(part) in _CONVS and not isinstance(part.padding, str):
        return Conv(name, part) if part.padding_mode == "zeros" else None
    return BatchNorm(name, part) if type(part) in _NORMS else None


def _names(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
