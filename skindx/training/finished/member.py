"""A finished member on disk: weights, what they were trained with, how they did on validation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from skindx.core.atomic_files import FolderKind, atomic_folder, write_csv, write_json
from skindx.models.tensors import load_tensors, save_tensors
from skindx.training.checkpoint.keeper import checkpoint_folder, refuse_others
from skindx.training.finished.arrays import read_arrays
from skindx.training.finished.fingerprint import matches
from skindx.training.made_from import made_from

WEIGHTS, VALIDATION, HISTORY = "model.safetensors", "validation.npz", "history.csv"
_MEMBER = FolderKind("a member", "member.json", (WEIGHTS, VALIDATION, HISTORY), (HISTORY,))

# N = validation images, C = classes


@dataclass(frozen=True)
class FinishedMember:
    """A member that `save_member` wrote."""

    state: dict[str, torch.Tensor]
    validation_NC: NDArray[np.float64]
    """Log-probabilities of the validation images, in manifest order."""
    truth_N: NDArray[np.int64]


def member_folder(run: Path, name: str) -> Path:
    """Return the folder of one member of a run."""
    return run / "members" / name


def is_finished(run: Path, name: str, expected: str) -> bool:
    """True when the member was trained with these settings and data; see `matches`.

    Its checkpoints, when it is not finished, must be of these settings and data too.
    """
    refuse_others(checkpoint_folder(run, name), expected)
    _MEMBER.check(member_folder(run, name))
    return matches(member_folder(run, name) / "member.json", expected)


def save_member(
    run: Path, name: str, finished: FinishedMember, history: list[dict[str, Any]], fingerprint: str
) -> None:
    """Write a member in one step: it is there whole, or not at all."""
    with atomic_folder(member_folder(run, name), _MEMBER) as folder:
        save_tensors(
            {key: value.cpu().contiguous() for key, value in finished.state.items()},
            folder / WEIGHTS,
        )
        np.savez(folder / VALIDATION, log=finished.validation_NC, truth=finished.truth_N)
        write_history(folder / HISTORY, history)
        write_json(
            folder / "member.json",
            {"name": name, "fingerprint": fingerprint, **made_from(fingerprint), **history[-1]},
        )


def load_member(run: Path, name: str) -> FinishedMember:
    """Read a finished member. Raises UserError for files that `save_member` did not write."""
    folder = member_folder(run, name)
    arrays = read_arrays(folder / VALIDATION, {"log": ("f", 2), "truth": ("i", 1)})
    return FinishedMember(load_tensors(folder / WEIGHTS), arrays["log"], arrays["truth"])


def write_history(file: Path, history: Sequence[Mapping[str, Any]]) -> None:
    """Write one row an epoch; a figure that an epoch does not have is left empty."""
    columns = list(dict.fromkeys(key for row in history for key in row))
    write_csv(file, columns, ([row.get(key, "") for key in columns] for row in history))
