"""What all frameworks get alike: images, labels, and the networks' first weights."""

import math
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from skindx_bench.frameworks.graph import Graph

_PATCHES = 3
"""On each side of an image."""


def write_images(folder: Path, images: int, side: int, classes: int, seed: int) -> dict[str, str]:
    """Write images N x S x S x 3 (uint8) of random patches, with labels N; return their files.

    Of pure noise all images look alike to a deep layer: its norm then divides by next to nothing,
    and rounding decides a step.
    """
    generator = np.random.default_rng(seed)
    patch = -(-side // _PATCHES)
    patches = generator.integers(0, 192, (images, _PATCHES, _PATCHES, 3), np.uint8)
    whole = patches.repeat(patch, 1).repeat(patch, 2)[:, :side, :side]
    noise = generator.integers(0, 64, whole.shape, np.uint8)
    files = {"images": str(folder / "images.npy"), "labels": str(folder / "labels.npy")}
    np.save(files["images"], whole + noise)
    np.save(files["labels"], generator.integers(0, classes, images))
    return files


def write_weights(file: Path, graph: Graph, seed: int) -> None:
    """Write a network's first weights (He et al. 2015, arXiv 1502.01852); norms begin at one.

    The last layer begins at zero: with large first gradients a step of a deep network would
    multiply what rounding has left, and losses of equal steps would part.
    """
    generator = np.random.default_rng(seed)
    found: dict[str, np.ndarray] = {}
    for node in graph:
        for name, shape in node.shapes.items():
            if name.endswith(".bias") or node is graph[-1]:
                found[name] = np.zeros(shape, np.float32)
            elif node.kind == "norm":
                found[name] = np.ones(shape, np.float32)
            else:
                scale = math.sqrt(2 / math.prod(shape[1:]))
                found[name] = scale * generator.standard_normal(shape, np.float32)
    save_file(found, file)
