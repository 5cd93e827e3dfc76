"""A scan from photos to the folder that a person opens, and to a comparison."""

from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import spots
from painted_rulers import Painted, paint_ruler
from spots import photo_with, save
from whole_photo import ThisProcess

from skindx.cli.scan import AskAboutRulers
from skindx.core.errors import UserError
from skindx.scan.compare.scan_comparison import compare
from skindx.scan.outputs.scan_result import read_summary
from skindx.scan.scan_run import run_scan
from skindx.scan.tile_search import ScanSettings
from skindx.scan.work.scan_worker import WORK, ScanTaskRunner

SPOTS = [(48, 48, 9), (96, 120, 5), (200, 60, 14), (310, 210, 20), (150, 250, 7), (330, 40, 6)]
HERE = partial(ThisProcess, make_runner=partial(ScanTaskRunner, load=spots.load))


@pytest.fixture(scope="module")
def photo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pixels = photo_with(SPOTS, 400, 300)  # type: ignore[arg-type]
    return save(pixels, tmp_path_factory.mktemp("photo") / "back.png")


def test_a_scan_writes_its_results_with_millimetres(
    photo: Path, tiny_bundle: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    run_scan([photo], tiny_bundle, out, ScanSettings(), make_workers=HERE, mm_per_pixel=0.2)
    assert read_summary(out).photos[0].mm_per_pixel == 0.2
    assert (out / "scan.html").is_file()
    assert not (out / WORK).exists()
    rows = pq.read_table(out / "lesions.parquet").to_pylist()
    assert len(rows) == len(SPOTS)
    assert max(row["diameter_mm"] for row in rows) == pytest.approx(0.2 * 40, rel=0.15)
    found = compare(out, out)
    assert found.count("same") == len(SPOTS)


def test_a_scale_that_no_photo_has_begins_nothing(
    photo: Path, tiny_bundle: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="mm per pixel"):
        run_scan([photo], tiny_bundle, tmp_path / "out", ScanSettings(), mm_per_pixel=90)
    assert not (tmp_path / "out").exists()


def test_a_ruler_is_shown_first_and_used_once_confirmed(tiny_bundle: Path, tmp_path: Path) -> None:
    pixels, _ = paint_ruler(Painted(ticks=40, angle=5, size_wh=(640, 480)))
    ruled = save(
        np.concatenate([pixels, photo_with([(300, 60, 12)], 640, 200)]), tmp_path / "a.png"
    )
    out = tmp_path / "out"
    scan = partial(run_scan, [ruled], tiny_bundle, out, ScanSettings(), make_workers=HERE)
    # Without a terminal nobody can say yes; what was not shown cannot have been checked either.
    with pytest.raises(UserError, match="--confirm-ruler"):
        scan(confirm=AskAboutRulers(out, confirmed=True))
    assert (tmp_path / "out-ruler-1.png").is_file()
    assert not out.exists()
    scan(confirm=AskAboutRulers(out, confirmed=True))
    assert read_summary(out).photos[0].mm_per_pixel == pytest.approx(1 / 12, rel=0.01)
