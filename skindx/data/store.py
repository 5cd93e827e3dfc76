"""The private working store: original bytes, named by their own SHA-256."""

import hashlib
from collections.abc import Collection
from pathlib import Path

from skindx.data.layout import STORE
from skindx.files import atomic_file


def put(dataset: Path, data: bytes, suffix: str) -> tuple[str, str]:
    """Store bytes in a dataset folder; return (sha256, path relative to the folder).

    The same bytes are stored once; a killed write leaves nothing under the final name.
    """
    sha256 = hashlib.sha256(data).hexdigest()
    relative = Path(STORE) / sha256[:2] / f"{sha256}{suffix}"
    if not (dataset / relative).exists():
        with atomic_file(dataset / relative) as temporary:
            temporary.write_bytes(data)
    return sha256, relative.as_posix()


def store_files(dataset: Path, sha256: str) -> list[Path]:
    """Return the files of one image in a dataset's store: one, or none."""
    return list((dataset / STORE / sha256[:2]).glob(f"{sha256}.*"))


def sweep_store(out: Path, named: Collection[str]) -> int:
    """Delete the store's files whose path is not `named`, also what killed writes left there.

    Returns how many; only for who holds `only_writer`, once the new manifest is in place.
    """
    swept = 0
    for file in (out / STORE).glob("*/*"):
        if file.relative_to(out).as_posix() not in named:
            file.unlink()
            swept += 1
    return swept
