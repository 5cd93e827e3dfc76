"""What the page says about an answer, without a browser."""

import re
from dataclasses import replace
from datetime import datetime
from html import unescape

import pytest
from painted_answers import jpeg, plain, rich
from tiny_bundle import odd_taxonomy

from skindx.data.publish.published_rows import web_address
from skindx.diagnosis.answer_report import basis
from skindx.diagnosis.case import Case
from skindx.diagnosis.guarantees import (
    measured,
    risk_errors,
    risk_guarantee,
    set_errors,
    theory,
)
from skindx.diagnosis.intake import GENITALS
from skindx.diagnosis.record import CANNOT_RULE_OUT, NOTICE, CaseAnswer, UrgentRisk
from skindx.models.conformal import Share
from skindx.taxonomy import load_taxonomy
from skindx.ui.http.answer_forms import Reports
from skindx.ui.page.answer_html import (
    followup_html,
    ood_sentence,
    problem_html,
    result_html,
    scope_html,
    top_html,
    waiting_html,
)
from skindx.ui.page.diagnosis_page import intake_html, many_html

METRICS = {
    "origin": {"split": "test"},
    "pictures": 1312,
    "ensemble": {
        "top1": {"value": 0.812, "low": 0.77, "high": 0.85},
        "calibration_error": {"value": 0.031, "low": None, "high": None},
    },
}
CASE = Case((jpeg(80, 60),))


def test_measured_figures_are_reported_with_their_intervals() -> None:
    assert measured(METRICS) == (
        "Measured on its 1,312 test images: the likeliest condition is the true one in "
        "81.2 % (95 % interval 77.0 to 85.0 %); on average its probability is off by 3.1 %."
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


def test_a_figure_alone_is_reported() -> None:
    alone = {"ensemble": {"top1": {"value": 0.5}}}
    assert (
        measured(alone)
        == "Measured on images kept apart: the likeliest condition is the true one in 50.0 %."
    )


def test_an_answer_says_what_the_set_guarantees_and_what_is_known() -> None:
    answer = rich(CASE)
    html = result_html(answer, METRICS).replace("\u00a0", " ")
    assert all(text in html for text in (set_errors(answer.diagnosis), *theory(answer.diagnosis)))
    assert "The model knows 9 conditions and no others." in html
    assert all(name in html for name in answer.diagnosis.known)
    assert "does not know, among others: Merkel cell carcinoma" in html
    old = result_html(plain(), None)  # a record of an older version does not say
    assert "The model knows" not in old
    assert "among others" not in old


def test_on_paper_an_answer_names_its_date_its_bundle_and_its_basis() -> None:
    answer = rich(CASE)
    html = result_html(answer, METRICS)
    printed = unescape(html.partition('<footer class="sx-printed">')[2]).replace("\u00a0", " ")
    assert f"Answered on {datetime.now().astimezone():%d %B %Y}, " in printed
    assert f"digest {answer.diagnosis.source.digest[:16] or 'unknown'}" in printed
    assert " ".join(basis(answer.diagnosis, METRICS)) in printed
    assert ood_sentence(answer.diagnosis) in printed


def test_what_is_known_stands_above_the_form() -> None:
    html = scope_html(load_taxonomy("isic9"))
    for skin_class in load_taxonomy("isic9").classes:
        assert skin_class.name in html
    assert "sx-warning" not in html
    assert "Merkel cell carcinoma" in html
    without = scope_html(load_taxonomy("skin10"))
    assert "does not know melanoma and squamous cell carcinoma" in without
    assert "sx-warning" in without
    many = scope_html(load_taxonomy("skin100"))
    assert "<summary>The model knows 100 conditions and no others.</summary>" in many
    assert "<script" not in scope_html(odd_taxonomy())


def test_both_errors_stand_there_and_the_theory_folds_away() -> None:
    risk = UrgentRisk(
        risk=0.03, threshold=0.08, miss_rate=0.05, confidence=0.787, bound=0.0805, lesions=57
    )
    answer = rich(CASE)
    diagnosis = answer.diagnosis.model_copy(update={"urgent_risk": risk})
    html = result_html(replace(answer, diagnosis=diagnosis), METRICS).replace("\u00a0", " ")
    fold = html[html.index('<details class="sx-more sx-decided">') :].partition("</details>")[0]
    assert "How is this decided?" in fold
    seen = html.replace(fold, "")
    assert "calibration lesions" in fold
    assert "calibration lesions" not in seen
    assert (
        "set to miss at most 5 % of urgent conditions; how many other conditions it calls" in seen
    )
    assert "had no urgent condition in their set" in seen
    assert CANNOT_RULE_OUT in seen
    measured_on = {
        "measured_on": "test",
        "measured_missed": Share(value=0.04, low=0.01, high=0.1, pictures=90),
        "measured_sent_on": Share(value=0.31, low=0.28, high=0.34, pictures=900),
    }
    diagnosis = answer.diagnosis.model_copy(
        update={"urgent_risk": risk.model_copy(update=measured_on)}
    )
    assert risk_errors(diagnosis) == (
        "The threshold misses 4.0 % (95 % interval 1.0 to 10.0 %, 90 images) of urgent conditions; "
        "it calls 31.0 % (95 % interval 28.0 to 34.0 %, 900 images) of other conditions urgent. "
        "On photos by another camera both errors can be much larger."
    )
    # An abstention that warns is as short, and names what its errors may not hold for.
    urgent = {"abstained": "It cannot tell.", "next_step": rich(CASE, "urgent").diagnosis.next_step}
    warned = diagnosis.model_copy(update=urgent)
    assert risk_errors(warned).startswith("The threshold misses 4.0 %")
    assert risk_errors(warned).endswith("as this one may be, both errors can be much larger.")
    assert [text in risk_guarantee(warned) for text in theory(warned)] == [True]


def test_an_abstention_shows_no_set_no_guarantee_and_no_strong_bar() -> None:
    html = result_html(rich(CASE, "unknown"), METRICS)
    assert "The model does not know." in html
    assert "of 100 photos" not in html
    assert "sx-set" not in html
    assert "sx-heat" not in html
    assert "Outside the set" not in html
    assert "sx-nearest" in html
    assert "networks of the ensemble put" not in html.partition("<details")[0]


def test_the_page_names_the_condition_that_the_heat_map_is_of() -> None:
    answer = rich(CASE, "urgent")
    first, second = answer.diagnosis.candidates[:2]
    step = answer.diagnosis.next_step.model_copy(update={"decided_by": second.key})
    decided = answer.diagnosis.model_copy(update={"next_step": step})
    html = result_html(replace(answer, diagnosis=decided), METRICS)
    assert f"Heat map: {second.name}" in html
    words = f"speak for {second.name}, which decides the next step, though {first.name} is likelier"
    assert words in html
    assert f"speak for {first.name}." in result_html(answer, METRICS)


def test_the_order_is_next_step_then_conditions_then_why_then_similar_cases() -> None:
    html = result_html(rich(CASE), METRICS)
    places = [html.index(f'id="sx-h-{name}"') for name in ("next", "may", "why", "similar")]
    assert places == sorted(places)
    assert CANNOT_RULE_OUT in html[places[0] : places[1]]
    assert CANNOT_RULE_OUT in waiting_html()
    assert "Similar cases" in waiting_html()
    assert "Similar cases" not in waiting_html(similar=False)  # as of a bundle without images


@pytest.mark.parametrize("urgency", ["urgent", "soon", "routine", "unknown"])
def test_no_answer_says_that_all_is_well(urgency: str) -> None:
    html = result_html(rich(CASE, urgency), None).lower()
    for phrase in ("all clear", "all-clear", "nothing to worry", "you are healthy", "no concern"):
        assert phrase not in html
    assert ("the model does not know.</b>" in html) == (urgency == "unknown")


def test_an_old_bundle_s_answer_says_what_is_missing() -> None:
    html = result_html(plain(), None)
    for missing in (
        "no calibrated sets",
        "no heat map",
        "holds no training images",
        "no lesion detector",
        "has not been evaluated",
        "has no check for photos that are unlike",
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
    kept = followup_html(
        plain(), Reports(None), "", keeps=True, kept="Kept under <b>P</b>.", problem="<i>"
    )
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
    none = result_html(CaseAnswer(answer.diagnosis, answer.views, (b"",) * 4), None)
    assert 'class="sx-cases"' not in none
    assert none.partition('<ul class="sx-hidden">')[2].count("alike") == 4


def test_a_figure_and_its_unit_stay_on_one_line() -> None:
    html = result_html(rich(CASE), METRICS)
    assert "85.0\N{NO-BREAK SPACE}%" in html
    assert not re.search(r"\d %", html)


def test_the_notice_stands_at_the_top_and_the_form_is_a_plain_template() -> None:
    assert NOTICE in top_html()
    assert 'href="login"' not in top_html()
    assert 'href="login"' in top_html(logged_in=True)  # below any folder of a proxy
    limits = "up to 20 MB and 50 megapixels (JPEG: 200), at least 178 pixels on each side"
    for html in (intake_html(178), many_html(178)):
        assert limits in html
        (place,) = re.findall(r'<p [^>]*id="(sx-[a-z-]*limits)"', html)
        assert html.count(f'aria-describedby="{place}"') == 2
    form = intake_html(178)
    assert form.index("Straight from above") < form.index('type="file"') < form.index('"submit"')
    for site in ("Ear", "Lip", "Nail", "Sole", "Scalp", "Genitals"):
        assert f">{site}</option>" in form
    assert GENITALS.replace("'", "&#39;") in form
    # Gradio reads a component's template as a JavaScript one and as Handlebars.
    assert not any(sign in intake_html(178) for sign in ("`", "${", "{{", "\\", "<script"))
