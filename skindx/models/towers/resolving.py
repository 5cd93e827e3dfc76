"""From a tower's name to a network of timm: its architecture, its weights, its preprocessing."""

import json
import re
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from skindx.core.atomic_files import atomic_file, sha256_file
from skindx.core.errors import UserError
from skindx.core.machine import cache_folder
from skindx.core.untrusted import read_json, read_plain
from skindx.models.classifier.classifier import ClassifierSettings
from skindx.models.tensors import save_tensors
from skindx.models.towers.folder import TowerFolder, open_tower
from skindx.models.towers.hub import REVISION, hub_folder
from skindx.models.towers.licence import card_licence
from skindx.models.towers.origin import TowerOrigin
from skindx.models.towers.weights import tower_state

HUB, LOCAL = "hf-hub:", "local-dir:"
NAME = rf"{HUB}[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*|{LOCAL}.+"
"""A tower's name, beside the names of timm's own list."""

_NEEDED = ("size", "mean", "std")
_FORMAT = 1
"""Of the converted files: another number when the conversion changes."""


@dataclass(frozen=True)
class Tower:
    """A network of timm, and where its weights lie under timm's names."""

    network: ClassifierSettings
    origin: TowerOrigin
    weights: Path | None
    """None: random ones are wanted."""


def is_tower(model: str) -> bool:
    """True for a name that stands for a folder or a repository."""
    return re.fullmatch(NAME, model) is not None


def resolve_tower(
    model: str, *, pretrained: bool, own_args: dict[str, Any], own_preprocess: dict[str, Any]
) -> Tower:
    """Return the network behind hf-hub:ORG/NAME or local-dir:FOLDER.

    `own_args` and `own_preprocess` are what the user set, and win. Weights are converted once into
    the cache, under the hash of everything that decides them. Raises UserError for a tower whose
    preprocessing neither its configuration nor the user says.
    """
    is_hub = model.startswith(HUB)
    name = model.removeprefix(HUB).removeprefix(LOCAL)
    path = hub_folder(name) if is_hub else Path(name).expanduser()
    tower = _with_own(open_tower(path), own_args, own_preprocess)
    licence, url = card_licence(path)
    licence = licence or _configured_licence(path)
    weights = tower.weights() if pretrained else None
    hashed = sha256_file(weights) if weights else ""
    revision = path / REVISION
    origin = TowerOrigin(
        name=name if is_hub else path.resolve().name,
        format=tower.format,
        licence=licence,
        licence_url=url,
        revision=read_plain(revision).decode().strip()[:64] if revision.is_file() else "",
        weights_sha256=hashed,
    )
    return Tower(tower.network, origin, _converted(tower, hashed) if weights else None)


def _with_own(
    tower: TowerFolder, own_args: dict[str, Any], own_preprocess: dict[str, Any]
) -> TowerFolder:
    network = tower.network
    missing = [key for key in _NEEDED if key not in tower.known | set(own_preprocess)]
    if missing:
        raise UserError(
            f"{tower.path} does not say how its images are prepared ({', '.join(missing)} missing "
            "in its configuration), and a tower that sees other images than it learned from "
            "answers wrongly; set the member's preprocess: size, mean and std."
        )
    preprocess = network.preprocess.model_copy(update=own_preprocess)
    arguments = {**network.model_args, **own_args}
    if "img_size" in network.model_args and "img_size" not in own_args:
        arguments["img_size"] = preprocess.size
    return replace(
        tower,
        network=network.model_copy(update={"model_args": arguments, "preprocess": preprocess}),
    )


def _converted(tower: TowerFolder, hashed: str) -> Path:
    parts = [_FORMAT, hashed, tower.network.model_dump(mode="json")]
    key = sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
    file = cache_folder() / "weights" / f"tower-{key}.safetensors"
    if not file.is_file():
        state = tower_state(tower)
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(file) as temporary:
            save_tensors(state, temporary)
    return file


def _configured_licence(path: Path) -> str:
    """Return the licence that timm's config.json names, where the card names none."""
    file = (path / "config.json").resolve()
    if not file.is_file():
        return ""
    cfg = read_json(file).get("pretrained_cfg")
    said = cfg.get("license") if isinstance(cfg, dict) else None
    return " ".join(said.split())[:200] if isinstance(said, str) else ""
