"""A network's operations by PyTorch."""

from typing import Any

import torch
from torch import Tensor, nn

from skindx_bench.frameworks.graph import IMAGE, Graph, Node


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
