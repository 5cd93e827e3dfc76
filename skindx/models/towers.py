"""Image towers from a folder or the Hugging Face hub: network, weights, licence.

`python -m skindx.models.towers ORG/NAME FOLDER` is the process that fetches: no other part reaches
the hub. It takes the files by name that a tower has, configuration, card and one file of weights,
and nothing that could be run.
"""

import json
import re
import shutil
import sys
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from platform import node
from typing import Any, Literal

import yaml
from pydantic import Field

from skindx.core.atomic_files import FolderKind, atomic_file, atomic_folder, sha256_file, write_text
from skindx.core.errors import UserError
from skindx.core.machine import cache_folder
from skindx.core.settings_base import Settings
from skindx.core.untrusted import load_words, read_json, read_plain
from skindx.data.origin import parse_licence
from skindx.models.bounded_files import save_tensors
from skindx.models.classifier.classifier import ClassifierSettings
from skindx.models.classifier.pretrained import fetch_by
from skindx.models.tower_formats import CONFIGS, WEIGHTS, TowerFolder, open_tower, tower_state

CARD = "README.md"
_FENCE = "---"
REVISION = "revision.txt"
"""The hub's commit, in the folder of what was fetched."""
_TOWER = FolderKind("a fetched network", REVISION, ("*",))
_LIMIT_S = 3600
_SHOWN = 200
HUB, LOCAL = "hf-hub:", "local-dir:"
NAME = rf"{HUB}[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*|{LOCAL}.+"
"""A tower's name, beside the names of timm's own list."""
_NEEDED = ("size", "mean", "std")
_FORMAT = 1
"""Version of the converted files: it changes when the conversion changes."""


class TowerOrigin(Settings):
    """What a bundle records of third-party weights; no address in it is ever opened."""

    name: str = Field(max_length=_SHOWN)
    """Name of the hub's repository or of the folder."""
    format: Literal["timm", "open_clip"]
    licence: str = Field("", max_length=_SHOWN)
    """Licence as the model card states it; empty where the card names none."""
    licence_url: str = Field("", max_length=_SHOWN)
    revision: str = Field("", max_length=64)
    """The hub's commit."""
    weights_sha256: str = Field("", max_length=64)
    """SHA-256 of the given weight file; empty where the member started from random weights."""

    @property
    def restricted(self) -> bool:
        """True for a licence that forbids commercial use or changed copies."""
        known = parse_licence(self.licence)
        if known.id != "unknown":
            return known.non_commercial or not known.may_adapt
        words = self.licence.casefold().replace("_", "-").split("-")
        return bool({"nc", "nd", "noncommercial", "research"} & set(words))


@dataclass(frozen=True)
class Tower:
    """A network of timm, and where its weights lie under timm's names."""

    network: ClassifierSettings
    origin: TowerOrigin
    weights: Path | None
    """File of the weights; None: random weights are wanted."""


def is_tower(model: str) -> bool:
    """True for a name that stands for a folder or a repository."""
    return re.fullmatch(NAME, model) is not None


def resolve_tower(
    model: str, *, pretrained: bool, user_args: dict[str, Any], user_preprocess: dict[str, Any]
) -> Tower:
    """Return the network behind hf-hub:ORG/NAME or local-dir:FOLDER.

    `user_args` and `user_preprocess` are the user's settings, and win over the tower's. Weights are
    converted once into the cache, under the hash of everything that decides them. Raises
    UserError for a tower whose preprocessing neither its configuration nor the user states.
    """
    is_hub = model.startswith(HUB)
    name = model.removeprefix(HUB).removeprefix(LOCAL)
    path = hub_folder(name) if is_hub else Path(name).expanduser()
    tower = _with_user_settings(open_tower(path), user_args, user_preprocess)
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


def _with_user_settings(
    tower: TowerFolder, user_args: dict[str, Any], user_preprocess: dict[str, Any]
) -> TowerFolder:
    network = tower.network
    missing = [key for key in _NEEDED if key not in tower.known | set(user_preprocess)]
    if missing:
        raise UserError(
            f"the configuration of {tower.path} does not define the preprocessing of images "
            f"({', '.join(missing)} missing); set size, mean and std in the member's `preprocess`."
        )
    preprocess = network.preprocess.model_copy(update=user_preprocess)
    arguments = {**network.model_args, **user_args}
    if "img_size" in network.model_args and "img_size" not in user_args:
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


def hub_folder(repository: str) -> Path:
    """Return the folder of a repository ORG/NAME, fetched if it is not there. Raises UserError."""
    folder = cache_folder() / "towers" / repository.replace("/", "--")
    if not any((folder / name).is_file() for name in CONFIGS):
        _fetch(repository, folder)
    return folder


def _fetch(repository: str, folder: Path) -> None:
    reason = fetch_by("skindx.models.towers", repository, str(folder), limit_s=_LIMIT_S)
    if not any((folder / name).is_file() for name in CONFIGS):
        raise UserError(
            f"the Hugging Face model {repository} is not on this machine and could not be fetched "
            f"({reason}); connect to a network once, or run these two lines on a machine that is "
            f"connected:\n  hf download {repository} --local-dir {folder.name}\n  scp -r "
            f"{folder.name} {node() or 'THIS-MACHINE'}:{folder.parent}/"
        )


def main(arguments: list[str]) -> int:
    """Fetch a repository into a folder: there whole, or not at all."""
    from huggingface_hub import HfApi, hf_hub_download

    repository, folder = arguments[0], Path(arguments[1])
    info = HfApi().model_info(repository)
    there = {sibling.rfilename for sibling in info.siblings or ()}
    config = next((name for name in CONFIGS if name in there), None)
    if config is None:
        print(f"it has neither {' nor '.join(CONFIGS)}", file=sys.stderr)
        return 1
    weights = next((name for name in WEIGHTS[CONFIGS[config]] if name in there), None)
    wanted = [config, *([weights] if weights else []), *([CARD] if CARD in there else [])]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with atomic_folder(folder, _TOWER) as fresh:
        for name in wanted:
            fetched = hf_hub_download(repository, name, revision=info.sha)
            shutil.copyfile(fetched, fresh / name)
        write_text(fresh / REVISION, f"{info.sha}\n")
    return 0


def card_licence(folder: Path) -> tuple[str, str]:
    """Return the licence and its address as the front matter of README.md has them, or "".

    The hub writes `license: other` where `license_name` and `license_link` say which.
    """
    file = (folder / CARD).resolve()
    if not file.is_file():
        return "", ""
    try:
        facts = _front_matter(read_plain(file).decode("utf-8", "replace"))
    except (UserError, yaml.YAMLError, ValueError, RecursionError):
        return "", ""
    name = facts.get("license")
    if isinstance(name, list):
        name = " or ".join(map(str, name))
    if name in (None, "other", "unknown"):
        name = facts.get("license_name") or name or ""
    return _line(name), _line(facts.get("license_link") or "")


def _configured_licence(path: Path) -> str:
    """Return the licence that timm's config.json names, where the card names none."""
    file = (path / "config.json").resolve()
    if not file.is_file():
        return ""
    cfg = read_json(file).get("pretrained_cfg")
    licence = cfg.get("license") if isinstance(cfg, dict) else None
    return " ".join(licence.split())[:200] if isinstance(licence, str) else ""


def _front_matter(text: str) -> dict[str, Any]:
    lines = text.splitlines()
    if not lines or lines[0].strip() != _FENCE:
        return {}
    end = next((at for at, line in enumerate(lines[1:], 1) if line.strip() == _FENCE), 0)
    facts = load_words("\n".join(lines[1:end]))
    return facts if isinstance(facts, dict) else {}


def _line(value: object) -> str:
    return " ".join(str(value).split())[:200]


def origin_lines(origins: list[TowerOrigin]) -> list[str]:
    """Return the lines of a model card on towers, those of restricted licences in NOTICE form."""
    lines = []
    for origin in dict.fromkeys(origins):
        licence = origin.licence or "not named; ask who made them"
        lines.append(f"- weights of {origin.name}: licence {licence}")
    notices = [origin for origin in dict.fromkeys(origins) if origin.restricted]
    if notices:
        lines += ["", "## NOTICE", ""]
    for origin in notices:
        known = parse_licence(origin.licence)
        url = known.url or origin.licence_url
        forbids = " and ".join(
            [
                *(["commercial use"] if known.non_commercial or known.id == "unknown" else []),
                *([] if known.may_adapt and known.id != "unknown" else ["sharing changed copies"]),
            ]
        )
        commit = f" (commit {origin.revision})" if origin.revision else ""
        lines += [
            f"This bundle contains weights of {origin.name}{commit}, licensed under "
            f"{origin.licence}{f' <{url}>' if url else ''}, which may forbid {forbids}. Anyone who "
            "passes the bundle on has to keep to that licence; `skindx bundle detach` writes an "
            "archive without weights that were left as they are.",
            "",
        ]
    return lines


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
