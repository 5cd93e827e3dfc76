"""A folder of class folders (placeholder; the real reader takes its place)."""

from pathlib import Path
from typing import Literal

from skindx.config import Settings
from skindx.data.ledger import LedgerRow


class FolderSource(Settings):
    """Pictures in one folder a class."""

    kind: Literal["folder"] = "folder"
    path: Path


def read_folder(source: FolderSource, dataset: Path) -> list[LedgerRow]:
    """Return the rows of a folder."""
    raise NotImplementedError
