"""A body as a graph in which each convolution has taken in what follows it (Shi and Chu 2017).

A convolution computes by the choice that was faster in its setting; `SparseRecord` is the file of
these choices.
"""

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_weights

from skindx.core.errors import UserError
from skindx.core.machine import machine_fingerprint
from skindx.core.startup import light_imports
from skindx.models.classifier.classifier import Classifier, ClassifierBody
from skindx.models.exports.sparse_backend import Choice, Setting
from skindx.models.exports.sparse_convolution import SOURCE, SparseConvolution, fits


def fingerprint() -> str:
    """Return what stands for this machine and its kernel: choices hold where it is the same."""
    return machine_fingerprint(SOURCE.digest())


# N = images, C = input channels, K = output channels

_Call = Callable[[Tensor, Tensor | None], Tensor]


def setting_of(images: int, threads: int) -> Setting:
    if threads > 1:
        return "one_threaded" if images == 1 else "many_threaded"
    return "one" if images == 1 else "many"


def packs() -> bool:
    """Return whether this torch offers oneDNN's convolution with weights packed before."""
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return available and hasattr(torch.ops.mkldnn, "_convolution_pointwise")


def dense_choices(precision: str) -> list[Choice]:
    """Return the dense choices of this machine, the usual one first."""
    packed: list[Choice] = ["packed"] if packs() else []
    half: list[Choice] = ["bf16"] if packs() and precision == "bf16" else []
    return [*packed, "torch", *half]


class FusedConvolution(nn.Module):
    """A convolution, batch norm folded into it, a residual and ReLU; fp32 in and out, on the CPU.

    Memory of the output is channels last.
    """

    def __init__(self, convolution: nn.Conv2d, *, relu: bool) -> None:
        super().__init__()
        self.convolution = convolution
        self.relu = relu
        self.skips = fits(convolution)
        """Whether the kernel that skips zeros computes such a layer."""
        self.choices: dict[Setting, Choice] = {}
        self.dense: dict[Setting, Choice] = {}
        """What was fastest without skipping zeros."""
        self._usual = dense_choices("fp32")[0]
        self._built: dict[tuple[Choice, bool], _Call] = {}

    def forward(self, input_NCHW: Tensor, residual_NKHW: Tensor | None = None) -> Tensor:
        """Return N x K x H x W."""
        setting = setting_of(len(input_NCHW), torch.get_num_threads())
        return self.by(self.choices.get(setting, self._usual), input_NCHW, residual_NKHW)

    def by(self, choice: Choice, input_NCHW: Tensor, residual_NKHW: Tensor | None) -> Tensor:
        # oneDNN lays weights out for one size of the input; for another it does so in every call.
        kind = choice, len(input_NCHW) > 1 and choice in ("packed", "bf16")
        if kind not in self._built:
            self._built[kind] = _BUILDERS[choice](self, input_NCHW)
        tall_NCHW = input_NCHW.contiguous(memory_format=torch.channels_last)
        if residual_NKHW is not None and residual_NKHW.shape != self._shape(input_NCHW):
            # A residual that is stretched over the map: after the convolution, as torch does.
            sum_NKHW: Tensor = self.convolution(tall_NCHW) + residual_NKHW
            return sum_NKHW.relu() if self.relu else sum_NKHW
        return self._built[kind](tall_NCHW, residual_NKHW)

    def _shape(self, input_NCHW: Tensor) -> tuple[int, ...]:
        padding, stride, dilation, _ = self.geometry()
        kernel, sides = self.convolution.kernel_size, input_NCHW.shape[2:]
        out = (
            (side + 2 * padding[at] - dilation[at] * (kernel[at] - 1) - 1) // stride[at] + 1
            for at, side in enumerate(sides)
        )
        return (len(input_NCHW), self.convolution.out_channels, *out)

    def geometry(self) -> tuple[list[int], list[int], list[int], int]:
        """Return padding, stride, dilation and groups as torch's operators take them."""
        layer = self.convolution
        padding = [int(pad) for pad in layer.padding]
        return padding, list(layer.stride), list(layer.dilation), layer.groups


def _torch(layer: FusedConvolution, _: Tensor) -> _Call:
    conv = layer.convolution
    weight_KCHW = conv.weight.contiguous(memory_format=torch.channels_last)
    padding, stride, dilation, groups = layer.geometry()

    def call(input_NCHW: Tensor, residual_NKHW: Tensor | None) -> Tensor:
        out_NKHW = F.conv2d(input_NCHW, weight_KCHW, conv.bias, stride, padding, dilation, groups)
        return _finished(out_NKHW, residual_NKHW, relu=layer.relu)

    return call


def _packed(layer: FusedConvolution, input_NCHW: Tensor) -> _Call:
    geometry = layer.geometry()
    weight = _reordered(layer, layer.convolution.weight, input_NCHW)
    bias = layer.convolution.bias
    after = "relu" if layer.relu else "none"
    one = torch.ops.mkldnn._convolution_pointwise

    def call(input_NCHW: Tensor, residual_NKHW: Tensor | None) -> Tensor:
        if residual_NKHW is None:
            plain: Tensor = one(input_NCHW, weight, bias, *geometry, after, [], "")
            return plain
        tall_NKHW = residual_NKHW.contiguous(memory_format=torch.channels_last)
        added: Tensor = one.binary(
            *(input_NCHW, tall_NKHW, weight, bias, *geometry),
            *("add", 1.0, "relu" if layer.relu else None, [], None),
        )
        return added

    return call


def _half(layer: FusedConvolution, input_NCHW: Tensor) -> _Call:
    geometry = layer.geometry()
    weight = _reordered(layer, layer.convolution.weight.bfloat16(), input_NCHW)
    bias = layer.convolution.bias
    bias = None if bias is None else bias.bfloat16()
    one = torch.ops.mkldnn._convolution_pointwise

    def call(input_NCHW: Tensor, residual_NKHW: Tensor | None) -> Tensor:
        out_NKHW = one(input_NCHW.bfloat16(), weight, bias, *geometry, "none", [], "").float()
        return _finished(out_NKHW, residual_NKHW, relu=layer.relu)

    return call


def _sparse(layer: FusedConvolution, _: Tensor) -> _Call:
    kernel = SparseConvolution(layer.convolution, relu=layer.relu)
    return lambda input_NCHW, residual_NKHW: kernel(
        input_NCHW, residual_NKHW, torch.get_num_threads()
    )


_BUILDERS: dict[Choice, Callable[[FusedConvolution, Tensor], _Call]] = {
    "torch": _torch,
    "packed": _packed,
    "bf16": _half,
    "sparse": _sparse,
}


def _reordered(layer: FusedConvolution, weight_KCHW: Tensor, input_NCHW: Tensor) -> Tensor:
    reorder = torch.ops.mkldnn._reorder_convolution_weight
    packed: Tensor = reorder(weight_KCHW, *layer.geometry(), list(input_NCHW.shape))
    return packed


def _finished(out_NKHW: Tensor, residual_NKHW: Tensor | None, *, relu: bool) -> Tensor:
    if residual_NKHW is not None:
        out_NKHW = out_NKHW.add_(residual_NKHW)
    return out_NKHW.relu_() if relu else out_NKHW


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
        layer = self._module(node)
        return (
            type(layer) is nn.Conv2d
            and layer.padding_mode == "zeros"
            and not isinstance(layer.padding, str)
            and node.target in self._once
            and len(node.args) == 1
            and layer.weight.dtype == torch.float32
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
        convolution = self._modules[str(node.target)]
        assert isinstance(convolution, nn.Conv2d)
        tail = _Tail(node, _copied(convolution, convolution.weight, convolution.bias))
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

    def _with_norm(self, convolution: nn.Conv2d, node: fx.Node) -> nn.Conv2d | None:
        """Return the convolution with a batch norm folded in; None for what is no such norm."""
        norm = self._module(node)
        if not isinstance(norm, nn.BatchNorm2d) or norm.running_mean is None:
            return None
        if type(getattr(norm, "drop", None)) not in (type(None), *_IDLE):
            return None
        assert norm.running_var is not None
        weight, bias = fuse_conv_bn_weights(
            *(convolution.weight, convolution.bias, norm.running_mean, norm.running_var),
            *(norm.eps, norm.weight, norm.bias),
        )
        return _copied(convolution, weight, bias)

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


def _copied(convolution: nn.Conv2d, weight: Tensor, bias: Tensor | None) -> nn.Conv2d:
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
    shape: dict[str, Any] = {name: getattr(convolution, name) for name in names}
    with torch.device("meta"):
        copy = nn.Conv2d(**shape, bias=bias is not None)
    copy.weight = nn.Parameter(weight.detach(), requires_grad=False)
    if bias is not None:
        copy.bias = nn.Parameter(bias.detach(), requires_grad=False)
    return copy.eval()
