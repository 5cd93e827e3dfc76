"""Pairs of photos of one lesion and of two: which are asked about, by hand and as committed."""

import json
from pathlib import Path

import numpy as np
import pytest
from guide_pages import ROOT

from skindx.core.errors import UserError
from skindx.diagnosis.conclusion import LEAST_ALIKE
from skindx_bench.honesty.lesion_pairs import SMALLEST, THRESHOLDS, Config, figures_of, run


def test_pairs_are_asked_about_by_their_cosine_or_by_two_sure_answers() -> None:
    angles_N = np.radians([0.0, 80, 0, 0, 90, 90])  # two photos of the lesion a, one of each other
    embeddings_ND = np.stack([np.cos(angles_N), np.sin(angles_N)], axis=1).astype(np.float32)
    probabilities_NC = np.array([[0.99, 0.01]] * 3 + [[0.01, 0.99]] + [[0.5, 0.5]] * 2)
    lesions, labels = ["a", "a", "b", "c", "d", "e"], ["x"] * 4 + ["y"] * 2
    figures = figures_of(embeddings_ND, probabilities_NC, lesions, labels)
    assert figures["one lesion: sure of others"].value == 0
    assert figures["one lesion: below 0.3"].value == 100  # its cosine is 0.17
    assert figures["one lesion, x: below 0.3"].n == 1
    # Each lesion is in one pair at most, of all and of those of one diagnosis: d with e, and one
    # pair of a, b and c.
    assert figures["two lesions: below 0.3"].n == 2
    assert figures["two lesions of one diagnosis: below 0.3"].n == 2
    assert figures["two lesions, x: below 0.3"].n == 1
    for figure in figures.values():
        assert figure.spread[0] <= figure.value <= figure.spread[1]


def test_the_served_threshold_is_one_of_those_measured() -> None:
    assert LEAST_ALIKE in THRESHOLDS
    written = json.loads((ROOT / "docs/measured/lesion-pairs.json").read_text(encoding="utf-8"))
    rates = [
        f"{written['figures'][f'{kind}: below {LEAST_ALIKE}']['value']:.0f} %"
        for kind in ("one lesion", "two lesions", "two lesions of one diagnosis")
    ]
    file = ROOT / "skindx/diagnosis/conclusion.py"
    _, _, after = file.read_text(encoding="utf-8").partition("\nLEAST_ALIKE = ")
    assert all(rate in after.split('"""')[1] for rate in rates), rates


def test_a_folder_without_the_images_is_refused(tmp_path: Path) -> None:
    bundle = ROOT / "models/ham10000/skindx_ham10000/bundle"
    settings = Config.load(None, [*SMALLEST, f"bundle={bundle}", f"images={tmp_path}"])
    with pytest.raises(UserError, match="lacks 8 images of the test split"):
        run(settings)
