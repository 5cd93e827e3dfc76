"""Layers that K-FAC knows: their Kronecker factors, and their gradient as matrices.

A layer is a stack of S blocks that share nothing: one for a linear layer or a convolution, one a
group for a grouped convolution, one a channel for a batch norm. Each block has a Fisher matrix
A kron G, with A of what goes in and G of the gradient at what comes out.
"""

# N = images, R = rows of a linear layer (images x positions), T = positions of an image,
# C = channels, L = patches, S = blocks, A = inputs of a block (bias included), G = its outputs

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from skindx.gemm.product import Multiply, plain_nt
from skindx.training.parallel.batch_norm import is_synchronised, statistics_over_ranks

Sums = dict[str, Tensor]
"""Sums over images, by factor (INSIDE, OUTSIDE)."""

INSIDE, OUTSIDE = "inside", "outside"

_CHUNK_BYTES = 64 * 2**20
"""Patches of a convolution are spread out for so many images at once."""


class Layer(ABC):
    """A module with weights that K-FAC preconditions."""

    def __init__(self, name: str, module: nn.Module) -> None:
        self.name, self.module = name, module
        self.multiply: Multiply = plain_nt
        """How its factors are made of rows: A B^T."""

    @property
    @abstractmethod
    def shapes(self) -> Mapping[str, tuple[int, int]]:
        """Blocks and width of each factor; one without OUTSIDE has G = 1."""

    @abstractmethod
    def observe(self, inputs: Tensor, images: int) -> tuple[Sums, Callable[[Tensor], Sums]]:
        """Return what the inputs of `images` images add to the factors.

        With it comes what makes the rest from the gradient at the outputs, taken of the sum of the
        images' losses.
        """

    def gradient(self) -> Tensor | None:
        """Return the gradient_SGA of weight and bias, copied; None where there is none."""
        weight, bias = self._parts()
        if weight.grad is None:
            return None
        blocks = self._blocks()
        rows_SGA = weight.grad.reshape(*blocks, -1).float()
        if bias is not None and bias.grad is not None:
            return torch.cat([rows_SGA, bias.grad.reshape(*blocks, 1).float()], dim=2)
        return rows_SGA.clone()

    def set_gradient(self, gradient_SGA: Tensor) -> None:
        """Write a matrix as that of `gradient` into weight and bias."""
        weight, bias = self._parts()
        assert weight.grad is not None
        width = gradient_SGA.shape[2]
        if bias is not None and bias.grad is not None:
            width -= 1
            bias.grad.copy_(gradient_SGA[:, :, width].reshape(bias.shape))
        weight.grad.copy_(gradient_SGA[:, :, :width].reshape(weight.shape))

    def _parts(self) -> tuple[Tensor, Tensor | None]:
        weight, bias = self.module.weight, self.module.bias
        assert isinstance(weight, Tensor)
        return weight, bias if isinstance(bias, Tensor) and bias.requires_grad else None

    def _blocks(self) -> tuple[int, int]:
        """Return blocks and outputs of each."""
        blocks, width = self.shapes[OUTSIDE]
        return blocks, width

    def _gram(self, rows_SAR: Tensor) -> Tensor:
        return self.multiply(rows_SAR, rows_SAR)

    @property
    def _biased(self) -> int:
        return int(self._parts()[1] is not None)


class Linear(Layer):
    """A linear layer: A of inputs with a one behind them, G of gradients at the outputs.

    Where an image has T positions (tokens), A sums and G averages over them, as for convolutions.
    """

    @property
    def shapes(self) -> Mapping[str, tuple[int, int]]:
        """One block."""
        outputs, inputs = self._parts()[0].shape
        return {INSIDE: (1, inputs + self._biased), OUTSIDE: (1, outputs)}

    def observe(self, inputs: Tensor, images: int) -> tuple[Sums, Callable[[Tensor], Sums]]:
        """Multiply the rows with themselves."""
        rows_RA = inputs.detach().reshape(-1, inputs.shape[-1]).float()
        positions = len(rows_RA) / images
        inside = self._gram(_with_ones(rows_RA.T[None], self._biased))

        def outside(gradient: Tensor) -> Sums:
            rows_RG = gradient.reshape(-1, gradient.shape[-1]).float()
            return {OUTSIDE: self._gram(rows_RG.T[None]) / positions}

        return {INSIDE: inside}, outside


class Conv(Layer):
    """A convolution (KFC, Grosse and Martens 2016, arXiv 1602.01407, eq. 33).

    A sums over the patches of an image, G averages over its positions; each group is a block.
    """

    @property
    def shapes(self) -> Mapping[str, tuple[int, int]]:
        """One block a group."""
        weight, _ = self._parts()
        groups = self._conv.groups
        inside = weight[0].numel() + self._biased
        return {INSIDE: (groups, inside), OUTSIDE: (groups, len(weight) // groups)}

    def observe(self, inputs: Tensor, images: int) -> tuple[Sums, Callable[[Tensor], Sums]]:
        """Spread out the patches of some images at a time and multiply them with themselves."""
        blocks, width = self.shapes[INSIDE]
        inside = inputs.new_zeros(blocks, width, width, dtype=torch.float32)
        spread = inputs[0].numel() * self._conv.weight[0, 0].numel() * 4
        for part in torch.split(inputs.detach(), max(1, _CHUNK_BYTES // max(1, spread))):
            patches_NCL = self._patches(part.float())
            many, _, length = patches_NCL.shape
            rows = patches_NCL.view(many, blocks, -1, length).permute(1, 2, 0, 3)
            rows_SAR = rows.reshape(blocks, width - self._biased, many * length)
            inside += self._gram(_with_ones(rows_SAR, self._biased))

        def outside(gradient: Tensor) -> Sums:
            many, channels = gradient.shape[:2]
            rows = gradient.float().reshape(many, blocks, channels // blocks, -1)
            positions = rows.shape[3]
            rows_SGR = rows.permute(1, 2, 0, 3).reshape(blocks, channels // blocks, -1)
            return {OUTSIDE: self._gram(rows_SGR) / positions}

        return {INSIDE: inside}, outside

    @property
    def _conv(self) -> nn.Conv2d:
        assert isinstance(self.module, nn.Conv2d)
        return self.module

    def _patches(self, images_NCHW: Tensor) -> Tensor:
        conv = self._conv
        assert not isinstance(conv.padding, str)
        if conv.kernel_size == (1, 1) and not any(conv.padding):
            down, across = conv.stride
            return images_NCHW[:, :, ::down, ::across].flatten(2)
        return functional.unfold(
            images_NCHW, conv.kernel_size, conv.dilation, conv.padding, conv.stride
        )


class BatchNorm(Layer):
    """Scale and shift of a batch norm: for each channel its own 2 x 2 Fisher matrix, exactly.

    The gradient of an image by (scale, shift) is the sum over its positions of (g x, g), with x
    normalised by the statistics that the forward pass used.
    """

    @property
    def shapes(self) -> Mapping[str, tuple[int, int]]:
        """One block a channel; G is 1."""
        return {INSIDE: (len(self._parts()[0]), 1 + self._biased)}

    def _blocks(self) -> tuple[int, int]:
        return len(self._parts()[0]), 1

    def observe(self, inputs: Tensor, images: int) -> tuple[Sums, Callable[[Tensor], Sums]]:
        """Keep the statistics; all else waits for the gradient."""
        norm = self.module
        assert isinstance(norm, _BatchNorm)
        x_NCT = inputs.detach().flatten(2) if inputs.ndim > 2 else inputs.detach()[:, :, None]
        if not norm.training and norm.running_mean is not None and norm.running_var is not None:
            mean_C, variance_C = norm.running_mean.clone(), norm.running_var.clone()
        elif norm.training and is_synchronised(norm):
            mean_C, variance_C, _ = statistics_over_ranks(x_NCT)
        else:
            variance_C, mean_C = torch.var_mean(x_NCT.float(), (0, 2), correction=0)
        scale_C = (variance_C + norm.eps).rsqrt()

        def inside(gradient: Tensor) -> Sums:
            g_NCT = gradient.reshape(x_NCT.shape).float()
            shift_NC = g_NCT.sum(2)
            centred_NCT = x_NCT.float() - mean_C[:, None]
            parts = [(g_NCT * centred_NCT).sum(2) * scale_C, shift_NC][: 1 + self._biased]
            return {INSIDE: self._gram(torch.stack(parts).permute(2, 0, 1))}

        return {}, inside


def _with_ones(rows_SAR: Tensor, biased: int) -> Tensor:
    if not biased:
        return rows_SAR
    return torch.cat([rows_SAR, torch.ones_like(rows_SAR[:, :1])], dim=1)
