"""One rank of the parallel benchmark, a process in a namespace: it trains AlexNet in each form."""

import gc
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from statistics import fmean, median, stdev
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from pydantic import TypeAdapter
from torch import Tensor, nn

from skindx.comm.clocks import HostMark
from skindx.comm.exchange_kinds import AnyExchange
from skindx.core.cost.profile import AtBatch, Profile
from skindx.data.loader.batches import global_batches, share
from skindx.training.config.engine import AnyParallel, EngineSettings
from skindx.training.deepspeed.engine import Engine
from skindx.training.deepspeed.ranks import join
from skindx.training.parallel.mesh import ProcessGroup, mesh_of_all
from skindx.training.registry import change_network
from skindx_bench.cluster.network_probe import cluster_of
from skindx_bench.forms.cubes import Cube, cube_product
from skindx_bench.harness.answering import answer_commands
from skindx_bench.harness.netlab import transmitted
from skindx_methods.plan.layer_clock import LayerClock, layers_of
from skindx_methods.plan.measured_steps import local_work
from skindx_methods.split_layers.communicator import Communicator
from skindx_methods.split_layers.parts import Part

_CONVOLUTIONS = ((3, 64, 11), (64, 192, 5), (192, 384, 3), (384, 256, 3), (256, 256, 3))
"""Channels in and out, and size of the kernels."""
_MAP = 6
"""Side of the last map, whatever the side of the images: small ones are pooled up to it."""


class AlexNet(nn.Module):
    """Five convolutions, three poolings and three linear layers; images B x 3 x S x S in."""

    def __init__(self, classes: int, width: int = 4096) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for number, (into, out, kernel) in enumerate(_CONVOLUTIONS, start=1):
            padding = 2 if kernel > 3 else 1
            layers.append(nn.Conv2d(into, out, kernel, 4 if number == 1 else 1, padding))
            layers.append(nn.ReLU(inplace=True))
            if number <= 2:
                layers.append(nn.MaxPool2d(3, 2))
        self.features = nn.Sequential(*layers, nn.AdaptiveMaxPool2d(_MAP))
        flat = _CONVOLUTIONS[-1][1] * _MAP * _MAP
        self.classifier = nn.Sequential(
            nn.Dropout(),
            nn.Linear(flat, width),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(width, width),
            nn.ReLU(inplace=True),
            nn.Linear(width, classes),
        )
        # He et al. 2015 (arXiv 1502.01852): without norms a smaller start learns nothing for long.
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(layer.weight)
                assert layer.bias is not None
                nn.init.zeros_(layer.bias)

    def forward(self, images_B3SS: Tensor) -> Tensor:
        """Return logits B x C."""
        logits_BC: Tensor = self.classifier(self.features(images_B3SS).flatten(1))
        return logits_BC


_LEAST = 3
"""Steps that are timed at each batch at least, after one that is not."""

Batch = tuple[Tensor, Tensor]


def half_or_not(precision: str) -> AbstractContextManager[Any]:
    """Return what casts products to bf16 in its block, as the engine does, unless it is fp32."""
    return torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16")


def profile_of(
    net: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Callable[[int], Batch],
    *,
    images: int,
    side: int,
    budget_s: float,
    precision: str = "fp32",
) -> Profile:
    """Time steps of a network at half of so many `images` and at all of them.

    `batch` makes so many images with labels. All ranks do so at once: they share the cores.
    """
    points: list[AtBatch] = []
    for size in sorted({max(1, images // 2), images}):
        clock = LayerClock(net)
        inputs, labels = batch(size)
        forwards, readies, computing, backwards, updates = [], [], [], [], []
        began = time.monotonic()
        number = 0
        while number <= _LEAST or time.monotonic() - began < budget_s / 3:
            optimizer.zero_grad()
            clock.begin()
            start = HostMark()
            with half_or_not(precision):
                outputs = net(inputs)
            loss: Tensor = nn.functional.cross_entropy(outputs.float(), labels)
            back = HostMark()
            loss.backward()  # type: ignore[no-untyped-call]
            over = HostMark()
            optimizer.step()
            end = HostMark()
            number += 1
            if number == 1:  # opens what later steps find open
                continue
            forwards.append(clock.forward_s(start, back))
            readies.append(clock.ready_s(back))
            computing.append(over.seconds_since(start))
            backwards.append(over.seconds_since(back))
            updates.append(end.seconds_since(over))
        spread = min(10.0, stdev(computing) / fmean(computing))
        points.append(AtBatch(batch=size, compute_s=median(computing), spread=spread))
        layers = layers_of(clock, forwards, readies, median(backwards))
        clock.close()
    kept = sum(
        value.nbytes
        for own in optimizer.state.values()
        for value in own.values()
        if isinstance(value, Tensor)
    )
    return Profile(
        name="alexnet",
        size=side,
        batch=images,
        precision=precision,
        layers=layers,
        at=tuple(points),
        update_s=median(updates),
        optimizer="sgd",
        optimizer_bytes=kept,
        local=local_work(net, torch.device("cpu"), budget_s / 3),
    )


Answer = dict[str, Any]

_TIMEOUT_S = 300.0
_CLIP = 1.0
_DATA = EngineSettings(accelerator="cpu", timeout_s=_TIMEOUT_S, gradient_clip=_CLIP)


class ParallelRank:
    """State of a rank between commands: one network at a time."""

    def __init__(self, precision: Literal["fp32", "bf16"] = "fp32") -> None:
        """Join the others."""
        self._settings = _DATA.model_copy(update={"precision": precision})
        self._mesh = join(self._settings)
        self._engine: Engine | None = None
        self._alone: tuple[nn.Module, torch.optim.Optimizer] | None = None

    def begin(
        self,
        *,
        parallel: dict[str, Any],
        exchange: dict[str, Any],
        side: int,
        classes: int,
        width: int,
        batch: int,
        seed: int = 0,
        rate: float = 0.01,
        steps_per_epoch: int = 1,
    ) -> Answer:
        """Set up a network, shared out or whole, with an exchange; `batch` images a rank."""
        self.end()
        kind = TypeAdapter(AnyParallel).validate_python(parallel)
        settings = self._settings.model_copy(update={"parallel": kind})
        mesh = mesh_of_all(self._mesh.device, settings)
        net = _network(classes, width, seed)
        image = torch.zeros(1, 3, side, side)
        every = batch * mesh.data.size
        change_network(net, mesh, image, every, lambda line: None)
        optimizer = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9)
        self._engine = Engine(
            net,
            optimizer,
            mesh,
            every,
            exchange=TypeAdapter(AnyExchange).validate_python(exchange),
            steps_per_epoch=steps_per_epoch,
        )
        self._rate = rate
        self._batch = _random_batch(batch, side, classes, mesh.data.rank)
        return {"held": sum(weight.numel() for weight in net.parameters())}

    def steps(self, count: int) -> Answer:
        """Take some steps on random images together with the others."""
        dist.barrier()
        sent, began = transmitted(), time.perf_counter()
        for _ in range(count):
            self._step(*self._batch, len(self._batch[0]) * self._mesh.data.size)
        dist.barrier()
        return {"seconds": time.perf_counter() - began, "sent": transmitted() - sent}

    def _step(self, images: Tensor, labels: Tensor, count: int) -> None:
        assert self._engine is not None
        outputs = self._engine(images)
        loss = nn.functional.cross_entropy(outputs.float(), labels, reduction="sum")
        self._engine.backward(loss, count)
        self._engine.step(self._rate)

    def links(self, seconds: float) -> Answer:
        """Measure the links together with the others; every rank calls this."""
        return cluster_of(self._mesh, 1, seconds).model_dump(mode="json")

    def rehearse(
        self, *, side: int, classes: int, width: int, batch: int, seconds: float
    ) -> Answer:
        """Time the whole network's steps on this rank, while the others do the same."""
        self.end()
        net = _network(classes, width, 0)
        found = profile_of(
            net,
            torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9),
            lambda images: _random_batch(images, side, classes, self._mesh.data.rank),
            images=batch,
            side=side,
            budget_s=seconds,
            precision=self._settings.precision,
        )
        return found.model_dump(mode="json")

    def begin_alone(self, *, side: int, classes: int, width: int, batch: int) -> Answer:
        """Set up the whole network on this rank alone."""
        self.end()
        net = _network(classes, width, 0)
        self._alone = net, torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
        self._batch = _random_batch(batch, side, classes, 0)
        return {}

    def steps_alone(self, count: int) -> Answer:
        """Take some steps on this rank alone."""
        assert self._alone is not None
        net, optimizer = self._alone
        began = time.perf_counter()
        for _ in range(count):
            optimizer.zero_grad()
            images, labels = self._batch
            with half_or_not(self._settings.precision):
                outputs = net(images)
            loss: Any = nn.functional.cross_entropy(outputs.float(), labels)
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), _CLIP)
            optimizer.step()
        return {"seconds": time.perf_counter() - began}

    def train(self, *, file: str, epochs: int, batch: int, seed: int) -> Answer:
        """Train on the images of a file, and return the accuracy on those that are held back."""
        assert self._engine is not None
        found = np.load(file)
        images, labels = torch.from_numpy(found["images"]), torch.from_numpy(found["labels"])
        held = len(images) // 5
        data, every = self._mesh.data, batch * self._mesh.data.size
        self._engine.train()
        for epoch in range(epochs):
            for numbers in global_batches(len(images) - held, every, seed, epoch):
                own = torch.from_numpy(share(numbers, data.rank, data.size)) + held
                torch.manual_seed(int(numbers[0]) * data.size + data.rank)
                self._step(_normalised(images[own]), labels[own], len(numbers))
        self._engine.train(False)
        net = self._engine.whole()
        with torch.no_grad():
            right = [
                (net(_normalised(part)).argmax(1) == truth).float()
                for part, truth in zip(
                    torch.split(images[:held], 64), torch.split(labels[:held], 64), strict=True
                )
            ]
        return {"accuracy": float(torch.cat(right).mean())}

    def end(self) -> Answer:
        """Give the network back."""
        if self._engine:
            self._engine.close()
        self._engine = self._alone = None
        gc.collect()
        return {}


def _network(classes: int, width: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return AlexNet(classes, width)


def _random_batch(batch: int, side: int, classes: int, rank: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rank)
    images = torch.randn(batch, 3, side, side, generator=generator)
    return images, torch.randint(classes, (batch,), generator=generator)


def _normalised(images_BSS3: Tensor) -> Tensor:
    return (images_BSS3.permute(0, 3, 1, 2).float() - 128) / 64


class _Copied(torch.autograd.Function):
    """The same tensor on all ranks in; backward adds up what each rank's part gives (f)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, links: Communicator) -> Tensor:
        ctx.links = links
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> Any:
        return _summed(dx, ctx.links), None


class _Summed(torch.autograd.Function):
    """Each rank's part of a sum in, the sum out (g)."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, links: Communicator) -> Tensor:
        return _summed(y, links)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        return dy, None


def _summed(part: Tensor, links: Communicator) -> Tensor:
    links.bytes_sent += 2 * (links.size - 1) * part.nbytes // links.size
    return links.sum(part.clone())


class _Line(nn.Module):
    """Columns of a first product and rows of a second one (Megatron-LM, arXiv 1909.08053)."""

    def __init__(self, first: nn.Linear, second: nn.Linear, links: Communicator) -> None:
        super().__init__()
        rows, columns = (
            Part.even(links, first.weight.shape),
            Part.even(links, second.weight.T.shape),
        )
        self.first = nn.Parameter(rows.local(first.weight.detach()))
        self.second = nn.Parameter(columns.local(second.weight.T.detach()))
        self.links = links

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum over all ranks of what their parts give."""
        hidden = _Copied.apply(x, self.links) @ self.first.T
        y: Tensor = _Summed.apply(hidden @ self.second, self.links)
        return y


class CubeRank:
    """Two products, one after the other, in each form."""

    def __init__(self, rows: int, width: int) -> None:
        """Join the others, and take this rank's parts."""
        dist.init_process_group("gloo", timeout=timedelta(seconds=_TIMEOUT_S))
        self._cube = Cube.of_all(timedelta(seconds=_TIMEOUT_S))
        self._line = Communicator(ProcessGroup(dist.get_rank(), dist.get_world_size()))
        torch.manual_seed(0)
        x, first = torch.randn(rows, width), nn.Linear(width, width, bias=False)
        second = nn.Linear(width, width, bias=False)
        self._weights = [
            self._cube.local_weight(first.weight.detach()),
            self._cube.next.local_weight(second.weight.detach()),
        ]
        self._own = self._cube.local_input(x)
        self._x = x
        self._pair = _Line(first, second, self._line)

    def products(self, form: str) -> dict[str, Any]:
        """Compute both, forward and backward; return seconds and bytes."""
        dist.barrier()
        before = self._cube.bytes_sent + self._line.bytes_sent
        began = time.perf_counter()
        if form == "line":
            y = self._pair(self._x.requires_grad_())
        else:
            y = self._on_the_cube(keep=form == "keep")
        torch.autograd.backward(y, torch.ones_like(y))
        dist.barrier()
        seconds = time.perf_counter() - began
        return {
            "seconds": seconds,
            "sent": self._cube.bytes_sent + self._line.bytes_sent - before,
        }

    def _on_the_cube(self, *, keep: bool) -> Tensor:
        first, second = (weight.requires_grad_() for weight in self._weights)
        between = cube_product(self._own.requires_grad_(), first, self._cube, keep=keep)
        return cube_product(between, second, self._cube.next, keep=keep)


def _rank_of(job: dict[str, Any]) -> ParallelRank | CubeRank:
    torch.set_num_threads(1)
    return CubeRank(**job) if "rows" in job else ParallelRank(**job)


if __name__ == "__main__":
    answer_commands(_rank_of)
