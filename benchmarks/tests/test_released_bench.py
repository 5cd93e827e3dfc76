"""What a stated mix does to the probabilities of a release, and what its bundle refuses."""

import os
from pathlib import Path

import numpy as np
import pytest
from evaluation_fakes import CLASSES
from guide_pages import ROOT

from skindx.core.errors import UserError
from skindx.evaluation.answers import Answers
from skindx_bench.honesty.released import SMALLEST, Config, run, stated

COUNTS = {"nevus": 499, "melanoma": 499}
"""Calibration images; each class counts as one more than there was."""


def answers(share: float, counts: dict[str, int] | None, images: int = 20_000) -> Answers:
    """Return answers that hold for as many melanomas as moles, where `share` are melanomas.

    A mark is drawn of each lesion: 9 of 10 melanomas have it, and 3 of 10 moles.
    """
    rng = np.random.default_rng(0)
    truth_N = (rng.random(images) < share).astype(np.intp)
    mark_N = rng.random(images) < np.where(truth_N == 1, 0.9, 0.3)
    melanoma_N = np.where(mark_N, 0.75, 0.125)
    ensemble_NC = np.stack([1 - melanoma_N, melanoma_N], axis=1)
    names_N = np.array([f"{number:05}" for number in range(images)])
    return Answers(
        CLASSES[:2],
        ("a",),
        truth_N,
        names_N,
        names_N,
        ensemble_NC,
        ensemble_NC[:, None],
        (None,) * images,
        ("x",) * images,
        calibration_images=counts,
    )


def test_the_stated_mix_mends_probabilities_of_another_mix() -> None:
    found = stated("there", answers(0.1, COUNTS), draws=50)
    # As it is: of 0.36 marked lesions, said to be melanoma by 0.75, 0.09 are; of 0.64 others, said
    # to be moles by 0.875, 0.63 are.
    error = 0.36 * abs(0.75 - 0.25) + 0.64 * abs(0.875 - 0.63 / 0.64)
    assert found["there: calibration error, as it is"].value == pytest.approx(error, abs=0.01)
    assert found["there: calibration error, mix stated"].value < 0.01
    # With one melanoma in ten the mark no longer makes melanoma the likeliest.
    assert found["there: top-1, mix stated"].value == pytest.approx(90, abs=1)
    assert found["there: top-1, as it is"].value == pytest.approx(72, abs=1)
    for figure in found.values():
        low, high = figure.spread
        assert low <= figure.value <= high
        assert low < high


def test_a_bundle_that_does_not_say_its_mix_is_refused() -> None:
    with pytest.raises(UserError, match="does not store the number of calibration images"):
        stated("there", answers(0.1, None), draws=50)


@pytest.mark.skipif(
    "SKINDX_REAL" not in os.environ, reason="SKINDX_REAL does not point at a folder of real images"
)
def test_the_released_bundle_is_asked_about_other_pictures() -> None:
    bundle = ROOT / "models/ham10000/skindx_ham10000/bundle"
    settings = Config.load(None, [*SMALLEST, f"bundle={bundle}"])
    found = run(settings)
    refused = {key: figure for key, figure in found.figures.items() if key.startswith("refused: ")}
    assert refused["refused: painted: document"].value == 100
    assert refused["refused: clinical photos, another host"].n == 6
    counts = found.models["refusals"]["painted: document"]
    assert sum(counts.values()) == 1


def test_a_folder_without_a_release_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="evaluation of a release"):
        run(Config.load(None, [*SMALLEST, f"bundle={tmp_path / 'bundle'}"]))
