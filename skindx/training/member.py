"""A finished member on disk: weights, what they were trained with, how they did on validation."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from skindx.data.loader.settings import DiskCache, LoaderSettings
from skindx.data.manifest import MANIFEST
from skindx.errors import UserError
from skindx.files import atomic_folder, sha256_file, write_json
from skindx.models.tensors import load_tensors, save_tensors
from skindx.training.arrays import read_arrays
from skindx.training.callbacks.history import HISTORY, write_history
from skindx.training.checkpoint.keeper import checkpoint_folder, refuse_others
from skindx.training.config.run import MemberSettings, TrainSettings
from skindx.untrusted import read_json

WEIGHTS, VALIDATION = "model.safetensors", "validation.npz"

# N = validation pictures, C = classes


@dataclass(frozen=True)
class FinishedMember:
    """What `save_member` wrote."""

    state: dict[str, torch.Tensor]
    validation_NC: NDArray[np.float64]
    """Log-probabilities of the validation pictures, in manifest order."""
    truth_N: NDArray[np.int64]


def fingerprint(settings: TrainSettings, member: MemberSettings, dataset: Path) -> str:
    """Return a hash of everything that decides a member's weights."""
    return fingerprint_of(
        {
            "member": _deciding(settings, member),
            "recipe": settings.recipe_of(member).decisive(),
            "pixels": _pixels(settings.loader),
            "sharded": settings.loader.sharded,
            "redrawn": settings.loader.redraws,
            **settings.engine.decisive(),
            **settings.exchanged(),
            "manifest": sha256_file(dataset / MANIFEST),
            "weights": sha256_file(member.weights) if member.weights else None,
        }
    )


def _deciding(settings: TrainSettings, member: MemberSettings) -> dict[str, Any]:
    """Return what of a member's settings decides its weights, and what is kept of them."""
    parts = member.model_dump(mode="json", exclude={"views", "fold", "snapshots", "targets"})
    if member.recipe:
        parts["recipe"] = member.recipe.decisive()
    if member.fold is not None:
        parts["fold"] = [member.fold, settings.folds]
    if member.targets:
        parts["targets"] = sha256_file(member.targets)
    if member.snapshots:
        parts["snapshots"] = member.snapshots
    return parts


def _pixels(loader: LoaderSettings) -> str:
    """Return what decides a crop's pixels: files give the same, wherever their bytes are kept."""
    cache = loader.cache
    return f"shrunk by {cache.margin}" if isinstance(cache, DiskCache) else "decoded"


def fingerprint_of(parts: dict[str, Any]) -> str:
    """Return the SHA-256 of plain values, whatever the order of their keys."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def matches(file: Path, expected: str) -> bool:
    """True when `file` is there and carries the fingerprint.

    Raises UserError when it carries another one: two trainings must not be mixed in one run.
    """
    if not file.is_file():
        return False
    if read_json(file, finite=False).get("fingerprint") != expected:
        raise UserError(
            f"{file.parent} was trained with other settings or data; "
            "give another --out, or remove that folder to train it anew."
        )
    return True


def member_folder(run: Path, name: str) -> Path:
    """Return the folder of one member of a run."""
    return run / "members" / name


def is_finished(run: Path, name: str, expected: str) -> bool:
    """True when the member was trained with these settings and data; see `matches`.

    Its checkpoints, when it is not finished, must be of these settings and data too.
    """
    refuse_others(checkpoint_folder(run, name), expected)
    return matches(member_folder(run, name) / "member.json", expected)


def save_member(
    run: Path, name: str, finished: FinishedMember, history: list[dict[str, Any]], mark: str
) -> None:
    """Write a member in one step: it is there whole, or not at all."""
    with atomic_folder(member_folder(run, name)) as folder:
        save_tensors(
            {key: value.cpu().contiguous() for key, value in finished.state.items()},
            folder / WEIGHTS,
        )
        np.savez(folder / VALIDATION, log=finished.validation_NC, truth=finished.truth_N)
        write_history(folder / HISTORY, history)
        write_json(folder / "member.json", {"name": name, "fingerprint": mark, **history[-1]})


def load_member(run: Path, name: str) -> FinishedMember:
    """Read a finished member. Raises UserError for files that `save_member` did not write."""
    folder = member_folder(run, name)
    arrays = read_arrays(folder / VALIDATION, {"log": ("f", 2), "truth": ("i", 1)})
    return FinishedMember(load_tensors(folder / WEIGHTS), arrays["log"], arrays["truth"])
