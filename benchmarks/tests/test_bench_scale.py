from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from skindx.core.errors import UserError
from skindx_bench.data.copy_search import FAR, Images, extrapolated, measure
from skindx_bench.subjects import run_bench


@pytest.mark.lab
def test_the_bench_measures_a_pair_of_chunks_the_driver_and_the_search_for_copies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run_bench("scale", tmp_path / "scale.json", smallest=True)
    others = {"chunk_pair_s", "chunk_pair_bytes", "driver_us_per_row", "driver_bytes_per_row"}
    assert {key for key in result.figures if not key.startswith("copies_")} == others
    assert result.figures["chunk_pair_s"].value > 0
    assert result.figures["chunk_pair_bytes"].value >= 0
    assert result.figures["driver_us_per_row"].value > 0
    assert result.figures["driver_bytes_per_row"].value >= 0
    assert (
        result.figures["copies_pairs_verified"].value
        >= result.figures["copies_pairs_accepted"].value
    )
    assert result.figures["copies_pairs_accepted"].value >= 1
    assert result.figures["copies_memory_mb"].value > 50
    assert result.figures["copies_hours_100k"].value > 0
    said = capsys.readouterr().out
    assert "200 codes against as many" in said
    assert "24 different files, painted ones" in said


def test_two_searches_are_extrapolated_by_a_line_and_a_square() -> None:
    line, square = 0.3, 2e-5
    few, many = (count * line + count**2 * square for count in (100, 400))
    assert extrapolated(100, few, 400, many) == pytest.approx(FAR * line + FAR**2 * square)
    assert extrapolated(100, 50.0, 400, 60.0) == pytest.approx(60 / 400 * FAR)  # no less than that
    assert extrapolated(100, 0.0, 400, 16.0) == pytest.approx(16 / 400**2 * FAR**2)


def test_large_images_are_cut_into_parts_that_share_no_pixel(tmp_path: Path) -> None:
    y_HW, x_HW = np.mgrid[:400, :402]
    pixels_HWC = np.stack([x_HW // 2, y_HW // 2, x_HW // 2], axis=2).astype(np.uint8)
    Image.fromarray(pixels_HWC).save(tmp_path / "large.png")
    Image.fromarray(pixels_HWC[:100]).save(tmp_path / "small.png")
    given = list(Images(6, (tmp_path,), tiles=2))
    sizes = [Image.open(BytesIO(data)).size for data, _ in given]
    assert sizes[:5] == [(201, 200)] * 4 + [(402, 100)]
    assert given[4][0] == (tmp_path / "small.png").read_bytes()
    assert given[5][1] == ".jpg"  # a painted one makes up the number
    parts = [np.asarray(Image.open(BytesIO(data)), int) for data, _ in given[:4]]
    whole_HWC = np.vstack([np.hstack(parts[:2]), np.hstack(parts[2:])])
    assert np.abs(whole_HWC - pixels_HWC).mean() < 2


def test_a_dataset_that_is_no_folder_is_a_users_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is no folder"):
        measure(Images(24, (tmp_path / "absent",)), 1)
