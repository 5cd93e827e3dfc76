"""The table of the out-of-distribution check, by hand and with the tiny bundle."""

import json
from pathlib import Path

import numpy as np
import pytest
from tiny_bundle import pack_whole
from tiny_dataset import jpeg, tiny_dataset

from skindx.core.errors import UserError
from skindx.diagnosis.predictor import Predictor
from skindx_bench.honesty import gates_study
from skindx_bench.honesty.no_skin_images import KINDS
from skindx_bench.honesty.ood_study import Checked, check_of, report, separation, table


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_whole(tmp_path_factory.mktemp("whole") / "bundle").path


def checked(kind: str, scores: list[float], groups: list[str]) -> Checked:
    out_N = np.array(scores) > 3
    gated_N = np.arange(len(scores)) == 0
    return Checked(kind, np.array(scores), out_N, out_N[None], gated_N, np.array(groups))


def test_figures_by_hand() -> None:
    own = checked("own", [1, 2, 3, 4], ["a", "a", "b", "b"])
    other = checked("wood", [2.5, 3, 5], ["x", "y", "z"])
    # Of 12 pairs the other one scores higher in 2 + 2.5 + 4.
    area = separation(own, other)
    assert area.value == pytest.approx(8.5 / 12)
    assert area.low <= area.value <= area.high
    assert own.refused().value == 0.25
    # Four images of two lesions are worth two witnesses.
    assert own.refused().high > 0.7
    row = other.row(own)
    assert (row["against"], row["n"], row["sources"]) == ("wood", 3, 3)
    assert row["auroc"][0] == area.value
    assert row["refused"][0] == row["refused_by_detector"][0] == pytest.approx(1 / 3)
    assert row["refused_or_gated"] == pytest.approx(2 / 3)  # the check one, a gate another


def test_report_of_a_bundle(whole: Path, tmp_path: Path) -> None:
    tiny_dataset(tmp_path / "data", 16)
    flat = [(np.full((96, 96, 3), 255, np.uint8), "one")] * 2
    found = report(Predictor.load(whole), tmp_path / "data", [("flat", flat)], painted=2)
    assert found["own"]["n"] == 4
    assert found["promised"] == pytest.approx(1 / 41)
    assert [row["against"] for row in found["others"]] == ["flat", "painted skin", *KINDS]
    assert found["others"][0]["sources"] == 1
    assert found["others"][0]["refused_or_gated"] == 1  # white paper, the gates say
    head, names, own, *rows = table(found)
    assert "promised: 2.4% (40 calibration images)" in head
    assert names.split()[:3] == ["against", "n", "AUROC"]
    assert own.startswith("test images")
    assert len(rows) == 10


def test_what_cannot_be_measured_is_one_sentence(tiny_bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no out-of-distribution check"):
        check_of(Predictor.load(tiny_bundle))
    with pytest.raises(UserError, match="holds no JPEG or PNG"):
        gates_study.main(["--bundle", str(tiny_bundle), str(tmp_path), str(tiny_bundle)])


def test_photos_of_folders(
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The command prints the table of the folders' photos and writes its figures."""
    (tmp_path / "photos").mkdir()
    pixels = KINDS["wood"](np.random.default_rng(0))
    for copy in "ab":
        (tmp_path / "photos" / f"one.rf.{copy}.jpg").write_bytes(jpeg(pixels))
    tiny_dataset(tmp_path / "data", 16)
    monkeypatch.setattr("skindx_bench.honesty.ood_study.painted_images", lambda _: iter(()))
    figures = tmp_path / "ood.json"
    folder = str(tmp_path / "photos")
    gates_study.main(
        [folder, "--bundle", str(whole), str(tmp_path / "data"), "--json", str(figures)]
    )
    assert "photos" in capsys.readouterr().out
    (row,) = json.loads(figures.read_text())["others"]
    assert (row["n"], row["sources"]) == (2, 1)  # Roboflow's copies of one photo
