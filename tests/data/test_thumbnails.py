"""A source of thumbnails is named."""

import numpy as np
import pytest

from skindx.data.build.build_stages import is_thumbnail, thumbnail_notes
from skindx.data.ledger import LedgerRow
from skindx.data.screening.screen import Screened


def image(url: str, width: int, height: int = 90) -> tuple[LedgerRow, Screened]:
    row = LedgerRow(url, "acne", "stored", source="http://a.org/")
    return row, Screened(None, "", width, height, np.zeros((1, 8), np.uint64))


def test_a_source_of_thumbnails_is_named() -> None:
    small = [image(f"http://a.org/{number}.jpg", 150) for number in range(3)]
    large = [image(f"http://a.org/l{number}.jpg", 1024) for number in range(4)]
    assert thumbnail_notes([*small, *large]) == []
    (note,) = thumbnail_notes([*small, *large[:3]])
    assert note.startswith("3 of 6 images of http://a.org/ seem to be thumbnails")
    assert "http://a.org/0.jpg (150 x 90 pixels)" in note
    # Files of one's own may be as small as they are, and a damaged image has no size.
    assert thumbnail_notes([image("acne/1.jpg", 150), image("http://a.org/1.jpg", 0)]) == []


@pytest.mark.parametrize(
    ("url", "width", "expected"),
    [
        ("http://a.org/acne-300x225.jpg", 300, True),
        ("http://a.org/thumb/a.jpg", 400, True),
        ("http://a.org/330px-Acne.jpg", 330, True),
        ("http://a.org/a.jpg?w=320&q=80", 320, True),
        ("http://a.org/a.jpg?w=1600", 600, False),
        ("http://a.org/thumb/a.jpg", 1024, False),
        ("http://a.org/acne.jpg", 300, False),
        ("http://a.org/acne.jpg", 200, True),
    ],
)
def test_size_and_address_tell_a_thumbnail(url: str, width: int, expected: bool) -> None:
    assert is_thumbnail(*((url, image(url, width)[1]))) is expected
