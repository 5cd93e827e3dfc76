"""States of members between two visits, in a folder that all workers share."""

import shutil
from collections.abc import Iterable
from pathlib import Path

from skindx.training.checkpoint.keeper import checkpoint_folder


class States:
    """The states of a run's members, each under a name of its own: no write replaces another."""

    def __init__(self, run: Path) -> None:
        self.run = run

    def folder(self, member: str) -> Path:
        """Return where a member's states lie on this machine."""
        return checkpoint_folder(self.run, member)

    def path(self, member: str, name: str) -> Path:
        """Return where a state is to be written."""
        return self.folder(member) / name

    def fetch(self, member: str, name: str) -> Path:
        """Return where a state that another worker wrote can be read."""
        return self.path(member, name)

    def publish(self, member: str, name: str) -> None:
        """Let other workers read a state that was written; here they see it already."""

    def names(self, member: str) -> list[str]:
        """Return the names under which states of a member lie, whole or not."""
        folder = self.folder(member)
        return [path.name for path in folder.iterdir()] if folder.is_dir() else []

    def forget(self, member: str, names: Iterable[str]) -> None:
        """Remove some of a member's states."""
        for name in names:
            shutil.rmtree(self.path(member, name), ignore_errors=True)

    def remove(self, member: str) -> None:
        """Remove all states of a member: it is finished."""
        shutil.rmtree(self.folder(member), ignore_errors=True)
