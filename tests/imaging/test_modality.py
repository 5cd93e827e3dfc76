"""Dermoscopic or clinical: what a check promises, and what it is never used for."""

import json

import cv2
import numpy as np
import pytest

from skindx.imaging.photo_gates import (
    RATE,
    WEIGHTS,
    Floats,
    ModalityCheck,
    ModalityNetwork,
    modality_features,
    shipped,
)

LINE = ModalityNetwork(
    mean=(0.0,),
    scale=(1.0,),
    hidden=((1.0, 0.0, 1.0), (-1.0, 0.0, -1.0)),
    bias=0.5,
    medians={"dermoscopic": -2.0, "clinical": 2.0},
)
"""Scores x + 0.5, of one feature x, cut at 4."""


def column(*values: float) -> Floats:
    return np.array(values)[:, None]


def test_the_score_is_that_of_the_formula() -> None:
    assert LINE.score(column(-1, 0, 2, 9)) == pytest.approx([-0.5, 0.5, 2.5, 4.5])


@pytest.mark.parametrize(("kind", "sign"), [("dermoscopic", 1), ("clinical", -1)])
def test_as_many_of_its_images_are_refused_as_promised(kind: str, sign: int) -> None:
    scores_N = np.random.default_rng(0).permutation(199) / 100 - 1
    check = ModalityCheck.fit(kind, column(*(sign * (scores_N - 1.5))), LINE)
    assert check is not None
    refused_N = check.refused(column(*(sign * (scores_N - 1.5))), LINE)
    assert refused_N.sum() == 3 == round(RATE * 200, 9), "the photo itself counts as one more"
    assert check.refused(column(sign * 2.0), LINE).all()


def test_mixed_few_and_strange_images_have_no_check() -> None:
    usual = column(*np.linspace(-3, -2, 100))
    assert ModalityCheck.fit("", usual, LINE) is None
    assert ModalityCheck.fit("mixed", usual, LINE) is None
    assert ModalityCheck.fit("dermoscopic", usual[:60], LINE) is None
    # Stated as dermoscopic, but they look clinical: half of the clinical ones would pass.
    assert ModalityCheck.fit("dermoscopic", -usual, LINE) is None


def test_the_features_read_neither_the_size_nor_the_mirror() -> None:
    places = np.arange(256) / 255
    light = 90 + 90 * np.cos((places[:, None] - 0.5) * 2) * np.cos(places[None] - 0.4)
    photo = np.stack([light * 1.1, light * 0.8, light * 0.7], axis=2).clip(0, 255).astype(np.uint8)
    small = cv2.resize(photo, (128, 128), interpolation=cv2.INTER_AREA)
    mirrored = np.ascontiguousarray(photo[:, ::-1])
    expected = modality_features(photo)
    assert modality_features(small) == pytest.approx(expected, abs=0.3)
    assert modality_features(mirrored) == pytest.approx(expected, abs=1e-3)


def test_the_shipped_network_reads_these_features_and_says_where_it_is_from() -> None:
    network = shipped()
    count = len(modality_features(np.full((80, 90, 3), 150, np.uint8)))
    assert len(network.mean) == len(network.scale) == count
    assert {len(unit) for unit in network.hidden} == {count + 2}
    assert network.medians["dermoscopic"] < network.medians["clinical"]
    assert {"date", "hardware", "versions"} <= set(json.loads(WEIGHTS.read_text())["made"])
