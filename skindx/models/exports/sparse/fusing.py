"""A network's body as a graph in which each convolution has taken in what follows it."""

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_weights

from skindx.core.errors import UserError
from skindx.core.startup import light_imports
from skindx.models.classifier.classifier import Classifier, ClassifierBody
from skindx.models.exports.sparse.layer import FusedConvolution

_ROOT, _PREFIX = "classifier.net.", "fused."
_IDLE = (nn.Identity, nn.Dropout, nn.Dropout2d)
"""Modules that do nothing in evaluation mode."""
_RELUS = (F.relu, F.relu_, torch.relu, torch.relu_)
_SUMS = (operator.add, torch.add)


@dataclass(frozen=True)
class FusedBody:
    """Squares B x S x S x 3 uint8 in, the body's last map out."""

    graph: fx.GraphModule
    layers: Mapping[str, FusedConvolution]
    """By the convolution's name in the network."""

    def __call__(self, squares_BSS3: Tensor) -> Tensor:
        with torch.inference_mode():
            map_: Tensor = self.graph(squares_BSS3)
        return map_


class _Tracer(fx.Tracer):
    def __init__(self) -> None:
        with light_imports():
            from timm.layers import BatchNormAct2d
            from timm.models import get_notrace_functions, get_notrace_modules
        super().__init__(autowrap_functions=tuple(get_notrace_functions()))
        self._leaves = (BatchNormAct2d, *get_notrace_modules())

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, self._leaves) or super().is_leaf_module(m, module_qualified_name)


def fuse(classifier: Classifier) -> FusedBody:
    """Return the body with fused convolutions; what is not fused, it shares with the network.

    Raises UserError for a network whose path depends on its input.
    """
    body = ClassifierBody(classifier).eval()
    try:
        graph = fx.GraphModule(body, _Tracer().trace(body))
    # Any code of a network runs here with stand-ins for tensors.
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(
            f"a network of the kind {type(classifier.net).__name__} cannot be followed ({reason}); "
            "serve it as it is."
        ) from None
    return FusedBody(graph, _Fusing(graph).run())


@dataclass
class _Tail:
    """How far a convolution has taken in what follows it."""

    node: fx.Node
    convolution: nn.Conv2d
    relu: bool = False
    residual: fx.Node | None = None
    act: nn.Module | None = None
    """An activation other than ReLU that a batch norm brings, which then follows."""


class _Fusing:
    def __init__(self, graph: fx.GraphModule) -> None:
        self._graph = graph
        self._modules = dict(graph.named_modules())
        calls = [node.target for node in graph.graph.nodes if node.op == "call_module"]
        self._once = {target for target in calls if calls.count(target) == 1}

    def run(self) -> dict[str, FusedConvolution]:
        nodes = self._graph.graph.nodes
        for node in list(nodes):
            if type(self._module(node)) in _IDLE:
                node.replace_all_uses_with(node.args[0])
                self._graph.graph.erase_node(node)
        layers = {}
        for node in list(nodes):
            if self._fusable(node):
                name = str(node.target).removeprefix(_ROOT)
                layers[name] = self._fused(node)
        self._graph.delete_all_unused_submodules()
        self._graph.graph.lint()
        self._graph.recompile()
        return layers

    def _module(self, node: fx.Node) -> nn.Module | None:
        return self._modules.get(str(node.target)) if node.op == "call_module" else None

    def _fusable(self, node: fx.Node) -> bool:
        own = self._module(node)
        return (
            type(own) is nn.Conv2d
            and own.padding_mode == "zeros"
            and not isinstance(own.padding, str)
            and node.target in self._once
            and len(node.args) == 1
            and own.weight.dtype == torch.float32
        )

    def _fused(self, node: fx.Node) -> FusedConvolution:
        tail = self._followed(node)
        layer = FusedConvolution(tail.convolution, relu=tail.relu).eval()
        target = f"{_PREFIX}{node.target}"
        self._graph.add_submodule(target, layer)
        arguments = (*node.args, *([tail.residual] if tail.residual else []))
        graph = self._graph.graph
        with graph.inserting_after(tail.node):
            new = graph.call_module(target, arguments)
            end = new
            if tail.act is not None:
                self._graph.add_submodule(f"{target}.act", tail.act)
                with graph.inserting_after(new):
                    end = graph.call_module(f"{target}.act", (new,))
        tail.node.replace_all_uses_with(end)
        graph.eliminate_dead_code(
            is_impure_node=lambda other: other.op in ("placeholder", "output")
        )
        return layer

    def _followed(self, node: fx.Node) -> _Tail:
        own = self._modules[str(node.target)]
        assert isinstance(own, nn.Conv2d)
        tail = _Tail(node, _copied(own, own.weight, own.bias))
        following = _only_user(tail.node)
        if following is not None and (folded := self._with_norm(tail.convolution, following)):
            tail.node, tail.convolution = following, folded
            act = getattr(self._module(following), "act", None)
            tail.relu = type(act) is nn.ReLU
            tail.act = None if type(act) in (type(None), nn.Identity, nn.ReLU) else act
        if not tail.relu and tail.act is None:
            self._take_residual(tail)
            self._take_relu(tail)
        return tail

    def _with_norm(self, own: nn.Conv2d, node: fx.Node) -> nn.Conv2d | None:
        """Return the convolution with a batch norm folded in; None for what is no such norm."""
        norm = self._module(node)
        if not isinstance(norm, nn.BatchNorm2d) or norm.running_mean is None:
            return None
        if type(getattr(norm, "drop", None)) not in (type(None), *_IDLE):
            return None
        assert norm.running_var is not None
        weight, bias = fuse_conv_bn_weights(
            *(own.weight, own.bias, norm.running_mean, norm.running_var),
            *(norm.eps, norm.weight, norm.bias),
        )
        return _copied(own, weight, bias)

    def _take_residual(self, tail: _Tail) -> None:
        following = _only_user(tail.node)
        if following is None or following.op != "call_function" or following.kwargs:
            return
        if len(following.args) != 2 or not all(isinstance(at, fx.Node) for at in following.args):
            return
        one, other = following.args
        # A sum in the memory of the other part would change what others read.
        ours_first = following.target is operator.iadd and one is tail.node
        if one is not other and (following.target in _SUMS or ours_first):
            residual = other if one is tail.node else one
            assert isinstance(residual, fx.Node)
            tail.node, tail.residual = following, residual

    def _take_relu(self, tail: _Tail) -> None:
        following = _only_user(tail.node)
        if following is None:
            return
        called = following.op == "call_function" and following.target in _RELUS
        method = following.op == "call_method" and following.target in ("relu", "relu_")
        if called or method or type(self._module(following)) is nn.ReLU:
            tail.node, tail.relu = following, True


def _only_user(node: fx.Node) -> fx.Node | None:
    users = list(node.users)
    return users[0] if len(users) == 1 else None


def _copied(own: nn.Conv2d, weight: Tensor, bias: Tensor | None) -> nn.Conv2d:
    """Return such a convolution, which does not learn, with other weights."""
    names = (
        "in_channels",
        "out_channels",
        "kernel_size",
        "stride",
        "padding",
        "dilation",
        "groups",
    )
    shape: dict[str, Any] = {name: getattr(own, name) for name in names}
    with torch.device("meta"):
        copy = nn.Conv2d(**shape, bias=bias is not None)
    copy.weight = nn.Parameter(weight.detach(), requires_grad=False)
    if bias is not None:
        copy.bias = nn.Parameter(bias.detach(), requires_grad=False)
    return copy.eval()
