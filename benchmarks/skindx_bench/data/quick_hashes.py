"""Hashes of images as stored, decoded no larger than they need, as clean-up programs read them."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from skindx.imaging.decode import decode_small
from skindx.imaging.hashes import ORIENTATIONS, SIDE, HashKind, hash_thumbnails, thumbnail

# N = images, K = kinds of hash, O = orientations


def hash_images(datas: Sequence[bytes], hashes: Sequence[HashKind]) -> NDArray[np.uint64]:
    """Return codes_NKO, decoded in this process.

    They differ from those of the screening by 0 to 2 of 64 bits (1,830, 346 and 24 of 2,200
    dermoscopic images, the worse of perceptual and difference hash), because a JPEG is scaled
    while it is decoded. Compare them with each other. Raises DamagedImage.
    """
    thumbs = [thumbnail(decode_small(data, SIDE)) for data in datas]
    if not thumbs:
        return np.empty((0, len(hashes), ORIENTATIONS), np.uint64)
    return hash_thumbnails(np.stack(thumbs), hashes)
