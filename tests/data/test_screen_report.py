from pathlib import Path

import numpy as np
import pytest
from paint_images import encode, paint, save
from rich.console import Console

from skindx.core.errors import UserError
from skindx.data.screening.screen import ScreenSettings
from skindx.data.screening.screen_report import fit_limit, print_report, report
from skindx_bench.honesty.no_skin_images import KINDS


def test_a_folder_is_judged_and_the_limit_fitted(tmp_path: Path) -> None:
    for n in range(12):
        save(tmp_path / "nevus" / f"{n}.jpg", paint(n))
    save(tmp_path / "dark.jpg", paint(20) // 30)
    save(tmp_path / "view.jpg", KINDS["landscape"](np.random.default_rng(0)))
    (tmp_path / "cut.jpg").write_bytes(encode(paint(21))[:-300])
    (tmp_path / "notes.txt").write_text("no picture, and not counted")
    found = report(tmp_path, ScreenSettings())
    assert (found.sound, found.reasons) == (13, {"too-dark": 1, "damaged": 1})
    assert found.examples == {"too-dark": "dark.jpg", "damaged": "cut.jpg"}
    assert found.lost == (0, 0)
    assert found.blurred_M.max() < found.min_detail < found.measured_N3[:, 2].min()
    console = Console(record=True, width=140)
    print_report(found, ScreenSettings(), console)
    reported = console.export_text()
    assert "13 sound images" in reported
    assert "looks like no skin: 1 show hardly any colour of skin" in reported
    assert "such as view.jpg; not_skin = review" in reported
    assert "refused: 1 too-dark, such as dark.jpg" in reported


def test_the_limit_by_hand() -> None:
    assert fit_limit(np.array([8.0, 16]), np.array([1.0, 2])) == (4, (0, 0))
    limit, lost = fit_limit(np.array([1.0, 16, 32, 64]), np.array([2.0, 4]))
    assert limit == 8
    assert lost == (0.25, 0)


def test_a_folder_without_an_image_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no image at any depth"):
        report(tmp_path, ScreenSettings())
    for path in (tmp_path / "away", Path(__file__)):
        with pytest.raises(UserError, match="is no folder"):
            report(path, ScreenSettings())
    save(tmp_path / "a.jpg", paint(1))
    with pytest.raises(UserError, match=r"none of the 1 images .*most often: too-small"):
        report(tmp_path, ScreenSettings(min_side=1000))
