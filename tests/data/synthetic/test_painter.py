from itertools import combinations

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from skindx.core.errors import UserError
from skindx.data.synthetic.painter import CLASSES, box_around, encode_jpeg, paint

PER_CLASS = 12


@pytest.fixture(scope="module")
def images() -> list[tuple[str, NDArray[np.uint8]]]:
    """Return (class, pixels) of a small set."""
    return [(label, paint(label, i).pixels) for label in CLASSES for i in range(PER_CLASS)]


@pytest.mark.parametrize("label", CLASSES)
def test_same_seed_and_index_give_the_same_bytes(label: str) -> None:
    first, again = paint(label, 3, seed=5), paint(label, 3, seed=5)
    assert encode_jpeg(first.pixels) == encode_jpeg(again.pixels)
    assert first.boxes == again.boxes


def test_seed_index_and_class_each_change_the_image() -> None:
    paintings = [
        paint(CLASSES[0], 3, seed=5),
        paint(CLASSES[0], 3, seed=6),
        paint(CLASSES[0], 4, seed=5),
        paint(CLASSES[1], 3, seed=5),
    ]
    assert len({encode_jpeg(painting.pixels) for painting in paintings}) == 4


@given(label=st.sampled_from(CLASSES), index=st.integers(0, 10**6), seed=st.integers(0, 10**6))
def test_boxes_lie_inside_and_fit_the_lesions(label: str, index: int, seed: int) -> None:
    painting = paint(label, index, seed)
    height, width, _ = painting.pixels.shape
    assert len(painting.boxes) == len(painting.masks) in (1, 2)
    for box, mask in zip(painting.boxes, painting.masks, strict=True):
        assert 0 <= box.x1 < box.x2 <= width
        assert 0 <= box.y1 < box.y2 <= height
        x1, y1, x2, y2 = (int(side) for side in (box.x1, box.y1, box.x2, box.y2))
        assert mask[y1:y2, x1:x2].sum() == mask.sum()
        # Tight: every side touches the lesion.
        assert all(mask[row].any() for row in (y1, y2 - 1))
        assert all(mask[:, column].any() for column in (x1, x2 - 1))
        # Large enough to be learned at 160 pixels.
        assert min(x2 - x1, y2 - y1) >= 0.15 * min(height, width)
    for one, other in combinations(painting.masks, 2):
        assert not (one & other).any()


def test_the_lesion_is_where_its_box_says() -> None:
    """Inside its boxes an image has more structure than in as large a part of bare skin."""
    sharper = []
    for label in CLASSES:
        for index in range(4):
            painting = paint(label, index)
            grey = cv2.GaussianBlur(cv2.cvtColor(painting.pixels, cv2.COLOR_RGB2GRAY), (0, 0), 2)
            slope = np.hypot(cv2.Sobel(grey, cv2.CV_64F, 1, 0), cv2.Sobel(grey, cv2.CV_64F, 0, 1))
            lesion = np.any(painting.masks, axis=0)
            sharper.append(slope[lesion].mean() > np.median(slope[~lesion]))
    assert np.mean(sharper) >= 0.95


def test_box_of_a_mask_computed_by_hand() -> None:
    mask = np.zeros((5, 8), bool)
    mask[1, 2] = mask[3, 6] = True
    box = box_around(mask)
    assert (box.x1, box.y1, box.x2, box.y2) == (2, 1, 7, 4)


def test_mean_colour_tells_no_class(images: list[tuple[str, NDArray[np.uint8]]]) -> None:
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    labels = [label for label, _ in images]
    colours = [pixels.reshape(-1, 3) for _, pixels in images]
    features = np.array([np.r_[colour.mean(0), colour.std(0)] for colour in colours])
    for model in (
        make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000)),
        RandomForestClassifier(100, random_state=0),
    ):
        assert cross_val_score(model, features, labels, cv=4).mean() <= 0.35


def test_different_images_do_not_look_like_duplicates(
    images: list[tuple[str, NDArray[np.uint8]]],
) -> None:
    """Nearest pair under eight flips and turns: far outside the radius a search would use."""
    grey = [cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY) for _, pixels in images]
    hashes = np.array([_hashes(image) for image in grey])
    nearest = np.full((len(grey), len(grey)), 64)
    for mirrored in (False, True):
        for quarter in range(4):
            turned = [np.rot90(image[:, ::-1] if mirrored else image, quarter) for image in grey]
            others = np.array([_hashes(np.ascontiguousarray(image)) for image in turned])
            differ = (hashes[:, None] != others[None]).sum(-1)
            nearest = np.minimum(nearest, differ.max(-1))
    np.fill_diagonal(nearest, 64)
    assert nearest.min() > 8


def _hashes(grey: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return a DCT perceptual hash and a difference hash, (2, 64)."""
    small = cv2.resize(grey, (32, 32), interpolation=cv2.INTER_AREA).astype(np.float32)
    low = cv2.dct(small)[:8, :8].ravel()
    steps = cv2.resize(grey, (9, 8), interpolation=cv2.INTER_AREA).astype(int)
    return np.array([low > np.median(low[1:]), (steps[:, 1:] > steps[:, :-1]).ravel()])


def test_unknown_class_is_named() -> None:
    with pytest.raises(UserError, match=r"'Warts' cannot be painted; choose one of Acne_Vulgaris"):
        paint("Warts", 0)
