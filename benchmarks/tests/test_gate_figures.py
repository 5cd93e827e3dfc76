"""The figures of the gates: photos of one source count as one, and each gate is counted."""

import json
from pathlib import Path

import numpy as np
import pytest
from tiny_dataset import jpeg

from skindx.core.errors import UserError
from skindx.metrics import share_interval
from skindx_bench.honesty import gates_study
from skindx_bench.honesty.no_skin_images import KINDS


@pytest.fixture
def wood(tmp_path: Path) -> Path:
    """A folder with two copies of one image of wood and one of foliage."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for name, kind in (("a.rf.1", "wood"), ("a.rf.2", "wood"), ("b", "foliage")):
        pixels = KINDS[kind](np.random.default_rng(0))
        (folder / f"{name}.jpg").write_bytes(jpeg(pixels))
    return folder


def test_figures_of_a_folder(
    wood: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    few = {name: gates_study.SPOILT[name] for name in ("as they are", "1/500 of the light")}
    monkeypatch.setattr(gates_study, "SPOILT", few)
    monkeypatch.setattr(gates_study, "KINDS", {"document": KINDS["document"]})
    gates_study.main([str(wood), "--json", str(tmp_path / "gates.json")])

    found = json.loads((tmp_path / "gates.json").read_text())
    sound, dark = found["photos"]
    assert [row["change"] for row in (sound, dark)] == list(few)
    assert (sound["kind"], sound["n"], sound["sources"]) == ("photos", 3, 2)
    assert dark["refused"][0] == 1
    of_two_sources = share_interval(np.ones(3, bool), ["a", "a", "b"])
    assert (
        dark["refused"][1] == of_two_sources.low < share_interval(np.ones(3, bool), [0, 1, 2]).low
    )
    assert dark["gates"]["light"] == {"refused": 3, "remarked": 0}
    (painted,) = found["painted"]
    assert (painted["kind"], painted["refused"][0]) == ("document", 1)
    assert {"hardware", "versions", "date"} <= found.keys()
    printed = capsys.readouterr().out
    assert "photos, 1/500 of the light" in printed
    assert "painted: document" in printed


def test_a_folder_without_photos_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no JPEG or PNG"):
        gates_study.main([str(tmp_path), "--json", str(tmp_path / "gates.json")])
    assert not (tmp_path / "gates.json").exists()
