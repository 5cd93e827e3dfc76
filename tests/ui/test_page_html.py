"""What the page says about an answer, without a browser."""

import re

import pytest
from painted_answers import jpeg, plain, rich

from skindx.diagnosis.answer import Answer
from skindx.diagnosis.case import Case
from skindx.diagnosis.measured import measured
from skindx.diagnosis.record import NOTICE, Promise, Share
from skindx.ui.html import web_address
from skindx.ui.page.followup import followup_html
from skindx.ui.page.intake import intake_html
from skindx.ui.page.result import missed, problem_html, promised, result_html, top_html

METRICS = {
    "origin": {"split": "test"},
    "pictures": 1312,
    "ensemble": {
        "top1": {"value": 0.812, "low": 0.77, "high": 0.85},
        "calibration_error": {"value": 0.031, "low": None, "high": None},
    },
}
CASE = Case((jpeg(80, 60),))


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


def test_what_the_set_promises_is_told_with_its_interval() -> None:
    share = Share(value=0.031, low=0.008, high=0.079, pictures=64)
    promise = Promise(level=0.9, pictures=1232, group="skin type 5", urgent_missed=share)
    told = promised(promise, 3).replace("\u00a0", " ")
    assert told == (
        "These 3 conditions are the set: of 100 photos like the calibration photos, about 90 have "
        "their true condition in such a set (fitted on 1,232 photos of skin type 5)."
    )
    assert promised(promise, 1).startswith("This condition is the set")
    apart = promised(promise.model_copy(update={"urgent_level": 0.95}), 3)
    assert "of urgent conditions about 95 (" in apart
    assert apart.endswith("though it is less likely than another outside.")
    assert promised(promise.model_copy(update={"urgent_level": 0.9}), 3) == promised(promise, 3)
    assert "3.1 % (95 % interval 0.8 to 7.9 %, 64 photos)" in missed(promise).replace("\u00a0", " ")
    unmeasured = promise.model_copy(update={"urgent_missed": None})
    assert "could not be measured" in missed(unmeasured)
    assert promised(None, 0) == missed(None) == ""


def test_the_order_is_next_step_then_conditions_then_why_then_similar_cases() -> None:
    html = result_html(rich(CASE), METRICS)
    places = [html.index(f'id="sx-h-{name}"') for name in ("next", "may", "why", "similar")]
    assert places == sorted(places)
    assert "No answer of this page means that all is well" in html


@pytest.mark.parametrize("urgency", ["urgent", "soon", "routine", "unknown"])
def test_no_answer_says_that_all_is_well(urgency: str) -> None:
    html = result_html(rich(CASE, urgency), None).lower()
    for phrase in ("all clear", "all-clear", "nothing to worry", "you are healthy", "no concern"):
        assert phrase not in html
    assert ("does not know" in html) == (urgency == "unknown")


def test_an_old_bundle_s_answer_says_what_is_missing() -> None:
    html = result_html(plain(), None)
    for missing in (
        "no calibrated sets",
        "no heat map",
        "no gallery",
        "no lesion detector",
        "has not been measured",
        "cannot tell whether a photo is unlike",
        "not calibrated",
    ):
        assert missing in html
    assert 'class="sx-heat"' not in html


def test_names_from_a_bundle_are_text_not_markup() -> None:
    html = result_html(plain(), None)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
    assert "<script" not in html
    assert "<b>bold" not in html
    assert "<svg" not in html  # no boxes, no outlines
    problem = problem_html("the file <img src=x onerror=alert(1)> is none")
    assert "The file &lt;img" in problem
    kept = followup_html(plain(), None, keeps=True, kept="Kept under <b>P</b>.", problem="<i>")
    assert "<b>P" not in kept


def test_only_web_addresses_become_links() -> None:
    assert web_address("https://example.org/1") == "https://example.org/1"
    for wrong in ("javascript:alert(1)", "data:text/html,x", "//example.org", "", " https://x"):
        assert web_address(wrong) == ""
    html = result_html(rich(CASE), None)
    assert "javascript:" not in html
    assert html.count('rel="noopener noreferrer"') == 3


def test_cases_that_may_not_be_shown_are_named_in_a_line() -> None:
    html = result_html(rich(CASE), None)
    assert html.count('class="sx-case"') == 3
    hidden = html.partition('<ul class="sx-hidden">')[2].partition("</ul>")[0]
    assert hidden.count("<li>") == 1
    assert "alike" in hidden
    assert "<img" not in hidden
    answer = rich(CASE)
    none = result_html(Answer(answer.diagnosis, answer.views, (b"",) * 4), None)
    assert 'class="sx-cases"' not in none
    assert none.partition('<ul class="sx-hidden">')[2].count("alike") == 4


def test_a_figure_and_its_unit_stay_on_one_line() -> None:
    html = result_html(rich(CASE), METRICS)
    assert "85.0\N{NO-BREAK SPACE}%" in html
    assert not re.search(r"\d %", html)


def test_the_notice_stands_at_the_top_and_the_form_is_a_plain_template() -> None:
    assert NOTICE in top_html()
    assert 'href="/login"' not in top_html()
    assert 'href="/login"' in top_html(logged_in=True)
    # Gradio reads a component's template as a JavaScript one and as Handlebars.
    assert not any(sign in intake_html() for sign in ("`", "${", "{{", "\\", "<script"))
