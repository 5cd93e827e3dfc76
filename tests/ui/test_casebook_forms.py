"""What the case book's forms record, without a browser."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from kept_cases import answer

from skindx.casebook.casebook import Casebook
from skindx.casebook.kept_case import CASE_CONSENTS, one_lesion_question
from skindx.diagnosis.case import Patient
from skindx.diagnosis.record import LesionBox
from skindx.taxonomy import load_taxonomy
from skindx.ui.http.answer_forms import Reports
from skindx.ui.page.answer_html import followup_html
from skindx.ui.page.casebook_page import act_on, names_apart
from skindx.ui.uploads import taken_on

MODEL = load_taxonomy("isic9")


@pytest.fixture
def book(tmp_path: Path) -> Casebook:
    return Casebook.open(tmp_path / "cases.db")


def keep(book: Casebook, seed: int, **agreed: bool) -> str:
    return book.keep("", answer(seed), patient="P-1", lesion="arm", consent=True, **agreed)


def send(book: Casebook, case: str, version: int = 1, **form: str) -> str:
    sent = {"action": "confirm", "case": case, "version": str(version)}
    return act_on(book, MODEL, "", sent | {"patient": "P-1", "lesion": "arm"} | form)


def test_another_diagnosis_is_recorded_with_its_code(book: Casebook) -> None:
    case = keep(book, 1)
    form = {"note": "seen in May", "confirmed_by": "histopathology"}
    html = send(book, case, other="Merkelzellkarzinom", **form)
    assert '<option value="histopathology" selected>histopathology</option>' in html
    assert "Merkelzellkarzinom (C4A.9) and the note are saved. It is no class" in html
    assert 'value="C4A.9"' in html
    assert '<option value="Merkel cell carcinoma">C4A.9</option>' in html
    html = send(book, case, version=2, other="Melanom")
    assert "Melanoma, a class of this model, and the note are saved" in html
    assert book.all_cases("")[0].confirmed == "Melanoma"
    html = send(book, case, version=3, label="Nevus", other="Merkel cell carcinoma", note="mine")
    assert "not both" in html
    assert "Not saved: mine" in html
    assert "no ICD-10 code" in send(book, case, version=3, icd10="44")


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
    assert "Kept without consent to compare, so shown alone" in html
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
        "02 Jan 2026, 12:30:05",
        "02 Jan 2026, 12:30:12",
        "02 Jan 2026, 12:31",
    ]
    alike = [replace(case, taken=noon) for case in kept[:2]]
    assert list(names_apart(alike).values()) == [
        "02 Jan 2026, 12:30:05 (1)",
        "02 Jan 2026, 12:30:05 (2)",
    ]
    html = act_on(book, MODEL, "", {"patient": "P-1", "lesion": "arm"})
    for kind in ('<article [^>]*aria-label="([^"]*)', '<button [^>]*aria-label="(Photo [^"]*)'):
        labels = re.findall(kind, html)
        assert len(set(labels)) == len(labels) >= 2
    options = re.findall("<option value=[^>]*>([^<]*)", html.partition('class="sx-compare"')[2])
    assert len(set(options[:3])) == 3


def test_consents_are_changed_in_the_book(book: Casebook) -> None:
    case = keep(book, 1)
    sent = {"action": "agree", "case": case, "version": "1", "train": "yes"}
    html = act_on(book, MODEL, "", sent | {"patient": "P-1", "lesion": "arm"})
    assert "What the patient agrees to is saved." in html
    assert 'name="train" value="yes" checked' in html
    assert book.all_cases("")[0].purposes == {"keep", "train"}


def test_the_form_asks_for_three_consents_of_which_one_is_required() -> None:
    html = followup_html(answer(1), Reports(None), "", keeps=True)
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
    assert "the place is arm in the earlier and back in the later one." in html


def test_an_opinion_is_named_as_one(book: Casebook) -> None:
    html = send(book, keep(book, 1), label="Nevus", confirmed_by="clinical opinion")
    assert "It is no confirmed diagnosis, and no training uses it." in html
    assert "This is a clinical opinion, not a confirmed diagnosis." in html


def test_an_address_of_cases_or_of_nothing_is_opened(book: Casebook) -> None:
    first, last = keep(book, 1, compare=True), keep(book, 2, compare=True)
    html = act_on(book, MODEL, "", {"action": "open", "first": first, "last": last})
    assert f'data-place="#book={first},{last}"' in html
    assert html.count('class="sx-card sx-seen"') == 2
    for gone in ("", "ab" * 16, "<b>"):
        assert 'data-place="#book"' in act_on(book, MODEL, "", {"action": "open", "first": gone})
    assert 'data-place="#book"' in act_on(book, MODEL, "eve", {"action": "open", "first": first})


def test_several_lesions_in_one_case_are_asked_about(book: Casebook) -> None:
    one, two = answer(1), answer(1, 2)
    boxes = tuple(LesionBox(x1=n, y1=n, x2=n + 9, y2=n + 9, label="l", score=1) for n in (1, 50))
    photo = one.diagnosis.photos[0].model_copy(update={"boxes": boxes})
    many = one.diagnosis.model_copy(update={"photos": (photo,)})
    assert one_lesion_question(one.diagnosis) == ""
    assert one_lesion_question(two.diagnosis) == "This case has 2 photos."
    assert one_lesion_question(many) == "The detector outlined 2 lesions in photo 1."


def test_comparisons_use_the_dates_of_the_photos_or_say_that_none_is_known(book: Casebook) -> None:
    chosen = {"patient": "P-1", "lesion": "arm"}

    def kept(seed: int, day: str) -> str:
        return book.keep("", taken_on(answer(seed), day), **chosen, consent=True, compare=True)

    later = kept(1, "2024-05-12")
    unknown = kept(2, "")
    html = act_on(book, MODEL, "", chosen)
    assert "It is not known when the photos of one were taken" in html
    assert "The cases were kept on the same day." in html
    earlier = kept(3, "2024-02-12")
    html = act_on(book, MODEL, "", chosen | {"before": later, "after": earlier})
    assert "The photos were taken 90 days apart." in html
    assert html.index("Photos taken on 12 Feb 2024") < html.index("Photos taken on 12 May 2024")
    assert f"#book={earlier},{later}" in html
    html = act_on(book, MODEL, "", chosen | {"before": later, "after": later})
    assert "Photos taken on 12 May 2024" in html
    assert unknown in html
