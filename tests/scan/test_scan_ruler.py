"""Rulers on photos: what is found, what is refused, and what is never taken for one."""

import cv2
import numpy as np
import pytest
from painted_rulers import Painted, paint_ruler, paint_skin
from whole_photo import ArrayPhoto

from skindx.core.errors import UserError
from skindx.scan.ruler import Ruler, find_ruler, given_scale, scale_from_ruler, unit_of

SIZE = (800, 600)
INCHES = ((16, 6.0), (8, 5.0), (4, 4.0), (2, 3.2), (1, 2.5))


def found(how: Painted) -> tuple[Ruler, np.ndarray]:
    pixels, edge_T2 = paint_ruler(how)
    return find_ruler(ArrayPhoto(pixels), *how.size_wh, "arm.jpg"), edge_T2


def painted(ticks: int = 45, **more: object) -> Painted:
    return Painted(ticks=ticks, size_wh=SIZE, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "how",
    [
        painted(),
        painted(angle=33),
        painted(angle=-100, dark=False),
        painted(period=3.4, blur=0.7),
        painted(period=22, ticks=24, angle=8),
        painted(blur=2.2, noise=8),
        painted(steps=((10, 4.0), (1, 3.0)), numbers=False, angle=160),
        painted(angle=20, tilt=0.25),
    ],
    ids=["plain", "turned", "white", "small", "large", "blurred", "no numbers", "perspective"],
)
def test_a_ruler_gives_its_scale_to_one_per_cent(how: Painted) -> None:
    ruler, edge_T2 = found(how)
    apart_T = np.hypot(*np.diff(edge_T2, axis=0).T)
    assert ruler.row.period == pytest.approx(np.median(apart_T), rel=0.01)
    assert ruler.mm_per_pixel == pytest.approx(1 / ruler.row.period)
    assert abs(len(ruler.row.ticks_T2) - how.ticks) <= 2
    # The interval holds the scale at both ends of the ruler.
    assert ruler.relative_error >= 0.9 * np.ptp(apart_T) / 2 / np.median(apart_T) - 0.005
    # Every tick is on a line that was drawn, and the longest ones are centimetres.
    line = edge_T2[-1] - edge_T2[0]
    along_T = (ruler.row.ticks_T2 - edge_T2[0]) @ line / (line @ line)
    truth_T = (edge_T2 - edge_T2[0]) @ line / (line @ line)
    off_T = np.abs(along_T[:, None] - truth_T).min(axis=1)
    assert np.percentile(off_T, 90) < 0.3 / how.ticks
    nearest_T = np.abs(along_T[ruler.longest][:, None] - truth_T).argmin(axis=1)
    assert (nearest_T % 10 == 0).all()


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (painted(steps=((1, 3.0),)), "whose unit is unknown"),
        (painted(steps=((5, 4.0), (1, 3.0))), "whose unit is unknown"),
        (painted(steps=INCHES, ticks=50), "inches"),
    ],
    ids=["equal ticks", "fives", "inches"],
)
def test_ticks_without_a_clear_unit_are_one_sentence(how: Painted, words: str) -> None:
    with pytest.raises(UserError, match=words) as refusal:
        found(how)
    assert "--scale MM_PER_PIXEL" in str(refusal.value)
    assert "arm.jpg" in str(refusal.value)


def stripes(cloth: np.ndarray) -> None:
    cloth[:, ::9] *= 0.6
    cloth[:, 1::9] *= 0.6


def net(cloth: np.ndarray) -> None:
    stripes(cloth)
    cloth[::9] *= 0.6


def hairs(skin: np.ndarray) -> None:
    rng = np.random.default_rng(0)
    for _ in range(60):
        x, y = rng.uniform(0, 800), rng.uniform(0, 600)
        end = (round(x + rng.normal(0, 12)), round(y + 40))
        cv2.line(skin, (round(x), round(y)), end, (40, 30, 25), 2, cv2.LINE_AA)


def nothing(skin: np.ndarray) -> None:
    pass


@pytest.mark.parametrize("draw", [nothing, hairs, stripes, net])
def test_no_ruler_is_found_where_there_is_none(draw: object) -> None:
    skin = paint_skin(SIZE, 3)
    draw(skin)  # type: ignore[operator]
    skin += np.random.default_rng(1).normal(0, 3, skin.shape)
    pixels = np.clip(skin, 0, 255).astype(np.uint8)
    with pytest.raises(UserError, match=r"No ruler in arm.jpg can be read|unit is unknown"):
        find_ruler(ArrayPhoto(pixels), *SIZE, "arm.jpg")


def lengths(*steps: tuple[int, float], ticks: int = 45, start: int = 3) -> np.ndarray:
    return np.array(
        [next(size for step, size in steps if (k - start) % step == 0) for k in range(ticks)]
    )


@pytest.mark.parametrize(
    ("steps", "division"),
    [
        (((10, 5.0), (5, 4.0), (1, 3.0)), "millimetres"),
        (((10, 5.0), (1, 3.0)), "millimetres"),
        (((20, 7.0), (10, 5.0), (2, 4.0), (1, 2.0)), "half millimetres"),
        (INCHES, "inches"),
        (((1, 3.0),), "none"),
        (((5, 4.0), (1, 3.0)), "none"),
        (((2, 4.0), (1, 3.0)), "none"),
    ],
)
def test_the_hierarchy_of_ticks_says_the_unit(steps: object, division: str) -> None:
    rng = np.random.default_rng(0)
    truth = lengths(*steps)  # type: ignore[misc]
    for _ in range(5):
        unit = unit_of(truth + rng.normal(0, 0.15, len(truth)))
        assert unit is not None
        assert unit.division == division
    if division == "millimetres":
        assert (unit.start % 10, unit.step) == (3, 10)


def test_a_finger_on_the_ruler_does_not_hide_its_unit() -> None:
    covered = lengths((10, 5.0), (5, 4.0), (1, 3.0), ticks=50)
    covered[14:22] = 0.2
    unit = unit_of(covered)
    assert unit is not None
    assert unit.division == "millimetres"


@pytest.mark.parametrize("place", range(12))
def test_one_longest_tick_is_no_sign_of_a_unit(place: int) -> None:
    """Of a division that comes again two are needed: one may be a scratch."""
    one = lengths((100, 5.0), (1, 3.0), ticks=12, start=place)
    unit = unit_of(one)
    assert unit is None or unit.division == "none"


def test_random_lengths_have_no_unit() -> None:
    rng = np.random.default_rng(0)
    units = [unit_of(rng.uniform(1, 5, 40)) for _ in range(100)]
    assert sum(unit is not None and unit.division == "millimetres" for unit in units) <= 1


def test_a_ruler_counts_only_when_a_person_confirms_it() -> None:
    how = painted(angle=5)
    pixels, _ = paint_ruler(how)
    seen: list[np.ndarray] = []

    def confirm(answer: bool) -> object:
        def ask(ruler: Ruler, image: np.ndarray) -> bool:
            seen.append(image)
            assert "45 ticks" in ruler.sentence
            assert "A pixel has" in ruler.sentence
            return answer

        return ask

    read = ArrayPhoto(pixels)
    scale = scale_from_ruler(read, *SIZE, name="arm.jpg", confirm=confirm(True))  # type: ignore[arg-type]
    assert scale.source == "ruler"
    assert scale.mm_per_pixel == pytest.approx(1 / 12, rel=0.01)
    with pytest.raises(UserError, match="not confirmed"):
        scale_from_ruler(read, *SIZE, name="arm.jpg", confirm=confirm(False))  # type: ignore[arg-type]
    # The drawing has as many lines in colours that no ruler has, and is no larger than it must be.
    red = (np.abs(seen[0].astype(int) - (213, 43, 30)).sum(axis=2) < 60).sum()
    assert red > 200
    assert max(seen[0].shape) <= 2400


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), 1e-6, 50])
def test_a_scale_that_no_photo_has_is_refused(value: float) -> None:
    with pytest.raises(UserError, match="mm per pixel"):
        given_scale(value)
    assert given_scale(0.1).mm_per_pixel == 0.1
