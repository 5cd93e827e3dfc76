"""K-FAC on all ranks of a training.

Martens and Grosse 2015 (arXiv 1503.05671); shared out over ranks as in Pauloski et al. 2020 (arXiv
2007.00784) and 2021 (KAISA, arXiv 2107.01739).
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils.hooks import RemovableHandle

from skindx.core.startup import light_imports
from skindx.core.state_checks import UnfitStateError, check_like
from skindx.training.method import Method, State
from skindx.training.parallel.mesh import Mesh
from skindx_methods.kfac.bases import EigenBases, Factors, Key, LayerMatrices
from skindx_methods.kfac.eigen import Eigen, Inverse, make_inverse
from skindx_methods.kfac.kfac_settings import KfacSettings
from skindx_methods.kfac.layers import (
    INSIDE,
    OUTSIDE,
    Layer,
    Multiply,
    Sums,
    by_onednn,
    find_layers,
    onednn_is_faster,
    plain_nt,
)
from skindx_methods.kfac.sharing import plan_sharing

with light_imports():
    from timm.layers import BatchNormAct2d

# Watches forward and backward passes, and adds up what this rank's images bring to the factors.

Draw = Callable[[Tensor, torch.Generator], Tensor]
"""Outputs of the network -> the summed loss of labels drawn from them."""


class Collector:
    """Hooks on the layers of a module, from a call of `open` to the end of its forward pass.

    With `draw` the gradients at the layers' outputs are those of drawn labels (Fisher), in a
    backward pass of its own that reaches no weight; without it those of the loss (empirical).
    """

    def __init__(self, module: nn.Module, layers: list[Layer], draw: Draw | None) -> None:
        """Put a hook on `module`, for its outputs, which `draw` gets."""
        self._draw, self._layers = draw, layers
        self._open, self._scale = False, 1.0
        self._output: Tensor | None = None
        self._waiting: list[tuple[Layer, Callable[[Tensor], Sums], GradientEdge]] = []
        self.sums: dict[str, Sums] = {}
        """Statistics of the step so far, by layer."""
        self.images = 0
        """Number of images behind these statistics."""
        self._handles: list[RemovableHandle] = []
        # Registered now, to run before the hooks of an engine that wraps the module later.
        self._done = module.register_forward_hook(self._forward_done)

    def open(self, images: int) -> None:
        """A forward pass of so many images begins, which is to be collected."""
        self._open, self._now = True, images
        self.images += images
        self._unwatch()
        self._handles = [handle for layer in self._layers for handle in self._watch(layer)]

    def backward(self, scale: float, generator: torch.Generator) -> None:
        """Begin the backward pass of a loss that is `scale` times the sum over the images."""
        self._scale = scale
        if self._draw is None or self._output is None:
            return
        waiting, self._waiting = self._waiting, []
        loss, self._output = self._draw(self._output, generator), None
        edges = [edge for _, _, edge in waiting]
        gradients = torch.autograd.grad(loss, edges, retain_graph=True, allow_unused=True)
        for (layer, rest, _), gradient in zip(waiting, gradients, strict=True):
            if gradient is not None:
                self._add(layer.name, _exactly(rest, gradient))

    def take(self) -> tuple[dict[str, Sums], int]:
        """Return sums and number of images of the step, and begin again."""
        taken = self.sums, self.images
        self.discard()
        return taken

    def discard(self) -> None:
        """Drop what the step has brought."""
        self._open, self._output = False, None
        self._unwatch()
        self.sums, self.images, self._waiting = {}, 0, []

    def close(self) -> None:
        """Remove the hooks."""
        self._unwatch()
        self._done.remove()

    def _unwatch(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _watch(self, layer: Layer) -> list[RemovableHandle]:
        module = layer.module
        if not isinstance(module, BatchNormAct2d):
            return [
                module.register_forward_hook(
                    lambda _, inputs, output: self._seen(layer, inputs[0], output),
                    prepend=True,  # the module may be the whole network, whose end comes last
                )
            ]
        # What this module returns is behind its activation; what its `drop` gets is not.
        given: list[Tensor] = []

        def begin(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            given[:] = inputs[:1] if self._open else []

        def normalised(_: nn.Module, outputs: tuple[Tensor, ...]) -> None:
            if given:
                self._seen(layer, given.pop(), outputs[0])

        return [
            module.register_forward_pre_hook(begin),
            module.drop.register_forward_pre_hook(normalised),
        ]

    def _seen(self, layer: Layer, inputs: Tensor, output: Tensor) -> None:
        if not self._open or not output.requires_grad:
            return
        with torch.no_grad(), torch.autocast(inputs.device.type, enabled=False):
            sums, rest = layer.observe(inputs, output, self._now)
        self._add(layer.name, sums)
        if self._draw:
            # Taken now, since an activation may overwrite the tensor.
            self._waiting.append((layer, rest, get_gradient_edge(output)))
        else:
            output.register_hook(  # type: ignore[no-untyped-call]
                lambda gradient: self._add(layer.name, _exactly(rest, gradient / self._scale))
            )

    def _add(self, name: str, sums: Sums) -> None:
        layer_sums = self.sums.setdefault(name, {})
        for factor, added in sums.items():
            layer_sums[factor] = layer_sums[factor] + added if factor in layer_sums else added

    def _forward_done(self, _: nn.Module, inputs: Any, output: Any) -> Any:
        if not self._open:
            return None
        self._open = False
        self._unwatch()
        if self._draw is None:
            return None
        # The engine's own hooks then stand on the view, and our backward pass does not meet them.
        self._output = output
        return output.view_as(output)


def _exactly(rest: Callable[[Tensor], Sums], gradient: Tensor) -> Sums:
    with torch.no_grad(), torch.autocast(gradient.device.type, enabled=False):
        return rest(gradient)


PAPER = (
    "Distributed K-FAC | Pauloski et al., Convolutional Neural Network Training with "
    "Distributed K-FAC, SC, arXiv 2007.00784, 2020 | methods/tests/test_kfac_ranks.py | "
    "docs/measured/second-order.json"
)


def product_of(mesh: Mesh) -> Multiply:
    """Return how products are made; every rank calls this.

    oneDNN rounds otherwise than torch in the last bits, and all ranks must compute the same
    gradient: it is used where it is the faster one on the processors of all.
    """
    faster = mesh.device.type == "cpu" and onednn_is_faster()
    onednn = all(mesh.gather(faster)) if mesh.data.size > 1 else faster
    return by_onednn(plain_nt) if onednn else plain_nt


Shapes = Mapping[Key, tuple[int, int, int]]


def kfac_state(steps: int, averages: Mapping[Key, Tensor], bases: Mapping[Key, Eigen]) -> State:
    """Return steps, factors and eigenvectors by layer and factor.

    Eigenvectors too: they belong to factors of some steps ago, and go on to the bit.
    """
    factors: State = {}
    for (name, factor), average in averages.items():
        factors.setdefault(name, {})[factor] = average
    vectors: State = {}
    for (name, factor), eigen in bases.items():
        entry = {"values": eigen.values_SW, "vectors": eigen.vectors_SWW}
        vectors.setdefault(name, {})[factor] = entry
    return {"steps": steps, "factors": factors, "bases": vectors}


def load_kfac_state(
    state: State, shapes: Shapes
) -> tuple[int, dict[Key, Tensor], dict[Key, Eigen]]:
    """Undo `kfac_state`. Raises UnfitStateError for a state of other layers."""
    check_like({key: value for key, value in state.items() if key == "steps"}, {"steps": 0}, "kfac")
    if state["steps"] < 0:
        raise UnfitStateError("a number of kfac is below zero")
    averages: dict[Key, Tensor] = {}
    for key, value in _walk(state, "factors", shapes):
        check_like(value, torch.empty(shapes[key], device="meta"), f"kfac/factors/{key[0]}")
        averages[key] = value
    bases: dict[Key, Eigen] = {}
    for key, value in _walk(state, "bases", shapes):
        like = torch.empty(shapes[key], device="meta")
        check_like(value, {"values": like[:, :, 0], "vectors": like}, f"kfac/bases/{key[0]}")
        bases[key] = Eigen(value["values"], value["vectors"])
    return state["steps"], averages, bases


def _walk(state: State, part: str, shapes: Shapes) -> list[tuple[Key, Any]]:
    layers = state.get(part)
    if not isinstance(layers, dict) or not all(
        isinstance(factors, dict) for factors in layers.values()
    ):
        raise UnfitStateError(f"kfac has no {part}")
    result = [
        ((name, factor), value)
        for name, factors in layers.items()
        for factor, value in factors.items()
    ]
    for key, _ in result:
        if key not in shapes:
            raise UnfitStateError(f"kfac has {part} of {key[0]}, which this rank must not have")
    return result


class Kfac(Method):
    """Replaces each known layer's gradient by the natural one."""

    changes_gradient = remembers = True

    def __init__(
        self,
        settings: KfacSettings,
        module: nn.Module,
        mesh: Mesh,
        *,
        draw: Draw | None,
        seed: int = 0,
        steps_per_epoch: int = 1,
        peak_rate: float = 0.0,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        """Find the layers and put a hook on the module; every rank calls this.

        `peak_rate` is the largest learning rate of the schedule: see `_kl_scale`.
        `draw` makes the loss of labels drawn from the module's outputs, for `fisher: sampled`;
        `seed` decides which. `say` gets a line for what is left alone.
        """
        assert (draw is None) == (settings.fisher == "empirical")
        self._settings, self._mesh, self._seed, self._say = settings, mesh, seed, say
        self._steps_per_epoch, self._peak_rate = steps_per_epoch, peak_rate
        self.layers, left_out = find_layers(module, settings.widest)
        for line in left_out:
            say(line)
        for layer in self.layers:
            layer.most_rows = settings.factor_rows
        self.steps = 0
        """Number of steps taken."""
        self.factors = Factors(self.layers, mesh.data.size, mesh.device)
        shapes = {layer.name: layer.shapes for layer in self.layers}
        sharing = plan_sharing(shapes, mesh.data.size, settings.gradient_workers)
        self.bases = EigenBases(self.factors.shapes, sharing, mesh)
        self._multiply = product_of(mesh)
        for layer in self.layers:
            layer.multiply = self._multiply
        self._collector = Collector(module, self.layers, draw)
        self._generator = torch.Generator(mesh.device)
        self._seeded: int | None = None
        self._made: tuple[tuple[frozenset[str], float], Inverse] | None = None
        self._buffers: tuple[list[str], LayerMatrices, LayerMatrices] | None = None

    @property
    def damping(self) -> float:
        """Damping of the current step."""
        return self._settings.damping_at(self.steps // self._steps_per_epoch)

    def forward(self, images: int) -> None:
        """A forward pass of so many of this rank's images begins."""
        if self.steps % self._settings.factors_every == 0:
            self._collector.open(images)

    def backward(self, scale: float) -> None:
        """Its backward pass begins, from the sum of the images' losses times `scale`."""
        if self._seeded != self.steps:
            ranks = self._mesh.data
            number = (self._seed * 1_000_003 + self.steps) * ranks.size + ranks.rank
            self._generator.manual_seed(number % 2**63)
            self._seeded = self.steps
        self._collector.backward(scale, self._generator)

    def apply(self, learning_rate: float) -> None:
        """Change the gradients in place: they are the same on all ranks, and stay so."""
        settings = self._settings
        if self.steps % settings.factors_every == 0:
            self.factors.take_in(*self._collector.take(), settings.decay_at(self.steps))
        if settings.inverts_at(self.steps):
            before = self.bases.plain
            self.bases.renew(
                self.factors.averages, self.damping, settings.negligible, self._multiply
            )
            self._made = None
            self._tell(before)
        self._precondition(learning_rate)
        self.steps, self._seeded = self.steps + 1, None

    def discard(self) -> None:
        """The step is not taken; the next one brings what this one would have brought."""
        self._collector.discard()
        self._seeded = None

    def state_dict(self) -> State:
        """Return steps, factors, eigenvectors; every rank calls this."""
        return kfac_state(self.steps, self.factors.averages, self.bases.whole())

    def load_state_dict(self, state: State) -> None:
        """Go on from a state, on any number of ranks. Raises UnfitStateError before any change."""
        self.steps, averages, whole = load_kfac_state(state, self.factors.shapes)
        device = self._mesh.device
        self.factors.averages = {key: value.to(device) for key, value in averages.items()}
        self.bases.load(whole)
        self._made = None
        self.discard()

    def close(self) -> None:
        """Remove the hooks from the module."""
        self._collector.close()

    def _precondition(self, learning_rate: float) -> None:
        gradients, natural = self._gradients()
        if not gradients.matrices:
            return
        gradients.read()
        local = {name: held for name, held in gradients.matrices.items() if self.bases.mine(name)}
        natural.put(self._inverse(local.keys()).natural(local, self._multiply))
        self._exchange(natural.matrices)
        length = torch.dot(gradients.flat, natural.flat)
        natural.flat.mul_(self._kl_scale(length, learning_rate))
        natural.write()

    def _gradients(self) -> tuple[LayerMatrices, LayerMatrices]:
        """Return buffers for the gradients of the layers of this step and for natural ones."""
        plain = self.bases.plain
        layers = [
            layer
            for layer in self.layers
            if layer.name not in plain and layer.weight.grad is not None
        ]
        names = [layer.name for layer in layers]
        if self._buffers is None or self._buffers[0] != names:
            self._buffers = names, LayerMatrices(layers), LayerMatrices(layers)
        return self._buffers[1:]

    def _inverse(self, names: Collection[str]) -> Inverse:
        """Return what these layers are multiplied by, made again when anything of it changes."""
        key = (frozenset(names), self.damping)
        if self._made is None or self._made[0] != key:
            result = {
                name: (self.bases.eigen_of[name, INSIDE], self.bases.eigen_of.get((name, OUTSIDE)))
                for name in names
            }
            self._made = key, make_inverse(result, self.damping, self._settings.negligible)
        return self._made[1]

    def _exchange(self, natural: dict[str, Tensor]) -> None:
        """Let each row send its layers' finished gradients down the columns."""
        sharing, column = self.bases.sharing, self.bases.column
        if column is None:
            return
        place = self._mesh.data.rank % sharing.workers
        for number, row in enumerate(sharing.rows):
            sent = [matrix for name, matrix in natural.items() if sharing.row_of[name] == number]
            if not sent:
                continue
            flat = torch.cat([matrix.reshape(-1) for matrix in sent])
            dist.broadcast(flat, row[place], column)
            parts = torch.split(flat, [matrix.numel() for matrix in sent])
            for matrix, part in zip(sent, parts, strict=True):
                matrix.copy_(part.view(matrix.shape))

    def _kl_scale(self, length: Tensor, learning_rate: float) -> Tensor:
        """Return nu = min(1, sqrt(kappa / (rate^2 |length|))) (eq. 18).

        `length` is the sum of natural times plain gradients. The rate is the schedule's largest:
        where the clip is always at work, it would otherwise undo the schedule, and steps would
        stay as long at the end as at the peak.
        """
        if not self._settings.kl_clip:
            return torch.ones_like(length)
        rate = max(learning_rate, self._peak_rate)
        return (self._settings.kl_clip / (length.abs() * rate**2)).sqrt().clamp_max(1.0)

    def _tell(self, before: set[str]) -> None:
        if failed := sorted(self.bases.plain - (before if self.steps else set())):
            self._say(
                f"K-FAC: the factors of {', '.join(failed)} are not positive even with more "
                "damping; these layers keep their plain gradient until the next decomposition"
            )


def build_kfac(
    settings: KfacSettings, module: nn.Module, mesh: Mesh, *, draw: Draw, **facts: Any
) -> Kfac:
    """Return K-FAC for the gradients of `module`; without sampled labels `draw` is not used."""
    sampled = settings.fisher == "sampled"
    return Kfac(settings, module, mesh, draw=draw if sampled else None, **facts)
