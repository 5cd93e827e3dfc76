"""Pixels of a dataset's stored images, or one sentence about why there are none."""

from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from skindx.data.store import stored_file
from skindx.errors import UserError
from skindx.imaging.decode import decode


class Stored(Protocol):
    """What has a path relative to its dataset folder: a manifest's record, for one."""

    @property
    def path(self) -> str: ...


def read_image(dataset: Path, record: Stored) -> NDArray[np.uint8]:
    """Return an image's pixels_HWC. Raises UserError for one that is gone or damaged."""
    file = stored_file(dataset, record.path)
    try:
        return decode(file.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read ({error}); run `skindx build` again.") from None
