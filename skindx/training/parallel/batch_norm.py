"""Changes of a network by the engine's settings; batch norm as one process would do it."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from skindx.core.errors import UserError
from skindx.core.startup import light_imports, never_compiled
from skindx.training.config.engine import EngineSettings
from skindx.training.parallel.mesh import Mesh

with light_imports():
    from timm.layers import BatchNormAct2d

# C = channels


def average_buffers(module: nn.Module, mesh: Mesh) -> None:
    """Average batch-norm statistics over the ranks, which each saw their own share only.

    Shares of a step differ by one image at most, so that all ranks weigh the same.
    """
    if mesh.data.size == 1:
        return
    buffers = [buffer for buffer in module.buffers() if buffer.is_floating_point()]
    if not buffers:
        return
    flat = torch.cat([buffer.reshape(-1).float() for buffer in buffers])
    dist.all_reduce(flat)
    flat /= mesh.data.size
    offset = 0
    for buffer in buffers:
        buffer.copy_(flat[offset : offset + buffer.numel()].view_as(buffer))
        offset += buffer.numel()


def statistics_over_ranks(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean_C, variance_C and the count of x_NC... on all ranks; every rank calls this."""
    count = x.numel() // x.shape[1]
    variance_C, mean_C = torch.var_mean(x.float(), [0, *range(2, x.ndim)], correction=0)
    local = torch.cat([mean_C, variance_C, mean_C.new_tensor([count])])
    ranks = local.new_empty(dist.get_world_size(), len(local))
    dist.all_gather(list(ranks.unbind()), local)
    means_RC, variances_RC = ranks[:, : len(mean_C)], ranks[:, len(mean_C) : -1]
    total = ranks[:, -1].sum()
    share_R1 = ranks[:, -1:] / total
    # Chan et al. 1983: no difference of large squares, unlike E[x^2] - E[x]^2.
    mean_C = (share_R1 * means_RC).sum(0)
    variance_C = (share_R1 * (variances_RC + (means_RC - mean_C).square())).sum(0)
    return mean_C, variance_C, total


class _Normalise(torch.autograd.Function):
    """Normalise by mean and variance over the images of all ranks, however many each has."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        mean_C, variance_C, total = statistics_over_ranks(x)
        ctx.save_for_backward(x, weight, mean_C, variance_C, total)
        ctx.eps = eps
        y = nn.functional.batch_norm(x, mean_C, variance_C, weight, bias, eps=eps)
        ctx.mark_non_differentiable(mean_C, variance_C, total)
        return y, mean_C, variance_C, total

    @staticmethod
    def backward(ctx: Any, dy: Tensor, *_: Tensor) -> Any:
        x, weight, mean_C, variance_C, total = ctx.saved_tensors
        shape = [1, -1, *[1] * (x.ndim - 2)]
        over = [0, *range(2, x.ndim)]
        dy_float, centred = dy.float(), x.float() - mean_C.view(shape)
        inverse_C = (variance_C + ctx.eps).rsqrt()
        local_bias_C = dy_float.sum(over)
        local_weight_C = (dy_float * centred).sum(over) * inverse_C
        sums = torch.stack([local_bias_C, local_weight_C])
        dist.all_reduce(sums)
        bias_mean_C, weight_mean_C = sums / total
        dx = dy_float - bias_mean_C.view(shape)
        dx -= centred * (inverse_C * weight_mean_C).view(shape)
        dx *= (weight * inverse_C).view(shape)
        # The engine adds up these two over the ranks, as it does for every weight.
        return dx.to(x.dtype), local_weight_C, local_bias_C, None


@never_compiled
def _over_ranks(norm: _BatchNorm, x: Tensor) -> Tensor:
    """Normalise `x`, and move the running statistics towards those of all ranks."""
    assert norm.momentum is not None
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert norm.num_batches_tracked is not None
    norm.num_batches_tracked.add_(1)
    y: Tensor
    y, mean_C, variance_C, total = _Normalise.apply(x, norm.weight, norm.bias, norm.eps)
    with torch.no_grad():
        norm.running_mean.lerp_(mean_C, norm.momentum)
        norm.running_var.lerp_(variance_C * (total / (total - 1)), norm.momentum)
    return y


class _Synchronised(_BatchNorm):
    def forward(self, x: Tensor) -> Tensor:
        return _over_ranks(self, x) if self.training else super().forward(x)

    def _check_input_dim(self, x: Tensor) -> None:
        """Accept any number of spatial dimensions."""


class _SynchronisedAct(BatchNormAct2d):  # type: ignore[misc]
    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)  # type: ignore[no-any-return]
        return self.act(self.drop(_over_ranks(self, x)))  # type: ignore[no-any-return]


_SYNCHRONISED: dict[type[nn.Module], type[nn.Module]] = {
    nn.BatchNorm1d: _Synchronised,
    nn.BatchNorm2d: _Synchronised,
    nn.BatchNorm3d: _Synchronised,
    BatchNormAct2d: _SynchronisedAct,
}


def synchronise(module: nn.Module) -> None:
    """Let every affine batch norm of `module` use the images of all ranks (CPU and GPU).

    The modules stay where they are, with their weights and names: only their class changes. Norms
    of other classes (a group norm, one without statistics or weights) are left alone.
    """
    for layer in module.modules():
        known = _SYNCHRONISED.get(type(layer))
        if known and layer.affine and layer.track_running_stats and layer.momentum is not None:
            layer.__class__ = known


def is_synchronised(norm: nn.Module) -> bool:
    """True for a batch norm that `synchronise` has changed."""
    return isinstance(norm, _Synchronised | _SynchronisedAct)


def count_once(module: nn.Module) -> None:
    """Keep batch norms from taking a batch into their running statistics twice.

    Activation checkpointing runs the forward pass again inside the backward pass.
    """
    for layer in module.modules():
        if (
            isinstance(layer, _BatchNorm)
            and layer.track_running_stats
            and layer.momentum is not None
        ):
            _Once(layer)


class _Once:
    """Holds a norm's running statistics while its forward pass runs inside a backward pass.

    A momentum of zero does; without the statistics themselves the pass would save other tensors
    than the first time, which torch refuses.
    """

    def __init__(self, norm: _BatchNorm) -> None:
        self.momentum = norm.momentum
        norm.register_forward_pre_hook(self)

    def __call__(self, norm: nn.Module, _inputs: object) -> None:
        assert isinstance(norm, _BatchNorm)
        again = torch._C._current_graph_task_id() != -1  # inside a backward pass
        norm.momentum = 0.0 if again else self.momentum
        if again:
            assert norm.num_batches_tracked is not None
            norm.num_batches_tracked.sub_(1)  # the pass adds one


def prepare(module: nn.Module, settings: EngineSettings, world: int) -> None:
    """Change `module` in place; names and values of its weights stay the same.

    Raises UserError when timm cannot checkpoint the activations of this network.
    """
    if settings.sync_batch_norm and world > 1:
        synchronise(module)
    if settings.activation_checkpointing:
        checkpoint_activations(module)
        count_once(module)
    if settings.compile:
        module.compile()


def checkpoint_activations(module: nn.Module) -> None:
    """Switch on timm's own checkpointing. Raises UserError for a network that has none."""
    net: Any = getattr(module, "net", module)
    try:
        net.set_grad_checkpointing(True)
    except (AttributeError, AssertionError):
        raise UserError(
            f"a network of the type {type(net).__name__} cannot recompute its activations; set "
            "engine.activation_checkpointing=false, or choose another model."
        ) from None
