"""timm's own weights, fetched once by a process of their own: no other part reaches the hub.

`python -m skindx.models.classifier.pretrained MODEL ARGS_JSON FILE` is that process.
"""

import json
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

from skindx.core.atomic_files import atomic_file
from skindx.core.errors import UserError
from skindx.core.machine import cache_folder, go_offline
from skindx.core.startup import light_imports
from skindx.models.classifier.classifier import ClassifierSettings
from skindx.models.classifier.input_size import sized_arguments
from skindx.models.online import fetch_by

_LIMIT_S = 1800


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

    known = timm.get_pretrained_cfg(settings.model) if timm.is_model(settings.model) else None
    if known is None or not known.has_weights:
        raise UserError(
            f"timm has no weights for {settings.model!r}; set pretrained: false, "
            "or give the member weights from a file."
        )
    arguments = _arguments(settings)
    of = sha256(f"{known.hf_hub_id} {known.url} {arguments}".encode()).hexdigest()[:12]
    return cache_folder() / "weights" / f"{settings.model}-{of}.safetensors"


def _arguments(settings: ClassifierSettings) -> str:
    sized = sized_arguments(settings.model, settings.model_args, settings.preprocess.size)
    return json.dumps(sized, sort_keys=True)


def _fetch(model: str, arguments: str, file: Path) -> None:
    own = "skindx.models.classifier.pretrained"
    reason = fetch_by(own, model, arguments, str(file), limit_s=_LIMIT_S)
    if not file.is_file():
        raise UserError(
            f"timm's weights of {model!r} are not on this machine and could not be fetched "
            f"({reason}); connect to a network once, or give the member weights from "
            "a file."
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
