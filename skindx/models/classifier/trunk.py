"""A trunk: a network's weights below its head, and the hash that names them."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from skindx.models.classifier.classifier import (
    Classifier,
    ClassifierSettings,
    build_classifier,
    load_weights,
)
from skindx.models.classifier.heads import LinearHead, head_place


@dataclass(frozen=True)
class Trunk:
    """A network with given weights, whose head is not used."""

    key: str
    """16 hexadecimal digits of a SHA-256 over the architecture and all weights."""
    classifier: Classifier
    state: Mapping[str, Tensor]
    """All tensors but the head's."""
    head: str
    """The name of the head's place in the network."""
    dimensions: int
    """Of the pooled features."""


def open_trunk(network: ClassifierSettings, weights: Path) -> Trunk:
    """Return the trunk of a network with the weights of a file; loaded once in a process.

    Raises UserError for weights that do not fit.
    """
    plain = network.model_copy(update={"head": LinearHead()})
    return _loaded(plain.model_dump_json(), weights, weights.stat().st_mtime_ns)


@lru_cache(maxsize=4)
def _loaded(network: str, weights: Path, changed: int) -> Trunk:
    settings = ClassifierSettings.model_validate_json(network)
    classifier = build_classifier(settings, 1)
    load_weights(classifier, weights)
    place = head_place(classifier.net)
    state = {
        name: tensor
        for name, tensor in classifier.net.state_dict().items()
        if not name.startswith(f"{place}.")
    }
    classifier.eval().requires_grad_(False)
    dimensions = classifier.net.get_submodule(place).in_features
    assert isinstance(dimensions, int)
    return Trunk(_digest(settings, state), classifier, state, place, dimensions)


def _digest(settings: ClassifierSettings, state: Mapping[str, Tensor]) -> str:
    parts = settings.model_dump(mode="json", exclude={"preprocess"})
    hashed = hashlib.sha256(json.dumps(parts, sort_keys=True).encode())
    for name in sorted(state):
        tensor = state[name].contiguous()
        hashed.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        hashed.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return hashed.hexdigest()[:16]
