"""The bench of drift: its streams and figures by hand, and its smallest setting."""

import json
from pathlib import Path

import numpy as np
import pytest

from skindx.core.errors import UserError
from skindx_bench.serve.drift import (
    BEFORE,
    CAMERA,
    Config,
    Streams,
    delay,
    invented,
    run,
    run_length,
)
from skindx_bench.serve.drift_arms import MartingaleArm, first_alarms
from skindx_bench.subjects import run_bench


@pytest.mark.lab
def test_the_smallest_setting_has_every_shift(tmp_path: Path) -> None:
    run_bench("drift", tmp_path / "drift.json", smallest=True)
    found = json.loads((tmp_path / "drift.json").read_text())
    assert {"cusum_0.5", "martingale"} <= found["models"].keys()
    shifts = (*CAMERA, "urgent_doubled", "urgent_third")
    assert {"run_length", *(f"delay_{name}" for name in shifts)} <= found["figures"].keys()
    for figure in found["figures"].values():
        assert figure["spread"][0] <= figure["value"] <= figure["spread"][1]


def test_figures_by_hand() -> None:
    assert run_length(np.array([10, 0, 30]), 100) == 70  # 140 photos, two alarms
    assert run_length(np.array([0, 0]), 100) == 200
    assert delay(np.array([BEFORE + 5, BEFORE + 9, BEFORE + 40, 3])) == 9  # one alarm before it


def test_a_shift_of_prevalence_changes_the_share_alone() -> None:
    table = invented(0)
    random = np.random.default_rng(0)
    rows, drawn_RT = Streams(table, "test").draw("urgent_doubled", (200, 300), random, again=False)
    urgent = table.urgent["test"]
    assert drawn_RT.max() < len(urgent)
    before, after = (
        urgent[drawn_RT[:, part]].mean() for part in (slice(BEFORE), slice(BEFORE, None))
    )
    assert after / before == pytest.approx(2, rel=0.05)
    assert rows.shape[1] == 2


def test_a_martingale_grows_under_a_shift_alone() -> None:
    random = np.random.default_rng(0)
    reference = random.standard_normal((300, 1))
    arm = MartingaleArm.fit(reference, (300, 60), 0)
    moved = np.concatenate([reference, reference + 2])
    calm = first_alarms(arm, moved, random.integers(300, size=(50, 200)))
    late = first_alarms(arm, moved, 300 + random.integers(300, size=(50, 200)))
    assert (calm.photo_R > 0).mean() < 0.5
    assert (late.photo_R > 0).all()
    assert np.median(late.photo_R) < 40


def test_a_bundle_needs_its_dataset(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="give both"):
        run(Config(bundle=tmp_path))
