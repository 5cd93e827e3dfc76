"""An answer in a notebook: what figure and HTML say, and that nothing of a bundle is run."""

import io
import re
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.text import Text
from painted_answers import jpeg, plain, rich
from PIL import Image

from skindx.api.model import Answer
from skindx.diagnosis.advice_figures import right_at
from skindx.diagnosis.answer_figure import MOST_HTML
from skindx.diagnosis.case import Case
from skindx.diagnosis.record import CaseAnswer, PhotoView
from skindx.texts import catalogue

RIGHT = {"value": 0.5, "low": 0.4, "high": 0.6}
METRICS = {
    "reliability": [
        {"low": 0.0, "high": 0.4, "n": 9, "right": {"value": 0.1, "low": 0.0, "high": 0.3}},
        {"low": 0.4, "high": 0.7, "n": 80, "right": RIGHT},
    ]
}


def words(figure: object) -> str:
    texts = [text.get_text() for text in figure.findobj(Text)]  # type: ignore[attr-defined]
    return " ".join(" ".join(texts).split())


def case(photos: int = 1) -> Case:
    return Case(tuple(jpeg(200, 150, seed) for seed in range(photos)))


def test_a_figure_shows_set_probabilities_next_step_and_limits() -> None:
    answered = rich(case(2), "urgent")
    diagnosis = answered.diagnosis
    figure = Answer(answered, METRICS).plot()
    said = words(figure)
    assert f"Urgent: {diagnosis.next_step.advice}" in said
    assert catalogue.text("cannot_rule_out") in said
    assert diagnosis.notice in said
    for one in diagnosis.candidates:
        assert one.name[:20] in said
    assert {"46 %", "27 %", "< 1 %"} <= {text.get_text() for text in figure.findobj(Text)}
    assert "50.0 % (95 % interval 40.0 to 60.0 %, 80 images)" in said
    *photos, bars = figure.axes
    assert len(photos) == 2
    widths = [patch.get_width() for patch in bars.patches]
    assert widths == pytest.approx([one.probability for one in diagnosis.candidates])
    inside, outside = bars.patches[0].get_facecolor(), bars.patches[-1].get_facecolor()
    colours = [patch.get_facecolor() for patch in bars.patches]
    assert colours == [inside] * 3 + [outside] * 2
    assert inside != outside
    drawn = figure._repr_png_()
    assert Image.open(io.BytesIO(drawn)).width > 600


def test_no_interval_stands_where_none_was_measured() -> None:
    answered = rich(case())
    assert "measured, 95 % interval" in words(Answer(answered, METRICS).plot())
    for metrics in (None, {}, {"reliability": [{"low": 0, "high": 1, "n": 4}]}):
        assert "measured, 95 %" not in words(Answer(answered, metrics).plot())
    abstained = Answer(rich(case(), "unknown"), METRICS)
    said = words(abstained.plot())
    assert "measured, 95 %" not in said
    assert "Nearest conditions, urgent first (not an answer)" in said
    assert "named" not in said
    assert "The model does not know." in abstained._repr_html_()
    found = right_at({"reliability": [{"low": "a", "high": 1}, *METRICS["reliability"]]}, 0.4)
    assert found
    assert (found.value, found.pictures) == (0.1, 9)
    assert right_at(METRICS, 0.9) is None


def test_html_is_escaped_and_holds_nothing_that_runs_or_loads() -> None:
    hostile = "<img src=x onerror=alert(1)>$\\frac{"
    answered = plain(name=hostile)
    html = Answer(answered, None)._repr_html_()
    assert "<script" not in html
    assert "&lt;img src=x" in html
    assert re.findall(r'(?:src|href)="(.{10})', html) == ["data:image"]
    assert len(Answer(answered, None).plot()._repr_png_()) > 1000  # a dollar sign is text


def test_html_has_what_an_answer_may_not_lack_and_only_the_photos_of_it() -> None:
    answered = rich(case(3), "urgent")
    html = Answer(answered, METRICS)._repr_html_()
    assert html.count("data:image/jpeg;base64,") == 3
    for text in (
        "Urgent",
        catalogue.text("cannot_rule_out"),
        "46 %",
        "●",
        "95 % interval 40.0 to 60.0 %",
    ):
        assert text in html
    without = CaseAnswer(answered.diagnosis, ())
    assert "<img" not in Answer(without, None)._repr_html_()
    assert len(Answer(without, None).plot().axes) == 1


def test_html_stays_small_whatever_is_in_an_answer() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (1280, 1280, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).save(file, "JPEG", quality=95)
    answered = rich(case(3))
    many = answered.diagnosis.candidates * 60
    long = replace(
        answered,
        diagnosis=answered.diagnosis.model_copy(
            update={"candidates": many, "abstained": "&" * 9 + "a &" * 9000}
        ),
        views=(PhotoView(file.getvalue()),) * 3,
    )
    html = Answer(long, None)._repr_html_()
    assert len(html.encode()) <= MOST_HTML
    assert "288 more conditions are in the answer." in html
    assert len(Answer(long, None).plot().axes[-1].patches) == 12
