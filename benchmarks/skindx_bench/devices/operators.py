"""GEMM, convolution, attention and LSTM cell at growing sizes."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from skindx_bench.devices.measure import DTYPES, Case, Mode, Precision, Work

BACKWARD = 3
"""A forward and a backward pass do three times the forward pass's operations and moves: the
gradient of the input and of the weights each take as much as the output."""


def operator_cases(
    sizes: Sequence[int], precisions: Sequence[Precision], modes: Sequence[Mode]
) -> Iterator[Case]:
    """Yield the operators; a size is that of the GEMM, the others take theirs from it."""
    for name, make in OPERATORS.items():
        for size in sizes:
            for precision in precisions:
                for mode in modes:
                    if precision == "int8" and (mode == "training" or name != "gemm"):
                        continue  # torch has no gradients and no other operator of integers

                    def bind(
                        device: torch.device,
                        make: Maker = make,
                        size: int = size,
                        precision: Precision = precision,
                        mode: Mode = mode,
                    ) -> Work:
                        return make(size, precision, mode, device)

                    yield Case(f"{name}-{size}", precision, mode, "operator", bind)


Maker = Callable[[int, Precision, Mode, torch.device], Work]


def gemm(size: int, precision: Precision, mode: Mode, device: torch.device) -> Work:
    """Return the product of two square matrices of `size` rows."""
    if precision == "int8":
        left, right = (
            torch.randint(-8, 8, (size, size), dtype=torch.int8, device=device) for _ in range(2)
        )
        return Work(lambda: torch._int_mm(left, right), 1, 2.0 * size**3, 6.0 * size**2)
    a, b = _random((size, size), (size, size), precision=precision, device=device)
    moved = 3.0 * size**2 * a.element_size()
    return _work(torch.matmul, (a, b), mode, 1, 2.0 * size**3, moved)


def convolution(size: int, precision: Precision, mode: Mode, device: torch.device) -> Work:
    """Return 3 × 3 convolutions of 8 images, size/8 channels, 28 × 28 pixels."""
    images, channels, side = 8, max(8, size // 8), 28
    x, w = _random(
        (images, channels, side, side),
        (channels, channels, 3, 3),
        precision=precision,
        device=device,
    )

    def forward(x: Tensor, w: Tensor) -> Tensor:
        return torch.nn.functional.conv2d(x, w, padding=1)

    flops = 2.0 * images * side * side * channels * channels * 9
    moved = (2.0 * x.numel() + w.numel()) * x.element_size()
    return _work(forward, (x, w), mode, images, flops, moved)


def attention(size: int, precision: Precision, mode: Mode, device: torch.device) -> Work:
    """Return attention of 4 sequences of `size` places, 8 heads of 64."""
    sequences, heads, width = 4, 8, 64
    shape = (sequences, heads, size, width)
    q, k, v = _random(shape, shape, shape, precision=precision, device=device)
    flops = 4.0 * sequences * heads * size * size * width
    moved = 4.0 * q.numel() * q.element_size()
    return _work(
        torch.nn.functional.scaled_dot_product_attention,
        (q, k, v),
        mode,
        sequences,
        flops,
        moved,
    )


def lstm_cell(size: int, precision: Precision, mode: Mode, device: torch.device) -> Work:
    """Return one step of an LSTM of `size` units on 64 sequences."""
    sequences = 64
    x, h, c, w_in, w_hidden = _random(
        (sequences, size),
        (sequences, size),
        (sequences, size),
        (4 * size, size),
        (4 * size, size),
        precision=precision,
        device=device,
    )

    def forward(x: Tensor, h: Tensor, c: Tensor, w_in: Tensor, w_hidden: Tensor) -> Tensor:
        gates = x @ w_in.T + h @ w_hidden.T
        enter, forget, new, leave = gates.chunk(4, dim=1)
        state = forget.sigmoid() * c + enter.sigmoid() * new.tanh()
        return leave.sigmoid() * state.tanh()

    flops = 2.0 * sequences * 4 * size * 2 * size
    moved = (8.0 * size * size + 5.0 * sequences * size) * x.element_size()
    return _work(forward, (x, h, c, w_in, w_hidden), mode, sequences, flops, moved)


OPERATORS: dict[str, Maker] = {
    "gemm": gemm,
    "convolution": convolution,
    "attention": attention,
    "lstm-cell": lstm_cell,
}
"""Operator -> its maker."""


def _random(
    *shapes: tuple[int, ...], precision: Precision, device: torch.device
) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    return tuple(
        (torch.randn(shape, generator=generator) * 0.1).to(device, DTYPES[precision])
        for shape in shapes
    )


def _work(  # noqa: PLR0917
    forward: Callable[..., Tensor],
    operands: tuple[Tensor, ...],
    mode: Mode,
    samples: int,
    flops: float,
    moved: float,
) -> Work:
    if mode == "inference":

        def infer() -> Tensor:
            with torch.no_grad():
                return forward(*operands)

        return Work(infer, samples, flops, moved)
    for operand in operands:
        operand.requires_grad_()
    gradient = torch.ones_like(forward(*operands))

    def train() -> object:
        return torch.autograd.grad(forward(*operands), operands, gradient)

    return Work(train, samples, BACKWARD * flops, BACKWARD * moved)
