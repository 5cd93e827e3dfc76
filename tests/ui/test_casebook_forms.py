"""What the case book's forms record, without a browser."""

import base64
import json
import math
import re
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from html import unescape
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kept_cases import answer

from skindx.casebook import casebook
from skindx.casebook.case_names import is_elsewhere, side_named, site_named
from skindx.casebook.casebook import Casebook
from skindx.casebook.kept_case import CASE_CONSENTS, PersonSeen, filing_of, one_lesion_question
from skindx.core.seven_points import QUESTIONS
from skindx.diagnosis.case import Patient
from skindx.diagnosis.case_actions import ActionKind
from skindx.diagnosis.checklist_advice import checklist_short
from skindx.diagnosis.record import CaseAnswer, LesionBox
from skindx.taxonomy import load_taxonomy
from skindx.taxonomy.lexicon import Site
from skindx.texts.catalogue import speaking, text
from skindx.ui.http.answer_forms import Reports
from skindx.ui.page.answer_html import followup_html, result_html
from skindx.ui.page.casebook_confirming import AnotherLesion, AnotherPerson, require_same_person
from skindx.ui.page.casebook_doubts import another_person
from skindx.ui.page.casebook_keeping import KeptAlready, require_same_lesion
from skindx.ui.page.casebook_page import act_on
from skindx.ui.page.casebook_words import names_apart
from skindx.ui.uploads import cut_as_seen, taken_on

MODEL = load_taxonomy("isic9")


@pytest.fixture
def book(tmp_path: Path) -> Casebook:
    return Casebook.open(tmp_path / "cases.db")


def keep(book: Casebook, seed: int, **agreed: bool) -> str:
    return book.keep("", answer(seed), patient="P-1", lesion="arm", consent=True, **agreed)


def send(book: Casebook, case: str, version: int = 1, **form: str) -> str:
    sent = {"action": "confirm", "case": case, "version": str(version), "clinician": "Dr A. Keller"}
    sent["reason"] = "second opinion"
    return act_on(book, MODEL, "", sent | {"patient": "P-1", "lesion": "arm"} | form)


def test_another_diagnosis_is_recorded_with_its_code(book: Casebook) -> None:
    case = keep(book, 1)
    form = {"note": "seen in May", "confirmed_by": "histopathology"}
    html = send(book, case, other="Merkelzellkarzinom", **form)
    assert '<option value="histopathology" selected>histopathology</option>' in html
    assert "Merkelzellkarzinom (C4A.9) is saved. The model does not know it, so" in html
    assert "The note is saved." in html
    assert '<option value="">another: Merkelzellkarzinom (C4A.9)</option>' in html
    assert 'value="C4A.9"' in html
    assert '<option value="Merkel cell carcinoma">C4A.9</option>' in html
    form = {"action": "overwrite", "other": "Melanom", "note": "seen in May"}
    assert "This note was written before the change: “seen in May”" in send(
        book, case, version=2, **form
    )
    html = send(book, case, version=2, note_fits="keep", **form)
    assert "Melanoma is saved. Nothing states what confirms it, so" in html
    assert "The note stays as it was." in html
    assert "The note is older than the last change of the diagnosis." not in html
    assert "The note was found to still fit on " in html
    assert book.all_cases("")[0].confirmed == "Melanoma"
    html = send(book, case, version=3, label="Nevus", other="Merkel cell carcinoma", note="mine")
    assert "You gave Nevus (mole), and Merkel cell carcinoma (C4A.9) stands as another" in html
    button = 'value="replace">Replace Merkel cell carcinoma (C4A.9) with Nevus (mole)</button>'
    assert button in html
    html = send(book, case, version=3, label="Melanoma", other="Merkel cell carcinoma")
    assert "Replace Melanoma with Merkel cell carcinoma (C4A.9)</button>" in html
    form = {"label": "Melanoma", "other": "Merkel cell carcinoma", "note": "mine"}
    html = send(book, case, version=3, action="replace", **form)
    assert "Merkel cell carcinoma (C4A.9) is saved." in html
    html = send(book, case, version=4, icd10="44")
    assert "not an ICD-10 code" in html
    assert "data-refused" in html  # the form holds what was typed


def test_a_kept_answer_says_what_the_model_may_be_used_for(book: Casebook) -> None:
    own = answer(1)
    diagnosis = own.diagnosis
    limits = "For research. It learned from moles."
    source = diagnosis.source.model_copy(update={"learned_from": limits})
    limited = replace(own, diagnosis=diagnosis.model_copy(update={"source": source}))
    book.keep("", limited, patient="P-1", lesion="arm", consent=True)
    assert f"<b>{limits}</b>" in act_on(book, MODEL, "", {"patient": "P-1", "lesion": "arm"})


def test_only_cases_with_consent_to_it_stand_side_by_side(book: Casebook) -> None:
    first, alone, last = keep(book, 1, compare=True), keep(book, 2), keep(book, 3, compare=True)
    chosen = {"patient": "P-1", "lesion": "arm"}
    html = act_on(book, MODEL, "", chosen)
    assert html.count('class="sx-card sx-seen"') == 2
    assert text("book_risk_apart") in html
    assert "so their magnification may differ." in html
    assert "beside another, because the patient gave no consent to compare it." in html
    html = act_on(book, MODEL, "", chosen | {"before": first, "after": alone})
    assert html.count('class="sx-card sx-seen"') == 1
    assert f'name="case" value="{alone}"' in html
    html = act_on(book, MODEL, "", chosen | {"before": last, "after": first})
    assert html.count('class="sx-card sx-seen"') == 2


def test_dates_and_photos_of_a_lesion_are_named_apart(book: Casebook) -> None:
    for seed in range(3):
        keep(book, seed, compare=True)
    kept = book.all_cases("")
    noon = datetime(2026, 1, 2, 12, 30, 5, tzinfo=UTC)
    times = (noon, noon + timedelta(seconds=7), noon + timedelta(minutes=1))
    minutes = [replace(case, taken=time) for case, time in zip(kept, times, strict=True)]
    assert list(names_apart(minutes).values()) == [
        "02 Jan 2026, 12:30:05 UTC",
        "02 Jan 2026, 12:30:12 UTC",
        "02 Jan 2026, 12:31 UTC",
    ]
    alike = [replace(case, taken=noon) for case in kept[:2]]
    assert list(names_apart(alike).values()) == [
        "02 Jan 2026, 12:30:05 UTC (1)",
        "02 Jan 2026, 12:30:05 UTC (2)",
    ]
    html = act_on(book, MODEL, "", {"patient": "P-1", "lesion": "arm"})
    for kind in ('<article [^>]*aria-label="([^"]*)', '<button [^>]*aria-label="(Enlarge [^"]*)'):
        labels = re.findall(kind, html)
        assert len(set(labels)) == len(labels) >= 2
    options = re.findall("<option value=[^>]*>([^<]*)", html.partition('class="sx-compare"')[2])
    assert len(set(options[:3])) == 3


def test_consents_are_changed_in_the_book(book: Casebook) -> None:
    case = keep(book, 1)
    sent = {"action": "agree", "case": case, "version": "1", "train": "yes"}
    html = act_on(book, MODEL, "", sent | {"patient": "P-1", "lesion": "arm"})
    assert "The consent is saved. The patient agreed to train on " in html
    html = act_on(book, MODEL, "", sent | {"patient": "P-1", "lesion": "arm"})
    assert "Nothing was changed, so nothing was saved." in html
    assert 'name="train" value="yes" checked' in html
    assert book.all_cases("")[0].purposes == {"keep", "train"}


def test_the_form_asks_for_three_consents_of_which_one_is_required() -> None:
    html = followup_html(answer(1), Reports(None), "", keeps=True)
    assert html.index("Everyone who can open this page sees") < html.index("Keep this case")
    assert "Everyone" not in followup_html(answer(1), Reports(None), "ann", keeps=True)
    for name in ("consent", "compare", "train"):
        assert html.count(f'name="{name}" value="yes"') == 1
    assert html.count('value="yes" required') == 1
    for sentence in CASE_CONSENTS.values():
        assert sentence in html


def test_facts_stand_with_a_case_and_those_that_differ_are_named(book: Casebook) -> None:
    for seed, facts in ((1, {"site": "arm", "age": 40}), (2, {"site": "back", "age": 41})):
        given = answer(seed, patient=Patient(sex="female", **facts))
        book.keep("", given, patient="P-1", lesion="mole", consent=True, compare=True)
    html = act_on(book, MODEL, "", {"patient": "P-1", "lesion": "mole"})
    assert "age 40 years · sex female · place arm" in html
    assert "age 41 years · sex female · place back" in html
    assert "The entries of these cases differ, so check that both show the same lesion." in html
    assert re.search(
        "The place is arm in the case “Kept on [^”]*” and back in the case “Kept", html
    )


def test_an_opinion_is_named_as_one(book: Casebook) -> None:
    html = send(book, keep(book, 1), label="Nevus", confirmed_by="clinical opinion")
    assert "a clinical opinion and no confirmed diagnosis, so no training uses it." in html
    assert "This is a clinical opinion, not a confirmed diagnosis." in html


def test_an_address_of_cases_or_of_nothing_is_opened(book: Casebook) -> None:
    first, last = keep(book, 1, compare=True), keep(book, 2, compare=True)
    html = act_on(book, MODEL, "", {"action": "open", "first": first, "last": last})
    assert f'data-place="#book={first},{last}"' in html
    assert html.count('class="sx-card sx-seen"') == 2
    for gone in ("", "ab" * 16, "<b>"):
        assert 'data-place="#book"' in act_on(book, MODEL, "", {"action": "open", "first": gone})
    assert 'data-place="#book"' in act_on(book, MODEL, "eve", {"action": "open", "first": first})


def test_the_list_has_advice_and_findings_of_each_patient(book: Casebook) -> None:
    case = keep(book, 1)
    for patient, lesion in (("P-2", "leg"), ("P-1", "back"), ("P-3", "toe")):
        book.keep("", answer(2), patient=patient, lesion=lesion, consent=True)
    html = send(book, case, label="Melanoma", confirmed_by="histopathology")
    listed = html.partition("sx-over-time")[0]
    assert re.findall("<h3><button[^>]*>([^<]*)", listed) == ["P-3", "P-1", "P-2"]
    assert 'data-find="p-1 arm melanoma (histopathology)"' in listed
    assert listed.count('<span class="sx-chip sx-soon">') == 3
    found = '<b class="sx-finding">Melanoma (histopathology)</b>'
    chip = '<span class="sx-chip sx-urgent">urgent</span>'  # of the diagnosis, until it is treated
    assert f'{found} {chip} <small class="sx-model-said">model had said: soon</small>' in listed
    assert "Melanoma is saved. It is confirmed by histopathology." in html
    assert "Nothing was changed" in send(
        book, case, version=2, label="Melanoma", confirmed_by="histopathology"
    )
    html = send(book, case, version=2, action="overwrite")
    assert "Melanoma is taken back, and no diagnosis stands with this case." in html
    assert "Melanoma (C43.9), confirmed by histopathology, was taken back, so check" in html
    form = {"label": "Melanoma", "confirmed_by": "follow-up"}
    send(book, case, version=3, **form)
    form = {"label": "Nevus", "confirmed_by": "clinical opinion", "action": "overwrite"}
    html = send(book, case, version=4, **form)
    assert "This replaces Melanoma (C43.9), confirmed by histopathology, so check" in html


def test_facts_that_contradict_earlier_photos_or_the_name_are_asked_about(book: Casebook) -> None:
    keep(book, 1)
    given = answer(2, patient=Patient(laterality="left", sex="female"))
    book.keep("", given, patient="P-1", lesion="arm", consent=True)
    form = {"patient": "p–1 ", "lesion": "Arm"}
    require_same_lesion(book, "", form, Patient(laterality="left", age=50))
    require_same_lesion(book, "", form | {"lesion": "leg"}, Patient(laterality="right"))
    with pytest.raises(AnotherLesion, match="has the side left, and this photo has right"):
        require_same_lesion(book, "", form, Patient(laterality="right"))
    require_same_lesion(book, "", form | {"same_lesion": "yes"}, Patient(laterality="right"))
    with pytest.raises(AnotherLesion, match="gives another side"):
        require_same_lesion(book, "", form | {"lesion": "left leg"}, Patient(laterality="right"))
    said = "gives another place than the one chosen for the photo"
    with pytest.raises(AnotherLesion, match=said):
        require_same_lesion(book, "", form | {"lesion": "mole right calf"}, Patient(site="back"))
    html = followup_html(answer(1), Reports(None), "", keeps=True, problem="x", differs=True)
    assert 'name="same_lesion" value="yes"' in html


@pytest.mark.parametrize(
    ("first", "last", "days", "said"),
    [
        ({"age": 30}, {"age": 20}, 548, "The age is 30 in a case of 03 May 2025 and 20 in"),
        ({"age": 30}, {"age": 31}, 548, ""),
        ({"age": 30}, {"age": 32}, 548, ""),
        ({"age": 30}, {"age": 33}, 548, "The age is 30"),
        ({"age": 30}, {"age": 30}, 365, ""),  # both just before a birthday, or after it
        ({"age": 30}, {"age": 30}, 548, "The age is 30"),
        ({"age": 30}, {"age": 31}, 0, ""),
        ({"age": 30}, {"age": 32}, 0, "The age is 30"),
        ({"age": 30}, {}, 548, ""),
        ({"sex": "female"}, {"sex": "female"}, 9, ""),
        ({"sex": "female"}, {"sex": "male"}, 9, "The sex is female in a case of 03 May 2025"),
    ],
)
def test_sex_and_age_of_one_pseudonym_fit_the_dates_of_the_photos(
    first: dict[str, Any], last: dict[str, Any], days: int, said: str
) -> None:
    may = date(2025, 5, 3)
    one = PersonSeen(Patient(**first), may)
    other = PersonSeen(Patient(**last), may + timedelta(days=days))
    found = another_person(one, other)
    if days:
        assert found == another_person(other, one)  # whichever was kept first
    assert "".join(found).startswith(said)
    assert bool(found) == bool(said)


@given(st.integers(0, 36500), st.integers(0, 9000), st.integers(0, 9000))
def test_no_person_who_grows_older_is_asked_about(born: int, first: int, later: int) -> None:
    birth = date(1890, 1, 1) + timedelta(days=born)
    days = [birth + timedelta(days=first + more) for more in (0, later)]

    def seen(day: date) -> PersonSeen:
        return PersonSeen(Patient(age=(day - birth).days * 100 // 36525), day)

    assert another_person(*map(seen, days)) == []


def test_one_pseudonym_is_one_person_at_every_lesion(book: Casebook) -> None:
    told = answer(1, patient=Patient(sex="female", age=60))
    case = book.keep("", told, patient="P-1", lesion="arm", consent=True, compare=True)
    form, today = {"patient": "p-1", "lesion": "leg"}, date.today()
    man = PersonSeen(Patient(sex="male"), today)
    require_same_person(book, "", form, PersonSeen(Patient(sex="female", age=61), today))
    require_same_person(book, "", form | {"patient": "P-2"}, man)
    require_same_person(book, "anna", form, man)
    with pytest.raises(AnotherPerson, match=r"female in a case of .* and male in a case of"):
        require_same_person(book, "", form, man)
    require_same_person(book, "", form | {"same_person": "yes"}, man)
    html = followup_html(answer(1), Reports(None), "", keeps=True, problem="x", other_person=True)
    assert 'name="same_person" value="yes" data-asks' in html
    # Facts that are added later are asked about too, and a comparison says it again.
    other = book.keep("", answer(2), patient="P-1", lesion="arm", consent=True, compare=True)
    sent = {"action": "facts", "case": other, "patient": "P-1", "lesion": "arm", "version": "1"}
    html = act_on(book, MODEL, "", sent | {"age": "20", "sex": "female"})
    assert html.count("The age is 60 in a case of ") == 1
    assert "I checked this, and it is the same person." in html
    assert book.case("", other).person.age is None
    html = act_on(book, MODEL, "", sent | {"age": "20", "same_person": "yes"})
    assert "The facts are saved." in html
    assert "Check that both cases are of the same person. The age is 60 in a case of" in html
    assert book.case("", case).person.age == 60
    with pytest.raises(AnotherPerson, match="The age is 20"):  # the latest case that speaks
        require_same_person(book, "", form, PersonSeen(Patient(age=60), today))


def test_several_lesions_in_one_case_are_asked_about(book: Casebook) -> None:
    one, two = answer(1), answer(1, 2)
    boxes = tuple(LesionBox(x1=n, y1=n, x2=n + 9, y2=n + 9, label="l", score=1) for n in (1, 50))
    photo = one.diagnosis.photos[0].model_copy(update={"boxes": boxes})
    many = one.diagnosis.model_copy(update={"photos": (photo,)})
    assert one_lesion_question(one.diagnosis) == ""
    assert one_lesion_question(two.diagnosis) == "This case has 2 photos."
    assert one_lesion_question(many) == "The detector outlined 2 lesions in photo 1."
    # Of two photos the form asks; the answer asks where it speaks for several lesions itself.
    differ = two.diagnosis.model_copy(update={"photos_differ": True})
    for diagnosis, asks in ((differ, True), (many, True), (two.diagnosis, False)):
        case = replace(one if diagnosis is many else two, diagnosis=diagnosis)
        html = result_html(case, None)
        question = f"<b>{text('js_one_lesion')}</b> {one_lesion_question(diagnosis)}"
        assert (question in html) == asks
        assert not asks or html.index(question) < html.index('class="sx-advice"')
    assert "one and the same" in followup_html(two, Reports(None), "", keeps=True)
    assert "one and the same" not in followup_html(one, Reports(None), "", keeps=True)


def test_comparisons_use_the_dates_of_the_photos_or_say_that_none_is_known(book: Casebook) -> None:
    chosen = {"patient": "P-1", "lesion": "arm"}

    def kept(seed: int, day: str) -> str:
        return book.keep("", taken_on(answer(seed), day), **chosen, consent=True, compare=True)

    later = kept(1, "2024-05-12")
    unknown = kept(2, "")
    html = act_on(book, MODEL, "", chosen)
    assert "The date of the later photo is not known, so no change over time can be stated" in html
    assert "The cases were kept on the same day." in html
    earlier = kept(3, "2024-02-12")
    html = act_on(book, MODEL, "", chosen | {"before": later, "after": earlier})
    assert "The photos were taken 90 days apart." in html
    assert html.index("<h3>12 Feb 2024 <small") < html.index("<h3>12 May 2024 <small")
    assert f"#book={earlier},{later}" in html
    html = act_on(book, MODEL, "", chosen | {"before": later, "after": later})
    assert re.search("<h3>12 May 2024 <small [^>]*>kept ", html)
    assert unknown in html


def test_a_case_says_the_limits_of_its_photos(book: Casebook) -> None:
    given = cut_as_seen(answer(1), ["edge"])
    book.keep("", given, patient="P-1", lesion="arm", consent=True)
    html = act_on(book, MODEL, "", {"patient": "P-1", "lesion": "arm"})
    assert "The lesion seems to reach the edge of the photo, so part of it is missing." in html


def test_a_case_says_whether_the_model_named_what_was_recorded(book: Casebook) -> None:
    case = keep(book, 1)
    (kept,) = book.all_cases("")
    first = kept.diagnosis.candidates[0]
    html = send(book, case, other="Merkel cell carcinoma", confirmed_by="histopathology")
    assert "and not Merkel cell carcinoma." in html
    folded = html.partition("<summary>Errors of the advice</summary>")[2].partition("</details>")[0]
    assert "How often this advice is wrong was not measured." in folded
    assert "skindx cannot rule out any disease.</p>" in html
    assert "All conditions of this answer" in html
    form = {"action": "overwrite", "label": first.key}
    html = send(book, case, version=2, **form)
    assert f"The model put {first.name} first too." in html


def test_a_note_that_may_name_the_patient_is_asked_about_before_saving(book: Casebook) -> None:
    case = keep(book, 1)
    for note, holds in (
        ("Seen again: Margaret Thompson", "a name (Margaret Thompson)"),
        ("of Mrs Thompson, born 12.03.1961", "a name (Mrs Thompson), a date of birth (12.03.1961)"),
        ("DOB: 12 March 1961.", "a date of birth (12 March 1961)."),
        ("write to m.t@example.org", "an e-mail address (m.t@example.org)"),
        ("call (030) 12345", "a telephone number or another long number"),
        ("call 555-0123", "a telephone number or another long number"),
        ("call 030 1234567", "a telephone number or another long number"),
    ):
        html = send(book, case, note=note)
        assert f"The note may hold {holds}" in html.replace(" and ", ", ")
        assert "or tick the box below the note." in html
        assert book.all_cases("")[0].note == ""
    html = send(book, case, note=note, no_person="yes")
    assert "The note is saved" in html
    (kept,) = book.all_cases("")
    assert kept.note == note
    plain = "Basal Cell Carcinoma? Dr Anna Keller saw it. Breslow Thickness 0.4 mm, Left Arm."
    html = send(book, case, version=2, note=plain)
    assert "The note is saved" in html
    assert "date of birth" not in html
    # A date that nothing calls a birth may be that of an excision: it is kept, with a warning.
    html = send(book, case, version=3, note="Excised on 12.03.2026, margins clear.")
    assert "The note is saved. The note holds a date (12.03.2026), so take it out if it is" in html
    assert book.all_cases("")[0].note == "Excised on 12.03.2026, margins clear."


def test_a_case_says_when_its_note_was_changed_and_whose_its_diagnosis_is(book: Casebook) -> None:
    case = book.keep("anna", answer(1), patient="P-1", lesion="arm", consent=True)
    form = {"action": "confirm", "case": case, "patient": "P-1", "lesion": "arm"}
    act_on(book, MODEL, "anna", form | {"version": "1", "note": "one"})
    form |= {"label": "Nevus", "note": "two", "clinician": "Dr A. Keller"}
    html = act_on(book, MODEL, "anna", form | {"version": "2"})
    assert html.count("The note was written on ") == 1
    assert re.search(r'sx-noted">The note was changed on [^<]* by anna\.</p>', html)
    assert re.search("<li>The note was changed on [^<]*Before, it was: <q>one</q></li>", html)
    assert " by Dr A. Keller" in html
    assert 'name="clinician" maxlength="80" autocomplete="off" value="Dr A. Keller"' in html
    (kept,) = book.all_cases("anna")
    assert (kept.clinician, kept.note, len(kept.notes)) == ("Dr A. Keller", "two", 2)
    html = act_on(book, MODEL, "anna", form | {"version": "3", "clinician": "B" * 81})
    assert "name of the clinician must have at most 80" in html


def test_the_history_of_a_note_keeps_its_words_and_the_text_before(book: Casebook) -> None:
    case = keep(book, 1)
    for version, note in enumerate(("Flat, 4 mm.", "", "Raised."), 1):
        html = send(book, case, version=version, note=note, note_writer="Dr B. Lang")
    listed = html.partition('class="sx-more sx-note-history"')[2].partition("</details>")[0]
    said = re.findall(r"<li>The note was (\w+) on [^<]* by Dr B\. Lang\.([^/]*)", listed)
    assert said == [
        ("written", "<"),
        ("removed", " Before, it was: <q>Flat, 4 mm.<"),
        ("written", "<"),
    ]
    assert html.count('name="note_writer"') == 1  # nobody logs in, so a name is asked for
    send(book, case, version=4, note="Seen with Mrs Jones.", no_person="yes")
    html = send(book, case, version=5, note="Seen.")
    assert "Jones" not in html  # what may tell who the patient is goes for good
    assert "Jones" not in "".join(one.before for one in book.case("", case).notes)


def test_a_note_that_is_older_than_a_basis_is_found_to_fit_by_a_tick(book: Casebook) -> None:
    case = keep(book, 1)
    form = {"label": "Nevus", "note": "Flat."}
    send(book, case, note_writer="Dr B. Lang", **form)
    form["confirmed_by"] = "follow-up"
    html = send(book, case, version=2, **form)
    assert "The note is older than the last change of the diagnosis." in html
    assert 'type="checkbox" name="note_fits" value="keep"' in html
    html = send(book, case, version=3, note_fits="keep", **form)
    assert re.search(
        'sx-noted">The note was written on [^<]* by Dr B. Lang. The note was found to still fit on '
        "[^<]* by Dr A. Keller.</p>",
        html,
    )
    assert "The note is older" not in html
    assert "Nothing was changed" in send(book, case, version=4, note_fits="keep", **form)


def test_a_diagnosis_by_histopathology_is_replaced_for_a_reason(book: Casebook) -> None:
    case = keep(book, 1)
    send(book, case, label="Melanoma", confirmed_by="histopathology")
    form = {"label": "Nevus", "confirmed_by": "follow-up", "action": "overwrite"}
    html = send(book, case, version=2, reason=" ", **form)
    assert 'name="reason" maxlength="200" autocomplete="off" required>' in html
    assert book.case("", case).confirmed == "Melanoma"
    send(book, case, version=2, reason="wrong vial", **form)
    (before,) = filing_of(book.case("", case), MODEL).earlier
    assert (before.key, before.reason) == ("Melanoma", "wrong vial")
    html = send(book, case, version=3, label="Melanoma", confirmed_by="histopathology")
    assert 'autocomplete="off" required>' not in html
    assert "if there is one to give" in html


def test_what_is_lost_in_a_conflict_is_named_and_nothing_else(book: Casebook) -> None:
    case = keep(book, 1)
    send(book, case, note="Breslow 0.4 mm")
    html = send(book, case, note="Breslow 0.4 mm", other="Squamous cell carcinoma")
    assert "Not saved: Squamous cell carcinoma</p>" in html


def test_a_correction_is_listed_with_what_it_replaced(book: Casebook) -> None:
    case = keep(book, 1)
    send(book, case, label="Melanoma", confirmed_by="histopathology")
    asked = send(book, case, version=2, label="Nevus", confirmed_by="histopathology")
    assert "Is histopathology the basis of Nevus (mole) too?" in asked
    assert book.all_cases("")[0].confirmed == "Melanoma"
    form = {"confirmed_by": "histopathology", "basis_again": "yes"}
    html = send(book, case, version=2, label="Nevus", **form)
    asked = (
        "Replace Melanoma (C43.9), confirmed by histopathology (Dr A. Keller), with Nevus (mole), "
        "histopathology (Dr A. Keller)?"
    )
    assert html.count(asked) == 1  # in the question, and not behind it again
    assert ">Keep Melanoma</button>" in html
    assert book.all_cases("")[0].confirmed == "Melanoma"
    html = send(book, case, version=2, action="overwrite", label="Nevus", **form)
    listed = html.partition('class="sx-earlier"')[2]
    assert "<li>Melanoma (C43.9), confirmed by histopathology, recorded on " in listed
    assert re.search(", replaced on [^<]*. The reason given was “second opinion”.</li>", listed)
    assert "Take back Nevus (mole) (D22.9), confirmed by" in send(book, case, version=3)
    html = send(book, case, version=3, action="overwrite")
    listed = html.partition('class="sx-earlier"')[2]
    assert listed.index("Nevus (mole) (D22.9)") < listed.index("Melanoma (C43.9)")
    assert ", taken back on " in listed


def test_a_class_takes_the_place_of_another_diagnosis_by_one_button(book: Casebook) -> None:
    case = keep(book, 1)
    send(book, case, other="Squamous cell carcinoma", note="a")
    form = {"other": "Squamous cell carcinoma", "icd10": "C44.92", "label": "Nevus", "note": "b"}
    assert "data-refused" in send(book, case, version=2, **form)
    html = send(book, case, version=2, action="replace", **form)
    assert "Nevus (mole) is saved." in html
    (kept,) = book.all_cases("")
    assert (kept.confirmed, kept.outside, kept.note) == ("Nevus", None, "b")


def test_a_withdrawal_is_told_with_its_time_and_ends_the_comparison(book: Casebook) -> None:
    first = keep(book, 1, compare=True, train=True)
    keep(book, 2, compare=True)
    sent = {"action": "agree", "case": first, "version": "1", "patient": "P-1", "lesion": "arm"}
    html = act_on(book, MODEL, "", sent | {"before": first})
    assert "The patient agreed to keep, compare and train on " in html
    assert "The patient withdrew the consent to compare and train on " in html
    assert "because the patient withdrew the consent to compare it on " in html
    assert html.count('class="sx-card sx-seen"') == 1
    asked = {"patient": "P-1", "lesion": "arm", "before": first}
    assert act_on(book, MODEL, "", asked).count('class="sx-card sx-seen"') == 1


def test_the_list_says_which_lesions_cannot_be_compared(book: Casebook) -> None:
    said = text("book_uncompared")
    first = keep(book, 1, compare=True)
    assert said not in act_on(book, MODEL, "", {})  # of one case
    keep(book, 2, compare=True)
    assert said not in act_on(book, MODEL, "", {})
    book.agree("", first, compare=False, train=False, version=1)
    listed, _, _ = act_on(book, MODEL, "", {}).partition("sx-over-time")
    assert re.search(rf"<small>2 cases, [^<]*</small><small>{said}</small>", listed)
    keep(book, 3, compare=True)
    assert said not in act_on(book, MODEL, "", {})
    book.agree("", book.all_cases("")[1].id, compare=False, train=False, version=1)
    assert said in act_on(book, MODEL, "", {})


def seen(seed: int, *features: tuple[float, float], digest: str = "d", **of: float) -> CaseAnswer:
    """Return an answer with features; `of` are the probabilities of its candidates."""
    plain = answer(seed)
    (first,) = plain.diagnosis.candidates
    listed = tuple(
        first.model_copy(update={"key": key, "probability": value})
        for key, value in (of or {"Nevus": 0.8}).items()
    )
    source = plain.diagnosis.source.model_copy(update={"digest": digest})
    told = plain.diagnosis.model_copy(update={"candidates": listed, "source": source})
    packed = tuple(np.array(one, "<f2").tobytes() for one in features)
    return replace(plain, diagnosis=told, features=packed)


def test_a_photo_that_looks_like_another_lesion_is_asked_about(book: Casebook) -> None:
    names = {"patient": "P-1", "lesion": "arm"}
    given = names | {"consent": True, "compare": True}
    form, nobody = names | {"compare": "yes"}, Patient()

    def ask(new: CaseAnswer, **more: str) -> None:
        require_same_lesion(book, "", form | more, nobody, new)

    ask(seen(1, (1, 0)))  # nothing is kept yet
    first = book.keep("", seen(1, (3, 0), Nevus=0.9), **given)
    (kept,) = book.all_cases()
    assert np.frombuffer(kept.features[0], "<f2").tolist() == [3, 0]
    assert "features" not in repr(kept)
    # Cosines of 0.65 and 0.55, around the least of 0.6.
    ask(seen(2, (0.65, math.sqrt(1 - 0.65**2))))
    far = (0.55, math.sqrt(1 - 0.55**2))
    with pytest.raises(AnotherLesion) as asked:
        ask(seen(2, far))
    assert str(asked.value).startswith("This photo looks like another lesion than that of the case")
    assert text("book_looks_changed") in str(asked.value)
    # Of several photos each has one that is like it; one without is asked about.
    ask(seen(2, (1, 0.1), (1, 0)))
    with pytest.raises(AnotherLesion):
        ask(seen(2, (1, 0), far))
    with pytest.raises(AnotherLesion):  # alike, and each answer is sure of another class
        ask(seen(2, (1, 0), Melanoma=0.9))
    ask(seen(2, (1, 0), Melanoma=0.5, Nevus=0.4))
    ask(seen(2, far), same_lesion="yes")
    ask(seen(2, far), compare="")  # nothing is compared without consent
    ask(seen(2, far, digest="another"))
    ask(seen(2))
    book.keep("", seen(2, far), **given)
    html = act_on(book, MODEL, "", names)
    assert text("book_looks") in html
    assert "".join(base64.b64encode(one).decode() for one in kept.features) not in html
    book.agree("", first, compare=False, train=False, version=1)
    ask(seen(3, far))


def test_cases_without_features_are_kept_and_compared(book: Casebook) -> None:
    for seed in (1, 2):  # as older versions kept them
        keep(book, seed, compare=True)
    form = {"patient": "P-1", "lesion": "arm", "compare": "yes"}
    require_same_lesion(book, "", form, Patient(), seen(3, (1, 0), digest=""))
    html = act_on(book, MODEL, "", form)
    assert text("book_looks") not in html
    notice = html.index(text("book_change_seen"))
    assert notice < html.index(text("book_light")) < html.index('class="sx-card sx-seen"')
    assert f"<b>{text('book_change_seen')}</b>" in html


def test_no_sealed_answer_of_the_page_holds_features() -> None:
    one = seen(1, (1, 0.5))
    sealed = base64.b64decode(Reports(None).sealed(one, datetime.now(UTC), ""))
    assert one.features[0] not in sealed


def test_the_list_names_every_diagnosis_of_a_lesion(book: Casebook) -> None:
    send(book, keep(book, 1), label="Nevus", confirmed_by="histopathology")
    html = send(book, keep(book, 2), other="Squamous cell carcinoma")
    found = "Squamous cell carcinoma (basis not stated), Nevus (mole) (histopathology)"
    assert f'<b class="sx-finding">{found}</b>' in html
    differ = "The diagnoses recorded for this lesion differ."
    listed, _, chosen = html.partition("sx-over-time")
    assert differ in listed
    assert differ in chosen
    case = book.all_cases("")[1]
    form = {"label": "Nevus", "confirmed_by": "follow-up", "basis_again": "yes"}
    assert differ not in send(book, case.id, version=2, **form)  # of one disease by two bases


def test_a_note_is_asked_about_when_its_diagnosis_is_replaced(book: Casebook) -> None:
    case = keep(book, 1)
    html = send(book, case, label="Nevus", confirmed_by="clinical opinion", note="Flat.")
    assert "Nevus (mole) is saved." in html
    assert "The note is saved." in html
    form = {"label": "Melanoma", "confirmed_by": "histopathology", "basis_again": "yes"}
    html = send(book, case, version=2, note="Flat.", **form)
    for said in ("This note was written before the change: “Flat.”", "Does this note still fit?",
                 'name="note_fits" value="keep" required', 'name="note_fits" value="remove"',
                 ">Edit the note first</button>",
                 ">Replace Nevus (mole) with Melanoma</button>"):  # fmt: skip
        assert said in html
    form["action"] = "overwrite"
    assert "Does this note still fit?" in send(book, case, version=2, note="Flat.", **form)
    html = send(book, case, version=2, note="Flat.", note_fits="remove", **form)
    assert "Melanoma is saved. It is confirmed by histopathology. The note is removed." in html
    assert book.all_cases("")[0].note == ""
    html = send(book, case, version=3, note="Excised.", **form)  # the diagnosis stays
    assert "The note is saved. Melanoma stays the diagnosis of this case." in html


def test_a_confirmed_diagnosis_names_its_clinician(book: Casebook) -> None:
    case = keep(book, 1)
    form = {"label": "Melanoma", "clinician": " "}
    asked = "Give the name of the clinician, because the report says who made the diagnosis."
    html = send(book, case, confirmed_by="histopathology", **form)
    assert asked in html
    hint = "for diagnosis and note, required with a diagnosis"
    assert f'Clinician&#39;s name <small class="sx-hint">{hint}</small>' in html
    assert book.all_cases("")[0].confirmed == ""
    assert asked in send(book, case, confirmed_by="clinical opinion", **form)
    assert asked in send(book, case, other="Merkel cell carcinoma", clinician="")
    # An old case without a name still opens, and its note is written.
    book.confirm("", case, "Melanoma", "", ("Melanoma",), version=1)
    assert "The note is saved." in send(book, case, version=2, note="Flat.", **form)
    assert book.all_cases("")[0].clinician == ""
    form = {"label": "Melanoma", "clinician": "Dr A. Keller", "action": "overwrite"}
    send(book, case, version=3, confirmed_by="histopathology", note="Flat.", **form)
    assert book.all_cases("")[0].confirmed_by == "histopathology"
    # What takes its place names somebody too, and asks for a look into the report.
    other = {"label": "Nevus", "confirmed_by": "", "reason": "second look", "basis_again": "yes"}
    other |= {"note": "Flat.", "note_fits": "keep"}
    assert asked in send(book, case, version=4, action="overwrite", clinician=" ", **other)
    html = send(book, case, version=4, action="confirm", clinician="Dr B. Lang", **other)
    assert "Check the pathology report first." in html
    assert book.all_cases("")[0].confirmed == "Melanoma"
    send(book, case, version=4, action="overwrite", clinician="Dr B. Lang", **other)
    assert (book.all_cases("")[0].confirmed, book.all_cases("")[0].clinician) == (
        "Nevus", "Dr B. Lang"
    )  # fmt: skip


def test_an_urgent_advice_stands_beside_what_nothing_confirmed(book: Casebook) -> None:
    case = keep(book, 1)
    html = send(book, case, label="Nevus", confirmed_by="clinical opinion")
    assert "model had said" not in html
    assert html.count('class="sx-chip sx-soon"') == 2
    form = {"label": "Nevus", "confirmed_by": "histopathology"}
    html = send(book, case, version=2, action="overwrite", **form)
    assert html.count("model had said: soon") == 2
    assert html.index("<b>Nevus (mole) (D22.9), confirmed by") < html.index(
        "model had said: soon</small></h3>"
    )
    for seed, urgency in ((2, "soon"), (3, "unknown")):  # later photos, each with its own advice
        later = answer(seed).diagnosis
        step = later.next_step.model_copy(update={"urgency": urgency})
        later = later.model_copy(update={"next_step": step})
        book.keep("", replace(answer(seed), diagnosis=later), patient="P-1", lesion="arm",
                  consent=True)  # fmt: skip
        listed = act_on(book, MODEL, "", {}).partition("sx-over-time")[0]
        # Nothing was done about the earlier one, so its advice stays in the list.
        assert listed.count('class="sx-chip sx-soon"') == 1
    assert "An earlier answer is marked “soon”." in listed


def options_of(html: str) -> list[str]:
    found = re.findall("<option value=[^>]*>([^<]*)", html.partition('class="sx-compare"')[2])
    return found[: len(found) // 2]


def test_the_name_of_a_case_stays_when_another_is_deleted(
    book: Casebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = iter(datetime(2026, 11, 30, 10, minute, tzinfo=UTC) for minute in range(9))
    monkeypatch.setattr(casebook, "datetime", clock := Mock(wraps=datetime))
    clock.now = lambda zone: next(kept)
    _, second, _ = (keep(book, seed, compare=True) for seed in (1, 2, 3))
    before = act_on(book, MODEL, "", {"patient": "P-1", "lesion": "arm"})
    after = act_on(
        book, MODEL, "", {"action": "delete", "case": second, "patient": "P-1", "lesion": "arm"}
    )
    names = options_of(before)[:3]
    assert all(one.startswith("Kept on ") and len(one) < 36 for one in names)
    assert [one for one in names if f"<h3>{one}" in after] == [names[0], names[2]]
    assert "Case 2" not in before


def test_who_sees_the_cases_stands_above_them_where_nobody_logs_in(book: Casebook) -> None:
    everyone = "Everyone who can open this page sees these cases."
    assert everyone in act_on(book, MODEL, "", {})
    assert everyone not in act_on(book, MODEL, "anna", {})
    assert "perator" not in act_on(book, MODEL, "", {})  # what it takes stands where it starts


def test_a_result_that_histopathology_gave_already_is_questioned(book: Casebook) -> None:
    case, asked = keep(book, 1), "so check whether another result is awaited."
    form = {"action": "record", "kind": "awaited", "day": "2026-11-03"}
    assert asked not in send(book, case, **form)
    form = {"label": "Melanoma", "confirmed_by": "histopathology"}
    assert asked in send(book, case, version=2, **form)
    known = {"action": "record", "kind": "known", "day": "2026-11-05"}
    assert asked not in send(book, case, version=3, **known)
    assert asked in send(book, case, version=4, **known | {"kind": "awaited", "day": "2026-11-06"})


def test_the_score_of_the_checklist_stands_with_the_case_as_on_the_answer(book: Casebook) -> None:
    given = dict.fromkeys([one for one in QUESTIONS if one != "large"], "no") | {"large": "yes"}
    told = answer(1, patient=Patient.model_validate(given | {"pigmented": "yes"}))
    book.keep("", told, patient="P-1", lesion="arm", consent=True)
    score = checklist_short(told.diagnosis)
    assert "The 7-point checklist scores 1" in score
    assert score in result_html(told, None)
    assert score in act_on(book, MODEL, "", {"patient": "P-1", "lesion": "arm"})


def test_what_a_withdrawn_consent_does_not_undo_is_said(book: Casebook) -> None:
    stays = "Exports already made and models already trained are not undone."
    assert stays in followup_html(answer(1), Reports(None), "", keeps=True)
    case = keep(book, 1, train=True)
    form = {"case": case, "patient": "P-1", "lesion": "arm"}
    assert stays in act_on(book, MODEL, "", form)
    form |= {"action": "agree", "version": "1"}
    html = act_on(book, MODEL, "", form)
    assert f'role="status" tabindex="-1">{text("book_agreed_saved")}' in html
    assert html.count(stays) == 2
    (kept,) = book.all_cases("")
    assert stays not in kept.consent  # what is agreed to stays as old books have it


def test_a_photo_that_is_kept_already_is_asked_about(book: Casebook) -> None:
    keep(book, 1, compare=True)
    (kept,) = book.all_cases("")
    form, person = {"patient": "P-1", "lesion": "arm"}, kept.diagnosis.patient
    with pytest.raises(KeptAlready, match=r"already kept in the case “Kept on .*”\."):
        require_same_lesion(book, "", form, person, answer(1))
    require_same_lesion(book, "", form | {"again": "yes"}, person, answer(1))
    require_same_lesion(book, "", form | {"lesion": "leg"}, person, answer(1))
    html = followup_html(answer(1), Reports(None), "", keeps=True, problem="x", already=True)
    assert 'name="again" value="yes"' in html
    keep(book, 1, compare=True)
    assert "Both cases hold the same photo." in act_on(book, MODEL, "", form)


def test_the_width_of_a_photo_is_given_where_its_scale_is_known(book: Casebook) -> None:
    given = answer(1).diagnosis
    photos = (given.photos[0].model_copy(update={"mm_per_pixel": 0.05}),)
    scaled = replace(answer(1), diagnosis=given.model_copy(update={"photos": photos}))
    book.keep("", scaled, patient="P-1", lesion="arm", consent=True, compare=True)
    keep(book, 2, compare=True)
    html = act_on(book, MODEL, "", {"patient": "P-1", "lesion": "arm"})
    assert html.count(" data-mm=") == 1
    assert ' data-mm="16.0"' in html


def test_facts_are_added_to_a_kept_case_and_its_answer_stays(book: Casebook) -> None:
    case = book.keep(
        "", answer(1, patient=Patient(age=60)), patient="P-1", lesion="arm", consent=True
    )
    before = book.case("", case).diagnosis
    sent = {"action": "facts", "case": case, "patient": "P-1", "lesion": "arm"}
    html = act_on(
        book, MODEL, "", sent | {"version": "1", "sex": "female", "site": "arm", "age": "9"}
    )
    assert "The facts are saved. The answer was given without these facts, and it is not" in html
    assert re.search("<li>These facts were added on [^<]*: sex female and ", html)
    assert "place not stated" not in html
    new, stand = (one.partition("</form>")[0] for one in html.split("sx-later-facts")[1:])
    assert "<summary>Add the side</summary>" in new
    assert "<summary>Correct the sex and place</summary>" in stand
    assert '<option value="female" selected>' in stand
    assert 'name="age"' not in new + stand  # the answer knew it
    kept = book.case("", case)
    assert (kept.person.age, kept.person.sex, kept.person.site) == (60, "female", "arm")
    assert kept.diagnosis == before
    html = act_on(book, MODEL, "", sent | {"version": "2", "site": "arm", "sex": ""})
    assert re.search("These facts were added on [^<]*: sex not given.</li>", html)
    assert [one.given for one in book.case("", case).added] == [
        {"sex": "female", "site": "arm"}, {"sex": None},
    ]  # fmt: skip
    assert "changed in another window" in act_on(
        book, MODEL, "", sent | {"version": "2", "sex": "male"}
    )


@pytest.mark.parametrize(
    ("lesion", "fits", "elsewhere", "side"),
    [
        ("mole right calf", "leg", "back", "right"),
        ("left shoulder", "arm back chest trunk", "leg face", "left"),
        ("back of left hand", "hand arm", "back", "left"),
        ("back of the knee", "leg", "back", None),
        ("lower back", "back trunk", "leg", None),
        ("sole of the right foot", "sole foot", "hand", "right"),
        ("tip of nose", "face", "arm", None),
        ("L forearm", "arm", "leg", "left"),
        ("mole near navel", "abdomen chest trunk", "hand scalp", None),
        ("P-017, lesion 2", "back leg face", "", None),
        ("mole that came back, sole lesion", "arm face", "", None),
        ("right below the left knee", "leg", "chest", "left"),
        ("between left and right breast", "chest", "foot", None),
        ("lunar pantorrilla derecha", "leg", "back", "right"),
        ("cara interna del muslo izquierdo", "leg", "face", "left"),
        ("planta del pie izq.", "sole foot", "back", "left"),
    ],
)
def test_places_and_sides_that_names_of_lesions_do_not_fit_and_give(
    lesion: str, fits: str, elsewhere: str, side: str | None
) -> None:
    assert not any(is_elsewhere(lesion, cast("Site", one)) for one in fits.split())
    assert all(is_elsewhere(lesion, cast("Site", one)) for one in elsewhere.split())
    assert not is_elsewhere(lesion, None)
    assert side_named(lesion) == side


@pytest.mark.parametrize(
    ("site", "lesions"),
    [
        ("arm", "mole on left forearm; codo derecho; mole that came back, arm"),
        ("back", "back, upper left; left shoulder blade; lunar de la espalda"),
        ("sole", "sole of the left foot; planta del pie izq."),
        ("nail", "toe nail; uña del dedo"),
        ("ear", "left ear, face"),
        ("trunk", "torso"),
        ("hand", "back of left hand; thumb"),
        ("face", "tip of nose; head, left cheek; mejilla"),
        (None, "left shoulder; behind left ear; arm and leg; dedo; P-017, lesion 2; labios"),
    ],
)
def test_a_name_of_a_lesion_gives_a_place_of_the_list(site: str | None, lesions: str) -> None:
    assert {lesion: site_named(lesion) for lesion in lesions.split("; ")} == dict.fromkeys(
        lesions.split("; "), site
    )


def test_facts_that_the_name_contradicts_are_asked_about_later_too(book: Casebook) -> None:
    names = {"patient": "P-1", "lesion": "left shoulder"}
    case = book.keep("", answer(1), **names, consent=True)
    html = act_on(book, MODEL, "", names)
    assert "<summary>Add the age, sex, place and side</summary>" in html
    assert '<option value="left" selected>' in html  # proposed, as the name says
    sent = names | {"action": "facts", "case": case, "version": "1", "site": "leg"}
    html = act_on(book, MODEL, "", sent | {"laterality": "right"})
    for said in ("another place than the one chosen for the photo (leg)", "another side than",
                 'name="same_lesion" value="yes"', 'sx-later-facts" open'):  # fmt: skip
        assert said in html
    assert book.case("", case).person.site is None
    html = act_on(book, MODEL, "", sent | {"same_lesion": "yes"})
    assert "The facts are saved." in html
    assert book.case("", case).person.site == "leg"


def test_a_confirmed_diagnosis_is_offered_to_the_other_cases_of_its_lesion(book: Casebook) -> None:
    first, last = keep(book, 1, compare=True), keep(book, 2, compare=True)
    offer = "Record the same diagnosis here"
    form = {"label": "Melanoma", "clinician": "Dr B. Lang"}
    assert offer not in send(book, first, confirmed_by="clinical opinion", **form)
    form |= {"action": "overwrite", "confirmed_by": "histopathology"}
    html = unescape(send(book, first, version=2, **form))
    assert html.count(offer) == 1
    held = re.search('data-same="({[^}]*})"', html)
    assert held
    assert json.loads(held[1]) == {
        "label": "Melanoma", "other": "", "icd10": "", "confirmed_by": "histopathology",
        "clinician": "Dr B. Lang",
    }  # fmt: skip
    assert not book.case("", last).finding.is_given  # nothing is saved by itself
    keep(book, 3)
    html = send(book, last, label="Nevus", confirmed_by="follow-up")
    assert offer not in html  # the diagnoses differ


def test_one_name_signs_the_diagnosis_and_the_note(book: Casebook) -> None:
    case = keep(book, 1)
    html = send(book, case, note="Flat.", clinician="Dr B. Lang")
    assert re.search(r"The note was written on [^<]* by Dr B\. Lang\.", html)
    assert "Nothing was changed" in send(book, case, version=2, note="Flat.")
    form = {"label": "Nevus", "note": "Flat.", "note_fits": "keep"}
    send(book, case, version=2, **form)
    # The name of the diagnosis that stands does not sign what another person writes later.
    html = send(book, case, version=3, label="Nevus", note="Raised.")
    assert re.search(r'sx-noted">The note was changed on [^<]*[0-9A-Z]\.<', html)
    assert book.case("", case).notes[-1].name == ""


def test_a_place_that_is_missing_is_named(book: Casebook) -> None:
    for seed in (1, 2):
        for lesion in ("arm", "lesion 2"):
            consents = {"consent": True, "compare": True}
            book.keep("", answer(seed), patient="P-1", lesion=lesion, **consents)
    html = act_on(book, MODEL, "", {"patient": "P-1", "lesion": "lesion 2"})
    assert len(re.findall("The case “Kept on [^”]*” states no place on the body.", html)) == 2
    html = act_on(book, MODEL, "", {"patient": "P-1", "lesion": "arm"})
    assert "states no place on the body" not in html  # its name does
    assert "Check that both cases show the same lesion." in html
    assert re.search(r'as the name of the lesion says</small></span><select name="site">', html)
    assert '<option value="arm" selected>' in html
    assert html.count("Place not stated · date of the photo not known".lower()) == 2


def test_the_list_and_the_lesion_are_about_the_latest_photo(book: Casebook) -> None:
    """Its badge was that of the case kept last, beside the photo taken last."""
    for seed, day, urgency in ((1, "2024-05-12", "urgent"), (2, "2024-02-12", "routine")):
        given = taken_on(answer(seed), day)
        step = given.diagnosis.next_step.model_copy(update={"urgency": urgency})
        given = replace(given, diagnosis=given.diagnosis.model_copy(update={"next_step": step}))
        book.keep("", given, patient="P-1", lesion="arm", consent=True, compare=True)
    html = act_on(book, MODEL, "", {"patient": "P-1", "lesion": "arm"})
    listed, _, chosen = html.partition("sx-over-time")
    assert '<span class="sx-chip sx-urgent">' in listed
    assert "2 cases, last photo of 12 May 2024" in listed
    last = chosen.rpartition("<h3>12 May 2024 <small")[2]
    assert last.index('class="sx-chip sx-urgent"') < last.index("</h3>")


def test_a_diagnosis_of_a_case_that_is_not_shown_is_named(book: Casebook) -> None:
    _, middle, _ = (keep(book, seed, compare=True) for seed in (1, 2, 3))
    chosen = {"patient": "P-1", "lesion": "arm"}
    said = "” has the diagnosis Melanoma (C43.9), confirmed by histopathology."
    html = send(book, middle, label="Melanoma", confirmed_by="histopathology")
    assert said in html
    assert said in act_on(book, MODEL, "", chosen)
    beside = act_on(book, MODEL, "", chosen | {"before": middle})
    assert beside.count(said) == 1  # in the comparison
    assert said not in " ".join(re.findall(r'sx-scan-notice" role="note">([^<]*)', beside))


def test_dates_have_one_form_in_the_book(book: Casebook) -> None:
    case = book.keep("", taken_on(answer(1), "2024-05-12"), patient="P-1", lesion="arm",
                     consent=True)  # fmt: skip
    html = send(book, case, label="Nevus", note="a note")
    months = "January|February|March|April|June|July|August|September|October|November|December"
    assert not re.search(rf"\b({months})\b", html)
    assert re.search(r"recorded on \d\d \w{3} \d{4}, \d\d:\d\d \w+ by", html)


def test_a_disease_of_a_wider_class_says_why_it_has_another_code(book: Casebook) -> None:
    wide = load_taxonomy("ham10000")
    case = keep(book, 1)
    sent = {"case": case, "patient": "P-1", "lesion": "arm", "action": "confirm"}
    sent["clinician"] = "Dr A. Keller"
    within = "Bowen's disease in the class Actinic keratosis or Bowen's disease, whose nearest code"
    form = sent | {"version": "1", "other": "Bowen's disease", "icd10": "D04.9"}
    html = unescape(act_on(book, wide, "", form))
    assert "Bowen's disease (D04.9) is saved." in html
    assert f"The model has {within} is L57.0." in html
    form = sent | {"version": "2", "other": "Bowen's disease", "action": "overwrite"}
    html = unescape(act_on(book, wide, "", form))
    assert "Actinic keratosis or Bowen's disease is saved." in html
    assert "in the class Actinic keratosis or Bowen's disease, whose nearest code is L57.0." in html


def test_what_was_done_is_recorded_in_a_form_of_its_own(book: Casebook) -> None:
    case = keep(book, 1)
    form = {"action": "record", "kind": "referred", "day": "2026-11-03"}
    html = send(book, case, detail="Anna Keller", **form)
    assert "The details may hold a name (Anna Keller). Take out what tells who" in html
    assert '<form data-written="record" data-refused>' in html
    assert 'data-written="confirm" data-refused' not in html
    html = send(book, case, detail="Anna Keller", no_person="yes", who="Dr B. Vogt", **form)
    entry = "The patient was referred on 03 Nov 2026 (“Anna Keller”)."
    assert f"The entry is recorded. {entry}" in html
    assert re.search(rf"<b>{re.escape(entry)}</b> Recorded on [^<]* by Dr B. Vogt.", html)
    assert "Without action" not in html
    html = send(book, case, detail="Dr Vogt", **form)  # of the older version
    assert "was changed in another window" in html
    assert "Not saved: Dr Vogt" in html
    strike = {"action": "strike", "why": "wrong patient", "who": "Dr B. Vogt"}
    html = send(book, case, version=2, place="one", **strike)
    assert "struck out already" in html
    for lacks, said in (("why", "Write why the entry"), ("who", "Write your name, because")):
        assert said in send(book, case, version=2, place="0", **(strike | {lacks: " "}))
    named = send(book, case, version=2, place="0", **(strike | {"why": "of Anna Keller"}))
    assert "The details may hold a name (Anna Keller)." in named
    html = send(book, case, version=2, place="0", **strike)
    trace = r"Struck out on [^<]* by Dr B. Vogt\. The reason given was “wrong patient”\.</li>"
    assert re.search(rf"<s>{re.escape(entry)}[^<]*</s> {trace}", html)
    assert "Without action: 1" in html
    assert 'class="sx-open">No entry stands.</small>' in html
    html = send(book, case, version=3, action="delete")
    assert "Deletions (1)" in html
    assert "A case with 1 photo, kept on " in html
    assert "deleted it" not in html  # nobody logs in


def test_in_spanish_every_entry_is_a_sentence(book: Casebook) -> None:
    case = keep(book, 1)
    with speaking("es"):
        for version, kind in enumerate(ActionKind, 1):
            form = {"action": "record", "kind": kind, "day": "2026-11-03", "detail": "el centro"}
            html = send(book, case, version=version, **form)
        assert html.count("Registrado el") == len(ActionKind)
        assert "Se derivó al paciente el 3 de nov de 2026 («el centro»)." in html
        assert "Resultado pendiente" not in html.partition("sx-over-time")[0]
