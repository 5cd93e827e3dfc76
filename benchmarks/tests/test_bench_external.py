"""The benchmark of what changes elsewhere: its smallest setting runs, and draws keep groups."""

import json
from pathlib import Path

import numpy as np
import pytest

from skindx_bench.honesty.external import SMALLEST, Config, draw, painted
from skindx_bench.subjects import run_bench


@pytest.mark.lab
def test_the_smallest_setting_gives_drops_and_what_adapting_brings_back(tmp_path: Path) -> None:
    run_bench("external", tmp_path / "external.json", smallest=True)
    figures = json.loads((tmp_path / "external.json").read_text())["figures"]
    assert figures["calibration_error_change"]["value"] > 0.1
    after, before = (
        figures[f"calibration_error_{when}_25"]["value"] for when in ("after", "before")
    )
    assert after < before
    for key, figure in figures.items():
        low, high = figure["spread"]
        assert low <= figure["value"] <= high, key


def test_a_draw_takes_whole_groups() -> None:
    images = painted(Config.load(None, [*SMALLEST])).images
    for seed in range(5):
        drawn_N = draw(images, 51, seed)
        assert 51 <= drawn_N.sum() <= 52
        groups_N = images.groups_N
        assert not set(groups_N[drawn_N]) & set(groups_N[~drawn_N])
    assert (draw(images, 51, 0) != draw(images, 51, 1)).any()
    np.testing.assert_array_equal(draw(images, 51, 3), draw(images, 51, 3))
