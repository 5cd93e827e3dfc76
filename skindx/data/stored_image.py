"""Pixels of a dataset's stored images, or one sentence about why there are none."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from skindx.data.manifest import Record
from skindx.errors import UserError
from skindx.imaging.decode import decode


def read_image(dataset: Path, record: Record) -> NDArray[np.uint8]:
    """Return an image's pixels_HWC. Raises UserError for one that is gone or damaged."""
    try:
        return decode((dataset / record.path).read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(
            f"{dataset / record.path} cannot be read ({error}); run `skindx build` again."
        ) from None
