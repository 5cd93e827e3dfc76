"""A rank that trains by PyTorch: alone, by DDP, by FSDP2, by DeepSpeed, or by skindx' engine."""

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from skindx_bench.frameworks.graph import IMAGE, Graph, Node
from skindx_bench.frameworks.model import SHARDED_FROM
from skindx_bench.frameworks.rank import MEAN, MOMENTUM, SCALE, Answer, Arrays, Stages, answer


class Network(nn.Module):
    """A network; its weights are named as in its graph."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self._graph = graph
        uses = [name for node in graph for name in node.inputs]
        last = {name: number for number, node in enumerate(graph) for name in node.inputs}
        # A value is dropped after its last use, as in a network that is written out.
        self._over = [
            [name for name in set(uses) if last[name] == number] for number in range(len(graph))
        ]
        for node in graph:
            if (layer := _layer(node)) is not None:
                self.add_module(node.name, layer)

    def forward(self, images_B3SS: Tensor) -> Tensor:
        """Return logits B x C."""
        values = {IMAGE: images_B3SS}
        found = images_B3SS
        for node, over in zip(self._graph, self._over, strict=True):
            inputs = [values[name] for name in node.inputs]
            found = self._apply_node(node, inputs)
            for name in over:
                del values[name]
            del inputs
            values[node.name] = found
        return found

    def _apply_node(self, node: Node, inputs: list[Tensor]) -> Tensor:
        first = inputs[0]
        if node.name in self._modules:
            layer: Any = self._modules[node.name]
            outputs: Tensor = layer(first)
            return outputs
        if node.kind == "add":
            return first + inputs[1]
        if node.kind == "concat":
            return torch.cat(inputs, 1)
        return first.mean((2, 3)) if node.kind == "mean" else first.flatten(1)


def _layer(node: Node) -> nn.Module | None:
    if node.kind == "conv":
        return nn.Conv2d(
            node.into,
            node.out,
            node.kernel,
            node.stride,
            node.padding,
            groups=node.groups,
            bias=node.bias,
        )
    if node.kind == "linear":
        return nn.Linear(node.into, node.out)
    if node.kind == "norm":
        return nn.BatchNorm2d(node.out, node.epsilon, track_running_stats=False)
    if node.kind == "max_pool":
        return nn.MaxPool2d(node.kernel, node.stride, node.padding)
    if node.kind in ("relu", "relu6"):
        return nn.ReLU(inplace=True) if node.kind == "relu" else nn.ReLU6(inplace=True)
    return None


Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Meeting:
    """The ranks that have met, as one of them knows them."""

    ranks: int = 1
    mesh: Any = None
    """Of skindx and DeepSpeed, where one of them has met the others."""


class Torch:
    """Steps of one rank alone, and what all of them share."""

    def __init__(self, meeting: Meeting, options: Answer) -> None:
        """`pieces` in options: a batch is taken as those of so many ranks, one after the other."""
        self.meeting, self.ranks = meeting, meeting.ranks
        self.pieces, self.rate = options.get("pieces", 1), options["rate"]
        self._net: nn.Module | None = None
        self._ready = 0.0

    def version(self) -> str:
        """Return PyTorch's version."""
        return f"torch {torch.__version__}"

    def build(self, graph: Graph, weights: Arrays, batch: int) -> None:
        """Set up the network, and note when each backward pass has made its last gradient."""
        net = Network(graph)
        net.load_state_dict({name: torch.from_numpy(found) for name, found in weights.items()})
        net.train()
        self._batch = batch
        self._net = self.wrap(net)
        self.watch(net)

    def watch(self, net: nn.Module) -> None:
        """Have `made` called for each gradient that a backward pass makes."""
        for weight in net.parameters():
            weight.register_hook(self.made)  # type: ignore[no-untyped-call]

    def made(self, gradient: Tensor) -> None:
        """Note when a gradient was made on this rank; what follows the last one is no backward."""
        self._ready = time.perf_counter()

    def wrap(self, net: nn.Module) -> nn.Module:
        """Return the network as the steps call it, and make the optimizer."""
        self._optimizer = self.sgd(net)
        return net

    def sgd(self, net: nn.Module) -> torch.optim.Optimizer:
        """Return the optimizer of all arms."""
        return torch.optim.SGD(net.parameters(), lr=self.rate, momentum=MOMENTUM)

    def copy(self, images_BSS3: np.ndarray, labels_B: np.ndarray) -> Batch:
        """Return tensors, channels first."""
        images = torch.from_numpy(images_BSS3).permute(0, 3, 1, 2).float()
        return images.sub_(MEAN).div_(SCALE).contiguous(), torch.from_numpy(labels_B)

    def step(self, batch: Batch, stages: Stages) -> float:
        """Take one step."""
        assert self._net is not None
        total: float = 0.0
        for images, labels in zip(*(part.chunk(self.pieces) for part in batch), strict=True):
            with stages.stage("forward"):
                loss = nn.functional.cross_entropy(self._net(images), labels)
                total += loss.item()
            begin = time.perf_counter()
            self.backward(loss / self.pieces, len(images))
            end = time.perf_counter()
            stages.add("backward", begin, self._ready)
            stages.add("communicate", self._ready, end)
        self.update(stages)
        mean: float = total / self.pieces
        return mean

    def backward(self, loss: Tensor, images: int) -> None:
        """Make the gradients that all ranks take."""
        loss.backward()  # type: ignore[no-untyped-call]

    def update(self, stages: Stages) -> None:
        """Move the weights."""
        with stages.stage("update"):
            self._optimizer.step()
            self._optimizer.zero_grad()

    def drop(self) -> None:
        """Give the network back."""
        self._net = None
        self.__dict__.pop("_optimizer", None)
        gc.collect()


class Ddp(Torch):
    """PyTorch's DistributedDataParallel, as it comes."""

    def wrap(self, net: nn.Module) -> nn.Module:
        """Wrap the network."""
        self._optimizer = self.sgd(net)
        return nn.parallel.DistributedDataParallel(net)


class Fsdp2(Ddp):
    """`fully_shard`: large layers one by one, the others together."""

    def wrap(self, net: nn.Module) -> nn.Module:
        """Share the weights out."""
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (self.ranks,))
        for layer in net.modules():
            own = sum(weight.numel() for weight in layer.parameters(recurse=False))
            if own >= SHARDED_FROM:
                fully_shard(layer, mesh=mesh)
        fully_shard(net, mesh=mesh)
        self._optimizer = self.sgd(net)
        return net

    def watch(self, net: nn.Module) -> None:
        """Watch the first layer, whose gradient is the last; it has its whole weight in a pass."""
        first, handles = next(iter(net.children())), list[Any]()

        def begin(layer: Any, inputs: Any) -> None:
            for handle in handles:
                handle.remove()
            handles[:] = [layer.weight.register_hook(self.made)]

        first.register_forward_pre_hook(begin)


class DeepSpeed(Torch):
    """DeepSpeed by itself, ZeRO 0."""

    def version(self) -> str:
        """Return both versions."""
        from skindx.training.deepspeed.ranks import import_deepspeed

        return f"deepspeed {import_deepspeed().__version__}, {super().version()}"

    def wrap(self, net: nn.Module) -> nn.Module:
        """Wrap the network."""
        from skindx.training.config.engine import deepspeed_config
        from skindx.training.deepspeed.ranks import import_deepspeed

        settings = self.meeting.mesh.settings
        config = deepspeed_config(settings, self._batch * self.ranks, self.ranks)
        self._engine, *_ = import_deepspeed().initialize(
            model=net, optimizer=self.sgd(net), config=config, dist_init_required=False
        )
        engine: nn.Module = self._engine
        return engine

    def backward(self, loss: Tensor, images: int) -> None:
        """Make the gradients, and reduce them."""
        self._engine.backward(loss)

    def update(self, stages: Stages) -> None:
        """Move the weights; it drops the gradients as well."""
        with stages.stage("update"):
            self._engine.step()

    def drop(self) -> None:
        """Release its hooks."""
        if self._net is not None:
            self._engine.destroy()
            del self._engine
        super().drop()


class Skindx(DeepSpeed):
    """The engine that `skindx train` steps by, with one of its exchanges."""

    def __init__(self, meeting: Meeting, options: Answer) -> None:
        super().__init__(meeting, options)
        self._exchange = options["exchange"]
        self._waited = (0.0, 0.0)

    def version(self) -> str:
        """Return all versions."""
        from skindx import __version__

        return f"skindx {__version__}, {super().version()}"

    def wrap(self, net: nn.Module) -> nn.Module:
        """Wrap the network."""
        from pydantic import TypeAdapter

        from skindx.comm.exchange_kinds import AnyExchange
        from skindx.training.deepspeed.engine import Engine

        self._own = Engine(
            net,
            self.sgd(net),
            self.meeting.mesh,
            self._batch * self.ranks,
            exchange=TypeAdapter(AnyExchange).validate_python(self._exchange),
        )
        self._own.train()
        self._own.watch(self._waiting)
        return net

    @contextmanager
    def _waiting(self, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self._waited = begin, time.perf_counter()

    def step(self, batch: Batch, stages: Stages) -> float:
        """Take one step, as `skindx train` does: a loss that is not finite ends it."""
        images, labels = batch
        with stages.stage("forward"):
            loss_sum = nn.functional.cross_entropy(self._own(images), labels, reduction="sum")
            total = loss_sum.item()
        begin = time.perf_counter()
        self._own.backward(loss_sum, len(images) * self.ranks)
        end = time.perf_counter()
        stages.add("backward", begin, self._ready)
        stages.add("communicate", self._ready, end)
        self._waited = end, end
        if not self._own.step(self.rate):
            raise RuntimeError("the gradient is not finite")
        done = time.perf_counter()
        stages.add("communicate", *self._waited)
        stages.add("update", end, self._waited[0])
        stages.add("update", self._waited[1], done)
        return total / len(images)

    def drop(self) -> None:
        """Release its hooks."""
        if self._net is not None:
            self._own.close()
            del self._own
        Torch.drop(self)


_KINDS: dict[str, type[Torch]] = {
    "plain": Torch,
    "ddp": Ddp,
    "fsdp2": Fsdp2,
    "deepspeed": DeepSpeed,
    "skindx": Skindx,
}


class Host:
    """A rank of all these arms, one at a time."""

    def __init__(self, job: Answer) -> None:
        """Of DeepSpeed only what the job's arms need is imported."""
        torch.set_num_threads(1)
        self._kinds: set[str] = set(job["kinds"])
        self._arm: Torch | None = None

    def join(self, rank: int, ranks: int, address: str, port: int) -> None:
        """Meet by gloo; with DeepSpeed as `skindx train` does."""
        mesh = None
        if self._kinds & {"deepspeed", "skindx"}:
            from skindx.training.config.engine import EngineSettings
            from skindx.training.deepspeed.ranks import join

            mesh = join(EngineSettings(accelerator="cpu", timeout_s=600, gradient_clip=0))
        elif self._kinds != {"plain"}:
            dist.init_process_group("gloo", rank=rank, world_size=ranks)
        self._meeting = Meeting(ranks, mesh)

    def build(self, graph: Graph, weights: Arrays, batch: int, options: Answer) -> None:
        """Set up the network under the arm that `kind` in the options names."""
        self._arm = _KINDS[options["kind"]](self._meeting, options)
        self._arm.build(graph, weights, batch)

    @property
    def arm(self) -> Torch:
        """The arm whose network is set up."""
        assert self._arm is not None
        return self._arm

    def version(self) -> str:
        """Return the versions that the arm has."""
        return self.arm.version()

    def copy(self, images_BSS3: np.ndarray, labels_B: np.ndarray) -> Batch:
        """Return tensors, channels first."""
        return self.arm.copy(images_BSS3, labels_B)

    def step(self, batch: Batch, stages: Stages) -> float:
        """Take one step."""
        return self.arm.step(batch, stages)

    def drop(self) -> None:
        """Give the network back."""
        if self._arm is not None:
            self._arm.drop()
            self._arm = None
            gc.collect()


def main() -> None:
    """Answer the bench's commands."""
    answer(Host)


if __name__ == "__main__":
    main()
