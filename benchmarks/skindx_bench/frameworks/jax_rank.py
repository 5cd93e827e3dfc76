"""A rank that trains by JAX, in an environment of its own: a whole step is compiled into one."""

import gc
import os
from functools import partial
from typing import Any

import numpy as np

from skindx_bench.frameworks.graph import Graph, Node, carry_out
from skindx_bench.frameworks.rank import (
    COMPILED,
    MEAN,
    MOMENTUM,
    SCALE,
    Answer,
    Arrays,
    Stages,
    answer,
)

_AXIS = "ranks"


class Jax:
    """Pure functions on a mesh of all ranks' devices, sums between them by gloo."""

    def __init__(self, job: Answer) -> None:
        self._compiled: dict[Any, Any] = {}
        self._state: Any = None

    def version(self) -> str:
        """Return JAX's version."""
        import jax

        return f"jax {jax.__version__}"

    def join(self, rank: int, ranks: int, address: str, port: int) -> None:
        """Meet by JAX's own service."""
        os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
        import jax

        jax.config.update("jax_platforms", "cpu")
        if ranks > 1:
            jax.config.update("jax_cpu_collectives_implementation", "gloo")
            jax.distributed.initialize(f"{address}:{port}", ranks, rank)
        self._mesh = jax.make_mesh((ranks,), (_AXIS,), devices=jax.devices())

    def build(self, graph: Graph, weights: Arrays, batch: int, options: Answer) -> None:
        """Set up the weights; the step is compiled with the first one."""
        import jax
        from jax.sharding import NamedSharding, PartitionSpec

        rate = options["rate"]
        whole, shared = PartitionSpec(), PartitionSpec(_AXIS)
        self._whole = NamedSharding(self._mesh, whole)
        self._shared = NamedSharding(self._mesh, shared)
        turned = {name: _turned(found) for name, found in weights.items()}
        own = {name: self._everywhere(found) for name, found in turned.items()}
        still = {name: self._everywhere(np.zeros_like(found)) for name, found in turned.items()}
        self._state = own, still
        if (graph, rate) not in self._compiled:
            self._compiled[graph, rate] = jax.jit(
                jax.shard_map(
                    _step_of(graph, rate),
                    mesh=self._mesh,
                    in_specs=(whole, whole, shared, shared),
                    out_specs=(whole, whole, shared),
                    check_vma=False,
                ),
                donate_argnums=(0, 1),
            )
        self._step = self._compiled[graph, rate]

    def _everywhere(self, value: np.ndarray) -> Any:
        import jax

        return jax.make_array_from_process_local_data(self._whole, value, value.shape)

    def copy(self, images_BSS3: np.ndarray, labels_B: np.ndarray) -> Any:
        """Return the ranks' shares of two arrays; JAX has channels last."""
        import jax

        images = (images_BSS3.astype(np.float32) - MEAN) / SCALE
        return tuple(
            jax.make_array_from_process_local_data(self._shared, own)
            for own in (images, labels_B.astype(np.int32))
        )

    def step(self, batch: Any, stages: Stages) -> float:
        """Take one step, and wait for it."""
        import jax

        with stages.stage(COMPILED):
            *state, losses = self._step(*self._state, *batch)
            self._state = tuple(state)
            jax.block_until_ready(self._state)
            return float(losses.addressable_data(0)[0])

    def drop(self) -> None:
        """Give the arrays back; what is compiled stays."""
        self._state = None
        gc.collect()


def _turned(weight: np.ndarray) -> np.ndarray:
    """Return a convolution's weight as height, width, in, out."""
    turned = weight.transpose(2, 3, 1, 0) if weight.ndim == 4 else weight
    return np.ascontiguousarray(turned)


def _step_of(graph: Graph, rate: float) -> Any:
    """Return a rank's step: forward, backward, the mean of the gradients, SGD with momentum."""
    import jax
    import jax.numpy as jnp

    def loss_of(weights: Any, images: Any, labels: Any) -> Any:
        logits = carry_out(graph, images, partial(_apply, weights))
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1)
        return -chosen.mean()

    def step(weights: Any, moving: Any, images: Any, labels: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(weights, images, labels)
        gradients = jax.lax.pmean(gradients, _AXIS)
        moving = jax.tree.map(lambda old, new: MOMENTUM * old + new, moving, gradients)
        weights = jax.tree.map(lambda old, move: old - rate * move, weights, moving)
        return weights, moving, loss[None]

    return step


def _apply(  # noqa: PLR0911  (one return a kind)
    weights: Any, node: Node, inputs: list[Any]
) -> Any:
    import jax
    import jax.numpy as jnp

    first = inputs[0]
    weight, bias = weights.get(f"{node.name}.weight"), weights.get(f"{node.name}.bias")
    edge = (node.padding, node.padding)
    match node.kind:
        case "conv":
            found = jax.lax.conv_general_dilated(
                first,
                weight,
                (node.stride, node.stride),
                (edge, edge),
                dimension_numbers=("NHWC", "HWIO", "NHWC"),
                feature_group_count=node.groups,
            )
            return found if bias is None else found + bias
        case "norm":
            mean, variance = first.mean((0, 1, 2)), first.var((0, 1, 2))
            return (first - mean) * (jax.lax.rsqrt(variance + node.epsilon) * weight) + bias
        case "max_pool":
            window, strides = (1, node.kernel, node.kernel, 1), (1, node.stride, node.stride, 1)
            none = (0, 0)
            return jax.lax.reduce_window(
                first, -jnp.inf, jax.lax.max, window, strides, (none, edge, edge, none)
            )
        case "linear":
            return first @ weight.T + bias
        case "flatten":  # in PyTorch's order: channels first
            return first.transpose(0, 3, 1, 2).reshape(len(first), -1)
        case "mean":
            return first.mean((1, 2))
        case "add":
            return first + inputs[1]
        case "concat":
            return jnp.concatenate(inputs, 3)
        case "relu":
            return jnp.maximum(first, 0)
        case "relu6":
            return jnp.clip(first, 0, 6)


def main() -> None:
    """Answer the bench's commands."""
    answer(Jax)


if __name__ == "__main__":
    main()
