"""A build hook that records the commit in wheel and sdist, for `skindx --version`."""

import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COMMIT = "commit.txt"


class RecordCommit(BuildHookInterface):
    """Puts `commit.txt` into the sdist's root, and into the wheel's metadata."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name the file for the build; without a commit that is known there is none."""
        commit = self._commit()
        if not commit:
            return
        self._folder = tempfile.TemporaryDirectory()
        file = Path(self._folder.name) / COMMIT
        file.write_text(commit + "\n", encoding="utf-8")
        if self.target_name == "sdist":
            build_data["force_include"][str(file)] = COMMIT
        elif version == "standard":
            build_data["extra_metadata"][str(file)] = COMMIT

    def _commit(self) -> str:
        """Return the commit of this checkout, or the one that an sdist brought along."""
        root = Path(self.root)
        if (recorded := root / COMMIT).is_file():
            return recorded.read_text(encoding="utf-8").strip()
        if not (root / ".git").exists():
            return ""
        done = subprocess.run(
            ["git", "-C", root, "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout.strip()
