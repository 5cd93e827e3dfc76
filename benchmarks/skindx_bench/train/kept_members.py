"""Finished members of a run, kept small enough for a repository, so that a training outlives it.

Each becomes a run of its own, with weights in half precision, which `reused` takes anywhere:
`reused: [{run: KEPT/MEMBER, member: MEMBER}]`. Copied into RUN/members it is finished there too.
Nothing that is kept names a folder of the machine: starting weights count by their content.
"""

import shutil
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from skindx.core.atomic_files import FolderKind, atomic_folder, write_json
from skindx.core.errors import UserError
from skindx.core.settings_base import read_yaml
from skindx.core.text import MADE_FROM
from skindx.core.untrusted import read_json
from skindx.models.bounded_files import save_tensors
from skindx.training.checkpoint.fingerprints import fingerprint_of
from skindx.training.checkpoint.finished import (
    HISTORY,
    VALIDATION,
    WEIGHTS,
    load_member,
    member_folder,
)
from skindx.training.config.run import SETTINGS, MemberSettings, TrainSettings

_KEPT = FolderKind("a kept member", SETTINGS, ("members",))
_INDEX = "member.json"
_LEAST_EPS = 1e-5
"""The smallest number that timm's batch norms add to a variance."""
_CLOSE = 1e-3


def keep_members(run: Path, to: Path, names: Iterable[str] = ()) -> list[Path]:
    """Keep the finished members of a run, or some, as TO/MEMBER; return the folders written.

    One that is kept already, of the same training, stays. Raises UserError for a folder that is no
    run, without finished members, for an unknown name, and where another training is kept.
    """
    if not (run / SETTINGS).is_file():
        raise UserError(
            f"{run} is not a run (it has no {SETTINGS}); give a folder of `skindx train`."
        )
    settings = TrainSettings.parse(read_yaml(run / SETTINGS), str(run / SETTINGS), expand=False)
    members = {member.name: member for member in settings.members}
    if unknown := sorted(set(names) - set(members)):
        raise UserError(f"{run} trains no member {unknown[0]!r}; it has {', '.join(members)}.")
    wanted = [members[name] for name in (names or members)]
    finished = [own for own in wanted if (member_folder(run, own.name) / _INDEX).is_file()]
    if not finished:
        raise UserError(f"{run} has no finished member yet; keep them when one has ended.")
    written = [_keep(run, to / own.name, settings, own) for own in finished]
    return [folder for folder in written if folder]


def _keep(run: Path, to: Path, settings: TrainSettings, member: MemberSettings) -> Path | None:
    """Write one member; None where it is kept already."""
    folder = member_folder(run, member.name)
    index = read_json(folder / _INDEX, finite=False)
    weights = Path(member.weights.name) if member.weights else None
    made = dict(index.get(MADE_FROM) or {})
    if not made:
        raise UserError(f"{folder / _INDEX} is of an older version; train that member again.")
    made["member"] = {**made["member"], "weights": weights and str(weights)}
    index |= {
        "fingerprint": str(fingerprint_of(made)),
        MADE_FROM: made,
        "weights_precision": "fp16",
    }
    there = member_folder(to, member.name) / _INDEX
    if there.is_file():
        if read_json(there, finite=False).get("fingerprint") == index["fingerprint"]:
            return None
        raise UserError(f"{to} keeps another training of {member.name}; remove it, or give --to.")
    alone = settings.model_copy(
        update={
            "members": (member.model_copy(update={"weights": weights}),),
            "reused": (), "detector": None, "fusion": None, "monitors": (),
        }
    )  # fmt: skip
    state = halved(load_member(run, member.name).state)
    with atomic_folder(to, _KEPT) as made_here:
        own = member_folder(made_here, member.name)
        own.mkdir(parents=True)
        save_tensors(state, own / WEIGHTS)
        for name in (HISTORY, VALIDATION):
            shutil.copyfile(folder / name, own / name)
        write_json(own / _INDEX, index)
        alone.save(made_here / SETTINGS)
    return to


def halved(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return weights in half precision, but for tensors that it would spoil, and for counts.

    Half precision ends at 65,504, and below 6e-8 is nothing. A variance of a batch norm divides, so
    it stays in single precision where its root, with what is added to it, would change by more than
    a thousandth.
    """
    return {name: _halved(name, tensor.contiguous()) for name, tensor in state.items()}


def _halved(name: str, tensor: Tensor) -> Tensor:
    if not tensor.is_floating_point():
        return tensor
    half = tensor.half()
    if not torch.isfinite(half).all():
        return tensor
    if name.endswith("running_var"):
        scale = ((half.float() + _LEAST_EPS) / (tensor.float() + _LEAST_EPS)).sqrt()
        if (scale - 1).abs().max() > _CLOSE:
            return tensor
    return half
