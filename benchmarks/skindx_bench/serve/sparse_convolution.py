"""A convolution of torch that skips the zeros of ReLU (Shi and Chu 2017, arXiv 1704.07724).

Weights are packed once; NHWC in and out.
"""

import ctypes
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from skindx.core.compiled_loops import CppSource

PAPER = (
    "Sparse convolution | Shi and Chu, Speeding up Convolutional Neural Networks By "
    "Exploiting the Sparsity of Rectifier Units, arXiv 1704.07724, 2017 | "
    "benchmarks/tests/test_sparse_convolution.py | docs/measured/sparse.json"
)

SOURCE = CppSource(
    Path(__file__).with_name("convolution.cpp"), "sparse convolution", "convolutions stay dense"
)
_LINE = 64
"""Bytes of a line of the cache."""

# N = images, C = input channels, K = output channels

_FIELDS = (
    *("images", "height", "width", "channels", "out_height", "out_width", "out_channels"),
    *("first_in", "first_out", "own_in", "own_out", "kernel_height", "kernel_width", "stride"),
    *("pad_y", "pad_x", "relu", "threads"),
)


class _Shape(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_int64) for name in _FIELDS)


def fits(convolution: nn.Conv2d) -> bool:
    """Return whether the kernel computes such a layer: 1 x 1 and 3 x 3, strides 1 and 2."""
    return (
        convolution.kernel_size in ((1, 1), (3, 3))
        and convolution.stride in ((1, 1), (2, 2))
        and convolution.dilation == (1, 1)
        and convolution.padding_mode == "zeros"
        and not isinstance(convolution.padding, str)
        # Depthwise layers have one input channel a group: there is nothing to skip in it.
        and convolution.in_channels // convolution.groups >= 16
    )


class SparseConvolution:
    """One layer, with bias and perhaps ReLU; without a compiler it computes densely."""

    def __init__(self, convolution: nn.Conv2d, *, relu: bool = False, threads: int = 1) -> None:
        """Pack the weights of a layer that `fits`. Raises ValueError for another one."""
        if not fits(convolution):
            raise ValueError(f"no kernel for {convolution}")
        self.dense = convolution
        self.relu = relu
        self.threads = threads
        kernel = SOURCE.kernel()
        self._library = kernel.library if kernel else None
        self._weights: list[NDArray[np.float32]] = []
        if self._library is None:
            return
        self._library.block_channels.restype = ctypes.c_int64
        self._library.input_block.restype = ctypes.c_int64
        sweeps = convolution.kernel_size == (3, 3) and convolution.stride == (1, 1)
        sweeps = sweeps and int(convolution.padding[1]) == 1
        blocks = (self._library.block_channels(ctypes.c_int64(sweeps)), self._library.input_block())
        outputs = convolution.out_channels // convolution.groups
        weight_KCHW = convolution.weight.detach().float().numpy()
        self._weights = [
            _packed(weight_KCHW[first : first + outputs], *blocks)
            for first in range(0, convolution.out_channels, outputs)
        ]
        bias = convolution.bias
        self._bias_K: NDArray[np.float32] = (
            np.zeros(convolution.out_channels, np.float32)
            if bias is None
            else bias.detach().float().numpy().copy()
        )

    @property
    def compiled(self) -> bool:
        """Whether zeros are skipped; otherwise torch computes."""
        return self._library is not None

    @torch.inference_mode()
    def __call__(self, input_NCHW: Tensor) -> Tensor:
        """Return what the layer returns, in channels-last memory; fp32 on the CPU."""
        if self._library is None:
            dense_NKHW: Tensor = self.dense(input_NCHW)
            return dense_NKHW.relu() if self.relu else dense_NKHW
        layer = self.dense
        input_NHWC = input_NCHW.permute(0, 2, 3, 1).contiguous()
        images, height, width, channels = input_NHWC.shape
        pad_y, pad_x = (int(pad) for pad in layer.padding)
        kernel, stride = layer.kernel_size[0], layer.stride[0]
        out_height = (height + 2 * pad_y - kernel) // stride + 1
        out_width = (width + 2 * pad_x - kernel) // stride + 1
        output_NHWK = torch.empty((images, out_height, out_width, layer.out_channels))
        group_in, group_out = channels // layer.groups, layer.out_channels // layer.groups
        for group, weights in enumerate(self._weights):
            shape = _Shape(
                *(images, height, width, channels),
                *(out_height, out_width, layer.out_channels),
                *(group * group_in, group * group_out, group_in, group_out),
                *(kernel, kernel, stride, pad_y, pad_x),
                *(int(self.relu), self.threads),
            )
            self._library.convolve(
                ctypes.c_void_p(input_NHWC.data_ptr()),
                ctypes.c_void_p(weights.ctypes.data),
                ctypes.c_void_p(self._bias_K[group * group_out :].ctypes.data),
                ctypes.c_void_p(),
                ctypes.c_void_p(output_NHWK.data_ptr()),
                ctypes.byref(shape),
            )
        return output_NHWK.permute(0, 3, 1, 2)


def _packed(weight_KCHW: NDArray[np.float32], out: int, into: int) -> NDArray[np.float32]:
    """Return [K / out][C / into][kh][into][kw][out], filled up with zeros."""
    outs, ins, height, width = weight_KCHW.shape
    filled = np.zeros((-(-outs // out) * out, -(-ins // into) * into, height, width), np.float32)
    filled[:outs, :ins] = weight_KCHW
    split = filled.reshape(len(filled) // out, out, -1, into, height, width)
    ordered = split.transpose(0, 2, 4, 3, 5, 1)
    # A vector that lies across two lines of the cache takes two loads.
    room = np.empty(ordered.size + _LINE // 4, np.float32)
    first = -room.ctypes.data % _LINE // 4
    aligned = room[first : first + ordered.size].reshape(ordered.shape)
    aligned[...] = ordered
    return aligned
