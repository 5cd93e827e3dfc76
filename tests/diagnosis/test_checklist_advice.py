"""Answers to questions can only raise the urgency: of any model's output, and without any."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clinical_answers import answered
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from skin_photo import skin_photo

from skindx.api.model import load
from skindx.clinic.narrative import conclusion, next_step
from skindx.core.seven_points import QUESTIONS
from skindx.diagnosis import diagnose
from skindx.diagnosis.answer_texts import tier_name
from skindx.diagnosis.case import Case, Patient
from skindx.diagnosis.checklist_advice import (
    advice_met,
    checklist_columns,
    checklist_short,
    checklist_words,
    is_met,
    met_by,
    referred,
    with_checklist,
)
from skindx.diagnosis.conclusion import CaseConclusion, ServedRules, conclude, conclude_case
from skindx.diagnosis.decision_texts import decided, decided_parts, errors
from skindx.diagnosis.diagnose import answer
from skindx.diagnosis.intake import YES
from skindx.diagnosis.photo_checks import Refused
from skindx.diagnosis.predictor import Predictor
from skindx.diagnosis.record import Diagnosis
from skindx.diagnosis.record_figures import AdviceErrors
from skindx.diagnosis.report.patient_page import patient_advice
from skindx.diagnosis.scope import giving_no_time, not_judged
from skindx.models.conformal import Conformal, Share
from skindx.taxonomy import advice_for, load_taxonomy
from skindx.taxonomy.lexicon import SITES
from skindx.texts.catalogue import joined, text

ORDER = ("routine", "unknown", "soon", "urgent")
ANSWERS = st.dictionaries(st.sampled_from(QUESTIONS), st.sampled_from(["yes", "no", "unknown"]))
VERBS = {
    "new": "is new",
    "grew": "grows",
    "changed": "changes",
    "bleeds": "bleeds",
    "hurts": "hurts",
}
CLAUSE = [advice_for(one) for one in ("soon_without_time", "without_time")]
TIMES = (("soon_without_time", 14), ("soon", 30), ("soon_cancer", 30), ("routine", 180))
DAYS = {advice_for(key): days for key, days in TIMES}
"""The longest time of an advice; none has a shorter one than those within days."""
REFERS = {"grew": "yes", "itches": "yes"}
TAXONOMY = load_taxonomy("ham10000")
SAID = answered().diagnosis


Output = tuple[ServedRules, NDArray[np.float64], float | None, str]


def shares(draw: st.DrawFn) -> NDArray[np.float64]:
    weights = st.floats(0.001, 1)
    raw = [draw(weights) for _ in TAXONOMY.classes]
    return np.array(raw) / sum(raw)


@st.composite
def outputs(draw: st.DrawFn) -> Output:
    """Draw what a model may say: probabilities, sets or none, abstentions of every kind."""
    threshold = {"all": draw(st.floats(0.001, 0.999))}
    conformal = Conformal(level=0.9, thresholds=threshold, pictures=99)
    rules = ServedRules(TAXONOMY, draw(st.sampled_from([None, conformal])), None, None, None, None)
    ood = draw(st.sampled_from([None, 0.02, 0.9]))
    return rules, shares(draw), ood, draw(st.sampled_from(["", "The place given is nail."]))


@given(outputs(), ANSWERS, st.sampled_from([None, *SITES]), st.sampled_from(["", "It may be so."]))
@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_no_answer_lowers_the_urgency_of_any_output(
    said: Output,
    answers: dict[str, str],
    site: str | None,
    no_wait: str,
) -> None:
    rules, shares_C, ood, beyond = said
    drawn = conclude(rules, shares_C[None], shares_C[None, None], ood_p_value=ood, beyond=beyond)
    alone = giving_no_time(drawn.next_step, no_wait)
    patient = Patient(site=site, **answers)  # type: ignore[arg-type]
    step = with_checklist(alone, patient)
    assert ORDER.index(step.urgency) >= ORDER.index(alone.urgency)
    if patient.seven_points.refers:
        assert step.urgency == "urgent"
        raised = {advice_for("urgent"), advice_for("urgent_cancer")}
        assert step.advice in raised
        assert (step.raised_from is None) == (alone.urgency == "urgent")
    else:
        unsaid = {"advice": alone.advice, "because": alone.because}
        assert step.model_copy(update=unsaid) == alone
    sooner = met_by(patient)
    assert DAYS.get(step.advice, 0) <= DAYS.get(alone.advice, 0)
    if step.urgency != "urgent" and (sooner and alone.advice in CLAUSE):
        assert step.advice == advice_met(patient)
        named = {one for one, said in VERBS.items() if said in step.advice}
        assert named == {one for one in VERBS if answers.get(one) == "yes"}
    if "yes" not in answers.values():
        assert step == alone
    said_yes = {YES[one] for one in YES if answers.get(one) == "yes"}
    assert said_yes <= {verb for verb in YES.values() if verb in step.because} or (
        step.advice == advice_met(patient)
    )
    plain = Patient(site=site, **{one: given for one, given in answers.items() if given == "yes"})  # type: ignore[arg-type]
    assert with_checklist(alone, plain).urgency in (step.urgency, "urgent")
    nothing = Patient(site=site, **dict.fromkeys(QUESTIONS, "no"))  # type: ignore[arg-type]
    assert with_checklist(alone, nothing) == alone
    unknown = Patient(site=site, **dict.fromkeys(QUESTIONS, "unknown"))  # type: ignore[arg-type]
    assert with_checklist(alone, unknown) == alone
    assert unknown.answers == Patient().answers == {}


@pytest.fixture
def predictor(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> Predictor:
    """Load a bundle whose every answer is soon."""

    def soon(*given: Any, **facts: Any) -> CaseConclusion:
        drawn = conclude_case(*given, **facts)
        update = {"urgency": "soon", "advice": advice_for("soon")}
        step = drawn.conclusion.next_step.model_copy(update=update)
        return replace(drawn, conclusion=replace(drawn.conclusion, next_step=step))

    monkeypatch.setattr(diagnose, "conclude_case", soon)
    return Predictor.load(tiny_bundle)


def diagnosed(predictor: Predictor, **answers: str) -> Diagnosis:
    return answer(predictor, Case((skin_photo(),), Patient.model_validate(answers))).diagnosis


def test_a_raised_answer_says_so_first_and_what_the_model_alone_says(predictor: Predictor) -> None:
    alone, raised = diagnosed(predictor), diagnosed(predictor, **REFERS)
    assert alone.next_step.urgency != "urgent"
    step = raised.next_step
    assert step.raised_from == alone.next_step.urgency
    yes = "The lesion grows and itches, by the answers given."
    assert step.because.startswith(f"{yes} The weighted 7-point checklist scores 3 (referral")
    assert "The answers make it urgent, not the photo." in step.because
    assert step.because.endswith(text(f"model_alone_{step.raised_from}"))
    assert alone.next_step.because in step.more
    left = {"next_step": alone.next_step, "patient": Patient()}
    assert raised.model_copy(update=left) == alone  # not one probability


def test_what_is_urgent_anyway_says_what_was_answered_with_yes(predictor: Predictor) -> None:
    update = {"urgency": "urgent", "advice": advice_for("urgent")}
    urgent = diagnosed(predictor).next_step.model_copy(update=update)
    said = with_checklist(urgent, Patient(changed="yes", bleeds="yes", itches="no"))
    yes = "The lesion bleeds and changes, by the answers given."
    assert said == urgent.model_copy(update={"because": f"{urgent.because} {yes}"})
    assert with_checklist(urgent, Patient(changed="no", bleeds="no")) == urgent
    met = diagnosed(predictor, changed="yes")
    assert tier_name(met) == "Urgent"  # one badge for one time, as its codes say
    assert tier_name(diagnosed(predictor, bleeds="no")) == "Soon"


def test_a_low_score_reassures_nobody(predictor: Predictor) -> None:
    few = diagnosed(predictor, grew="yes", bleeds="no")
    sooner = {"advice": advice_met(few.patient)}
    assert few.next_step == diagnosed(predictor).next_step.model_copy(update=sooner)
    (unscored,) = checklist_words(few)
    assert unscored == (
        "The 7-point checklist is not scored, because nothing was answered about irregular shape, "
        "irregular colour, 7 mm or more, inflammation or itch."
    )
    assert unscored in decided(few)
    columns = {"checklist_score": None, "checklist_items": 2}
    assert checklist_columns(few.patient) == columns | sooner | {"urgency": "urgent"}
    all_but_one = dict.fromkeys([one for one in QUESTIONS if one != "large"], "no")
    one = diagnosed(predictor, **all_but_one | {"pigmented": "yes"})
    assert checklist_words(one)[0].endswith("because nothing was answered about 7 mm or more.")
    low = diagnosed(predictor, **{**dict.fromkeys(QUESTIONS, "no"), "pigmented": "yes"})
    score, says = checklist_words(low)
    assert "checklist scores 0 (referral from 3)" in score
    assert says == text("checklist_low", least=3)
    assert {score, says} <= set(decided(low))
    assert checklist_words(diagnosed(predictor, itches="unknown")) == []


@given(ANSWERS, st.sampled_from(["soon_without_time", "without_time"]))
def test_every_output_names_what_was_answered_with_yes(answers: dict[str, str], key: str) -> None:
    """The tier stays: only the published checklist raises it."""
    answers = {one: said for one, said in answers.items() if one in VERBS}
    patient = Patient.model_validate(answers)
    alone = SAID.next_step.model_copy(update={"urgency": "soon", "advice": advice_for(key)})
    step = with_checklist(alone, patient)
    if step.raised_from:
        return
    assert step.urgency == "soon"
    said = SAID.model_copy(update={"next_step": step, "patient": patient})
    met = [verb for one, verb in VERBS.items() if answers.get(one) == "yes"]
    assert is_met(said) == bool(met)
    outputs = [joined(*next_step(said)), conclusion(said), patient_advice(said), referred(patient)]
    for output in outputs if met else ():
        assert "within days" in output
        assert "first free" not in output
        assert {verb for verb in VERBS.values() if f" {verb}" in output} == set(met)


@pytest.mark.parametrize(
    ("facts", "key"),
    [({"site": "nail"}, "checklist_nail"), ({"pigmented": "no"}, "checklist_no_pigment")],
)
def test_what_it_is_not_for_it_does_not_score(
    predictor: Predictor, facts: dict[str, str], key: str
) -> None:
    told = diagnosed(predictor, **REFERS, **facts)
    assert told.next_step.raised_from is None
    assert checklist_words(told) == [text(key)]
    assert referred(told.patient) == text("advice_met", conditions=["grows"])


def test_a_refused_photo_does_not_swallow_it(predictor: Predictor, tiny_bundle: Path) -> None:
    dark = b"no photo at all"
    with pytest.raises(Refused) as plain:
        answer(predictor, Case((dark,)))
    with pytest.raises(Refused) as asked:
        answer(predictor, Case((dark,), Patient.model_validate(REFERS)))
    first = referred(Patient.model_validate(REFERS))
    # The stronger advice comes first, and the weaker one is not said beside it.
    reason = str(plain.value).removesuffix(not_judged())
    assert str(asked.value) == f"{first} {reason}{text('not_judged')}"
    assert first.startswith(advice_for("urgent_cancer"))
    photos, facts = [dark, skin_photo(), skin_photo()], [REFERS, REFERS, {}]
    rows = load(tiny_bundle).predict(photos, facts=facts).to_pylist()
    assert [row["urgency"] for row in rows[:2]] == ["urgent", "urgent"]
    assert [row["checklist_score"] for row in rows] == [3, 3, None]
    assert [row["model_urgency"] for row in rows] == [None, rows[2]["urgency"], None]
    assert rows[0]["reason"].startswith(first)


def test_measured_errors_are_those_without_the_questions(predictor: Predictor) -> None:
    share = Share(value=0.1, low=0.05, high=0.2, pictures=100).with_width()
    measured = AdviceErrors(split="test", missed=share, raised=share, refused=0, abstained=0)
    update = {"advice_errors": measured, "abstained": ""}
    raised = diagnosed(predictor, **REFERS).model_copy(update=update)
    assert errors(raised)[0].startswith("The model missed 10 of 100 urgent")
    alone = diagnosed(predictor).model_copy(update=update)
    assert errors(alone)[:2] == errors(raised)[:2]


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (REFERS, "The 7-point checklist scores 3 (referral from 3)."),
        (
            {"itches": "yes"},
            "",
        ),
        (
            dict.fromkeys(QUESTIONS, "no") | {"pigmented": "yes", "itches": "yes"},
            "The 7-point checklist scores 1, and below 3 it says nothing.",
        ),
        (
            dict.fromkeys(QUESTIONS, "no") | {"pigmented": "yes", "large": None},
            "The 7-point checklist has no score, because nothing was answered about 7 mm or more.",
        ),
        (
            REFERS | {"pigmented": "no"},
            "The 7-point checklist does not apply, because the lesion was answered as not"
            " pigmented.",
        ),
        (
            REFERS | {"site": "nail"},
            "The 7-point checklist does not apply, because the lesion is on a nail.",
        ),
        ({}, ""),
    ],
)
def test_the_score_stands_beside_the_advice_also_where_it_is_urgent_anyway(
    facts: dict[str, str], said: str
) -> None:
    patient = Patient.model_validate(facts)
    urgent = SAID.next_step.model_copy(update={"urgency": "urgent"})
    update = {"next_step": with_checklist(urgent, patient), "patient": patient}
    shown = SAID.model_copy(update=update)
    assert checklist_short(shown) == said
    assert said in joined(*next_step(shown))
    parts = decided_parts(shown)
    assert bool(parts.get("decided_checklist")) == bool(facts)  # with many open items here alone
    assert not set(checklist_words(shown)) & set(parts.get("decided_advice", ()))
    raised = with_checklist(SAID.next_step, Patient.model_validate(REFERS))
    update = {"next_step": raised, "patient": Patient.model_validate(REFERS)}
    assert checklist_short(SAID.model_copy(update=update)) == ""  # its reason has the score
