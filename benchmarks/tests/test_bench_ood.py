"""The comparison of out-of-distribution detectors: the choice by hand, and its smallest setting."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from skindx.core.errors import UserError
from skindx.data.manifest import Record, read_manifest
from skindx_bench.honesty.ood import (
    CANDIDATES,
    LEFT_OUT,
    OWN,
    Refusals,
    choose,
    class_view,
    is_served,
    merit,
    paired_classes,
    refusals,
)
from skindx_bench.honesty.ood_candidates import KINDS
from skindx_bench.subjects import run_bench

DATASET = Path(__file__).parents[2] / "tests" / "fixtures" / "v0_1" / "dataset"
TRAINING = """
name: tiny
engine: {accelerator: cpu, ranks: 1}
recipe: {epochs: 1, batch: 16}
members: [{name: m, model: test_efficientnet, preprocess: {size: 64}}]
"""


def part(refused: int, of: int) -> Refusals:
    return Refusals(np.arange(of) < refused, np.arange(of).astype(str), (0.5,))


def kinds(own: int, left_out: int, *painted: int) -> dict[str, Refusals]:
    """Return refusals of 100 images each."""
    found = {OWN: part(own, 100), LEFT_OUT: part(left_out, 100)}
    return found | {f"painted {n}": part(share, 100) for n, share in enumerate(painted)}


def test_the_choice_by_hand() -> None:
    assert merit(kinds(1, 20, 80, 100)) == pytest.approx((0.2 + 0.9) / 2)
    found = {
        ("energy",): kinds(1, 20, 80, 100),
        ("knn",): kinds(1, 30, 80, 100),
        ("vim", "knn"): kinds(1, 30, 80, 100),
        ("image",): kinds(12, 90, 100, 100),  # 12 % of its own: more than by chance at 1 %
        ("gram",): kinds(1, 90, 100, 100),  # hooks, which no export has
    }
    assert choose(found, 0.01) == ("knn",)
    assert choose({("image",): found["image",]}, 0.01) is None
    assert not is_served(("image", "gram"))
    assert {kind for candidate in CANDIDATES for kind in candidate} == set(KINDS)


def test_refusals_by_hand() -> None:
    """49 calibration images 0 .. 48: at a rate of 1 in 50 only a score above all is refused."""
    scores = {
        ("energy", "calibration"): np.arange(49.0),
        ("energy", OWN): np.array([3.0, 48.5]),
        ("energy", LEFT_OUT): np.array([50.0, 60.0, 2.0]),
    }
    groups = {OWN: ["a", "b"], LEFT_OUT: ["c", "c", "d"]}
    found = refusals(("energy",), [(scores, groups), (scores, groups)])
    assert found[OWN].out_N.tolist() == [False, True] * 2
    assert found[LEFT_OUT].share.value == pytest.approx(2 / 3)
    assert found[LEFT_OUT].area == pytest.approx(4 / 6)


def test_a_view_leaves_classes_out(tmp_path: Path) -> None:
    records = read_manifest(DATASET)
    view = class_view(DATASET, tmp_path / "view", ["Nevus"])
    assert read_manifest(view) == [record for record in records if record.label != "Nevus"]
    assert all((view / record.path).is_file() for record in read_manifest(view))
    for wrong, why in ((["Wart"], "no images of Wart"), (["Nevus", "Melanoma"], "fewer than 2")):
        with pytest.raises(UserError, match=why):
            class_view(DATASET, tmp_path / "wrong", wrong)
    assert not (tmp_path / "wrong").exists()


def test_classes_are_paired_by_size() -> None:
    counts = {"a": 5, "b": 1, "c": 3, "d": 2, "e": 4}
    records = [
        Record("", "", "", 1, 1, label, "", "train")
        for label, n in counts.items()
        for _ in range(n)
    ]
    assert paired_classes(records) == (("a", "b"), ("e", "d"), ("c",))


@pytest.mark.lab
@pytest.mark.distributed
def test_the_smallest_setting(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    shutil.copytree(DATASET, tmp_path / "data")
    (tmp_path / "ood.yaml").write_text(TRAINING)
    sets = [
        f"dataset={tmp_path / 'data'}",
        f"config={tmp_path / 'ood.yaml'}",
        f"out={tmp_path / 'out'}",
        "left_out=[[Nevus]]",
    ]
    run_bench("ood", tmp_path / "ood.json", sets, smallest=True)
    found = json.loads((tmp_path / "ood.json").read_text())
    assert set(found["models"]) == {"+".join(candidate) for candidate in CANDIDATES}
    assert found["models"]["energy"][LEFT_OUT]["n"] == 36
    assert "m trained without: Nevus" in found["notes"][0]
    assert "relative_mahalanobis" in capfd.readouterr().out
