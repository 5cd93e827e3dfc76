"""The figures of images that show no skin: on folders, on datasets with skin types, as JSON."""

import json
from pathlib import Path

import pytest
from paint_images import save
from skin_photo import skin_pixels

from skindx.core.errors import UserError
from skindx.data.layout import store_bytes
from skindx.data.manifest import Record, write_manifest
from skindx_bench.honesty.no_skin_images import KINDS, WARM
from skindx_bench.honesty.not_skin_study import CHANGES, main, report, unusual_figures


def typed_dataset(folder: Path) -> Path:
    """Return a dataset of four images of known type, one of unknown type, and one of no skin."""
    import numpy as np
    from paint_images import encode

    images = [(skin_pixels(200, 160, seed=n, skin_type=kind), kind) for n, kind in
              enumerate((1, 3, 5, 5))]  # fmt: skip
    images += [(skin_pixels(200, 160, seed=9), None)]
    images += [(KINDS["landscape"](np.random.default_rng(0)), 3)]
    records = []
    for n, (pixels, kind) in enumerate(images):
        sha256, path = store_bytes(folder, encode(pixels, quality=95), ".jpg")
        records.append(
            Record(path, sha256, "0" * 16, 200, 160, "nevus", f"g{n}", "train", skin_type=kind)
        )
    write_manifest(folder, records)
    return folder


def test_a_dataset_has_figures_by_skin_type(tmp_path: Path) -> None:
    found = report([typed_dataset(tmp_path)], count=100, painted=2)
    assert [row["change"] for row in found["skin"]] == list(CHANGES)
    row = found["skin"][0]
    assert (row["n"], row["sources"], row["shows"]) == (6, 6, {"colours": 1})
    assert row["flagged"][0] == pytest.approx(1 / 6)
    assert {name: part["n"] for name, part in row["by_skin_type"].items()} == {
        "1": 1,
        "3": 2,
        "5": 2,
        "unknown": 1,
    }
    assert row["by_skin_type"]["3"]["flagged"][0] == 0.5
    assert row["by_skin_type"]["5"]["flagged"][0] == 0
    assert {row["kind"] for row in found["painted"]} == {*KINDS, *WARM}
    assert found["painted_skin"]["flagged"][0] == 0


def test_the_command_prints_what_it_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for n in range(3):
        save(tmp_path / "in" / f"a.rf.{n}.jpg", skin_pixels(200, 160, seed=n))
    main([str(tmp_path / "in"), "--painted", "1", "--json", str(tmp_path / "found.json")])
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((tmp_path / "found.json").read_text())
    assert (printed["skin"][0]["n"], printed["skin"][0]["sources"]) == (3, 1)


def test_bad_input_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no JPEG or PNG"):
        main([str(tmp_path)])
    with pytest.raises(UserError, match="at least 1"):
        main([str(tmp_path), "--count", "0"])


@pytest.mark.real
def test_embeddings_tell_painted_things_from_real_skin(real: Path) -> None:
    from skindx_bench.honesty.gates_study import photos_of

    skin = ((pixels, str(n)) for n, pixels in enumerate(photos_of(real / "isic9", 60)))
    weights = real / "weights/mobilenetv2_100_qat.pth"
    found = unusual_figures(skin, weights, planted=1)
    assert (found["skin"], found["planted"]) == (60, 13)
    assert found["auroc"][0] > 0.95
    assert found["skin_flagged"][0] < 0.15
