"""A bundle as an attacker writes it: any file changed, every hash corrected."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import yaml

WHOLE = Path(__file__).parents[1] / "fixtures/v0_1/whole/bundle"
"""Two networks, a detector, a gallery, a novelty score: all parts that a bundle may have."""

(PHOTO,) = (WHOLE.parents[1] / "dataset/store").rglob("01605848*.jpg")
"""An image that its networks know."""


def copy_bundle(folder: Path, source: Path = WHOLE) -> Path:
    """Return a copy of a bundle in `folder`."""
    return Path(shutil.copytree(source, folder / "bundle"))


def forge(bundle: Path, name: str, content: bytes) -> None:
    """Write a file into a bundle and list it with its right hash."""
    (bundle / name).parent.mkdir(parents=True, exist_ok=True)
    (bundle / name).write_bytes(content)
    change_index(bundle, ("files", name), hashlib.sha256(content).hexdigest())


def forge_yaml(bundle: Path, name: str, changes: dict[str, Any]) -> None:
    """Change top-level keys of a YAML file of a bundle."""
    raw = yaml.safe_load((bundle / name).read_text())
    forge(bundle, name, yaml.safe_dump({**raw, **changes}, sort_keys=False).encode())


def change_index(bundle: Path, keys: tuple[str | int, ...], value: Any) -> None:
    """Set one value in a bundle's index."""
    index = bundle / "bundle.json"
    raw = json.loads(index.read_text())
    node = raw
    for key in keys[:-1]:
        node = node[key]
    node[keys[-1]] = value
    index.write_text(json.dumps(raw))
