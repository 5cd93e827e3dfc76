import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from skin_photo import skin_photo
from tiny_bundle import odd_taxonomy, pack_tiny

from skindx.diagnosis.case import Case
from skindx.diagnosis.diagnose import answer
from skindx.diagnosis.measured import measured
from skindx.diagnosis.predictor import Predictor
from skindx.diagnosis.record import NOTICE
from skindx.diagnosis.view import view_jpeg
from skindx.ui.html import (
    figure_html,
    problem_html,
    result_html,
    top_html,
)

METRICS = {
    "origin": {"split": "test"},
    "pictures": 1312,
    "ensemble": {
        "top1": {"value": 0.812, "low": 0.77, "high": 0.85},
        "calibration_error": {"value": 0.031, "low": None, "high": None},
    },
}


def test_measured_figures_are_told_with_their_intervals() -> None:
    assert measured(METRICS) == (
        "Measured on its test split (1,312 pictures): top-1 81.2 % (95 % interval 77.0 to 85.0 %), "
        "calibration error 3.1 %."
    )


@pytest.mark.parametrize(
    "metrics",
    [
        None,
        {},
        {"ensemble": None},
        {"ensemble": {"top1": 0.8}},
        {"ensemble": {"top1": {"value": None}}},
        {"ensemble": [1, 2], "pictures": "many"},
    ],
)
def test_metrics_of_another_layout_say_nothing(metrics: dict[str, object] | None) -> None:
    assert measured(metrics) == ""


def test_a_figure_alone_is_told() -> None:
    alone = {"ensemble": {"top1": {"value": 0.5}}}
    assert measured(alone) == "Measured on pictures kept apart: top-1 50.0 %."


def test_names_from_a_bundle_are_text_not_markup(tmp_path: Path) -> None:
    predictor = Predictor.load(pack_tiny(tmp_path / "bundle", taxonomy=odd_taxonomy()).path)
    answered = answer(predictor, Case((skin_photo(),)))
    diagnosis = answered.diagnosis
    html = result_html(diagnosis, None) + figure_html(diagnosis, answered.views[0].jpeg)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
    assert "<script" not in html
    assert "<b>" not in html
    assert "<i>odd" not in html
    assert "has not been measured" in html
    assert "no lesion detector" in html
    assert "<svg" not in html


def test_a_problem_is_a_sentence_with_its_markup_shown() -> None:
    html = problem_html("the file <img src=x onerror=alert(1)> is none")
    assert "The file &lt;img" in html
    assert "<img" not in html


def test_the_notice_stands_at_the_top() -> None:
    assert NOTICE in top_html()


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((3000, 4000), (960, 1280)), ((100, 60), (100, 60)), ((5000, 600), (1280, 154))],
)
def test_the_shown_picture_is_a_small_jpeg_without_metadata(
    shape: tuple[int, int], expected: tuple[int, int]
) -> None:
    jpeg = Image.open(io.BytesIO(view_jpeg(np.zeros((*shape, 3), dtype=np.uint8))))
    assert jpeg.format == "JPEG"
    assert (jpeg.height, jpeg.width) == expected
    assert not jpeg.getexif()
