"""The bench of heat maps: its smallest setting runs, and its figures are shares."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from skindx.diagnosis.heat_maps import token_heat
from skindx_bench.honesty.heat import CELL, PEERS, PER_SIDE, TASKS, plant, train_reader
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


def test_a_class_tokens_heat_points_to_a_planted_patch() -> None:
    """A vision transformer learns two textures, planted anywhere; its heat must lie on them."""
    assert _found(seed=0, depth=2, steps=60) > 0.9


@pytest.mark.long
@pytest.mark.parametrize("depth", [2, 4, 6])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_heat_finds_the_patch_whatever_seed_and_depth(seed: int, depth: int) -> None:
    assert _found(seed=seed, depth=depth, steps=150) > 0.9


def _found(seed: int, depth: int, steps: int) -> float:
    """Return the share of right answers whose hottest token is the planted one."""
    classifier = train_reader(seed, "textures", depth=depth, width=48, steps=steps)
    asked = plant(np.random.default_rng(100 + seed), 100, "textures")
    planted_N = asked.labels_N > 0
    with torch.inference_mode():
        right_N = (classifier(asked.images_NSS3).argmax(1) == asked.labels_N) & planted_N
    assert right_N.sum() > 0.9 * planted_N.sum()
    heat_Nhw = token_heat(classifier, asked.images_NSS3[right_N], asked.labels_N[right_N].tolist())
    assert heat_Nhw is not None
    hottest_N = heat_Nhw.reshape(len(heat_Nhw), -1).argmax(1)
    patch_NT = asked.patch_NT[right_N.numpy()]
    return float(patch_NT[np.arange(len(patch_NT)), hottest_N].mean())
