"""The private working store: original bytes, named by their own SHA-256."""

import hashlib
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
