"""The table of the check for strange photos, by hand and with the tiny bundle."""

from pathlib import Path

import numpy as np
import pytest
from tiny_bundle import pack_tiny, pack_whole
from tiny_dataset import jpeg, tiny_dataset

from skindx.diagnosis.predictor import Predictor
from skindx.errors import UserError
from skindx.studies import gates
from skindx.studies.no_skin import KINDS
from skindx.studies.strange import Checked, novelty_of, separation, table


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_whole(tmp_path_factory.mktemp("whole") / "bundle").path


def checked(kind: str, scores: list[float], groups: list[str]) -> Checked:
    refused_N = np.array(scores) > 3
    gated_N = np.arange(len(scores)) == 0
    return Checked(kind, np.array(scores), refused_N, gated_N, np.array(groups))


def test_figures_by_hand() -> None:
    familiar = checked("own", [1, 2, 3, 4], ["a", "a", "b", "b"])
    strange = checked("wood", [2.5, 3, 5], ["x", "y", "z"])
    # Of 12 pairs the strange one lies farther in 2 + 2.5 + 4.
    area = separation(familiar, strange)
    assert area.value == pytest.approx(8.5 / 12)
    assert area.low <= area.value <= area.high
    assert familiar.refused().value == 0.25
    # Four pictures of two lesions are worth two witnesses.
    assert familiar.refused().high > 0.7
    line = strange.line(familiar).split()
    assert line[:3] == ["wood", "3", "0.708"]
    assert line[-2:] == ["33.3%", "66.7%"]  # the check refuses one, a gate another


def test_table_of_a_bundle(whole: Path, tmp_path: Path) -> None:
    tiny_dataset(tmp_path / "data", 16)
    predictor = Predictor.load(whole)
    flat = [np.full((96, 96, 3), 255, np.uint8)] * 2
    head, names, *rows = table(predictor, tmp_path / "data", [("flat", flat)], painted=2)
    assert head.startswith("4 test pictures of ")
    assert "at most 2.4% is promised" in head  # of 40 calibration pictures
    assert names.split()[:3] == ["against", "n", "AUROC"]
    assert [row[:24].strip() for row in rows] == ["flat", "painted skin", *KINDS]
    assert all(0 <= float(row[24:].split()[1]) <= 1 for row in rows)
    assert rows[0].split()[-1] == "100.0%"  # white paper, the gates say


def test_what_cannot_be_measured_is_one_sentence(tmp_path: Path) -> None:
    bundle = pack_tiny(tmp_path / "bundle")
    with pytest.raises(UserError, match="no check for strange photos"):
        novelty_of(Predictor.load(bundle.path))
    with pytest.raises(UserError, match="holds no JPEG or PNG"):
        gates.main(["--bundle", str(bundle.path), str(tmp_path), str(tmp_path / "bundle")])


def test_photos_of_folders(
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The command hands the bundle, the dataset and the folders' photos to the table."""
    (tmp_path / "photos").mkdir()
    pixels = KINDS["wood"](np.random.default_rng(0))
    (tmp_path / "photos" / "one.jpg").write_bytes(jpeg(pixels))
    seen = []

    def told(
        predictor: Predictor, dataset: Path, others: list[tuple[str, list[object]]]
    ) -> list[str]:
        seen.append((predictor.bundle.path, dataset, [(name, len(all_)) for name, all_ in others]))
        return ["a line"]

    monkeypatch.setattr("skindx.studies.strange.table", told)
    gates.main([str(tmp_path / "photos"), "--bundle", str(whole), str(tmp_path / "data")])
    assert capsys.readouterr().out == "a line\n"
    assert seen == [(whole, tmp_path / "data", [("photos", 1)])]
