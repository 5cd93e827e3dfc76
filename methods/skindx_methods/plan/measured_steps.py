"""Steps of one member on one rank, as the training loop takes them, timed part by part."""

import dataclasses
import gc
import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from itertools import islice
from statistics import fmean, median, stdev
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from skindx.comm.exchange_kinds import EXCHANGES, AnyExchange, build_exchange
from skindx.comm.fabric import Fabric, GradientBuffer
from skindx.comm.sparse_exchange import Sparse, merge
from skindx.comm.topk import DENSITY
from skindx.core.cost.profile import AtBatch, LocalWork, Profile, Rates
from skindx.core.kinds import load_object
from skindx.models.classifier.classifier import ClassifierSettings
from skindx.training.config.recipe import Recipe
from skindx.training.config.run import MemberSettings, TrainSettings
from skindx.training.loop import take_step
from skindx.training.parallel.mesh import Mesh, peak_memory
from skindx.training.state import Batch, Training
from skindx.training.tasks.classifier_job import setup_member
from skindx.training.tasks.open_sets import TrainingData
from skindx_methods.plan.layer_clock import LayerClock, layers_of
from skindx_methods.plan.recorded_step import TimedEngine

# Work of a rank's own cores: each exchange's, on a rank that sends nothing, and products.

_LEAST, _REPEATS = 2, 5
_BUDGET_S = 30.0


def local_work(
    module: nn.Module, device: torch.device, budget_s: float = _BUDGET_S
) -> dict[str, LocalWork]:
    """Return the work of each kind on gradients of a module's shapes.

    Each is timed at least twice, however little `budget_s` allows.
    """
    kinds = EXCHANGES.loaded()
    timed = {name: settings for name, kind in kinds.items() if (settings := kind.timed())}
    engines = {name: kind.local_code for name, kind in kinds.items() if kind.local_code}
    part_s = budget_s / (len(timed) + len(engines) + 2)  # the cast to 16 bits and the merge too
    fabric = _Alone(device)
    gradients = GradientBuffer(list(module.named_parameters()))
    before = {parameter: parameter.grad for parameter in gradients.parameters}
    generator = torch.Generator().manual_seed(0)
    source_M = torch.randn(gradients.flat.shape, generator=generator).pow_(3).to(device)
    result = {
        name: _exchange(settings, fabric, gradients, source_M, part_s)
        for name, settings in timed.items()
    }
    for name, code in engines.items():
        result[name] = timed_work(partial(load_object(code), gradients), device, part_s)
    result["bf16"] = timed_work(
        lambda: gradients.flat.copy_(gradients.flat.bfloat16()), device, part_s
    )
    merging = timed_work(_merging(source_M), device, part_s)
    for name, settings in timed.items():
        if density := getattr(settings, "density", None):
            merged = {"merge_s": merging.base_s, "density": density}
            result[name] = result[name].model_copy(update=merged)
    for name, kind in kinds.items():
        if kind.local_as in result:
            result[name] = result[kind.local_as]
    for parameter, gradient in before.items():
        parameter.grad = gradient
    return result


class _Alone(Fabric):
    """The links of a rank without peers: nothing is sent, however many ranks there are."""

    def __init__(self, device: torch.device) -> None:
        self.rank, self.world, self.device = 0, 1, device
        self.bytes_sent = 0

    def all_reduce(self, tensor: Tensor) -> dist.Work:
        """Leave the tensor as it is."""
        return _Done()

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """Return this rank's tensor."""
        return [tensor.clone()]


class _Done(dist.Work):
    """Nothing to wait for."""

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return at once."""
        return True


def _exchange(
    settings: AnyExchange,
    fabric: Fabric,
    gradients: GradientBuffer,
    source_M: Tensor,
    budget_s: float,
) -> LocalWork:
    exchange = build_exchange(settings)
    assert exchange is not None
    exchange.attach(fabric, gradients, 1)

    def fill() -> None:
        gradients.flat.copy_(source_M)

    def work() -> None:
        for group in range(len(exchange.groups)):
            exchange.launch(group)
        exchange.finish()
        gradients.flat.copy_(source_M)  # as the next backward brings its gradients

    result = timed_work(work, fabric.device, budget_s, fill)
    exchange.close()
    return result


def _merging(source_M: Tensor) -> Callable[[], object]:
    """Return the merge of what two ranks send."""
    k = max(1, math.ceil(DENSITY * len(source_M)))
    room = len(source_M) // 2

    def sparse(seed: int) -> Sparse:
        generator = torch.Generator().manual_seed(seed)
        at_K = torch.randperm(max(room, k), generator=generator)[:k].sort().values.int()
        values_K = torch.randn(k, generator=generator)
        return Sparse(at_K.to(source_M.device), values_K.to(source_M.device))

    first, second = sparse(1), sparse(2)
    return lambda: merge(first, second, k)


def timed_work(
    call: Callable[[], object],
    device: torch.device,
    budget_s: float,
    before: Callable[[], None] = lambda: None,
) -> LocalWork:
    """Return the median of some calls, at least two; the first one compiles and does not count."""
    times: list[float] = []
    until = time.monotonic() + budget_s
    for _ in range(_REPEATS + 1):
        if len(times) > _LEAST and time.monotonic() > until:
            break
        before()
        _settle(device)
        started = time.perf_counter()
        call()
        _settle(device)
        times.append(time.perf_counter() - started)
    times = times[1:]
    middle = median(times)
    return LocalWork(base_s=middle, spread=min(10.0, stdev(times) / middle) if middle else 0.0)


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


_PRODUCT = {"cpu": 1024, "cuda": 4096}
"""Side of the matrices that are multiplied."""
_RATE_BUDGET_S = 0.2
"""Two calls are timed however long they take."""


def matrix_rates(device: torch.device) -> Rates:
    """Time a product of matrices."""
    side = _PRODUCT[device.type]
    rows_WW = torch.randn(side, side, generator=torch.Generator().manual_seed(0)).to(device)
    product = timed_work(lambda: rows_WW @ rows_WW, device, _RATE_BUDGET_S)
    return Rates(product_flop_s=2 * side**3 / product.base_s, spread=product.spread)


_OF_RECIPE = ("optimizer", "loss", "augment", "mix", "ema")
"""Parts of a recipe that take time in each step; all others only change what is computed."""

_LONGEST = 160


def variant_of(settings: TrainSettings, member: MemberSettings) -> str:
    """Return all that costs time or memory and differs from the defaults, as `key=value, ...`.

    Model, side of the images and batch have places of their own in a trace. Empty: the defaults.
    """
    recipe = settings.recipe_of(member)
    parts = {
        key: getattr(member, key)
        for key, field in ClassifierSettings.model_fields.items()
        if key not in ("model", "preprocess") and getattr(member, key) != _default(field)
    }
    if member.trunk != "trained":
        parts["trunk"] = member.trunk
    for key in _OF_RECIPE:
        value = getattr(recipe, key)
        if value != _default(Recipe.model_fields[key]):
            parts[f"recipe.{key}"] = value
    text = ", ".join(f"{key}={_plain(value)}" for key, value in sorted(parts.items()))
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]}... ({hashlib.sha256(text.encode()).hexdigest()[:12]})"


def _default(field: Any) -> Any:
    return field.get_default(call_default_factory=True)


def _plain(value: Any) -> str:
    plain = value.model_dump(mode="json") if hasattr(value, "model_dump") else value
    return json.dumps(plain, sort_keys=True, default=str).strip('"')


_WARM, _FEWEST, _ENOUGH, _MOST = 2, 2, 4, 12
"""Steps that do not count; timed steps at least, where these are sure, and at most."""
_SURE = 0.01
"""Standard error of the mean, over the mean, at which more steps say little."""
_LOCAL = 0.2
"""Share of the time for the exchanges' own work."""


def profile_member(
    settings: TrainSettings,
    member: MemberSettings,
    data: TrainingData,
    mesh: Mesh,
    *,
    batch: int,
    budget_s: float,
) -> Profile:
    """Time the steps of a member at half of `batch` images, and at `batch`. Raises UserError.

    Where the settings compute activations again in backward, these are timed so at `batch`, and
    without that at a quarter and at half of it: a plan needs to know both.
    """
    again = settings.engine.activation_checkpointing
    plain = settings.model_copy(
        update={"engine": settings.engine.model_copy(update={"activation_checkpointing": False})}
    )
    whole = max(2, batch)
    batches = sorted(
        {max(2, batch // 4), max(2, batch // 2)} if again else {max(2, batch // 2), whole}
    )
    part_s = budget_s * (1 - _LOCAL) / (len(batches) + again)
    points: list[AtBatch] = []
    result: Profile | None = None
    for size in batches:
        steps = _Steps(plain, member, data, mesh, batch=size, budget_s=part_s)
        points.append(steps.point())
        if size == batches[-1]:
            result = steps.profile(member, plain, tuple(points), budget_s * _LOCAL)
        steps.close()
    assert result is not None
    if not again:
        return result
    steps = _Steps(settings, member, data, mesh, batch=whole, budget_s=part_s)
    result = result.model_copy(update={"checkpointing": steps.point()})
    steps.close()
    return result


class _Steps:
    """One training on its way, at one batch."""

    def __init__(
        self,
        settings: TrainSettings,
        member: MemberSettings,
        data: TrainingData,
        mesh: Mesh,
        *,
        batch: int,
        budget_s: float,
    ) -> None:
        self.batch, self.mesh = batch, mesh
        # A preconditioner's steps are not all alike, and have no price.
        plain = {"batch": batch, "accumulate": 1, "preconditioner": None}
        recipe = settings.recipe_of(member).model_copy(update=plain)
        alone = settings.model_copy(
            update={"exchange": type(settings).model_fields["exchange"].default}
        )
        member = member.model_copy(update={"recipe": recipe})
        training: Training[Any] = setup_member(alone, member, data, mesh, lambda line: None)
        self.engine = TimedEngine(training.engine)
        self.training = dataclasses.replace(training, engine=self.engine)  # type: ignore[arg-type]
        self.training.engine.train()
        images, self.read_s = _read(self.training, batch)
        self.clock = LayerClock(self.module)
        self.forwards: list[dict[str, float]] = []
        self.readies: list[dict[str, float]] = []
        self.parts: list[tuple[float, float, float]] = []
        self._take(images, budget_s)

    @property
    def module(self) -> nn.Module:
        """The network."""
        module: nn.Module = self.training.engine.module
        return module

    def _take(self, images: Sequence[Batch], budget_s: float) -> None:
        began = time.monotonic()
        warm = _WARM
        for number in range(_WARM + _MOST):
            spent_s = time.monotonic() - began
            if number == 1 and spent_s > budget_s / 4:
                warm = 1  # so slow that what a second one would warm does not matter
            if len(self.parts) >= _FEWEST and (spent_s > budget_s or self._is_sure()):
                break
            self.clock.begin()
            take_step(self.training, images[number % len(images)])
            self.training.position.step += 1
            if number >= warm:
                self._note()

    def _is_sure(self) -> bool:
        computing = [forward + backward for forward, backward, _ in self.parts]
        if len(computing) < _ENOUGH:
            return False
        error: float = stdev(computing) / len(computing) ** 0.5
        return error < _SURE * fmean(computing)

    def _note(self) -> None:
        engine = self.engine
        begin, back, over, end = (
            engine.forward_begin,
            engine.backward_begin,
            engine.backward_end,
            engine.end,
        )
        assert begin
        assert back
        assert over
        assert end
        self.parts.append(
            (back.seconds_since(begin), over.seconds_since(back), end.seconds_since(over))
        )
        self.forwards.append(self.clock.forward_s(begin, back))
        self.readies.append(self.clock.ready_s(back))

    def point(self) -> AtBatch:
        """Return the whole steps."""
        computing = [forward + backward for forward, backward, _ in self.parts]
        return AtBatch(
            batch=self.batch,
            compute_s=median(computing),
            spread=min(10.0, stdev(computing) / fmean(computing)),
            peak_bytes=peak_memory(self.mesh.device),
        )

    def profile(
        self,
        member: MemberSettings,
        settings: TrainSettings,
        points: tuple[AtBatch, ...],
        local_s: float,
    ) -> Profile:
        """Return the network, layer by layer."""
        updates = [update for _, _, update in self.parts]
        state = self.training.engine.optimizer.state.values()
        kept = sum(
            value.numel() * value.element_size()
            for slots in state
            for value in slots.values()
            if isinstance(value, torch.Tensor)
        )
        backward_s = median(backward for _, backward, _ in self.parts)
        layers = layers_of(self.clock, self.forwards, self.readies, backward_s)
        self.clock.close()
        return Profile(
            name=member.model,
            variant=variant_of(settings, member),
            size=member.preprocess.size,
            precision=settings.engine.precision,
            batch=self.batch,
            layers=layers,
            at=points,
            update_s=median(updates),
            update_spread=min(10.0, stdev(updates) / max(1e-9, fmean(updates))),
            read_s=self.read_s,
            optimizer=settings.recipe_of(member).optimizer,
            optimizer_bytes=kept,
            local=local_work(self.module, self.mesh.device, local_s),
            rates=matrix_rates(self.mesh.device),
        )

    def close(self) -> None:
        """Let go of the network."""
        self.training.engine.close()
        gc.collect()


def _read(training: Training[Any], batch: int) -> tuple[list[Batch], float]:
    """Return some batches, and what an image took to read, decode and change, on one core."""
    task = training.task
    batches: Iterator[Batch] = iter(task.batches(0, 0))
    threads = getattr(getattr(task, "training", None), "reading").threads  # noqa: B009
    first = next(batches)  # opens files and starts threads
    started = time.perf_counter()
    more = list(islice(batches, 3))
    seconds = time.perf_counter() - started
    count = sum(work.local_count for work in more)
    return [first, *more], (seconds * threads / count if count else 0.0)
