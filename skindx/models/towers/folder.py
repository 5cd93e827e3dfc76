"""A tower in a folder: its files, and its network as its configuration describes it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from skindx.core.errors import UserError
from skindx.core.untrusted import MEGABYTE, read_json
from skindx.models.classifier.classifier import ClassifierSettings
from skindx.models.towers.open_clip import open_clip_network
from skindx.models.towers.timm_config import timm_network

CONFIGS: dict[str, Literal["timm", "open_clip"]] = {
    "open_clip_config.json": "open_clip",
    "config.json": "timm",
}
"""File of a configuration -> its format. A repository of open_clip may hold both."""

WEIGHTS = {
    "open_clip": (
        *("open_clip_model.safetensors", "open_clip_pytorch_model.safetensors"),
        "open_clip_pytorch_model.bin",
    ),
    "timm": ("model.safetensors", "pytorch_model.bin", "pytorch_model.pth"),
}
"""Names of the file of weights, the first that is there counts; a safetensors file comes first."""

_LONGEST_CONFIG = 4 * MEGABYTE


@dataclass(frozen=True)
class TowerFolder:
    """Facts of a tower before its weights are read."""

    path: Path
    format: Literal["timm", "open_clip"]
    network: ClassifierSettings
    known: frozenset[str] = field(default_factory=frozenset)
    """Preprocessing by the configuration: size, mean and std where they are given."""

    def weights(self) -> Path:
        """Return the file of weights. Raises UserError for a folder without one."""
        for name in WEIGHTS[self.format]:
            if (self.path / name).is_file():
                return (self.path / name).resolve()
        raise UserError(
            f"{self.path} holds no weights ({', '.join(WEIGHTS[self.format])}); copy them there, "
            "or set pretrained: false to start from random ones."
        )


def open_tower(path: Path) -> TowerFolder:
    """Read a tower's configuration. Raises UserError for a folder without one it understands."""
    if not path.is_dir():
        raise UserError(f"{path} is no folder; give local-dir: the folder of a tower.")
    name = next((name for name in CONFIGS if (path / name).is_file()), None)
    if name is None:
        raise UserError(
            f"{path} is no tower (it has neither {' nor '.join(CONFIGS)}); give a folder in the "
            "format of timm or open_clip."
        )
    origin = str(path / name)
    config = read_json((path / name).resolve(), _LONGEST_CONFIG)
    read = open_clip_network if CONFIGS[name] == "open_clip" else timm_network
    network, preprocess = read(config, origin)
    return TowerFolder(
        path,
        CONFIGS[name],
        _settings({**network, "preprocess": preprocess}, origin),
        frozenset(preprocess),
    )


def _settings(raw: dict[str, Any], origin: str) -> ClassifierSettings:
    try:
        return ClassifierSettings.model_validate(raw)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        said = first["msg"].removeprefix("Value error, ")
        raise UserError(
            f"{origin} describes a tower that cannot be rebuilt safely ({where}: {said}); choose "
            "another one."
        ) from None
