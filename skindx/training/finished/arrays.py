"""NumPy archives of a run folder, bounded before they are unpacked; never a pickle."""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skindx.core.errors import UserError
from skindx.core.untrusted import open_plain

_MOST_BYTES = 2**32


def read_arrays(path: Path, wanted: Mapping[str, tuple[str, int]]) -> dict[str, NDArray[Any]]:
    """Return the arrays of an .npz file by name, each of the kind and dimensions wanted.

    Raises UserError for any other file.
    """
    try:
        with open(open_plain(path, _MOST_BYTES), "rb") as opened:  # noqa: PTH123 (a descriptor)
            with zipfile.ZipFile(opened) as archive:
                if sum(entry.file_size for entry in archive.infolist()) > _MOST_BYTES:
                    raise UserError(f"{path} unpacks to more than {_MOST_BYTES} bytes.")
            opened.seek(0)
            with np.load(opened, allow_pickle=False) as arrays:
                found = {name: arrays[name] for name in wanted}
    except UserError:
        raise
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, MemoryError) as error:
        detail = " ".join(str(error).split())[:120]
        raise UserError(
            f"{path} is no whole archive of arrays ({detail}); train it again."
        ) from None
    kinds = {name: (array.dtype.kind, array.ndim) for name, array in found.items()}
    if kinds != wanted:
        raise UserError(f"{path} does not hold what a training writes there; train it again.")
    return found
