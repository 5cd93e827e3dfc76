"""A rank that trains by Lightning Fabric, in an environment that also has our packages."""

from typing import Any

from torch import Tensor, nn

from skindx_bench.frameworks.graph import Graph
from skindx_bench.frameworks.rank import Answer, Arrays, answer
from skindx_bench.frameworks.torch_rank import Host, Meeting, Torch


class LightningFabric(Torch):
    """Fabric's DDP: one process a node, which the bench has started."""

    def __init__(self, meeting: Meeting, options: Answer, fabric: Any) -> None:
        super().__init__(meeting, options)
        self._fabric = fabric

    def version(self) -> str:
        """Return both versions."""
        from importlib.metadata import version

        return f"lightning-fabric {version('lightning-fabric')}, {super().version()}"

    def wrap(self, net: nn.Module) -> nn.Module:
        """Wrap network and optimizer."""
        wrapped, self._optimizer = self._fabric.setup(net, self.sgd(net))
        module: nn.Module = wrapped
        return module

    def backward(self, loss: Tensor, images: int) -> None:
        """Make the gradients that all ranks take."""
        self._fabric.backward(loss)


class FabricHost(Host):
    """A rank that Fabric knows."""

    def join(self, rank: int, ranks: int, address: str, port: int) -> None:
        """Meet by gloo."""
        from lightning_fabric import Fabric

        self._meeting = Meeting(ranks)
        self._fabric: Any = Fabric(
            accelerator="cpu", devices=1, num_nodes=ranks, strategy="ddp", precision="32-true"
        )
        self._fabric.launch()

    def build(self, graph: Graph, weights: Arrays, batch: int, options: Answer) -> None:
        """Set up the network."""
        self._arm = LightningFabric(self._meeting, options, self._fabric)
        self._arm.build(graph, weights, batch)


def main() -> None:
    """Answer the bench's commands."""
    answer(FabricHost)


if __name__ == "__main__":
    main()
