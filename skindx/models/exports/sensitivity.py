"""Which layers int8 hurts most: the error of the last map when one layer alone is rounded."""

import tempfile
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from skindx.models.exports.quantising import Prepared, quantise
from skindx.models.exports.runtimes import load_body

_IMAGES = 8


def rank_layers(prepared: Prepared) -> list[str]:
    """Return the layers of a graph, the one that changes the last map most first.

    The change is ||map of one layer in int8 - map||² / ||map||² over some of the samples. ONNX
    Runtime measures it, also for other runtimes: the rounding is the layer's own.
    """
    squares_BSS3 = torch.from_numpy(np.stack(prepared.samples[:_IMAGES]))
    with tempfile.TemporaryDirectory(dir=prepared.graph.parent) as folder:
        file = Path(folder) / "one.onnx"
        exact = _map(prepared.graph, squares_BSS3)
        errors = {}
        for layer in prepared.layers:
            quantise(prepared, file, "onnx", [other for other in prepared.layers if other != layer])
            errors[layer] = float(((_map(file, squares_BSS3) - exact) ** 2).sum())
    # An error that is no number is the worst.
    return sorted(errors, key=lambda layer: -np.nan_to_num(errors[layer], nan=np.inf))


def _map(file: Path, squares_BSS3: torch.Tensor) -> NDArray[np.float64]:
    return load_body(file, "onnx", "fp32")(squares_BSS3).double().numpy()
