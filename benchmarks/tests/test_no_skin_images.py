"""What gates and screening say of painted images of no skin, and of real photos of skin."""

from pathlib import Path

import numpy as np
import pytest

from skindx.imaging.decode import decode
from skindx.imaging.photo_gates import inspect
from skindx.imaging.skin_content import DESCRIPTIONS, LIMIT, content_of, not_skin_score
from skindx_bench.honesty.gates_study import blurred, darkened, files_of, photos_of
from skindx_bench.honesty.no_skin_images import KINDS, WARM

FOREIGN = {**KINDS, **WARM}
MISSED = {"wood", "desert"}
"""They have the colours of skin and the texture of a scene."""


@pytest.mark.parametrize("kind", sorted(FOREIGN.keys() - MISSED))
def test_what_is_no_skin_is_found_and_named(kind: str) -> None:
    for seed in range(3):
        content = content_of(FOREIGN[kind](np.random.default_rng(seed)))
        assert content.score >= LIMIT
        assert content.shows in DESCRIPTIONS


@pytest.mark.parametrize("kind", sorted(FOREIGN))
def test_the_first_look_lets_nothing_pass_that_the_close_one_finds(kind: str) -> None:
    for seed in range(3, 6):
        pixels = FOREIGN[kind](np.random.default_rng(seed))
        assert (content_of(pixels).score >= LIMIT) == (not_skin_score(pixels) >= LIMIT)


@pytest.mark.parametrize("kind", ["drawing", "desert"])
def test_a_mirrored_or_turned_image_scores_alike(kind: str) -> None:
    pixels = FOREIGN[kind](np.random.default_rng(2))
    for turned in (pixels[:, ::-1], pixels[::-1], pixels.swapaxes(0, 1)):
        assert not_skin_score(np.ascontiguousarray(turned)) == pytest.approx(
            not_skin_score(pixels), abs=0.15
        )


def gates_of(pixels_HWC: np.ndarray) -> list[tuple[str, bool]]:
    return [(gate, finding.fatal) for gate, finding in inspect(pixels_HWC)]


@pytest.mark.parametrize("kind", [name for name in KINDS if name not in ("wood", "colour noise")])
def test_what_has_no_colour_of_skin_is_refused(kind: str) -> None:
    for seed in range(3):
        assert gates_of(KINDS[kind](np.random.default_rng(seed))) == [("no-skin", True)]


@pytest.mark.real
@pytest.mark.parametrize("folder", ["isic9", "boxes/train"])
def test_real_skin_is_hardly_ever_flagged(real: Path, folder: str) -> None:
    """On fewer images than the measured figures, with room to spare."""
    files = files_of(real / folder, 80)
    flagged = [content_of(decode(file.read_bytes())).shows for file in files]
    assert sum(map(bool, flagged)) <= 3


@pytest.mark.real
@pytest.mark.parametrize("folder", ["isic9", "boxes/train"])
def test_real_photos_pass_light_or_dark_and_blurred_ones_do_not(real: Path, folder: str) -> None:
    """The figures by which the thresholds were chosen, on fewer photos, with room to spare."""
    photos = photos_of(real / folder, 60)
    assert _refused(photos) <= 0.05
    assert _refused([darkened(photo, 0.1) for photo in photos]) <= 0.05
    assert _refused([blurred(photo, 2) for photo in photos]) >= 0.95


def _refused(photos: list[np.ndarray]) -> float:
    return float(np.mean([any(fatal for _, fatal in gates_of(photo)) for photo in photos]))
