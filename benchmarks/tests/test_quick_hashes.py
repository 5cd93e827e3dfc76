"""Hashes of images that are decoded small."""

from pathlib import Path

import numpy as np
import pytest

from skindx.data.copies.hash_links import near_links
from skindx.imaging.decode import decode
from skindx.imaging.hashes import HashKind, hash_thumbnails, thumbnail
from skindx_bench.data.screen import hash_images

DEFAULT: tuple[HashKind, ...] = ("perceptual", "difference")


@pytest.mark.real
def test_hashing_alone_finds_the_near_images_that_screening_finds(real: Path) -> None:
    datas = list({f.read_bytes() for f in sorted((real / "isic9").rglob("*.jpg"))})
    quick = hash_images(datas, DEFAULT)
    exact = hash_thumbnails(np.stack([thumbnail(decode(data)) for data in datas]), DEFAULT)
    bits = np.bitwise_count(quick[:, :, 0] ^ exact[:, :, 0]).max(axis=1)
    assert bits.max() <= 2
    assert (bits == 0).mean() > 0.8
    for radius in (4, 6):
        found = [near_links(codes, radius)[:, :2].tolist() for codes in (quick, exact)]
        assert found[0] == found[1]
