"""The bench of heat maps: its smallest setting runs, and its figures are shares."""

import json
from pathlib import Path

import numpy as np
import pytest

from skindx_bench.honesty.heat import CELL, PEERS, PER_SIDE, TASKS, plant
from skindx_bench.subjects import run_bench


@pytest.mark.lab
def test_the_smallest_setting_gives_every_methods_share(tmp_path: Path) -> None:
    run_bench("heat", tmp_path / "heat.json", smallest=True)
    figures = json.loads((tmp_path / "heat.json").read_text())["figures"]
    assert {"ours", *PEERS} <= figures.keys()
    for name, figure in figures.items():
        low, high = figure["spread"]
        assert 0 <= low <= figure["value"] <= high <= 100, name


def test_the_patch_lies_where_it_is_said_to_lie() -> None:
    for task in TASKS:
        asked = plant(np.random.default_rng(3), 60, task)
        images = asked.images_NSS3.numpy().astype(int)
        assert (asked.patch_NT.any(1) == (asked.labels_N > 0).numpy()).all()
        # Noise stays within its range; outside a patch there is nothing else.
        odd = ((images < 90) | (images >= 160)).any(3)
        by_token = odd.reshape(-1, PER_SIDE, CELL, PER_SIDE, CELL).mean(axis=(2, 4))
        share_NT = by_token.reshape(len(images), -1)
        assert (share_NT[~asked.patch_NT] < 0.25).all(), task
