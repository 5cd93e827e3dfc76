"""A rank that trains by TensorFlow, in an environment of its own: a whole step is one graph."""

import gc
import json
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


class TensorFlow:
    """A `tf.function` of TensorFlow's own operations; gradients by MultiWorkerMirroredStrategy."""

    def __init__(self, job: Answer) -> None:
        self._graphs: dict[Any, Any] = {}
        self._own: Any = None

    def version(self) -> str:
        """Return TensorFlow's version."""
        import tensorflow as tf

        return f"tensorflow {tf.__version__}"

    def join(self, rank: int, ranks: int, address: str, port: int) -> None:
        """Meet by TensorFlow's own servers."""
        if ranks > 1:
            task = {"type": "worker", "index": rank}
            workers = json.loads(os.environ["WORKERS"])
            os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
        self._strategy = tf.distribute.get_strategy()
        if ranks > 1:
            ring = tf.distribute.experimental.CommunicationImplementation.RING
            self._strategy = tf.distribute.MultiWorkerMirroredStrategy(
                communication_options=tf.distribute.experimental.CommunicationOptions(
                    implementation=ring
                )
            )

    def build(self, graph: Graph, weights: Arrays, batch: int, options: Answer) -> None:
        """Set up the weights; the step is traced with the first one.

        A traced step keeps its variables, so these are written again where it is known.
        """
        import tensorflow as tf

        rate = options["rate"]
        turned = {name: _turned(graph, name, found) for name, found in weights.items()}
        if (graph, rate, batch) not in self._graphs:
            own = {name: tf.Variable(found) for name, found in turned.items()}
            still = {name: tf.Variable(tf.zeros_like(found)) for name, found in turned.items()}
            step = tf.function(_step_of(graph, own, still, rate))

            def all_ranks(images: Any, labels: Any) -> Any:
                return self._strategy.run(step, (images, labels))

            self._graphs.clear()
            self._graphs[graph, rate, batch] = tf.function(all_ranks), own, still
        self._step, self._own, still = self._graphs[graph, rate, batch]
        for name, found in turned.items():
            self._own[name].assign(found)
            still[name].assign(tf.zeros_like(found))

    def copy(self, images_BSS3: np.ndarray, labels_B: np.ndarray) -> Any:
        """Return tensors, channels last."""
        import tensorflow as tf

        images = (tf.cast(tf.constant(images_BSS3), tf.float32) - MEAN) / SCALE
        return images, tf.constant(labels_B)

    def step(self, batch: Any, stages: Stages) -> float:
        """Take one step, and wait for it."""
        with stages.stage(COMPILED):
            return float(self._step(*batch).numpy())

    def drop(self) -> None:
        """Keep one network at a time."""
        self._own = None
        gc.collect()


def _turned(graph: Graph, name: str, weight: np.ndarray) -> np.ndarray:
    """Return a convolution's weight as height, width, in, out; one by channel has one out."""
    if weight.ndim != 4:
        return weight
    node = next(node for node in graph if name in node.shapes)
    order = (2, 3, 0, 1) if node.groups > 1 else (2, 3, 1, 0)
    return np.ascontiguousarray(weight.transpose(order))


def _step_of(graph: Graph, own: Any, still: Any, rate: float) -> Any:
    """Return a rank's step: forward, backward, the mean of the gradients, SGD with momentum."""
    import tensorflow as tf

    def step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = carry_out(graph, images, partial(_apply, own))
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
            )
        gradients = tape.gradient(loss, list(own.values()))
        context = tf.distribute.get_replica_context()
        if context.num_replicas_in_sync > 1:
            gradients = context.all_reduce(tf.distribute.ReduceOp.MEAN, gradients)
        for weight, moving, gradient in zip(own.values(), still.values(), gradients, strict=True):
            moving.assign(MOMENTUM * moving + gradient)
            weight.assign_sub(rate * moving)
        return loss

    return step


def _apply(  # noqa: PLR0911  (one return a kind)
    weights: Any, node: Node, inputs: list[Any]
) -> Any:
    import tensorflow as tf

    first = inputs[0]
    weight, bias = weights.get(f"{node.name}.weight"), weights.get(f"{node.name}.bias")
    edges = [[0, 0], [node.padding, node.padding], [node.padding, node.padding], [0, 0]]
    match node.kind:
        case "conv" if node.groups > 1:
            strides = [1, node.stride, node.stride, 1]
            return tf.nn.depthwise_conv2d(tf.pad(first, edges), weight, strides, "VALID")
        case "conv":
            found = tf.nn.conv2d(first, weight, node.stride, edges)
            return found if bias is None else found + bias
        case "norm":
            found, *_ = tf.compat.v1.nn.fused_batch_norm(
                first, weight, bias, epsilon=node.epsilon, is_training=True
            )
            return found
        case "max_pool":
            return tf.nn.max_pool2d(first, node.kernel, node.stride, edges)
        case "linear":
            return tf.linalg.matmul(first, weight, transpose_b=True) + bias
        case "flatten":  # in PyTorch's order: channels first
            return tf.reshape(tf.transpose(first, (0, 3, 1, 2)), (first.shape[0], node.out))
        case "mean":
            return tf.reduce_mean(first, (1, 2))
        case "add":
            return first + inputs[1]
        case "concat":
            return tf.concat(inputs, 3)
        case "relu":
            return tf.nn.relu(first)
        case "relu6":
            return tf.nn.relu6(first)


def main() -> None:
    """Answer the bench's commands."""
    answer(TensorFlow)


if __name__ == "__main__":
    main()
