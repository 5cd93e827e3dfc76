"""What was done about a case stays, a mistake with its trace; a deletion leaves one line."""

import json
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kept_cases import answer
from sqlalchemy import select, update

from skindx.casebook import casebook_database
from skindx.casebook.casebook import Casebook
from skindx.casebook.deletions import Deletion, DeletionRow
from skindx.casebook.findings import ConfirmedFinding, EarlierFinding, Outside
from skindx.casebook.kept_case import LesionHistory, Told
from skindx.casebook.key_file import Binding, KeyFile
from skindx.casebook.lesion_state import LesionState, lesion_state
from skindx.casebook.sealed_rows import CaseRow
from skindx.clinic.fhir_observations import _next_step
from skindx.core.errors import UserError
from skindx.core.seven_points import QUESTIONS
from skindx.diagnosis.answer_texts import tier_name
from skindx.diagnosis.case import Patient
from skindx.diagnosis.case_actions import (
    ActionKind,
    CaseAction,
    action_of,
    awaited_since,
    is_acted_on,
)
from skindx.diagnosis.checklist_advice import urgency_given, with_checklist
from skindx.diagnosis.record import CaseAnswer, NextStep
from skindx.taxonomy import Urgency, advice_for, load_taxonomy
from skindx.texts.catalogue import speaking, text
from skindx.ui.page.casebook_words import changes, deletion_words, finding_words

MODEL = load_taxonomy("isic9")
KEYS = ("Nevus", "Melanoma")
NOW = datetime(2026, 11, 3, 12, tzinfo=UTC)


@pytest.fixture
def book(tmp_path: Path) -> Casebook:
    return Casebook.open(tmp_path / "cases.db")


def keep(book: Casebook, owner: str = "anna") -> str:
    return book.keep(owner, answer(1, 2), patient="P-1", lesion="arm", consent=True)


def done(kind: str, day: int, **given: object) -> CaseAction:
    return CaseAction(ActionKind(kind), date(2026, 11, day), NOW, **given)  # type: ignore[arg-type]


def test_an_entry_stays_and_a_mistake_is_struck_out_with_a_trace(book: Casebook) -> None:
    case = keep(book)
    sent = action_of("referred", "2026-11-03", "Dr Vogt's  clinic", "Dr A. Keller", "anna")
    book.record_action("anna", case, sent, version=1)
    with pytest.raises(UserError, match="changed in another window"):
        book.record_action("anna", case, sent, version=1)
    book.record_action("anna", case, action_of("biopsied", "2026-11-01"), version=2)
    book.strike_action("anna", case, 0, version=3, why="a mistake")
    with pytest.raises(UserError, match="struck out already"):
        book.strike_action("anna", case, 0, version=4, why="a mistake")
    for nowhere in (-1, 2):
        with pytest.raises(UserError, match="struck out already"):
            book.strike_action("anna", case, nowhere, version=4, why="a mistake")
    first, second = Casebook.open(book.keys.path.with_suffix("")).case("anna", case).actions
    assert first.words == "The patient was referred on 03 Nov 2026 (“Dr Vogt's clinic”)."
    assert first.recorded.endswith(" by Dr A. Keller (login anna).")
    assert (first.struck_by, first.ended.startswith("Struck out on ")) == ("anna", True)
    assert (second.struck, second.clinician, second.ended) == (None, "", "")
    (lesion,) = book.lesions("anna")
    assert [one.kind for one in lesion.told[0][1].actions] == ["biopsied"]
    database = book.keys.path.with_suffix("").read_bytes()
    assert b"Vogt" not in database
    assert b"biopsied" not in database


@pytest.mark.parametrize(
    ("kind", "day", "detail", "said"),
    [
        ("cured", "2026-11-03", "", "Choose what was done."),
        ("", "2026-11-03", "", "Choose what was done."),
        ("excised", "3 Nov", "", "Give the date"),
        ("excised", "", "", "Give the date"),
        ("excised", "9999-12-31", "", "is in the future"),
        ("referred", "2026-11-03", " ", "to whom the patient was referred"),
        ("closed", "2026-11-03", "", "why the case is closed"),
        ("known", "2026-11-03", "x" * 81, "at most 80 characters"),
        ("known", "2026-11-03", "a\u200bb", "all of them visible"),
    ],
)
def test_what_no_entry_can_be_is_refused_in_one_sentence(
    kind: str, day: str, detail: str, said: str
) -> None:
    with pytest.raises(UserError, match=said):
        action_of(kind, day, detail)


def test_tomorrow_is_a_day_where_the_server_is_behind() -> None:
    tomorrow = datetime.now(UTC).astimezone().date() + timedelta(days=1)
    assert action_of("excised", tomorrow.isoformat()).day == tomorrow


def test_a_result_is_awaited_until_one_is_known_and_absence_is_no_action() -> None:
    awaited, known = done("awaited", 3), done("known", 5)
    assert awaited_since([]) is None
    assert awaited_since([done("closed", 9, detail="x"), awaited]) == date(2026, 11, 3)
    assert awaited_since([known, awaited]) is None  # the days count, not when they were written
    assert awaited_since([awaited, known, done("awaited", 7)]) == date(2026, 11, 7)
    assert awaited_since([awaited, done("known", 5, struck=NOW)]) == date(2026, 11, 3)
    assert not is_acted_on([])
    assert not is_acted_on([done("absent", 3)])
    assert not is_acted_on([done("referred", 1, detail="x"), done("absent", 3)])
    assert is_acted_on([done("absent", 3), done("examined", 4)])
    assert not is_acted_on([done("examined", 4, struck=NOW)])
    assert not is_acted_on([done("examined", 4)], examined=False)
    assert is_acted_on([done("examined", 4), done("biopsied", 4)], examined=False)
    # A biopsy and an excision await their result, until histopathology is recorded.
    for kind in ("biopsied", "excised"):
        assert awaited_since([done(kind, 3)]) == date(2026, 11, 3)
        assert awaited_since([done(kind, 3), done("known", 5)]) is None
        assert awaited_since([done(kind, 3)], date(2026, 11, 3)) is None
        assert awaited_since([done(kind, 3)], date(2026, 11, 2)) == date(2026, 11, 3)
    assert awaited_since([awaited], date(2026, 11, 9)) == date(2026, 11, 3)


def lesion(*cases: tuple[int, Told]) -> LesionHistory:
    kept = tuple((NOW.replace(day=day), told) for day, told in cases)
    return LesionHistory("P-1", "arm", len(cases), kept[-1][0], told=kept)


def test_what_must_not_wait_and_has_no_entry_is_without_action() -> None:
    def state(*cases: tuple[int, Told]) -> tuple[str, bool, bool]:
        told = lesion_state(lesion(*cases), MODEL)
        return told.words, told.without_action, told.awaited

    def urgent(*actions: CaseAction) -> Told:
        return Told("urgent", actions=actions)

    none = "No action recorded yet."
    assert state((3, Told("urgent"))) == (none, True, False)
    assert state((3, Told("soon"))) == (none, True, False)
    assert state((3, Told("routine"))) == ("", False, False)
    referred, examined = done("referred", 3, detail="Dr Vogt"), done("examined", 3)
    assert state((3, urgent(referred))) == (referred.words, False, False)
    assert state((3, urgent(examined))) == (examined.words, True, False)  # nothing came of it
    absent = done("absent", 4)
    assert state((3, urgent(referred, absent))) == (absent.words, True, False)
    # An entry answers for the photos before it, and for no later one.
    later = f"{referred.words} No action is recorded since the case of 09 Nov 2026."
    assert state((3, urgent(referred)), (9, Told("soon"))) == (
        later,
        True,
        False,
    )
    earlier = "An earlier answer is marked “urgent”."
    assert state((3, Told("urgent")), (9, Told("unknown"))) == (f"{earlier} {none}", True, False)
    both = lesion_state(lesion((3, Told("urgent")), (9, Told("soon"))), MODEL)
    assert (both.words, both.earlier) == (f"{earlier} {none}", "urgent")
    assert lesion_state(lesion((3, Told("soon")), (9, Told("urgent"))), MODEL).earlier is None
    excised = done("excised", 9)
    assert not state((3, Told("urgent")), (9, Told("soon", actions=(excised,))))[1]
    waits = "Result awaited since 09 Nov 2026."
    awaited = done("awaited", 9)
    assert state((9, urgent(awaited))) == (waits, False, True)
    assert state((9, Told("urgent")), (3, Told("soon", actions=(awaited,)))) == (waits, False, True)


def test_a_confirmed_diagnosis_takes_the_place_of_the_advice_where_it_is_known() -> None:
    def waits(told: Told) -> bool:
        return lesion_state(lesion((3, told)), MODEL).without_action

    nevus = ConfirmedFinding("Nevus", confirmed_by="histopathology")
    melanoma = ConfirmedFinding("Melanoma", confirmed_by="histopathology")
    opinion = ConfirmedFinding("Nevus", confirmed_by="clinical opinion")
    assert not waits(Told("urgent", nevus))
    assert waits(Told("urgent", opinion))
    assert waits(Told("routine", melanoma))
    assert waits(Told("routine", opinion, lapsed=EarlierFinding(melanoma, NOW, "")))
    assert waits(Told("urgent", opinion, lapsed=EarlierFinding(nevus, NOW, "")))
    merkel = Outside("Merkel cell carcinoma", "C4A.9")
    assert waits(Told("routine", ConfirmedFinding(outside=merkel, confirmed_by="follow-up")))
    unknown = ConfirmedFinding(outside=Outside("something rare"), confirmed_by="follow-up")
    assert waits(Told("soon", unknown))
    assert not waits(Told("routine", unknown))


def test_the_list_names_the_last_confirmed_diagnosis_behind_what_replaced_it(
    book: Casebook,
) -> None:
    case = keep(book)
    told = lambda: finding_words(book.lesions("anna")[0], MODEL)  # noqa: E731
    book.confirm("anna", case, "Melanoma", "", KEYS, version=1, confirmed_by="histopathology")
    assert told() == "Melanoma (histopathology)"
    book.confirm("anna", case, "Nevus", "", KEYS, version=2, confirmed_by="clinical opinion")
    replaced = book.case("anna", case).earlier[0].replaced.astimezone()
    day = f"{replaced:%d %b %Y}"
    last = f"Melanoma (histopathology, replaced on {day})"
    assert told() == f"Nevus (mole) (clinical opinion), {last}"
    book.confirm("anna", case, "Nevus", "", KEYS, version=3)
    assert told() == f"Nevus (mole) (basis not stated), {last}"
    book.confirm("anna", case, "", "", KEYS, version=4)
    assert told() == last  # Nevus had replaced it, and was taken back itself
    book.confirm("anna", case, "Nevus", "", KEYS, version=5, confirmed_by="expert consensus")
    assert told() == "Nevus (mole) (expert consensus)"
    book.confirm("anna", case, "", "", KEYS, version=6)
    assert told() == f"Nevus (mole) (expert consensus, taken back on {day})"


def test_a_diagnosis_that_must_not_wait_asks_for_a_treatment_or_a_referral() -> None:
    found = NOW.replace(day=5)

    def state(told: Told, *actions: CaseAction) -> tuple[str, bool]:
        state = lesion_state(lesion((3, replace(told, actions=actions))), MODEL)
        return state.ended, state.without_action

    def melanoma(how: str) -> Told:
        return Told("urgent", ConfirmedFinding("Melanoma", confirmed_by=how, found=found))

    open_ = ("No treatment or referral is recorded since the diagnosis.", True)
    histology, opinion = melanoma("histopathology"), melanoma("clinical opinion")
    assert state(histology) == open_
    for kind in ("examined", "biopsied", "awaited", "known"):
        assert state(histology, done(kind, 6)) == open_
    for kind in ("referred", "closed"):
        assert state(histology, done(kind, 4, detail="x")) == open_  # before the diagnosis
        assert state(histology, done(kind, 5, detail="x")) == ("", False)
    assert state(histology, done("excised", 3)) == ("", False)
    assert state(histology, done("excised", 3), done("absent", 8))[1]
    assert state(opinion, done("examined", 6)) == open_
    for kind in ("biopsied", "awaited"):
        assert state(opinion, done(kind, 6)) == ("", False)
    # One that may wait ends what the answer advised, and the list says so.
    nevus = ConfirmedFinding("Nevus", confirmed_by="histopathology", found=found)
    closed = "It is closed by the confirmed diagnosis."
    assert state(Told("urgent", nevus)) == (closed, False)
    assert state(Told("soon", nevus), done("absent", 4)) == (closed, False)
    assert state(Told("urgent", nevus), done("excised", 4)) == ("", False)
    assert state(Told("routine", nevus)) == ("", False)
    lapsed = replace(opinion, lapsed=EarlierFinding(histology.finding, NOW, ""))
    assert state(lapsed, done("biopsied", 6)) == open_


@pytest.mark.parametrize("oldest", [True, False])
def test_a_card_of_an_older_version_lacks_them_and_the_record_tells(
    book: Casebook, *, oldest: bool
) -> None:
    patient = Patient(changed="yes")
    case = book.keep("anna", advised("routine", patient), patient="P-1", lesion="arm", consent=True)
    book.confirm("anna", case, "Melanoma", "", KEYS, version=1, confirmed_by="histopathology")
    book.confirm("anna", case, "Nevus", "", KEYS, version=2)
    book.record_action("anna", case, action_of("excised", "2026-11-03"), version=3)
    now = book.lesions("anna")
    keys = book.keys.read()
    with book.session("written") as session:
        row = session.scalars(select(CaseRow)).one()
        binding = Binding(keys.book, case, row.owner, row.version)
        held = json.loads(binding.unseal(keys.cases[case], row.card, "card"))
        held["told"][0] = "soon"  # the model's part alone
        del held["had_entries"]
        for later in ("lapsed", "was_replaced", "actions") if oldest else ():
            del held[later]
        card = binding.seal(keys.cases[case], json.dumps(held).encode(), "card")
        session.execute(update(CaseRow).values(card=card))
    assert book.lesions("anna") == now
    assert now[0].told[0][1].was_replaced
    assert now[0].urgency == "met"


ORDER = ("routine", "beyond", "unknown", "soon", "met", "urgent")
STEPS: dict[str, Urgency] = {
    **{"routine": "routine", "soon": "soon", "soon_cancer": "soon", "urgent": "urgent"},
    **{"unknown": "unknown", "without_time": "unknown", "soon_without_time": "soon"},
}
"""Key of an advice -> the urgency of the model alone."""


def advised(key: str, patient: Patient, language: str = "en") -> CaseAnswer:
    """Return an answer as it is given: what was answered to questions is in its advice."""
    with speaking(language):
        step = NextStep(urgency=STEPS[key], advice=advice_for(key), because="It may grow.")
        step = with_checklist(step, patient)
    own = answer(1, patient=patient)
    changed = {"next_step": step, "language": language}
    return replace(own, diagnosis=own.diagnosis.model_copy(update=changed))


@settings(deadline=None, max_examples=25, suppress_health_check=list(HealthCheck))
@given(
    key=st.sampled_from(list(STEPS)),
    answers=st.dictionaries(st.sampled_from(QUESTIONS), st.sampled_from(["yes", "no"])),
    language=st.sampled_from(["en", "es"]),
)
def test_a_kept_case_never_shows_a_lesser_urgency_than_its_answer_did(
    book: Casebook, key: str, answers: dict[str, str], language: str
) -> None:
    told = advised(key, Patient.model_validate(answers), language)
    case = book.keep("anna", told, patient="P-1", lesion="arm", consent=True)
    (one,) = book.lesions("anna")
    kept = book.case("anna", case)
    shown = text(f"tier_{one.urgency}")
    assert shown == tier_name(told.diagnosis)
    assert text("book_advice_same", tier=shown.lower()) == changes(kept, kept)
    presses = "within days" in told.diagnosis.next_step.parts[0] or STEPS[key] == "soon"
    presses = presses or "próximos días" in told.diagnosis.next_step.parts[0]
    state = lesion_state(one, MODEL)
    assert state.without_action == presses
    assert state.unexamined == (not presses and STEPS[key] == "unknown")
    assert (state.words == "No action recorded yet.") == (presses or state.unexamined)
    given = urgency_given(told.diagnosis)
    assert ORDER.index(given) >= ORDER.index(str(one.urgency))
    assert _next_step(told.diagnosis)["valueCodeableConcept"]["coding"][0]["code"] == given
    book.delete("anna", case)


def test_an_answer_that_asks_for_an_examination_is_counted_until_one_is_recorded() -> None:
    def state(*cases: tuple[int, Told]) -> tuple[str, bool, bool]:
        told = lesion_state(lesion(*cases), MODEL)
        return told.words, told.unexamined, told.without_action

    none = ("No action recorded yet.", True, False)
    assert state((3, Told("unknown"))) == none
    assert state((3, Told("beyond"))) == none
    examined = done("examined", 4)
    assert state((3, Told("unknown", actions=(examined,)))) == (examined.words, False, False)
    opinion = ConfirmedFinding("Nevus", confirmed_by="clinical opinion")
    seen = "The recorded diagnosis counts as an examination."
    assert state((3, Told("unknown", opinion))) == (seen, False, False)
    suspects = ConfirmedFinding("Melanoma", confirmed_by="clinical opinion")
    assert state((3, Told("unknown", suspects)))[2]  # an opinion that must not wait does not
    assert state((3, Told("unknown")), (9, Told("urgent"))) == (none[0], False, True)
    absent = done("absent", 4)
    assert state((3, Told("unknown", actions=(absent,)))) == (absent.words, True, False)


def test_a_diagnosis_counts_for_the_cases_of_its_lesion_that_were_kept_before_it() -> None:
    def found(key: str, day: int, how: str = "histopathology") -> Told:
        finding = ConfirmedFinding(key, confirmed_by=how, found=NOW.replace(day=day))
        return Told("soon", finding)

    def state(*cases: tuple[int, Told]) -> LesionState:
        return lesion_state(lesion(*cases), MODEL)

    urgent, unseen = Told("urgent"), Told("unknown")
    for first, last in (
        ((3, found("Nevus", 10)), (9, urgent)),
        ((3, urgent), (9, found("Nevus", 10))),
    ):
        both = state(first, last)
        assert (both.without_action, both.unexamined) == (False, False)
    assert state((3, found("Nevus", 10)), (9, urgent)).is_past
    later = state((3, found("Nevus", 4)), (9, urgent))  # it says nothing of a later photo
    assert (later.without_action, later.is_past) == (True, False)
    assert not state((3, found("Nevus", 10, "clinical opinion")), (9, unseen)).unexamined
    assert state((3, found("Nevus", 10, "clinical opinion")), (9, urgent)).without_action
    # What histopathology found counts more than an opinion, also one of the case itself.
    suspects = found("Melanoma", 8, "clinical opinion")
    assert state((3, found("Nevus", 8)), (9, suspects)).without_action
    assert not state((3, found("Nevus", 10)), (9, suspects)).without_action
    melanoma = state((3, found("Melanoma", 10)), (9, unseen))
    assert (melanoma.without_action, melanoma.diagnosed) == (True, "urgent")
    open_ = state((3, replace(found("Nevus", 4), urgency="unknown")), (9, unseen))
    assert (open_.unexamined, open_.ended) == (True, "")


def test_where_every_entry_is_struck_out_none_stands(book: Casebook) -> None:
    case = keep(book)
    assert lesion_state(book.lesions("anna")[0], MODEL).words == "No action recorded yet."
    book.record_action("anna", case, action_of("examined", "2026-11-03"), version=1)
    book.strike_action("anna", case, 0, version=2, why="a mistake")
    assert lesion_state(book.lesions("anna")[0], MODEL).words == "No entry stands."


def test_a_deletion_says_when_who_and_what_and_nothing_of_the_person(book: Casebook) -> None:
    first, second, other = keep(book), keep(book), keep(book, "ben")
    kept = datetime.now(UTC).astimezone().date()
    book.delete("anna", first)
    book.delete(None, second)
    book.delete("ben", other)
    one, two = book.deletions("anna")
    assert one == Deletion("case", one.when, "anna", False, 2, kept)
    assert two == Deletion("case", two.when, "", True, 2, kept)
    assert deletion_words(one).startswith("A case with 2 photos, kept on ")
    assert deletion_words(one).endswith(" The login anna deleted it.")
    assert deletion_words(two).endswith(" The operator of this page deleted it.")
    assert [told.by for told in book.deletions("ben")] == ["ben"]
    assert book.deletions("") == []
    said = "".join(map(deletion_words, (one, two)))
    assert "P-1" not in said
    assert "arm" not in said


def test_a_deletion_is_traced_once_the_key_is_gone(
    book: Casebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = keep(book)

    def fail(_: KeyFile, __: str) -> None:
        raise UserError("the key file cannot be written.")

    with monkeypatch.context() as failing:
        failing.setattr(KeyFile, "destroy", fail)
        with pytest.raises(UserError, match="key file"):
            book.delete("anna", case)
    assert book.deletions("anna") == []  # the case is still there
    assert book.case("anna", case).id == case

    # The process ends before the rows go: the next opening finishes it.
    class Killed(BaseException):
        pass

    def end(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as killing:
        killing.setattr(casebook_database.log, "warning", end)
        destroy = KeyFile.destroy

        def then_end(keys: KeyFile, one: str) -> None:
            destroy(keys, one)
            raise Killed

        killing.setattr(KeyFile, "destroy", then_end)
        with pytest.raises(Killed):
            book.delete("anna", case)
    again = Casebook.open(book.keys.path.with_suffix(""))
    assert [one.by for one in again.deletions("anna")] == ["anna"]
    assert again.lesions("anna") == []


def test_a_copied_or_changed_trace_does_not_open(book: Casebook) -> None:
    book.delete("anna", keep(book))
    book.delete("ben", keep(book, "ben"))
    with book.session("written") as session:
        mine = session.scalars(select(DeletionRow)).first()
        assert mine is not None
        session.execute(update(DeletionRow).values(owner=mine.owner))
    with pytest.raises(UserError, match="damaged"):
        book.deletions("anna")
