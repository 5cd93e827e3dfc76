"""Weights that come from elsewhere: timm's own, fetched once, and the trunk that weights make.

`python -m skindx.models.classifier.pretrained MODEL ARGS_JSON FILE` is the process that fetches: no
other part reaches the hub.
"""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import torch
from torch import Tensor

from skindx.core.atomic_files import atomic_file
from skindx.core.errors import UserError
from skindx.core.machine import cache_folder, child_environment, go_offline, python_command
from skindx.core.startup import light_imports
from skindx.models.classifier.classifier import (
    Classifier,
    ClassifierSettings,
    build_classifier,
    load_weights,
)
from skindx.models.classifier.head_kinds import LinearHead
from skindx.models.classifier.heads import head_place
from skindx.models.classifier.network_setup import is_known, sized_arguments


def fetch_by(module: str, *arguments: str, limit_s: int) -> str:
    """Run a module online; return why it may have brought nothing: its last words, or its code.

    The caller looks for what it wanted.
    """
    # The hub's client reads the variable when it is imported: here it was, and stays offline.
    online = child_environment({"HF_HUB_OFFLINE": "0", "TRANSFORMERS_OFFLINE": "0"})
    command = python_command("-m", module, *arguments)
    try:
        done = subprocess.run(
            command,
            env=online,
            check=False,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
        )
    except subprocess.TimeoutExpired:
        return f"nothing came within {limit_s} s"
    last = (done.stderr.strip().splitlines() or [f"code {done.returncode}"])[-1]
    # A short last line is the cause; a long one describes it after the error's name.
    reason = last if len(last) < 80 else last.split(":")[0].rsplit(".", 1)[-1]
    return reason.rstrip(".")


_LIMIT_S = 1800
_HUB_S = 5


def hub_problem() -> str:
    """Return why the hub, from which weights are fetched, cannot be reached from here, or ""."""
    url = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    try:
        urlopen(Request(url, method="HEAD"), timeout=_HUB_S).close()  # noqa: S310
    except HTTPError:
        return ""  # it answers
    except (OSError, ValueError) as error:
        return f"{url} does not answer from here ({getattr(error, 'reason', error)})"
    return ""


def pretrained_file(settings: ClassifierSettings) -> Path:
    """Return a local safetensors file with timm's weights of a model, fetched if it is not there.

    Raises UserError for a model without weights and when they cannot be fetched.
    """
    file = kept_weights(settings)
    if not file.is_file():
        _fetch(settings.model, _arguments(settings), file)
    return file


def kept_weights(settings: ClassifierSettings) -> Path:
    """Return where timm's weights of a model are kept once they were fetched; fetches nothing.

    Raises UserError for a model without weights.
    """
    go_offline()
    with light_imports():
        import timm

    known = timm.get_pretrained_cfg(settings.model) if is_known(settings.model) else None
    if known is None or not known.has_weights:
        raise UserError(
            f"timm has no pretrained weights for {settings.model!r}; set `pretrained: false` for "
            "this member, or set its `weights` to a file."
        )
    arguments = _arguments(settings)
    of = sha256(f"{known.hf_hub_id} {known.url} {arguments}".encode()).hexdigest()[:12]
    return cache_folder() / "weights" / f"{settings.model}-{of}.safetensors"


def _arguments(settings: ClassifierSettings) -> str:
    sized = sized_arguments(settings.model, settings.model_args, settings.preprocess.size)
    return json.dumps(sized, sort_keys=True)


def _fetch(model: str, arguments: str, file: Path) -> None:
    module = "skindx.models.classifier.pretrained"
    reason = fetch_by(module, model, arguments, str(file), limit_s=_LIMIT_S)
    if not file.is_file():
        raise UserError(
            f"the weights of {model!r} are not on this machine and could not be downloaded "
            f"({reason}); connect to a network once, or set the member's `pretrained: false` and "
            "give a file with `skindx train --weights FILE`."
        )


def main(arguments: list[str]) -> int:
    """Fetch the weights of a model and write them to a file."""
    with light_imports():
        import timm
    from safetensors.torch import save_file

    model, model_args, file = arguments
    plain: dict[str, Any] = json.loads(model_args)
    net = timm.create_model(model, pretrained=True, **plain)
    state = {name: tensor.clone().contiguous() for name, tensor in net.state_dict().items()}
    with atomic_file(Path(file)) as temporary:
        save_file(state, temporary)
    return 0


@dataclass(frozen=True)
class Trunk:
    """A network with given weights, whose head is not used."""

    key: str
    """16 hexadecimal digits of a SHA-256 over the architecture and all weights."""
    classifier: Classifier
    state: Mapping[str, Tensor]
    """All tensors of the network except the head's."""
    head: str
    """The name of the head's place in the network."""
    dimensions: int
    """Number of pooled features."""


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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
