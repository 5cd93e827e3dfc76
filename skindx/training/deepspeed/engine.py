"""The only file that knows DeepSpeed: ranks, gradients and steps, the same on CPU and on GPUs.

One process a rank, started by DeepSpeed's launcher or by `torchrun`; a process that neither
started is a cluster of one.
"""

import logging
import os
import sys
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from skindx.comm import DenseSettings, Exchange, ExchangeSettings
from skindx.errors import UserError
from skindx.training.checkpoint.optimizer import load_named_state, named_state
from skindx.training.checkpoint.state import State
from skindx.training.deepspeed.config import deepspeed_config
from skindx.training.deepspeed.sharded import (
    discard,
    load_whole_state,
    load_whole_weights,
    whole_state,
)
from skindx.training.gradient_sync import build_exchanging
from skindx.training.parallel.mesh import Cluster
from skindx.training.parallel.preparing import prepare

_DENSE = DenseSettings()


class Engine:
    """A module under DeepSpeed: forward, backward with averaged gradients, step."""

    def __init__(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        cluster: Cluster,
        batch: int,
        *,
        exchange: ExchangeSettings = _DENSE,
        steps_per_epoch: int = 1,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        """Wrap `module`, already on the cluster's device; `batch` is the global batch.

        What the exchange finds out is told to `say`.
        """
        settings = cluster.settings
        self.cluster = cluster
        self.optimizer = optimizer
        # A module whose weights are shared out, or whose code is compiled, is evaluated as a copy.
        self._twin = deepcopy(module) if settings.zero == 3 or settings.compile else None
        prepare(module, settings, cluster.world)
        dense = isinstance(exchange, DenseSettings)
        # DeepSpeed's clipping waits for a GPU, and an exchange knows the norm already; only ZeRO
        # and a loss scale cannot do without.
        on_gpu = cluster.device.type == "cuda"
        self._clip = 0.0
        if (on_gpu or not dense) and settings.zero == 0 and settings.precision != "fp16":
            self._clip = settings.gradient_clip
            settings = settings.model_copy(update={"gradient_clip": 0.0})
        self._engine, *_ = import_deepspeed().initialize(
            model=module,
            optimizer=optimizer,
            config=deepspeed_config(settings, batch, cluster.world),
            dist_init_required=False,
        )
        if (cluster.world == 1 or not dense) and settings.zero == 0:
            # One rank has nothing to agree on: DeepSpeed would copy all gradients there and back.
            self._engine.enable_backward_allreduce = False
        if settings.channels_last:  # after DeepSpeed, which sends contiguous weights round
            module.to(memory_format=torch.channels_last)
        self._exchanging = build_exchanging(exchange, module, cluster, steps_per_epoch, say)

    def __call__(self, inputs: Tensor) -> Tensor:
        """Forward."""
        if self._exchanging and self._engine.training:
            self._exchanging.forward()
        outputs: Tensor = self._engine(inputs)
        return outputs

    @property
    def module(self) -> nn.Module:
        """The module as it was given; under ZeRO 3 its weights are elsewhere, see `whole`."""
        module: nn.Module = self._engine.module
        return module

    def train(self, mode: bool = True) -> None:
        """Switch between training and evaluation mode."""
        self._engine.train(mode)

    def backward(self, loss_sum: Tensor, global_count: int, *, last: bool = True) -> None:
        """Accumulate gradients of the mean loss over `global_count` samples of all ranks.

        `loss_sum` is this rank's sum. DeepSpeed averages over ranks, so that ranks with uneven
        shares would weigh their samples differently; dividing by the true count undoes that.
        A step may take several calls: `global_count` counts the samples of all of them, and
        `last` is False for all but the last one.
        """
        if self._exchanging:
            self._exchanging.backward(last=last)
        self._engine.set_gradient_accumulation_boundary(last)
        self._engine.backward(loss_sum * (self.cluster.world / global_count), scale_wrt_gas=False)

    def step(self, learning_rate: float) -> bool:
        """Update the weights and clear the gradients.

        False, on all ranks, when the step was not taken since the gradient is not finite.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate * group.get("lr_scale", 1.0)
        if not self._agreed():
            self.discard()
            return False
        self._engine.step()
        if self._exchanging:
            self._exchanging.step_done()
        return True

    def _agreed(self) -> bool:
        """Have the gradient that all ranks take, clipped; False when it is not finite."""
        if self._exchanging:
            return self._exchanging.finish(self._clip, self._scaler())
        if self._clip:
            nn.utils.clip_grad_norm_(self.module.parameters(), self._clip)
        if self.cluster.device.type == "cuda" or self.cluster.settings.zero:
            return True  # looking would wait for the GPU; the next loss tells
        gradients = [each.grad for each in self.module.parameters() if each.grad is not None]
        norms = torch.stack(torch._foreach_norm(gradients))
        return bool(norms.isfinite().all())

    @property
    def exchange(self) -> Exchange | None:
        """What each rank remembers of the exchange; None: DeepSpeed's own remembers nothing."""
        return self._exchanging.exchange if self._exchanging else None

    def average_buffers(self, module: nn.Module | None = None) -> None:
        """Average batch-norm statistics over the ranks, which each saw their own share only.

        Those of `module`, on the cluster's device, instead of the engine's own when it is given.
        Shares of a step differ by one picture at most, so that all ranks weigh the same.
        """
        if self.cluster.world == 1:
            return
        buffers = [e for e in (module or self.module).buffers() if e.is_floating_point()]
        if not buffers:
            return
        flat = torch.cat([each.reshape(-1).float() for each in buffers])
        dist.all_reduce(flat)
        flat /= self.cluster.world
        offset = 0
        for each in buffers:
            each.copy_(flat[offset : offset + each.numel()].view_as(each))
            offset += each.numel()

    def whole(self) -> nn.Module:
        """Return the module with all its weights, to evaluate and to save; every rank calls this.

        It is the module itself where that is whole and eager, else a copy that the next call
        overwrites, in the mode (training, evaluation) of the module.
        """
        if self._twin is None:
            return self.module
        self._twin.load_state_dict(self.full_state())
        return self._twin.train(self.module.training)

    def full_state(self) -> dict[str, Tensor]:
        """Return all weights and statistics; every rank calls this, and under ZeRO 3 gets copies.

        Elsewhere the tensors are the module's own, which the next step changes.
        """
        if self.cluster.settings.zero < 3:
            return self.module.state_dict()
        gathered = import_deepspeed().zero.GatheredParameters(list(self.module.parameters()))
        with gathered:
            return {name: value.clone() for name, value in self.module.state_dict().items()}

    def discard(self) -> None:
        """Drop the gradients that were accumulated: this step is not taken."""
        self._engine.zero_grad()
        if self._exchanging:
            self._exchanging.reducer.discard()
        if self.cluster.settings.zero:
            discard(self._engine.optimizer)

    def state_dict(self) -> State:
        """Return weights, optimizer state and loss scale, whole; every rank calls this.

        The same on every rank and for every ZeRO stage. Buffers are not in it: they differ by rank.
        """
        full = self.full_state()
        state: State = {"weights": {name: full[name] for name, _ in self.module.named_parameters()}}
        if self.cluster.settings.zero:
            utils, zero = import_deepspeed().utils, self._engine.optimizer
            state["optimizer"] = whole_state(utils, zero, self.module)
        else:
            state["optimizer"] = named_state(self.optimizer, self.module)
        if scaler := self._scaler():
            state["scaler"] = scaler.state_dict()
        return state

    def load_state_dict(self, state: State) -> None:
        """Go on from what `state_dict` returned, on any number of ranks; every rank calls this."""
        weights, deepspeed = state["weights"], import_deepspeed()
        zero = self.cluster.settings.zero
        with deepspeed.zero.GatheredParameters(
            list(self.module.parameters()), modifier_rank=0, enabled=zero == 3
        ):
            if zero < 3 or self.cluster.first:
                self.module.load_state_dict(weights, strict=False)
        if zero:
            load_whole_weights(deepspeed.utils, self._engine.optimizer, self.module, weights)
            load_whole_state(
                deepspeed.utils, self._engine.optimizer, self.module, state["optimizer"]
            )
        else:
            load_named_state(self.optimizer, self.module, state["optimizer"])
        if scaler := self._scaler():
            scaler.load_state_dict(state["scaler"])

    def _scaler(self) -> Any:
        """Return what scales the loss under fp16."""
        if self.cluster.settings.zero:
            return self._engine.optimizer.torch_autocast_gradscaler
        return self._engine.torch_autocast_z0_gradscaler

    def close(self) -> None:
        """Release the hooks that DeepSpeed and the exchange put on the module."""
        if self._exchanging:
            self._exchanging.close()
        self._engine.destroy()


def import_deepspeed() -> Any:
    """Return DeepSpeed. Raises UserError when it is not installed."""
    # DeepSpeed looks for ninja on PATH, where an environment that was not activated is not.
    programs = str(Path(sys.executable).parent)
    if programs not in os.environ.get("PATH", "").split(os.pathsep):
        os.environ["PATH"] = os.pathsep.join([programs, os.environ.get("PATH", "")])
    # On a machine without a GPU torch warns that it found none; `skindx doctor` says it better.
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    try:
        import deepspeed
    except ImportError:
        raise UserError(
            "training needs DeepSpeed, which is not installed; run `pip install 'skindx[train]'`."
        ) from None
    from deepspeed.utils import logger

    logger.setLevel(logging.ERROR)
    return deepspeed


def cpu_operator() -> Any:
    """Return the builder of the operator that DeepSpeed's CPU communication needs."""
    import_deepspeed()
    from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder

    return ShareMemCommBuilder()
