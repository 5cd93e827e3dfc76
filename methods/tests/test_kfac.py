"""K-FAC in one process: its factors, its update and its limits against explicit matrices."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from plain_engine import Alone
from timm.layers import BatchNormAct2d, Conv2dSame
from torch import Tensor, nn
from torch.nn import functional

from skindx.training.tasks.losses import LogitAdjustedLoss, SmoothedCrossEntropy, drawn_loss
from skindx_methods.kfac import layers
from skindx_methods.kfac.eigen import decompose, precondition
from skindx_methods.kfac.kfac import Kfac
from skindx_methods.kfac.kfac_settings import KfacSettings
from skindx_methods.kfac.layers import INSIDE, OUTSIDE

PLAIN = KfacSettings(fisher="empirical", damping=0.02, kl_clip=0, negligible=0)

# N = images, G = outputs of a block, A = inputs of a block


def _conv(of: type[nn.Conv2d] = nn.Conv2d, **changes: object) -> nn.Module:
    return of(**{"in_channels": 4, "out_channels": 6, "kernel_size": 3, **changes})  # type: ignore[arg-type]


KINDS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(5, 4), (5,)),
    "linear without bias": (lambda: nn.Linear(5, 4, bias=False), (5,)),
    "linear on tokens": (lambda: nn.Linear(5, 4), (7, 5)),
    "convolution": (lambda: _conv(padding=1), (4, 5, 6)),
    "strided, dilated, no bias": (
        lambda: _conv(stride=2, dilation=2, padding=(2, 1), bias=False),
        (4, 7, 6),
    ),
    "padded by the image's size": (lambda: _conv(Conv2dSame, stride=2), (4, 6, 5)),
    "pointwise": (lambda: _conv(kernel_size=1, stride=2), (4, 5, 6)),
    "grouped": (lambda: _conv(groups=2, padding=1), (4, 4, 4)),
    "depthwise": (lambda: _conv(out_channels=4, groups=4, bias=False), (4, 5, 5)),
    "depthwise, multiplied": (lambda: _conv(out_channels=8, groups=4), (4, 4, 4)),
}


def _made(kind: str, images: int) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(3)
    make, shape = KINDS[kind]
    return make(), torch.randn(images, *shape)


def _loss(outputs: Tensor) -> Tensor:
    """A loss whose gradient differs at every output."""
    weights = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(5))
    return (weights * outputs + 0.1 * outputs.square()).sum()


def one_step(
    module: nn.Module,
    inputs: Tensor,
    settings: KfacSettings = PLAIN,
    loss: Callable[[Tensor], Tensor] = _loss,
    rate: float = 0.1,
    pieces: int = 1,
    draw: Callable[[Tensor, torch.Generator], Tensor] | None = None,
    peak_rate: float = 0.0,
) -> tuple[Kfac, list[Tensor]]:
    """Backward of the mean loss, and the update; return the gradients from before it."""
    kfac = Kfac(settings, module, Alone(), draw=draw, peak_rate=peak_rate)
    for part in inputs.tensor_split(pieces):
        kfac.forward(len(part))
        outputs = module(part)
        kfac.backward(1 / len(inputs))
        (loss(outputs) / len(inputs)).backward()
    before = [weight.grad.clone() for weight in module.parameters()]
    kfac.apply(rate)
    kfac.close()
    return kfac, before


def _rows(module: nn.Module, inputs: Tensor, block: int) -> Tensor:
    """Return what one image's positions send into a block: (positions, A)."""
    if isinstance(module, nn.Linear):
        rows = inputs.reshape(-1, inputs.shape[-1])
    else:
        assert isinstance(module, nn.Conv2d)
        width = module.in_channels // module.groups
        own = inputs[block * width : (block + 1) * width]
        down, across = module.padding
        own = functional.pad(own, (across, across, down, down))
        if isinstance(module, Conv2dSame):
            own = functional.pad(own, (1, 1, 0, 1))  # 6 x 5 pixels to 7 x 7: 3 x 3 patches
        rows = []
        (high, wide), step, apart = module.kernel_size, module.stride, module.dilation
        for y in range(0, own.shape[1] - apart[0] * (high - 1), step[0]):
            for x in range(0, own.shape[2] - apart[1] * (wide - 1), step[1]):
                patch = own[
                    :, y : y + apart[0] * high : apart[0], x : x + apart[1] * wide : apart[1]
                ]
                rows.append(patch[:, :high, :wide].reshape(-1))
        rows = torch.stack(rows)
    ones = [rows.new_ones(len(rows), 1)] if module.bias is not None else []
    return torch.cat([rows, *ones], dim=1).double()


def _explicit(
    module: nn.Module, inputs: Tensor, gradient: Tensor, block: int, blocks: int
) -> tuple[Tensor, Tensor]:
    """Return A and G of a block by their definition, image by image."""
    inside, outside = 0.0, 0.0
    for image, of_image in zip(inputs, gradient, strict=True):
        rows = _rows(module, image, block)
        channels = (
            of_image.reshape(-1, of_image.shape[-1]).T
            if isinstance(module, nn.Linear)
            else of_image.flatten(1)
        )
        width = len(channels) // blocks
        own = channels[block * width : (block + 1) * width].double()
        inside = inside + rows.T @ rows / len(inputs)
        outside = outside + own @ own.T / len(rows) / len(inputs)
    return torch.as_tensor(inside), torch.as_tensor(outside)


def _matrix(parts: list[Tensor], block: int, blocks: int) -> Tensor:
    """Return (weight, bias) gradients of a block as one matrix (G, A)."""
    own = [part.chunk(blocks)[block].reshape(len(part) // blocks, -1) for part in parts]
    return torch.cat(own, dim=1).double()


@pytest.mark.parametrize("images", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_the_update_is_the_explicit_inverse_of_the_kronecker_product(
    kind: str, images: int
) -> None:
    module, inputs = _made(kind, images)
    outputs = module(inputs)
    (gradient,) = torch.autograd.grad(_loss(outputs), outputs)
    _, before = one_step(module, inputs)
    blocks = getattr(module, "groups", 1)
    after = [weight.grad for weight in module.parameters()]
    for block in range(blocks):
        inside, outside = _explicit(module, inputs, gradient, block, blocks)
        whole = torch.kron(outside, inside)
        plain = _matrix(before, block, blocks)
        expected = torch.linalg.solve(
            whole + PLAIN.damping * torch.eye(len(whole)), plain.flatten()
        )
        found = _matrix(after, block, blocks).flatten()
        assert (found - expected).norm() < 1e-3 * expected.norm()


@pytest.mark.parametrize("kind", ["linear", "linear without bias", "convolution", "grouped"])
def test_for_one_image_at_one_position_it_is_the_dense_fisher_matrix(kind: str) -> None:
    """The gradient alone says what the Fisher matrix is: its outer product."""
    module, _ = _made(kind, 1)
    if isinstance(module, nn.Conv2d):
        module.padding = (0, 0)
    inputs = torch.randn(1, *((4, 3, 3) if isinstance(module, nn.Conv2d) else (5,)))
    _, before = one_step(module, inputs)
    after = [weight.grad for weight in module.parameters()]
    blocks = getattr(module, "groups", 1)
    for block in range(blocks):
        plain = _matrix(before, block, blocks).flatten()
        dense = torch.outer(plain, plain) + PLAIN.damping * torch.eye(len(plain))
        expected = torch.linalg.solve(dense, plain)
        found = _matrix(after, block, blocks).flatten()
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=2e-4)


class _Plain(nn.Module):
    """One layer behind which something overwrites its output, as activations do."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, inputs: Tensor) -> Tensor:
        return functional.relu(self.layer(inputs), inplace=True)


@pytest.mark.parametrize("learned", [True, False])
@pytest.mark.parametrize("act", [True, False])
def test_a_batch_norm_has_the_2_x_2_fisher_matrix_of_each_channel(act: bool, learned: bool) -> None:
    """With fixed statistics each image's own gradient says it."""
    torch.manual_seed(0)
    norm: nn.Module = BatchNormAct2d(3) if act else nn.BatchNorm2d(3)
    nn.init.normal_(norm.weight, 1.0, 0.3)
    norm.bias.requires_grad_(learned)
    norm.running_mean.normal_()
    module = norm if act else _Plain(norm)
    inputs = torch.randn(5, 3, 4, 4)
    norm.eval()
    parts = [weight for weight in (norm.weight, norm.bias) if weight.requires_grad]
    fisher = torch.zeros(3, len(parts), len(parts))
    weights = torch.randn(5, 3, 4, 4)
    for at in range(5):
        outputs = module(inputs[at : at + 1])
        own = torch.autograd.grad((weights[at : at + 1] * outputs).sum(), parts)
        vectors = torch.stack(own, dim=1)
        fisher += vectors[:, :, None] * vectors[:, None, :] / 5
    kfac = Kfac(PLAIN, module, Alone(), draw=None)
    kfac.forward(5)
    outputs = module(inputs)
    kfac.backward(0.2)
    (0.2 * (weights * outputs).sum()).backward()
    before = torch.stack([weight.grad for weight in parts], dim=1)
    kfac.apply(0.1)
    name = kfac.layers[0].name
    torch.testing.assert_close(kfac.factors.averages[name, INSIDE], fisher, rtol=1e-4, atol=1e-5)
    expected = torch.linalg.solve(fisher + PLAIN.damping * torch.eye(len(parts)), before)
    after = torch.stack([weight.grad for weight in parts], dim=1)
    torch.testing.assert_close(after, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("saved", [True, False])
def test_a_batch_norm_in_training_uses_the_statistics_of_its_batch(
    saved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one image its gradient is the whole one, so that the factor is its outer product."""
    if saved:  # by the forward pass: they are not computed again
        monkeypatch.delattr(torch, "var_mean")
    else:
        monkeypatch.setattr(layers, "_SAVES_STATISTICS", ())
    torch.manual_seed(0)
    module = _Plain(nn.BatchNorm2d(3))
    kfac, (of_scale, of_shift) = one_step(module, torch.randn(1, 3, 4, 4))
    vectors = torch.stack([of_scale, of_shift], dim=1)
    expected = vectors[:, :, None] * vectors[:, None, :]
    torch.testing.assert_close(
        kfac.factors.averages["layer", INSIDE], expected, rtol=1e-4, atol=1e-5
    )


def small_net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, bias=False),
        nn.BatchNorm2d(4).eval(),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 4, 3, groups=4),
        nn.Flatten(),
        nn.Linear(4 * 4, 3),
    )


def _flat(parts: list[Tensor]) -> Tensor:
    return torch.cat([part.flatten() for part in parts])


def _cosine(first: Tensor, second: Tensor) -> float:
    return float(functional.cosine_similarity(first, second, dim=0))


def test_much_damping_leaves_the_direction_of_gradient_descent() -> None:
    found = []
    for damping in (1e-3, 1e7):
        net = small_net()
        settings = PLAIN.model_copy(update={"damping": damping, "kl_clip": 0.001})
        _, before = one_step(net, torch.randn(6, 3, 6, 6, generator=torch.manual_seed(2)), settings)
        after = _flat([weight.grad for weight in net.parameters()])
        found.append(_cosine(_flat(before), after))
    assert found[0] < 0.9
    assert found[1] > 1 - 1e-5


def test_linear_least_squares_is_solved_inone_step() -> None:
    """Its output's Fisher matrix is one: drawn errors are the columns of an orthogonal matrix."""
    torch.manual_seed(0)
    net, inputs = nn.Linear(4, 3), torch.randn(60, 4)
    targets = inputs @ torch.randn(4, 3) + 0.1 * torch.randn(60, 3)
    errors = (3**0.5) * torch.eye(3).repeat(20, 1)[torch.randperm(60)]
    kfac, _ = one_step(
        net,
        inputs,
        KfacSettings(fisher="sampled", damping=1e-7, kl_clip=0),
        loss=lambda outputs: (outputs - targets).square().sum() / 2,
        draw=lambda outputs, _: (outputs * errors).sum(),
    )
    torch.testing.assert_close(kfac.factors.averages["", OUTSIDE][0], torch.eye(3))
    with torch.no_grad():
        for weight in net.parameters():
            weight.sub_(weight.grad)
    rows = torch.cat([inputs, torch.ones(60, 1)], dim=1)
    solved = torch.linalg.lstsq(rows, targets).solution.T
    torch.testing.assert_close(net.weight, solved[:, :4], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(net.bias, solved[:, 4], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("fisher", ["sampled", "empirical"])
def test_watching_changes_no_gradient(fisher: str) -> None:
    draw = drawn_loss(SmoothedCrossEntropy(torch.ones(3), 0.0)) if fisher == "sampled" else None
    inputs, plain = torch.randn(6, 3, 6, 6), small_net()
    (_loss(plain(inputs)) / 6).backward()
    settings = PLAIN.model_copy(update={"fisher": fisher})
    _, before = one_step(small_net(), inputs, settings, draw=draw)
    for found, weight in zip(before, plain.parameters(), strict=True):
        torch.testing.assert_close(found, weight.grad)


@pytest.mark.parametrize("tau", [0.0, 1.0])
def test_labels_are_drawn_from_the_network_s_own_output(tau: float) -> None:
    """Over many draws the gradients' second moment is that of the softmax: diag(p) - p p^T.

    It is the softmax that the loss trains, after its shift by the prior.
    """
    prior = torch.tensor([0.6, 0.2, 0.15, 0.05])
    weights, logits = torch.ones(4), torch.randn(1, 4, generator=torch.manual_seed(0))
    many = logits.repeat(40_000, 1).requires_grad_()
    criterion = LogitAdjustedLoss(weights, 0.1, tau, prior)
    loss = drawn_loss(criterion if tau else SmoothedCrossEntropy(weights, 0.1))
    (gradient,) = torch.autograd.grad(loss(many, torch.Generator()), many)
    p = torch.softmax(logits[0] + tau * prior.log(), 0)
    exact = torch.diag(p) - torch.outer(p, p)
    torch.testing.assert_close(gradient.T @ gradient / 40_000, exact, rtol=0, atol=0.01)


def test_pieces_of_a_step_bring_what_the_whole_brings() -> None:
    inputs = torch.randn(7, 3, 6, 6)
    weights = torch.randn(3)
    whole, pieces = (
        one_step(small_net(), inputs, loss=lambda y: (y.square() * weights).sum(), pieces=count)[0]
        for count in (1, 3)
    )
    for key, factor in whole.factors.averages.items():
        torch.testing.assert_close(pieces.factors.averages[key], factor, rtol=1e-4, atol=1e-6)


def test_the_kl_clip_bounds_the_step_in_the_fisher_metric() -> None:
    inputs, rate = torch.randn(6, 3, 6, 6), 0.5
    lengths = []
    for clip in (0.0, 0.001):
        net = small_net()
        settings = PLAIN.model_copy(update={"kl_clip": clip})
        _, before = one_step(net, inputs, settings, rate=rate)
        after = _flat([weight.grad for weight in net.parameters()])
        lengths.append((float(_flat(before) @ after), after))
    (free, unclipped), (_, clipped) = lengths
    expected = min(1.0, (0.001 / (rate**2 * free)) ** 0.5)
    assert expected < 1
    torch.testing.assert_close(clipped, unclipped * expected, rtol=1e-4, atol=1e-7)


def test_where_the_clip_is_at_work_steps_still_follow_the_schedule() -> None:
    """The clip bounds the step at the peak; half the rate then makes half the step."""
    inputs = torch.randn(6, 3, 6, 6)
    settings = PLAIN.model_copy(update={"kl_clip": 1e-4})
    peak = 0.5
    moved = []
    for rate, largest in ((peak, 0.0), (peak, peak), (peak / 2, peak)):
        net = small_net()
        one_step(net, inputs, settings, rate=rate, peak_rate=largest)
        moved.append(rate * _flat([weight.grad for weight in net.parameters()]))
    alone, at_peak, later = moved
    torch.testing.assert_close(alone, at_peak)
    torch.testing.assert_close(later, at_peak / 2)


def test_preconditioning_by_hand() -> None:
    """A = diag(4, 1), G = diag(2, 3), damping 1: each entry is divided by v_G v_A + 1."""
    inside = decompose(torch.diag(torch.tensor([4.0, 1.0]))[None], 1.0)
    outside = decompose(torch.diag(torch.tensor([2.0, 3.0]))[None], 1.0)
    assert inside is not None
    found = precondition(torch.ones(1, 2, 2), inside, outside, 1.0)
    expected = [[[1 / 9, 1 / 3], [1 / 13, 1 / 4]]]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_enough_rows_are_taken_of_the_first_images(kind: str) -> None:
    """A factor of few images is that of a batch of them alone; there are an eighth at least."""
    module, inputs = _made(kind, 24)
    few = _rows(module, inputs[0], 0).shape[0] * 5
    for rows, images in ((few, 5), (1, 3), (few * 100, 24)):
        thinned, _ = one_step(module, inputs, PLAIN.model_copy(update={"factor_rows": rows}))
        for weight in module.parameters():
            weight.grad = None
        alone, _ = one_step(
            module, inputs[:images], PLAIN.model_copy(update={"factor_rows": 0}), loss=_square
        )
        for weight in module.parameters():
            weight.grad = None
        inside = alone.factors.averages["", INSIDE]
        torch.testing.assert_close(thinned.factors.averages["", INSIDE], inside)


def test_gradients_are_taken_of_the_same_images_as_inputs() -> None:
    net = small_net()
    inputs = torch.randn(24, 3, 6, 6, generator=torch.manual_seed(0))
    factors = [
        one_step(small_net(), part, PLAIN.model_copy(update={"factor_rows": rows}), loss=_square)[
            0
        ].factors.averages
        for part, rows in ((inputs, 1), (inputs[:3], 0))
    ]
    for key, factor in factors[1].items():
        torch.testing.assert_close(factors[0][key], factor, rtol=1e-4, atol=1e-6)
    assert len(factors[1]) == 7, list(net.children())


def _square(outputs: Tensor) -> Tensor:
    """A loss in which an image's gradient does not depend on the others."""
    return 0.1 * outputs.square().sum()
