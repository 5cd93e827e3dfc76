"""Real dermoscopic images: lesions that were photographed twice, and moles that only look alike."""

from pathlib import Path

import pytest
from copy_pairs import compare_bytes

pytestmark = pytest.mark.real

# All were looked at. The first two of SAME have different lesion ids, and show one lesion.
SAME = (
    ("0025312", "0028123"),
    ("0025387", "0025654"),
    ("0026206", "0027303"),
    # Under two ids, in other light, turned or nearer; the frozen splits of isic9 divide them.
    ("0001127", "0010550"),
    ("0000432", "0010741"),
    ("0000434", "0010757"),
    ("0001142", "0010410"),
)
DIFFERENT = (
    ("0000000", "0010587"),
    ("0000039", "0000227"),
    ("0000347", "0000372"),
    ("0000313", "0000327"),
)


# Of ham10000, under different lesion ids, nearer or turned: data/ham10000-same.csv.
TWO_IDS = (
    ("0025990", "0030273"),
    ("0033735", "0033515"),
    ("0027689", "0033173"),
    ("0026160", "0029960"),
)
LOOK_ALIKE = (("0033462", "0033921"), ("0026581", "0034067"), ("0030354", "0031611"))


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


@pytest.mark.parametrize("pair", [*TWO_IDS, *LOOK_ALIKE])
def test_a_second_photo_is_told_from_a_lesion_that_looks_alike(
    real: Path, pair: tuple[str, str]
) -> None:
    images = (real / "ham10000" / "images" / f"ISIC_{name}.jpg" for name in pair)
    copy = compare_bytes(*(file.read_bytes() for file in images))
    assert (copy is not None and copy.same) == (pair in TWO_IDS)
