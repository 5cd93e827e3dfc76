"""A network under DeepSpeed: gradients and steps, the same on CPU and on GPUs.

One process a rank, started by DeepSpeed's launcher or by `torchrun`; a process that neither
started is a mesh of one rank. Under ZeRO an optimizer's state is saved whole, by parameter name:
it fits any stage and any number of ranks.
"""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from skindx.comm.dense import DenseSettings
from skindx.comm.exchange import Exchange
from skindx.comm.exchange_settings import ExchangeSettings
from skindx.core.state_checks import check_like
from skindx.training.checkpoint.saved_state import (
    GROUP_STEP,
    State,
    check_optimizer,
    check_weights,
    load_named_state,
    named_state,
    part_of,
    step_of,
    take_step,
    trained_parameters,
)
from skindx.training.config.engine import deepspeed_config
from skindx.training.deepspeed.ranks import import_deepspeed
from skindx.training.method import METHOD_STATE, PLAIN, Method, method_of
from skindx.training.parallel.batch_norm import prepare
from skindx.training.parallel.mesh import Mesh, Watch, is_lost

# `utils` is deepspeed.utils, `zero` the optimizer that DeepSpeed made; every rank calls these.


def _partitions(zero: Any) -> list[Tensor]:
    """Return this rank's flat parts of the weights, which the optimizer keeps its state for."""
    if hasattr(zero, "single_partition_of_fp32_groups"):  # stages 1 and 2
        return list(zero.single_partition_of_fp32_groups)
    return list(zero.fp32_partitioned_groups_flat)


def _link(zero: Any) -> None:
    """Tell the parameters where their state is (stages 1 and 2).

    DeepSpeed does so itself once, after its step on the first parameter group: those of the other
    groups then know of no state.
    """
    if hasattr(zero, "_lazy_init_hp_params_optimizer_state"):
        zero._hp_optimizer_states_linked = False
        zero._lazy_init_hp_params_optimizer_state()


def zero_state(utils: Any, zero: Any, module: nn.Module) -> State:
    """Gather what the optimizer keeps of each trained parameter; every rank gets all of it."""
    kept: dict[str, Any] = zero.optimizer.state.get(_partitions(zero)[0], {})
    state: State = {}
    if not kept:
        return state  # before the first step
    _link(zero)
    steps = step_of(zero.optimizer.param_groups[0])
    for name, parameter in trained_parameters(module):
        state[name] = steps | {
            key: utils.safe_get_full_optimizer_state(parameter, key).cpu()
            if isinstance(value, Tensor) and value.ndim
            else value
            for key, value in kept.items()
        }
    return state


def load_whole_state(utils: Any, zero: Any, module: nn.Module, state: State) -> None:
    """Undo `zero_state`: each rank takes its part."""
    if not state:
        return
    sample = next(iter(state.values()))
    for part in _partitions(zero):
        zero.optimizer.state[part] = {
            key: torch.zeros_like(part)
            if isinstance(value, Tensor) and value.ndim
            else _copied(value)
            for key, value in sample.items()
            if key != GROUP_STEP
        }
    for group in zero.optimizer.param_groups:
        take_step(group, [sample])
    _link(zero)
    for name, parameter in trained_parameters(module):
        for key, value in state[name].items():
            if isinstance(value, Tensor) and value.ndim:
                on_device = value.to(torch.float32).to(zero.device)
                if hasattr(parameter, "ds_id"):
                    part = _local_part(zero, parameter, on_device)
                    utils.safe_set_local_optimizer_state(parameter, part, key)
                else:
                    utils.safe_set_full_optimizer_state(parameter, on_device, key)


def load_whole_weights(utils: Any, zero: Any, module: nn.Module, weights: State) -> None:
    """Give each rank its part of the weights that ZeRO steps on; every rank calls this."""
    for name, parameter in trained_parameters(module):
        value = weights[name].to(parameter.device)
        if hasattr(parameter, "ds_id"):
            utils.safe_set_local_fp32_param(parameter, _local_part(zero, parameter, value))
        else:
            utils.safe_set_full_fp32_param(parameter, value)


def _local_part(zero: Any, parameter: Any, whole: Tensor) -> Tensor:
    """Return this rank's part under stage 3, padded: DeepSpeed's setter of a whole is not."""
    size, rank = parameter.partition_numel(), zero._get_param_partition_rank(parameter)
    padded = whole.new_zeros(size * (rank + 1))
    flat = whole.flatten()[: len(padded)]
    padded[: len(flat)] = flat
    return padded[size * rank :]


def discard(zero: Any) -> None:
    """Drop accumulated gradients, as DeepSpeed does itself when fp16 overflows."""
    zero.zero_grad()
    for group in zero.averaged_gradients:
        zero.averaged_gradients[group] = None
    zero.micro_step_id = -1 if hasattr(zero, "single_partition_of_fp32_groups") else 0


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


_DENSE = DenseSettings()


class Engine:
    """A module under DeepSpeed: forward, backward with averaged gradients, step."""

    def __init__(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        mesh: Mesh,
        batch: int,
        *,
        exchange: ExchangeSettings = _DENSE,
        method: Method | None = None,
        steps_per_epoch: int = 1,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        """Wrap `module`, already on the mesh's device; `batch` is the global batch.

        `method` changes its training (under ZeRO 0); without one it is that of the module. `say`
        gets a line for what the exchange finds out.
        """
        settings = mesh.settings
        self.mesh = mesh
        self.optimizer = optimizer
        # A module whose weights are shared out, or whose code is compiled, is evaluated as a copy.
        self._twin = deepcopy(module) if settings.zero == 3 or settings.compile else None
        self.method = method or method_of(module)
        """PLAIN by default: its hooks do nothing, and leave weights and state as they are."""
        assert self.method is PLAIN or settings.zero == 0
        self.method.attach(module)
        prepare(module, settings, mesh.data.size)
        # What DeepSpeed reduces and clips, and it takes all weights for the same on all ranks.
        dense = exchange.by_engine and not self.method.reduces
        self.precondition: Callable[[nn.Module], None] | None = None
        """Changes the module's gradients between reduction and clipping (under ZeRO 0)."""
        # DeepSpeed's clipping waits for a GPU, and an exchange knows the norm already; only ZeRO
        # and a loss scale cannot do without.
        on_gpu = mesh.device.type == "cuda"
        self._clip_norm = 0.0
        if (on_gpu or not dense) and settings.zero == 0 and settings.precision != "fp16":
            self._clip_norm = settings.gradient_clip
            settings = settings.model_copy(update={"gradient_clip": 0.0})
        for weight in self.method.local_weights(module):
            weight.ds_optim_param = True  # type: ignore[attr-defined] # never sent round
        self._engine, *_ = import_deepspeed().initialize(
            model=module,
            optimizer=optimizer,
            config=deepspeed_config(settings, batch, mesh.data.size),
            dist_init_required=False,
        )
        if (mesh.data.size == 1 or not dense) and settings.zero == 0:
            # One rank has nothing to agree on: DeepSpeed would copy all gradients there and back.
            self._engine.enable_backward_allreduce = False
        if settings.channels_last:  # after DeepSpeed, which sends contiguous weights round
            module.to(memory_format=torch.channels_last)
        build = self.method.gradient_sync
        self._sync = None if dense else build(exchange, module, mesh, steps_per_epoch, say)
        """An exchange at work; None by default: DeepSpeed reduces in `backward`."""
        self._remembers = not exchange.by_engine
        self._lost: RuntimeError | None = None

    def __call__(self, inputs: Tensor) -> Tensor:
        if self._engine.training:
            self.method.forward(len(inputs))
            if self._sync:
                self._sync.forward()
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
        if mode:
            self.method.train()

    def backward(self, loss_sum: Tensor, global_count: int, *, last: bool = True) -> None:
        """Accumulate gradients of the mean loss over `global_count` samples of all ranks.

        `loss_sum` is this rank's sum. DeepSpeed averages over ranks, so that ranks with uneven
        shares would weigh their samples differently; dividing by the true count undoes that.
        A step may take several calls: `global_count` counts the samples of all of them, and
        `last` is False for all but the last one.
        """
        self._engine.set_gradient_accumulation_boundary(last)
        scale = self.mesh.data.size / global_count
        if self._sync:
            self._sync.backward(last=last)
        self.method.backward(scale)
        self._engine.backward(loss_sum * scale, scale_wrt_gas=False)

    def step(self, learning_rate: float) -> bool:
        """Reduce, precondition, clip, step; the gradients are cleared.

        By default DeepSpeed has reduced in `backward`, and nothing preconditions; on a CPU
        DeepSpeed then clips the norm to 1.0 and lets AdamW move the weights, both in its step.
        False when the step was not taken because the gradient is not finite.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate * group.get("lr_scale", 1.0)
        if not self._gradient_ready():
            self.skip()
            return False
        self.method.apply(learning_rate)
        if self.precondition:
            self.precondition(self.module)
        self._clip()
        self._engine.step()
        self._forget_gradients()
        self._end_step(taken=True)
        return True

    def _forget_gradients(self) -> None:
        """Let no gradient stay for a layer that the next step, or its first part, does not reach.

        DeepSpeed 0.19 keeps them under stage 3 until a new one comes, and would take them again.
        """
        if self.mesh.settings.zero == 3:
            self._engine.optimizer.grad_partitions_flat_buffer.zero_()

    def skip(self) -> None:
        """Drop the gradients: this step is not taken."""
        self.discard()
        self._end_step(taken=False)

    def _end_step(self, *, taken: bool) -> None:
        if not self._sync:
            return
        try:
            if taken:
                self._sync.step_done()
            else:
                self._sync.step_skipped()
        except RuntimeError as error:
            if not is_lost(error):
                raise
            self._lost = error  # the step is over all the same, and counts: see `check_ranks`

    def check_ranks(self) -> None:
        """Raise what failed after the weights of the last step had moved: another rank is lost."""
        lost, self._lost = self._lost, None
        if lost:
            raise lost

    def _gradient_ready(self) -> bool:
        """Wait for an exchange, if there is one; False when the gradient is known not finite."""
        if self._sync:
            return self._sync.reduce(self._scaler())
        # DeepSpeed's own reduction ran in `backward`. On several ranks and under ZeRO what no image
        # of the step reached counts as zeros: so it does on one, where the optimizer would skip it.
        if self.mesh.settings.zero == 0:
            for weight in self.module.parameters():
                if weight.requires_grad and weight.grad is None:
                    weight.grad = torch.zeros_like(weight)
        if self.mesh.device.type == "cuda" or self.mesh.settings.zero:
            return True  # looking would wait for the GPU; the next loss shows it
        gradients = [weight.grad for weight in self.module.parameters() if weight.grad is not None]
        norms = torch.stack(torch._foreach_norm(gradients))
        return bool(norms.isfinite().all())

    def _clip(self) -> None:
        """Clip the gradient's norm where DeepSpeed does not do so in its step."""
        if not self._clip_norm:
            return
        if self._sync and not (self.precondition or self.method.changes_gradient):
            self._sync.clip(self._clip_norm)
        else:
            nn.utils.clip_grad_norm_(self.module.parameters(), self._clip_norm)

    @property
    def exchange(self) -> Exchange | None:
        """Each rank's state of the exchange; None: the dense one has none."""
        return self._sync.exchange if self._sync and self._remembers else None

    def whole(self) -> nn.Module:
        """Return the module with all its weights, to evaluate and to save; every rank calls this.

        It is the module itself where that is whole and eager, else a copy that the next call
        overwrites, in the mode (training, evaluation) of the module.
        """
        if self._twin is None:
            return self.method.whole(self.module)
        self._twin.load_state_dict(self.full_state())
        return self._twin.train(self.module.training)

    def full_state(self) -> dict[str, Tensor]:
        """Return all weights and statistics; every rank calls this, and under ZeRO 3 gets copies.

        Elsewhere the tensors are the module's own, which the next step changes.
        """
        if self.mesh.settings.zero < 3:
            return self.method.whole_state(self.module)
        gathered = import_deepspeed().zero.GatheredParameters(list(self.module.parameters()))
        with gathered:
            return {name: value.clone() for name, value in self.module.state_dict().items()}

    def watch(self, around: Watch | None) -> None:
        """Wrap whatever this rank waits for in a context manager; None: in none."""
        self.method.watch(around, self.module)
        if self._sync:
            self._sync.watch = around

    def discard(self) -> None:
        """Drop the gradients that were accumulated: this step is not taken."""
        self._engine.zero_grad()
        self.method.discard()
        if self._sync:
            self._sync.discard()
        if self.mesh.settings.zero:
            discard(self._engine.optimizer)
        self._forget_gradients()

    def state_dict(self) -> State:
        """Return weights, optimizer state and loss scale, whole; every rank calls this.

        The same on every rank and for every ZeRO stage. Buffers are not in it: they differ by rank.
        """
        zero = self.mesh.settings.zero
        if zero < 3:
            state: State = {"weights": self.method.whole_weights(self.module)}
        else:
            full = self.full_state()
            state = {"weights": {name: full[name] for name, _ in self.module.named_parameters()}}
        if zero:
            state["optimizer"] = zero_state(
                import_deepspeed().utils, self._engine.optimizer, self.module
            )
        else:
            moments = named_state(self.optimizer, self.module)
            state["optimizer"] = self.method.whole_moments(moments, self.module)
        if scaler := self._scaler():
            state["scaler"] = scaler.state_dict()
        if self.method.remembers:
            state[METHOD_STATE] = self.method.state_dict()
        return state

    def load_state_dict(self, state: State) -> None:
        """Go on from what `state_dict` returned, on any number of ranks; every rank calls this."""
        zero, deepspeed = self.mesh.settings.zero, import_deepspeed()
        weights = part_of(state, "weights")
        check_weights(weights, self.module, "weights")
        moments = part_of(state, "optimizer")
        check_optimizer(moments, self.optimizer, self.module, complete=zero > 0)
        scaler = self._scaler()
        if scaler:
            check_like(part_of(state, "scaler"), scaler.state_dict(), "scaler")
        if self.method.remembers:
            self.method.load_state_dict(part_of(state, METHOD_STATE))
        with deepspeed.zero.GatheredParameters(
            list(self.module.parameters()), modifier_rank=0, enabled=zero == 3
        ):
            if zero < 3 or self.mesh.is_main:
                self.module.load_state_dict(
                    self.method.local_state(weights, self.module), strict=False
                )
        if zero:
            load_whole_weights(deepspeed.utils, self._engine.optimizer, self.module, weights)
            load_whole_state(deepspeed.utils, self._engine.optimizer, self.module, moments)
        else:
            local_moments = self.method.local_moments(moments, self.module)
            load_named_state(self.optimizer, self.module, local_moments)
        if scaler:
            scaler.load_state_dict(state["scaler"])

    def _scaler(self) -> Any:
        """Return what scales the loss under fp16."""
        if self.mesh.settings.zero:
            return self._engine.optimizer.torch_autocast_gradscaler
        return self._engine.torch_autocast_z0_gradscaler

    def close(self) -> None:
        """Release the hooks that DeepSpeed and the exchange put on the module."""
        if self._sync:
            self._sync.close()
        self.method.close()
        self._engine.destroy()
