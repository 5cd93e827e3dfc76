"""What the page says about an answer, without a browser."""

import re
from dataclasses import replace
from datetime import datetime
from html import unescape

import pytest
from painted_answers import jpeg, plain, rich
from tiny_bundle import odd_taxonomy

from skindx.data.publish.published_rows import web_address
from skindx.diagnosis import answer_texts, decision_texts
from skindx.diagnosis.advice_figures import measured
from skindx.diagnosis.case import Case
from skindx.diagnosis.intake import GENITALS
from skindx.diagnosis.record import CaseAnswer
from skindx.diagnosis.record_figures import AdviceErrors, UrgentRisk
from skindx.diagnosis.scope import knows_only
from skindx.models.conformal import Share
from skindx.taxonomy import load_taxonomy
from skindx.texts import catalogue
from skindx.ui.http.answer_forms import Reports
from skindx.ui.page.answer_html import (
    followup_html,
    problem_html,
    result_html,
    scope_html,
    top_html,
    waiting_html,
)
from skindx.ui.page.form_html import intake_html, many_html

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
        "The likeliest condition of its test images was the true one in 81.2 % (95 % interval 77.0 "
        "to 85.0 %, 1,312 images). The probabilities were off by 3.1 % on average."
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


def test_an_answer_says_what_the_set_guarantees_and_what_is_known() -> None:
    answer = rich(CASE)
    html = unescape(result_html(answer, METRICS)).replace("\u00a0", " ")
    decided = decision_texts.decided(answer.diagnosis)
    assert all(text in html for text in (answer_texts.set_sentence(answer.diagnosis), *decided))
    assert "The model knows 9 conditions and no others." in html
    assert all(name in html for name in answer.diagnosis.known)
    assert "does not know other urgent conditions, among them Merkel cell carcinoma" in html
    old = result_html(plain(), None)  # a record of an older version does not say
    assert "The model knows" not in old
    assert "among them" not in old


def test_an_answer_names_its_date_its_bundle_and_its_basis() -> None:
    answer = rich(CASE)
    html = unescape(result_html(answer, METRICS)).replace("\u00a0", " ")
    folded = html[html.index('<details class="sx-more sx-basis-more">') :]
    assert f"was answered on {datetime.now().astimezone():%d %B %Y}, " in folded
    assert all(sentence in folded for sentence in answer_texts.basis(answer.diagnosis, METRICS))


def test_what_is_known_stands_beside_the_form() -> None:
    html = scope_html(load_taxonomy("isic9"))
    for skin_class in load_taxonomy("isic9").classes:
        assert skin_class.name in html
    assert "sx-warning" not in html
    assert "Merkel cell carcinoma" in html
    without = scope_html(load_taxonomy("skin10"))
    assert "may show melanoma or invasive squamous cell carcinoma" in without
    assert "sx-warning" in without
    assert "The model knows 100 conditions and no others." in scope_html(load_taxonomy("skin100"))
    assert "<script" not in scope_html(odd_taxonomy())


def test_both_errors_stand_there_and_the_theory_folds_away() -> None:
    risk = UrgentRisk(
        risk=0.03, threshold=0.08, miss_rate=0.05, confidence=0.787, bound=0.0805, lesions=57
    )
    share = Share(value=0.31, low=0.28, high=0.34, pictures=900)
    errors = AdviceErrors(split="test", missed=share, raised=share, refused=3, abstained=4)
    answer = rich(CASE)
    update = {"urgent_risk": risk, "advice_errors": errors}
    diagnosis = answer.diagnosis.model_copy(update=update)
    html = result_html(replace(answer, diagnosis=diagnosis), METRICS).replace("\u00a0", " ")
    seen, folded = re.sub(r"<details.*?</details>", "", html, flags=re.S), html
    assert "The model missed 31 of 100 urgent test images." in seen
    assert "It called 31 of 100 other images urgent." in seen
    assert catalogue.text("cannot_rule_out") in seen
    for theory in ("calibration lesions", "95 % interval", "refused 3 of the 279 urgent images"):
        assert theory in folded
        assert theory not in seen


def test_an_abstention_shows_no_set_no_guarantee_and_no_bar() -> None:
    html = result_html(rich(CASE, "unknown"), METRICS)
    assert "The model does not know." in html
    assert "of 100 photos" not in html
    assert "sx-set" not in html
    assert "sx-heat" not in html
    assert "sx-bar" not in html
    assert "sx-nearest" in html
    assert "networks put" not in html.partition("<details")[0]


def test_only_members_of_the_set_have_bars() -> None:
    html = result_html(rich(CASE), METRICS)
    assert html.count('class="sx-bar') == 3
    members, others = html.split('<details class="sx-more sx-others">')
    inside = [one for one in rich(CASE).diagnosis.candidates if one.in_set]
    assert all(one.name in members for one in inside)
    assert 'class="sx-bar' not in others


def test_the_page_names_the_condition_that_the_heat_map_is_of() -> None:
    answer = rich(CASE, "urgent")
    first, second = answer.diagnosis.candidates[:2]
    step = answer.diagnosis.next_step.model_copy(update={"decided_by": second.key})
    decided = answer.diagnosis.model_copy(update={"next_step": step})
    html = result_html(replace(answer, diagnosis=decided), METRICS)
    assert f"looked for signs of {second.name}" in html
    assert f"looked for signs of {first.name}" in result_html(answer, METRICS)


def test_the_order_is_next_step_then_conditions_then_why_then_similar_cases() -> None:
    html = result_html(rich(CASE), METRICS)
    places = [html.index(f'id="sx-h-{name}"') for name in ("next", "may", "why")]
    assert places == sorted(places)
    assert (
        places[-1] < html.index("sx-unknown") < html.index("sx-decided") < html.index("sx-similar")
    )
    assert catalogue.text("cannot_rule_out") in html[places[0] : places[1]]
    assert catalogue.text("cannot_rule_out") in waiting_html()
    assert "Similar cases" in waiting_html()
    assert "Similar cases" not in waiting_html(similar=False)  # as of a bundle without images


@pytest.mark.parametrize("urgency", ["urgent", "soon", "routine", "unknown"])
def test_no_answer_says_that_all_is_well(urgency: str) -> None:
    html = result_html(rich(CASE, urgency), None).lower()
    for phrase in ("all clear", "all-clear", "nothing to worry", "you are healthy", "no concern"):
        assert phrase not in html
    assert ("the model does not know." in html) == (urgency == "unknown")


def test_an_old_bundle_s_answer_says_what_is_missing() -> None:
    html = result_html(plain(), None)
    for missing in (
        "no conformal sets",
        "How often this bundle is right was not measured",
        "How often this advice is wrong was not measured",
        "has no check for photos that are unlike",
        "were not calibrated",
    ):
        assert missing in html
    assert "heat map" not in html  # nothing is said of what is not shown
    assert "imilar" not in html
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
    hidden = html.partition('<p class="sx-small sx-hidden">')[2].partition("</p>")[0]
    assert hidden.startswith("The licence of 1 similar image does not allow showing it.")
    assert "<img" not in hidden
    answer = rich(CASE)
    none = result_html(CaseAnswer(answer.diagnosis, answer.views, (b"",) * 4), None)
    assert 'class="sx-cases"' not in none
    hidden = none.partition('<p class="sx-small sx-hidden">')[2].partition("</p>")[0]
    assert hidden.startswith("The licences of 4 similar images do not allow showing them.")
    assert hidden.count("<a ") == 3


def test_a_figure_and_its_unit_stay_on_one_line() -> None:
    html = result_html(rich(CASE), METRICS)
    assert "85.0\N{NO-BREAK SPACE}%" in html
    assert not re.search(r"\d %", html)


def test_the_notice_stands_at_the_top_and_the_form_is_a_plain_template() -> None:
    assert catalogue.text("notice_tool") in top_html()
    limits = knows_only(load_taxonomy("ham10000").classes, ["children", "nails"])
    assert "nothing about invasive squamous cell carcinoma, children or nails." in limits
    assert limits in top_html(limits)
    assert 'action="logout"' not in top_html()
    assert 'action="logout"' in top_html(logged_in=True)  # below any folder of a proxy
    limits = "up to 50 megapixels (200 as JPEG), at least 178 pixels on each side"
    for html in (intake_html(178), many_html(178)):
        assert limits in html
        (place,) = re.findall(r'<p [^>]*id="(sx-[a-z-]*limits)"', html)
        assert html.count(f'aria-describedby="{place}"') == 2
    form = intake_html(178)
    assert form.index("straight above") < form.index('type="file"') < form.index('"submit"')
    for site in ("Ear", "Lip", "Nail", "Sole", "Scalp", "Genitals"):
        assert f">{site}</option>" in form
    assert GENITALS.replace("'", "&#39;") in form
    # Gradio reads a component's template as a JavaScript one and as Handlebars.
    assert not any(sign in intake_html(178) for sign in ("`", "${", "{{", "\\", "<script"))
