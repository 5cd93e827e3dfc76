"""Weights of a member's last epochs, kept beside it for soups."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from torch import Tensor

from skindx.core.atomic_files import atomic_file
from skindx.core.errors import UserError
from skindx.models.tensors import load_tensors, save_tensors
from skindx.training.config.run import MemberSettings
from skindx.training.finished.member import FinishedMember, member_folder
from skindx.training.parallel.mesh import Mesh

State = dict[str, Tensor]


def snapshot_folder(run: Path, name: str) -> Path:
    """Return where a member's snapshots lie."""
    return member_folder(run, name).with_name(f"{name}.snapshots")


def snapshot_file(run: Path, name: str, epoch: int) -> Path:
    """Return where the weights after `epoch` (from 1) lie."""
    return snapshot_folder(run, name) / f"epoch-{epoch:04d}.safetensors"


def save_snapshot(run: Path, name: str, epoch: int, state: State) -> None:
    """Write the weights after an epoch, whole or not at all."""
    with atomic_file(snapshot_file(run, name, epoch)) as temporary:
        save_tensors({key: tensor.cpu().contiguous() for key, tensor in state.items()}, temporary)


def snapshot_keeper(
    run: Path, member: MemberSettings, epochs: int, mesh: Mesh
) -> Callable[[int, FinishedMember], None]:
    """Return a function that keeps a member's last epochs; all ranks call it, the first writes."""

    def keep(epoch: int, finished: FinishedMember) -> None:
        if epoch > epochs - member.snapshots:
            mesh.broadcast_from_main(
                partial(save_snapshot, run, member.name, epoch, finished.state)
            )

    return keep


def load_snapshots(run: Path, member: MemberSettings) -> list[tuple[str, State]]:
    """Return the last epochs' weights with their names, oldest first.

    Raises UserError when some are not there.
    """
    folder = snapshot_folder(run, member.name)
    files = sorted(folder.glob("epoch-*.safetensors"))[-member.snapshots :]
    if len(files) < member.snapshots:
        raise UserError(
            f"{folder} holds {len(files)} of {member.snapshots} snapshots; remove the folder of "
            f"member {member.name} to train it again, or set its snapshots lower."
        )
    return [(file.stem, load_tensors(file)) for file in files]
