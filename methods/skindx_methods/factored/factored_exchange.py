"""Factored at work: collects the factors of wide layers, sends them, and multiplies."""

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, Self, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from skindx.comm.exchange import Exchange, State
from skindx.comm.fabric import Fabric, GradientBuffer
from skindx.comm.fused import FusedSettings
from skindx.comm.fused_exchange import Fused
from skindx.comm.grouping import MB, fixed_buckets
from skindx.core.machine import cpu_flags, processor_facts
from skindx.core.state_checks import UnfitStateError
from skindx_methods.factored.factored import FactoredSettings, factors_pay


class CollectedFactors:
    """Counts the rows of a layer's weight gradient G^T X, an image or a token each.

    Where `sending` is set, both factors are collected, and autograd leaves the weight's gradient
    out: it would be computed for this rank's rows and thrown away.
    """

    def __init__(self, name: str, layer: nn.Linear, ready: Callable[[nn.Parameter], None]) -> None:
        """Watch `layer`; `ready` is called when all its outputs of a pass have their gradients."""
        self.name, self.weight = name, cast(nn.Parameter, layer.weight)
        self.sending = False
        self.rows = 0
        """Number of rows since `clear`."""
        self.dtype: torch.dtype | None = None
        """Type that can hold every output gradient since then; None: there was none."""
        self._ready = ready
        self._inputs: list[Tensor] = []
        self._gradients: list[Tensor] = []
        self._pending = 0
        self._handles: list[RemovableHandle] = [
            layer.register_forward_pre_hook(self._enter),
            layer.register_forward_hook(self._leave, always_call=True),
        ]

    def __deepcopy__(self, memo: object) -> Self:
        """Return what watches nothing: a copy of the module is no part of the training."""
        copy = object.__new__(type(self))
        copy._handles, copy.sending = [], False
        return copy

    @property
    def inside(self) -> int:
        """Input features."""
        return self.weight.shape[1]

    @property
    def outside(self) -> int:
        """Output features."""
        return self.weight.shape[0]

    def clear(self) -> None:
        """Forget what was counted and collected."""
        self.rows, self.dtype = 0, None
        self._inputs.clear()
        self._gradients.clear()

    def end_step(self) -> None:
        """Let go of everything: the step is over."""
        self._pending = 0
        self.clear()

    def write(self, gradients_RO: Tensor, inputs_RI: Tensor) -> None:
        """Fill in the collected rows, and zeros after them."""
        for target, pieces in ((gradients_RO, self._gradients), (inputs_RI, self._inputs)):
            begin = 0
            for piece in pieces:
                target[begin : begin + len(piece)] = piece
                begin += len(piece)
            target[begin:] = 0

    def product(self) -> Tensor:
        """Return the gradient of this rank's rows, `outside` x `inside` in fp32."""
        shape = (self.rows, self.outside), (self.rows, self.inside)
        gradients_RO, inputs_RI = (self.weight.new_empty(size) for size in shape)
        self.write(gradients_RO, inputs_RI)
        return gradients_RO.t() @ inputs_RI

    def close(self) -> None:
        """Remove the hooks from the layer."""
        for handle in self._handles:
            handle.remove()
        self.clear()

    def _enter(self, layer: nn.Module, inputs: Any) -> None:
        # Autograd notes in the forward pass whose gradients it will be asked for.
        if self.sending and torch.is_grad_enabled():
            self.weight.requires_grad_(False)

    def _leave(self, layer: nn.Module, inputs: tuple[Tensor, ...], output: Any) -> None:
        if self.sending:
            self.weight.requires_grad_(True)
        if not self._handles or not isinstance(output, Tensor) or not output.requires_grad:
            return  # a copy of the layer, one that failed, or one without gradients
        self._pending += 1
        kept = inputs[0].detach() if self.sending else None  # the graph would keep it to its end
        output.register_hook(lambda gradient: self._collect(kept, gradient))  # type: ignore[no-untyped-call]

    def _collect(self, inputs: Tensor | None, gradient: Tensor) -> None:
        kind, self._pending = gradient.dtype, self._pending - 1
        self.rows += gradient.numel() // self.outside
        self.dtype = torch.promote_types(self.dtype, kind) if self.dtype else kind
        if inputs is None:
            return
        # Mixed precision multiplies in the type of the output, with inputs cast to it.
        self._inputs.append(inputs.reshape(-1, self.inside).to(kind))
        self._gradients.append(gradient.detach().reshape(-1, self.outside))
        if self._pending == 0:
            self._ready(self.weight)


_TYPES = (torch.float16, torch.bfloat16, torch.float32)


class Factored(Exchange):
    """Sufficient factors (Xie et al. 2015, arXiv 1512.01708; Poseidon, arXiv 1706.03292).

    The gradient of a linear layer is a sum of outer products, one a row (an image, or a token).
    Where P ranks have few rows, all factors are fewer bytes than the matrix: each rank gets those
    of all ranks, and multiplies. In its first step a layer is summed like all others, and the ranks
    agree on the most rows of any of them; a rank that has more in a later step says so in its
    message, and that step sums the layers.

    Ranks hold the same gradient to the bit because they multiply alike: where processors, devices
    or numbers of threads differ, everything is summed.
    """

    sums = True

    def __init__(self, settings: FactoredSettings) -> None:
        self.settings = settings
        self._dense = Fused(FusedSettings(tune=False, bucket_mb=settings.bucket_mb))
        self._layers: list[CollectedFactors] = []
        self._rows: dict[str, tuple[int, torch.dtype]] | None = None
        """Most rows of a rank and their type, by layers that send factors; None: not agreed."""
        self._sending: list[CollectedFactors] = []
        self._works: list[dist.Work] = []

    def attach(self, fabric: Fabric, gradients: GradientBuffer, steps_per_epoch: int) -> None:
        """Start with all layers summed."""
        super().attach(fabric, gradients, steps_per_epoch)
        self._dense.attach(fabric, gradients, steps_per_epoch)

    def observe(self, module: nn.Module) -> None:
        """Watch the wide linear layers whose weight has no other use."""
        uses: dict[nn.Parameter, int] = {}
        for layer in module.modules():
            for weight in layer.parameters(recurse=False):
                uses[weight] = uses.get(weight, 0) + 1
        exchanged = set(self.gradients.parameters)
        for name, layer in module.named_modules():
            if type(layer) is not nn.Linear:
                continue
            weight = cast(nn.Parameter, layer.weight)
            wide = weight.numel() * 4 >= self.settings.least_mb * MB
            if wide and weight in exchanged and uses[weight] == 1 and weight.is_contiguous():
                self._layers.append(CollectedFactors(name, layer, self._complete))

    def _complete(self, weight: nn.Parameter) -> None:
        self.ready(weight)  # which the reducer sets after `observe`

    @property
    def computes(self) -> frozenset[nn.Parameter]:
        """The weights whose gradients autograd leaves out in this step."""
        return frozenset(layer.weight for layer in self._sending)

    @property
    def groups(self) -> Sequence[int]:
        """The weights that send factors, which backward meets early, then groups of the rest."""
        return self._dense.groups

    def begin(self) -> None:
        """Forget the last step's factors, and lay the buffer out as its agreement asks for."""
        for layer in self._layers:
            layer.clear()
        sending = [layer for layer in self._layers if layer.sending]
        if sending != self._sending:
            self._sending = sending
            self._lay_out()

    def _lay_out(self) -> None:
        gradients, first = self.gradients, {id(layer.weight) for layer in self._sending}
        pairs = list(zip(gradients.names, gradients.parameters, strict=True))
        early = [name for name, weight in pairs if id(weight) in first]
        gradients.reorder([*early, *(name for name, weight in pairs if id(weight) not in first)])
        sizes = [4 * elements for elements in gradients.sizes[len(early) :]]
        buckets = fixed_buckets(sizes, self.settings.bucket_mb, first_mb=1)
        self._dense.plan([len(early), *buckets] if early else buckets)

    def launch(self, group: int) -> None:
        """Begin to send the factors, or to sum a group of other gradients."""
        if group or not self._sending:
            self._dense.launch(group)
            return
        kind, ends = self._message()
        self._sent_PM = torch.empty(
            self.fabric.world, ends[-1] + 1, dtype=kind, device=self.fabric.device
        )
        message_M = self._sent_PM[self.fabric.rank]
        too_many = not all(self._fits(layer) for layer in self._sending)
        message_M[-1] = float(too_many)
        if not too_many:
            for layer, begin in zip(self._sending, ends, strict=False):
                layer.write(*self._places(message_M.unsqueeze(0), layer, begin))
        self._works = self.fabric.share(self._sent_PM)

    def _message(self) -> tuple[torch.dtype, list[int]]:
        """Return the type of all factors, and where each layer's begin; the last is the end."""
        assert self._rows is not None
        kinds = {self._rows[layer.name][1] for layer in self._sending}
        sizes = [
            self._rows[layer.name][0] * (layer.inside + layer.outside) for layer in self._sending
        ]
        return kinds.pop() if len(kinds) == 1 else torch.float32, [0, *accumulate(sizes)]

    def _fits(self, layer: CollectedFactors) -> bool:
        assert self._rows is not None
        most, kind = self._rows[layer.name]
        result = layer.dtype
        return layer.rows <= most and (result is None or torch.promote_types(result, kind) == kind)

    def _places(
        self, sent_PM: Tensor, layer: CollectedFactors, begin: int
    ) -> tuple[Tensor, Tensor]:
        """Return a layer's output gradients PR x O and inputs PR x I in some ranks' messages."""
        assert self._rows is not None
        rows, ranks = self._rows[layer.name][0], len(sent_PM)
        middle = begin + rows * layer.outside
        end = middle + rows * layer.inside
        return (
            sent_PM[:, begin:middle].reshape(ranks * rows, layer.outside),
            sent_PM[:, middle:end].reshape(ranks * rows, layer.inside),
        )

    def finish(self) -> bool:
        """Wait for everything, multiply, and agree on rows where that is to be done."""
        self._dense.divided = self.divided
        self._dense.finish()
        agreed = self._rows is not None
        if self._sending:
            for work in self._works:
                work.wait()
            self._works = []
            if agreed := not bool(self._sent_PM[:, -1].any()):
                self._multiply()
            else:
                self._sum()
            del self._sent_PM
        if not agreed and self._layers:
            self._agree()
        for layer in self._layers:
            layer.end_step()
        return True

    def norm(self) -> float:
        """Return the norm of what was multiplied and what was summed."""
        multiplied_M = self.gradients.span(0, len(self._sending))
        return math.hypot(float(torch.linalg.vector_norm(multiplied_M)), self._dense.norm())

    def _views(self) -> list[Tensor]:
        count = len(self._sending)
        result = dict(
            zip(map(id, self.gradients.parameters[:count]), self.gradients.views, strict=False)
        )
        return [result[id(layer.weight)] for layer in self._sending]

    def _multiply(self) -> None:
        _, ends = self._message()
        for layer, begin, view in zip(self._sending, ends, self._views(), strict=False):
            gradients_RO, inputs_RI = self._places(self._sent_PM, layer, begin)
            mean_OR = gradients_RO.float().t() / self.fabric.world
            torch.mm(mean_OR, inputs_RI.float(), out=view)

    def _sum(self) -> None:
        """Sum the layers after all: some rank has more rows than were agreed on."""
        for layer, view in zip(self._sending, self._views(), strict=True):
            view.copy_(layer.product())
        span = self.gradients.span(0, len(self._sending))
        self.fabric.all_reduce(span).wait()
        span.div_(self.fabric.world)

    def _agree(self) -> None:
        """Agree which layers send factors from the next step on, and on their rows."""
        known, facts = self._rows or {}, list[int]()
        for layer in self._layers:
            before, kind = known.get(layer.name, (0, None))
            result = layer.dtype
            both = torch.promote_types(result, kind) if result and kind else result or kind
            facts += [max(before, layer.rows), 1 + _TYPES.index(both) if both in _TYPES else 0]
        every_PF, alike = self._gathered(facts), self._alike()
        rows: dict[str, tuple[int, torch.dtype]] = {}
        for layer, rows_P, kinds_P in zip(
            self._layers, every_PF[:, ::2].unbind(1), every_PF[:, 1::2].unbind(1), strict=True
        ):
            kinds = {int(kind) for kind in kinds_P} - {0}
            kind = _TYPES[kinds.pop() - 1] if len(kinds) == 1 else torch.float32
            most = int(rows_P.max())
            sizes = (most, layer.inside, layer.outside, self.fabric.world, kind.itemsize)
            if alike and most and factors_pay(*sizes):
                rows[layer.name] = most, kind
        self._take(rows)

    def _alike(self) -> bool:
        """Tell whether all ranks round a product alike; every rank calls this."""
        device = self.fabric.device
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
        machine = machine_fingerprint(str(torch.get_num_threads()), name)
        every_P2 = self._gathered([int(machine[:8], 16), int(machine[8:16], 16)])
        return bool((every_P2 == every_P2[0]).all())

    def _gathered(self, facts: list[int]) -> Tensor:
        return torch.stack(
            self.fabric.all_gather(torch.tensor(facts, device=self.fabric.device))
        ).cpu()

    def _take(self, rows: dict[str, tuple[int, torch.dtype]]) -> None:
        """Send factors of these layers from the next forward pass on, and watch no other layer."""
        self._rows = rows
        for layer in self._layers:
            layer.sending = layer.name in rows
            if not layer.sending:
                layer.close()
        self._layers = [layer for layer in self._layers if layer.sending]

    def state_dict(self) -> State:
        """Return what was agreed, so that a resumed training takes the same steps."""
        if self._rows is None:
            return {}
        rows = {name: [most, str(kind)[6:]] for name, (most, kind) in self._rows.items()}
        return {"ranks": self.fabric.world, "rows": rows}

    def load_state_dict(self, states: Sequence[State]) -> None:
        """Take over what as many ranks agreed on; others agree anew."""
        state = states[0]
        if state.get("ranks") != self.fabric.world:
            return
        rows: Any = state.get("rows")
        layers, kinds = (
            {layer.name for layer in self._layers},
            {str(kind)[6:]: kind for kind in _TYPES},
        )
        if not isinstance(rows, dict) or not all(
            name in layers
            and isinstance(pair, list)
            and len(pair) == 2
            and isinstance(pair[0], int)
            and pair[0] > 0
            and pair[1] in kinds
            for name, pair in rows.items()
        ):
            raise UnfitStateError("exchange/rows does not fit the layers of this network")
        # The training may go on on other machines.
        agreed = rows if self._alike() else {}
        self._take({name: (most, kinds[kind]) for name, (most, kind) in agreed.items()})

    def close(self) -> None:
        """Remove the hooks from the layers."""
        for layer in self._layers:
            layer.close()


def machine_fingerprint(*more: str) -> str:
    """Return a hash of this machine in hexadecimal; timings hold where it is equal.

    It changes with the processor, the cores that this process may use, torch, and with `more`.
    """
    facts = [*processor_facts(), sorted(cpu_flags()), *more]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]
