"""Marks in time of a network's layers in a step, and the layers that a profile makes of them."""

from collections.abc import Sequence
from statistics import median
from typing import Any

from torch import Tensor, nn

from skindx.comm.clocks import Mark, mark
from skindx.core.cost.profile import ProfiledLayer


class LayerClock:
    """The marks of each step: hooks on every module that has parameters of its own."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.layers = {
            name: layer
            for name, layer in module.named_modules()
            if any(True for _ in layer.parameters(recurse=False))
        }
        self.device = next(module.parameters()).device
        self.activations: dict[str, int] = {}
        self.inputs: dict[str, int] = {}
        self.entered: list[tuple[str, Mark]] = []
        self.ready: dict[str, Mark] = {}
        self._hooks: list[Any] = []
        for name, layer in self.layers.items():
            self._hooks.append(layer.register_forward_pre_hook(self._entering(name)))
            self._hooks.append(layer.register_forward_hook(self._leaving(name)))
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                anything: Any = parameter
                self._hooks.append(anything.register_post_accumulate_grad_hook(self._made(name)))

    def _entering(self, name: str) -> Any:
        def enter(layer: nn.Module, inputs: Any) -> None:
            self.entered.append((name, mark(self.device)))

        return enter

    def _leaving(self, name: str) -> Any:
        def leave(layer: nn.Module, inputs: Any, output: Any) -> None:
            if isinstance(output, Tensor):
                self.activations[name] = output.numel() * output.element_size()
                if inputs and isinstance(inputs[0], Tensor):  # autocast makes it what comes out
                    self.inputs[name] = inputs[0].numel() * output.element_size()

        return leave

    def _made(self, name: str) -> Any:
        def made(parameter: Tensor) -> None:
            self.ready[name] = mark(self.device)

        return made

    def begin(self) -> None:
        """Forget the step before."""
        self.entered, self.ready = [], {}

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()

    def forward_s(self, begin: Mark, end: Mark) -> dict[str, float]:
        """Return each layer's forward time, with all that comes until the next layer begins."""
        marks = [(name, at) for name, at in self.entered]
        seconds = dict.fromkeys(self.layers, 0.0)
        for (name, at), (_, then) in zip(marks, [*marks[1:], ("", end)], strict=True):
            seconds[name] += max(0.0, then.seconds_since(at))
        if marks:
            seconds[marks[0][0]] += max(0.0, marks[0][1].seconds_since(begin))
        return seconds

    def ready_s(self, begin: Mark) -> dict[str, float]:
        """Return when each gradient was made, counted from the begin of backward."""
        return {name: at.seconds_since(begin) for name, at in self.ready.items()}


def layers_of(
    clock: LayerClock,
    forwards: Sequence[dict[str, float]],
    readies: Sequence[dict[str, float]],
    backward_s: float,
) -> tuple[ProfiledLayer, ...]:
    """Return the layers in forward order: medians over the steps.

    Backward goes through them in the order in which their last gradients came; what it takes after
    the last one belongs to the first layer.
    """
    parameters = dict(clock.module.named_parameters())
    last = {
        name: max(
            (median(ready.get(weight_name, 0.0) for ready in readies) for weight_name in owned),
            default=0.0,
        )
        for name in clock.layers
        if (owned := _owned(clock, name))
    }
    order = sorted(last, key=last.__getitem__)
    result, before = [], 0.0
    for place, name in enumerate(order):
        owned = _owned(clock, name)
        end_s = max(last[name], backward_s) if place == len(order) - 1 else last[name]
        owned.sort(key=lambda weight_name: median(ready.get(weight_name, 0.0) for ready in readies))
        shapes = tuple(tuple(parameters[weight_name].shape) or (1,) for weight_name in owned)
        result.append(
            ProfiledLayer(
                name=name,
                operator=type(clock.layers[name]).__name__,
                forward_s=median(times[name] for times in forwards),
                backward_s=max(0.0, end_s - before),
                shapes=shapes,
                parameter_bytes=4 * sum(parameters[weight_name].numel() for weight_name in owned),
                activation_bytes=clock.activations.get(name, 0),
                input_bytes=clock.inputs.get(name, 0),
                outputs=_count(clock.layers[name], "out_features", "out_channels"),
                groups=_count(clock.layers[name], "groups") or 1,
            )
        )
        before = max(before, end_s)
    return tuple(reversed(result))


def _owned(clock: LayerClock, name: str) -> list[str]:
    prefix = f"{name}." if name else ""
    return [
        prefix + weight_name
        for weight_name, parameter in clock.layers[name].named_parameters(recurse=False)
        if parameter.requires_grad
    ]


def _count(layer: nn.Module, *names: str) -> int:
    """Return the first of some attributes that is a whole number; 0 where none is."""
    result = (getattr(layer, name, None) for name in names)
    return next((value for value in result if isinstance(value, int)), 0)
