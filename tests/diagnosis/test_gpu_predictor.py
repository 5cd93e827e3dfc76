"""The predictor that the page serves answers on a GPU as it does on a CPU."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from skin_photo import skin_photo
from tiny_bundle import pack_tiny, pack_whole

from skindx.diagnosis.case import Case
from skindx.diagnosis.diagnose import answer
from skindx.diagnosis.predictor import Predictor

pytestmark = pytest.mark.gpu

NEAR = 5e-3
"""How far probabilities may be apart: a GPU multiplies convolutions in 19 bits (TF32)."""


def test_probabilities_and_the_out_of_distribution_check(device: str, tmp_path: Path) -> None:
    bundle = pack_whole(tmp_path / "bundle").path
    random = np.random.default_rng(1)
    images = [random.integers(0, 256, (70 + n, 90, 3), dtype=np.uint8) for n in range(5)]
    here = Predictor.load(bundle, device="cpu", backend="eager").predict(images)
    there = Predictor.load(bundle, device=device, backend="auto").predict(images)
    for found, wanted in zip(there, here, strict=True):
        np.testing.assert_allclose(found.probabilities_C, wanted.probabilities_C, atol=NEAR)
        np.testing.assert_allclose(
            found.member_probabilities_MC, wanted.member_probabilities_MC, atol=NEAR
        )
        assert found.ood is not None
        assert wanted.ood is not None
        assert abs(found.ood.p_value - wanted.ood.p_value) < 0.1


def test_a_diagnosis_with_its_heat_map(device: str, tmp_path: Path) -> None:
    # So sure of itself that it does not abstain: then there is a heat map.
    bundle = pack_tiny(tmp_path / "bundle", temperature=0.005).path
    case = Case((skin_photo(), skin_photo(seed=5)))
    here, there = (
        answer(Predictor.load(bundle, device=where, backend="eager"), case)
        for where in ("cpu", device)
    )
    assert len(there.views) == len(here.views) == 2
    for found, wanted in zip(there.views, here.views, strict=True):
        assert found.jpeg == wanted.jpeg
        heats = [
            np.asarray(Image.open(io.BytesIO(view.heat)).convert("RGBA")).astype(float)
            for view in (found, wanted)
        ]
        assert np.abs(heats[0] - heats[1]).mean() < 10  # of 255
