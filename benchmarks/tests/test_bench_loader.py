import json
from pathlib import Path

import pytest

from skindx.core.errors import UserError
from skindx_bench.data import loader
from skindx_bench.subjects import run_bench

KEYS = [
    "loader_over_decode",
    "decode_and_resize_over_decode",
    "loader_over_decode_and_resize",
    "loader_over_imagefolder",
    "cache_over_imagefolder",
    "cache_over_resize_limit",
    "resize_over_opencv",
    "resize_over_copy",
    "crops_over_decoding",
    "crops_over_profiles_ignored",
    "wide_over_plain",
]


@pytest.mark.lab
def test_keys_and_notes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run_bench("loader", tmp_path / "loader.json", smallest=True)
    assert list(result.figures) == KEYS
    assert {figure.n for figure in result.figures.values()} == {5}
    assert all(figure.value > 0 for figure in result.figures.values())
    notes = json.loads((tmp_path / "loader.json").read_text())["notes"]
    assert "32 noisy JPEGs of 500 x 375 pixels, quality 90" in notes[0]
    assert "ImageFolder, uint8" in capsys.readouterr().out


def test_images_are_seeded_and_noisy(tmp_path: Path) -> None:
    settings = loader.Config(images=32)
    first = loader.make_images(tmp_path / "a", settings).records
    assert first == loader.make_images(tmp_path / "b", settings).records
    other = loader.make_images(tmp_path / "c", loader.Config(images=32, seed=1)).records
    assert {record.sha256 for record in first}.isdisjoint(record.sha256 for record in other)


def test_too_few_rounds_are_refused() -> None:
    with pytest.raises(UserError, match=r"'rounds' = 3: .*greater than or equal to 5"):
        loader.Config.load(None, ["rounds=3"])
