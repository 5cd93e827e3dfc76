"""Real dermoscopic images: lesions that were photographed twice, and moles that only look alike."""

from pathlib import Path

import pytest

from skindx.data.copies.compare import compare_bytes

pytestmark = pytest.mark.real

# All were looked at. The first two of SAME have different lesion ids, and show one lesion.
SAME = (("0025312", "0028123"), ("0025387", "0025654"), ("0026206", "0027303"))
DIFFERENT = (
    ("0000000", "0010587"),
    ("0000039", "0000227"),
    ("0000347", "0000372"),
    ("0000313", "0000327"),
)


def image(real: Path, name: str) -> bytes:
    return next((real / "isic9").rglob(f"ISIC_{name}.jpg")).read_bytes()


@pytest.mark.parametrize("pair", SAME)
def test_a_lesion_that_was_photographed_twice_is_found(real: Path, pair: tuple[str, str]) -> None:
    copy = compare_bytes(*(image(real, name) for name in pair))
    assert copy is not None
    assert copy.same


@pytest.mark.parametrize("pair", DIFFERENT)
def test_round_moles_are_no_copies(real: Path, pair: tuple[str, str]) -> None:
    copy = compare_bytes(*(image(real, name) for name in pair))
    assert copy is None or not copy.same
